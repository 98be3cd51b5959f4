"""The queue: items in one partition, offered at the tail and taken from the head."""
