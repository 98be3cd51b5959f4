"""Flake id generators: ids that no two members ever make, without asking each other."""
