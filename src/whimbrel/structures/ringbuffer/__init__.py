"""The ring buffer: numbered items in one partition, the oldest of which give way to new ones."""
