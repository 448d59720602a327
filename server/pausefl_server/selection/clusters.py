"""Clusters of clients that share an access point, for reward R2 (PAUSE v2, eq. (22))."""

from collections.abc import Mapping

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_server.clients import ClientTable


def cluster_of(table: ClientTable, rows: IntArray, clusters: int | Mapping[str, int]) -> IntArray:
    """The cluster of each row, (n,) int64.

    A number R assigns each client to one of R clusters at random, by the table's hash of (seed, client id). So the
    assignment never changes, and clients that join later have one too. A mapping gives the cluster of each client id,
    from 0. A client that is not in the mapping is alone in its cluster.
    """
    if isinstance(clusters, int):
        return table.tie_key[rows] % clusters
    alone = -1 - rows
    return np.array([clusters.get(table.ids[row], own) for row, own in zip(rows, alone, strict=True)], np.int64)
