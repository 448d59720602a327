"""How training examples are dealt out to clients (PAUSE v2, Section V). Pure functions of the labels and a seed."""

from typing import Literal, get_args

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError

Kind = Literal["iid", "dirichlet"]


def partition(
    kind: Kind,
    labels: IntArray,
    *,
    clients: int,
    classes: int,
    seed: int,
    concentration: float = 3.0,
    dominant_share: float = 0.25,
) -> list[IntArray]:
    """The rows of each client, sorted; every row goes to exactly one client and every client gets at least one.

    `labels` is (n,) int64 in [0, classes). "iid" deals equal shares at random. "dirichlet" draws the clients' sizes
    from Dirichlet(`concentration`) and gives each client one dominant label of about `dominant_share` of its examples.
    ConfigError if it cannot be done.
    """
    if kind not in get_args(Kind):
        raise ConfigError(f'workload.partition = "{kind}": must be "iid" or "dirichlet"')
    if not 1 <= clients <= labels.size:
        raise ConfigError(f"clients.count = {clients}: must be from 1 to the {labels.size} training examples")
    rng = generator(seed, "partition", kind)
    if kind == "iid":
        return [np.sort(rows) for rows in np.array_split(rng.permutation(labels.size), clients)]
    if not concentration > 0:
        raise ConfigError(f"workload.concentration = {concentration}: must be above 0")
    if not 1 / classes <= dominant_share <= 1:
        raise ConfigError(f"workload.dominant_share = {dominant_share}: must be from 1/{classes} (no dominance) to 1")
    sizes = _dirichlet_sizes(labels.size, clients, concentration, rng)
    return _deal_with_dominant_label(labels, sizes, classes, dominant_share, rng)


def _dirichlet_sizes(examples: int, clients: int, concentration: float, rng: np.random.Generator) -> IntArray:
    """(clients,) sizes that sum to `examples`: one each, and the rest in Dirichlet proportions."""
    shares = rng.dirichlet(np.full(clients, concentration))
    bounds = np.rint(np.cumsum(shares) * (examples - clients)).astype(np.int64)
    bounds[-1] = examples - clients
    return 1 + np.diff(bounds, prepend=0)


def _deal_with_dominant_label(
    labels: IntArray, sizes: IntArray, classes: int, dominant_share: float, rng: np.random.Generator
) -> list[IntArray]:
    """First every client's surplus of its dominant label, then the rest at random.

    A random rest holds the dominant label too, a share of 1/classes of it. So the surplus is the e of
    e + (1 − e)/classes = dominant_share.
    """
    surplus_share = (dominant_share - 1 / classes) / (1 - 1 / classes) if classes > 1 else 0.0
    rows = rng.permutation(labels.size)
    stock = [rows[labels[rows] == label] for label in range(classes)]
    surplus: list[IntArray] = [np.empty(0, np.int64)] * sizes.size
    for client in np.argsort(-sizes, kind="stable"):
        needed = round(surplus_share * int(sizes[client]))
        label = max(range(classes), key=lambda each: stock[each].size)
        if stock[label].size < needed:
            raise ConfigError(
                f"workload.dominant_share = {dominant_share}: no label has the {needed} examples left that one of "
                f"{sizes.size} clients needs; lower it, or take more clients or examples"
            )
        surplus[client], stock[label] = np.split(stock[label], [needed])
    rest = rng.permutation(np.concatenate(stock))
    wanted = sizes - [part.size for part in surplus]
    rests = np.split(rest, np.cumsum(wanted)[:-1])
    return [np.sort(np.concatenate(parts)) for parts in zip(surplus, rests, strict=True)]
