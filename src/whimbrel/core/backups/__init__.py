"""Backups of a running cluster: made, checked, deleted, restored, on a schedule (0020)."""
