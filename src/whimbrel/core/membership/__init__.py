"""Who is in the cluster: member list, discovery, joining, failure detection, claims, leaving."""
