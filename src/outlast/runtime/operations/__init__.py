"""The kinds of durable operations, one file each.

    Performed   does something, and its outcome is recorded: step, transaction, token, compensate, start (of a child, of
                a flow), flow (members added to one), and what is told to others (send, resolve, reject, interrupt,
                cancel)
    Wait        waits for something durable, so that the execution can be suspended meanwhile: sleep, receive, deferred,
                child, flow, and the timers that asyncio sets (`asyncio.sleep`, `asyncio.timeout`)

A kind knows its name, how it is done or what it waits for, and how its outcome is read. It does not know of replay,
delivery or suspension: those are the attempt's.
"""
