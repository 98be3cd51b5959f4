"""Copies of data: replica versions, backups and their acknowledgements, syncs of backups."""
