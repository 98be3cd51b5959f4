"""The map: keys and values in partitions, with limits on the life of entries."""
