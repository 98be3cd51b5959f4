"""Clusters of real processes on this machine, for tests, trials and demonstrations."""

from whimbrel.testing.cluster import ClusterError, LocalCluster, LocalMember, local_cluster
from whimbrel.testing.fault_proxy import FaultNetwork

__all__ = ["ClusterError", "FaultNetwork", "LocalCluster", "LocalMember", "local_cluster"]
