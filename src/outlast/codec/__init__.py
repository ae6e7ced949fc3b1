"""Values and failures to bytes and back: typed JSON.

`values` stores and reads what code takes and returns, `arguments` does so for a call, `failures` for what code raised;
`annotations` finds out what type a function declares, `shapes` walks over values to tell a person where in one the
trouble is.

There is no pickle here, and no switch for it yet: reading a pickle runs code that whoever can write to the store chose,
and a class that moved breaks every execution that sleeps. `App(codec=…)` turns bytes into bytes, so it cannot bring
pickle in by accident either. Should it be asked for, it is one more implementation of `Values`, named in `App(…)`.
"""
