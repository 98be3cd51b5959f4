"""Clusters of real processes on this machine, for tests, trials and demonstrations."""

from whimbrel.testing.cluster import ClusterError, LocalCluster, LocalMember, local_cluster

__all__ = ["ClusterError", "LocalCluster", "LocalMember", "local_cluster"]
