"""Clusters of clients that share an access point, for reward R2 (PAUSE v2, eq. (22))."""

from collections.abc import Mapping

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_server.clients import ClientTable


def cluster_of(table: ClientTable, rows: IntArray, clusters: int | Mapping[str, int]) -> IntArray:
    """The cluster of each row, (n,) int64.

    A number R assigns every client to one of R clusters at random, by the hash of (seed, client id) the table keeps,
    so it is the same in every round and for clients that join later. A mapping names the clusters of clients by id,
    from 0 on; a client it does not name shares its access point with no other.
    """
    if isinstance(clusters, int):
        return table.tie_key[rows] % clusters
    alone = -1 - rows
    return np.array([clusters.get(table.ids[row], own) for row, own in zip(rows, alone, strict=True)], np.int64)


def crowding(cluster: IntArray) -> int:
    """Σ_r max(0, |S ∩ C_r| − 1) of a set's clusters: how many members share one with an earlier member."""
    return len(cluster) - len(np.unique(cluster))
