"""Where records are kept. `port.py` is the contract; each package beside it is one store."""
