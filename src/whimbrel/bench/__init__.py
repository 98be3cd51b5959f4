"""Benchmarks that need nothing but this package; ``whimbrel bench`` runs them."""
