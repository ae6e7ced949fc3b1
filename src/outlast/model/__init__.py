"""The nouns: plain data, one module each. No I/O, no clock, no decisions."""
