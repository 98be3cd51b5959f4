"""A small client of our own: a sans-IO core and a blocking bulk client for Spark and tools."""
