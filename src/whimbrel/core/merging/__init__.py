"""After a split: what the smaller part held, merged into the cluster as each kind does it."""
