"""Data structures: one module a structure, each with its store and its service."""
