"""How training examples are dealt out to clients. Pure functions of the labels, their owners and a seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol

import numpy as np
from annotated_types import Gt, Le

from pausefl_client.data.datasets import Owners, TargetArray, are_classes
from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray, IntArray, read_only
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, Count, PositiveShare

_KEY = "workload.partition"

# Far below the bound, shares are already as equal as floats can be. Far above it, sums of the gamma draws overflow.
Concentration = Annotated[float, Gt(0), Le(1e100)]


@dataclass(frozen=True)
class Dealt:
    """The examples to deal out to clients."""

    labels: TargetArray
    """(n,) int64 in [0, classes). `partition` takes any labels: without classes, the examples count as one class."""
    classes: int
    clients: int
    owners: Owners | None = None
    """(n,) the owner of each example, a person or a device, as a text or a whole number. None if unknown."""
    client_ids: Sequence[str] = ()
    """The clients' ids. Empty if unknown."""


class Partitioner(Protocol):
    """Deals training examples out to clients. Its fields are the keys of its table in the experiment."""

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> Sequence[IntArray]:
        """The rows of each client. ConfigError or ValueError if the examples cannot be dealt out."""


def partition(partitioner: Partitioner, dealt: Dealt, seed: int) -> list[IntArray]:
    """The rows of each client, sorted. No row goes to two clients, and every client gets at least one.

    ConfigError if the examples cannot be dealt out, such as without classes by a partitioner that needs them.
    """
    n = len(dealt.labels)
    if not 1 <= dealt.clients <= n:
        raise ConfigError(f"clients.count = {dealt.clients}: must be from 1 to the {n} training examples")
    if not are_classes(dealt.labels, dealt.classes):
        if getattr(partitioner, "needs_classes", False):
            raise ConfigError(f"{_KEY}: deals out by class, and the examples of workload.dataset have none")
        dealt = replace(dealt, labels=np.zeros(n, np.int64), classes=1)
    # Read-only: a partitioner that wrote to them would change the labels that clients train on.
    owners = None if dealt.owners is None else read_only(dealt.owners)
    dealt = replace(dealt, labels=read_only(dealt.labels), owners=owners)
    ours = (name for name, kind in PARTITIONERS.items() if isinstance(partitioner, kind))
    stream = next(ours, type(partitioner).__name__)
    parts = _dealt(partitioner, dealt, generator(seed, "partition", stream))
    _check(parts, dealt)
    if stream not in PARTITIONERS:  # each process deals the examples out for itself
        again = _dealt(partitioner, dealt, generator(seed, "partition", stream))
        if not all(map(np.array_equal, parts, again)):
            raise ConfigError(f"{_KEY}: {stream}.deal differs where `rng`, its only source of chance, is the same")
    return parts


def _dealt(partitioner: Partitioner, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
    """The rows of each client, sorted. ConfigError if they are no list of arrays."""
    given: object = partitioner.deal(dealt, rng)
    due = f"{type(partitioner).__name__}.deal must return a list of arrays, the rows of each client"
    if not isinstance(given, Iterable):
        raise ConfigError(f"{_KEY}: {due}; returned {type(given).__name__}")
    parts: list[IntArray] = []
    for part in given:
        if np.ndim(part) != 1:
            raise ConfigError(f"{_KEY}: {due}; returned {type(part).__name__} for one of them")
        parts.append(np.sort(part))
    return parts


def _check(parts: Sequence[IntArray], dealt: Dealt) -> None:
    """Raise ConfigError unless the parts are disjoint and none is empty. A partitioner may be a user's own code."""
    if len(parts) != dealt.clients or not all(part.size for part in parts):
        raise ConfigError(f"{_KEY}: must give each of the {dealt.clients} clients at least one example")
    rows = np.concatenate(parts)
    if rows.dtype != np.int64 or not (rows.min() >= 0 and rows.max() < dealt.labels.size):
        raise ConfigError(f"{_KEY}: must give rows of type int64, from 0 to {dealt.labels.size - 1}")
    if np.bincount(rows, minlength=dealt.labels.size).max() > 1:
        raise ConfigError(f"{_KEY}: gives an example to two clients")


@dataclass(frozen=True)
class Iid:
    """Equal shares at random, whose sizes differ by one at most."""

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
        return np.array_split(rng.permutation(dealt.labels.size), dealt.clients)


@dataclass(frozen=True)
class DominantLabel(Bounded):
    """Unequal sizes, and one dominant label for each client (PAUSE v2, Section V)."""

    needs_classes: ClassVar[bool] = True

    concentration: Concentration = 3.0
    """The concentration of the Dirichlet distribution of sizes. Small values make sizes more unequal."""
    dominant_share: PositiveShare = 0.25
    """About this share of a client's examples has its dominant label. With 1/classes, no label dominates."""

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
        """Deal out first a surplus of its dominant label to every client, then the rest at random.

        The random rest also holds the dominant label, with a share of 1/classes. So the surplus, as a share e of the
        client's examples, solves e + (1 − e)/classes = dominant_share.
        """
        labels, classes = dealt.labels, dealt.classes
        if self.dominant_share < 1 / classes:
            raise ConfigError(
                f"{_KEY}.dominant_share = {self.dominant_share}: must be from 1/{classes} (no dominance) to 1"
            )
        sizes = _dirichlet_sizes(labels.size, dealt.clients, self.concentration, rng)
        surplus_share = (self.dominant_share - 1 / classes) / (1 - 1 / classes) if classes > 1 else 0.0
        stock = _stock(dealt, rng)
        surplus: list[IntArray] = [np.empty(0, np.int64)] * sizes.size
        for client in np.argsort(-sizes, kind="stable"):
            needed = round(surplus_share * int(sizes[client]))
            label = max(range(classes), key=lambda each: stock[each].size)
            if stock[label].size < needed:
                raise ConfigError(
                    f"{_KEY}.dominant_share = {self.dominant_share}: no label has the {needed} examples left that one"
                    f" of {sizes.size} clients needs; lower it, or take more clients or examples"
                )
            surplus[client], stock[label] = np.split(stock[label], [needed])
        rest = rng.permutation(np.concatenate(stock))
        wanted = sizes - [part.size for part in surplus]
        rests = np.split(rest, np.cumsum(wanted)[:-1])
        return [np.concatenate(parts) for parts in zip(surplus, rests, strict=True)]


@dataclass(frozen=True)
class LabelDirichlet(Bounded):
    """Equal sizes. Each client's label proportions are drawn from Dirichlet(concentration · p), p those of all data.

    Hsu, Qi and Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
    2019, Section 3. Once a label has run out, further clients draw among the labels that are left.
    """

    needs_classes: ClassVar[bool] = True

    concentration: Concentration = 0.5
    """Near 0, each client has one label; large values come close to equal shares at random. The value is spread over
    the labels: of ten equally frequent labels, each gets a tenth of it. If another tool's alpha is per label, multiply
    it by the number of labels."""

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
        """Deal out all rows, client after client in random order, since the last clients get what is left."""
        stock = _stock(dealt, rng)
        frequencies = np.array([rows.size for rows in stock], np.float64)
        present = frequencies > 0
        prior = self.concentration * frequencies[present] / frequencies.sum()
        sizes = np.array([part.size for part in np.array_split(np.empty(dealt.labels.size), dealt.clients)])
        parts: list[IntArray] = [np.empty(0, np.int64)] * dealt.clients
        for client in rng.permutation(dealt.clients):
            shares = np.zeros(dealt.classes)
            shares[present] = rng.standard_gamma(prior)  # in the proportions of a Dirichlet draw
            counts = _label_counts(shares, int(sizes[client]), stock, rng)
            taken = [np.split(rows, [count]) for rows, count in zip(stock, counts, strict=True)]
            parts[client] = np.concatenate([own for own, _ in taken])
            stock = [left for _, left in taken]
        return parts


@dataclass(frozen=True)
class Shards(Bounded):
    """Examples are sorted by label and cut into equal shards; each client gets `per_client` shards at random.

    McMahan, Moore, Ramage, Hampson and Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data, AISTATS 2017, Section 3.
    """

    needs_classes: ClassVar[bool] = True

    per_client: Count = 2
    """How many shards each client gets."""

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
        """Deal out the shards. Examples of one label are in random order before they are cut into shards."""
        n_shards = self.per_client * dealt.clients
        if n_shards > dealt.labels.size:
            raise ConfigError(
                f"{_KEY}.per_client = {self.per_client}: makes {n_shards} shards of {dealt.labels.size} examples;"
                " lower it, or take more examples"
            )
        shards = np.array_split(np.concatenate(_stock(dealt, rng)), n_shards)
        order = rng.permutation(n_shards)
        return [np.concatenate([shards[k] for k in own]) for own in np.split(order, dealt.clients)]


@dataclass(frozen=True)
class ByClient:
    """Each client has the examples of one owner, as the data set names them (`Examples.owners`).

    If owners are named as clients' ids, each client gets its own examples. Otherwise owners are drawn by the seed. The
    examples of all other owners are left out.
    """

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
        """The owners' rows, in the order of the clients of these ids, or in random order."""
        if dealt.owners is None:
            raise ConfigError(
                f'{_KEY} = "by-client": the data set does not say whose its examples are; a data set of your own can'
                " (Examples.owners)"
            )
        owners, of_each = np.unique(dealt.owners), dealt.owners.astype(np.str_)
        if named := set(dealt.client_ids) & set(of_each.tolist()):
            if missing := [client_id for client_id in dealt.client_ids if client_id not in named]:
                raise ConfigError(f'{_KEY} = "by-client": no example is of {missing[0]}, but some are of other clients')
            return [np.flatnonzero(of_each == client_id) for client_id in dealt.client_ids]
        if owners.size < dealt.clients:
            raise ConfigError(
                f'clients.count = {dealt.clients}: with workload.partition = "by-client", must be at most'
                f" the {owners.size} owners of the training examples"
            )
        return [np.flatnonzero(dealt.owners == owner) for owner in rng.permutation(owners)[: dealt.clients]]


PARTITIONERS = Registry(
    "partitioners",
    {
        "iid": Iid,
        "dominant-label": DominantLabel,
        "label-dirichlet": LabelDirichlet,
        "shards": Shards,
        "by-client": ByClient,
    },
    base="pausefl_client.data.partition:Partitioner",
)
"""Partitioners by their kind in the experiment."""


def _stock(dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
    """The rows of each label, in random order."""
    rows = rng.permutation(dealt.labels.size)
    return [rows[dealt.labels[rows] == label] for label in range(dealt.classes)]


def _dirichlet_sizes(examples: int, clients: int, concentration: float, rng: np.random.Generator) -> IntArray:
    """(clients,) sizes that sum to `examples`: one example each, and the rest in Dirichlet proportions."""
    shares = rng.dirichlet(np.full(clients, concentration))
    bounds = np.rint(np.cumsum(shares) * (examples - clients)).astype(np.int64)
    bounds[-1] = examples - clients
    return 1 + np.diff(bounds, prepend=0)


def _label_counts(shares: FloatArray, size: int, stock: Sequence[IntArray], rng: np.random.Generator) -> IntArray:
    """How many examples of each label a client of this size takes from the stock."""
    left = np.array([rows.size for rows in stock])
    counts = np.zeros(left.size, np.int64)
    while (wanted := size - int(counts.sum())) > 0:
        open_shares = np.where(left > counts, shares, 0.0)
        if not open_shares.any():  # its labels have run out, or tiny gamma shapes gave only 0. Then take one label
            open_shares[rng.choice(left.size, p=(left - counts) / (left - counts).sum())] = 1.0
        counts = np.minimum(counts + rng.multinomial(wanted, open_shares / open_shares.sum()), left)
    return counts
