"""The simulator: whole clusters of real members in one thread of virtual time.

One seed gives one history. Nothing that runs inside a history reads a clock, a socket or the
operating system's randomness; everything that varies comes from ``entropy``.
"""
