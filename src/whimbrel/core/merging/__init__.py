"""After a split: what the smaller part held, merged into the cluster by a policy per map."""
