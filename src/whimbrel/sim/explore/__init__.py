"""Exhaustive exploration: every interleaving of a tiny world, on the production core."""
