"""Audits: replicas are compared with their primary beside clients, and repaired (0018)."""
