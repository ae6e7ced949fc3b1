"""How fast Outlast is, beside a yardstick measured in the same run: `python -m benchmarks --store sqlite --quick`.

Each scenario is one file that measures and says whether its bar is met; `report.py` prints and keeps the figures.
"""
