"""The simulator: whole clusters of real members in one thread of virtual time.

One seed gives one history. Nothing here reads a clock, a socket or the operating system's
randomness; everything that varies comes from ``entropy``.
"""
