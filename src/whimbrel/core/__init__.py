"""Decisions and data of a member: no sockets, clock, randomness, files, threads or logging."""
