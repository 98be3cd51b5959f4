"""The real world around a serving engine: sockets, clock, signals, logs. It decides nothing."""
