"""Values and failures to bytes and back: typed JSON.

`values` stores and reads what code takes and returns, `arguments` does so for a call, `failures` for what code raised;
`annotations` finds out what type a function declares, `shapes` walks over values to tell a person where in one the
trouble is.

Pickle is off unless `App(allow_pickle=True)`: `pickled.py` says at what price.
"""
