"""Harm: which fault happens when, within which budget, and how it is carried out."""
