"""Partitions of examples among clients."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_client.data.datasets import Examples
from pausefl_client.data.partition import (
    PARTITIONERS,
    ByClient,
    Dealt,
    DominantLabel,
    Iid,
    LabelDirichlet,
    Partitioner,
    Shards,
    partition,
)
from pausefl_proto.arrays import IntArray
from pausefl_proto.errors import ConfigError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))


def deal(partitioner: Partitioner, clients: int, seed: int = 1, labels: IntArray = LABELS) -> list[IntArray]:
    return partition(partitioner, Dealt(labels, 10, clients, np.arange(labels.size) // 20), seed=seed)


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONERS if kind != "by-client"])
@given(data=st.data(), n=st.integers(1, 400), classes=st.integers(1, 10), seed=st.integers(0, 2**40))
def test_every_example_goes_to_one_client(kind: str, data: st.DataObject, n: int, classes: int, seed: int) -> None:
    clients = data.draw(st.integers(1, min(n, 40)))
    concentration = data.draw(st.floats(0.01, 50))
    partitioners: dict[str, Partitioner] = {
        "iid": Iid(),
        "dominant-label": DominantLabel(concentration, 1 / classes),  # no label dominates, so any labels will do
        "label-dirichlet": LabelDirichlet(concentration),
        "shards": Shards(data.draw(st.integers(1, n // clients))),
    }
    labels = np.random.default_rng(seed).integers(0, classes, n)
    parts = partition(partitioners[kind], Dealt(labels, classes, clients), seed=seed)
    assert len(parts) == clients
    assert all(part.size for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@pytest.mark.parametrize("kind", PARTITIONERS)
def test_a_seed_deals_alike_and_another_seed_does_not(kind: str) -> None:
    first, same, other = (deal(PARTITIONERS[kind](), 5, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(seed=st.integers(0, 2**40), clients=st.integers(8, 60), dominant_share=st.floats(0.1, 0.5))
def test_dominant_labels_leave_every_example_with_one_client(seed: int, clients: int, dominant_share: float) -> None:
    try:
        parts = deal(DominantLabel(9.0, dominant_share), clients, seed)
    except ConfigError:
        # A very large client's dominant label may have too few examples; that takes a large share and few clients.
        assert dominant_share > 0.3
        assert clients < 30
    else:
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(LABELS.size))


def test_iid_sizes_differ_by_one_at_most_and_a_dominant_label_is_about_a_quarter() -> None:
    assert {part.size for part in deal(Iid(), 7)} == {857, 858}
    parts = deal(DominantLabel(), 30)
    assert np.mean([np.bincount(LABELS[part]).max() / part.size for part in parts]) == pytest.approx(0.25, abs=0.02)
    assert {int(np.bincount(LABELS[part]).argmax()) for part in parts} == set(range(10))


@pytest.mark.parametrize("concentration", [2.0, 20.0])
def test_label_proportions_are_spread_as_dirichlet_shares_are(concentration: float) -> None:
    """Var q_c = p(1 − p)/(α + 1) for q ~ Dirichlet(α p), plus sampling error. The last clients get what is left."""
    clients, labels = 200, np.tile(LABELS, 20)
    parts = deal(LabelDirichlet(concentration), clients, labels=labels)
    size = labels.size // clients
    assert {part.size for part in parts} == {size}
    proportions = np.array([np.bincount(labels[part], minlength=10) / size for part in parts])
    spread = 0.09 / (concentration + 1) * (1 - 1 / size) + 0.09 / size
    assert proportions.var(axis=0).mean() == pytest.approx(spread, rel=0.3)


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_a_client_has_at_most_as_many_labels_as_shards_cut_across_labels(per_client: int) -> None:
    parts = deal(Shards(per_client), 10)
    assert all(np.unique(LABELS[part]).size <= per_client for part in parts)
    assert {part.size for part in parts} == {600}


def test_by_client_gives_each_the_examples_of_one_owner_or_its_own() -> None:
    with pytest.raises(ConfigError, match="does not say whose its examples are"):
        partition(ByClient(), Dealt(LABELS, 10, 3), seed=1)
    owners = np.random.default_rng(1).choice([3, 17, 40, 41], LABELS.size)
    parts = partition(ByClient(), Dealt(LABELS, 10, 3, owners), seed=1)
    seen = [np.unique(owners[part]).tolist() for part in parts]
    assert all(len(each) == 1 for each in seen)
    assert len({each[0] for each in seen}) == 3
    assert [part.size for part in parts] == [(owners == each[0]).sum() for each in seen]
    ids = ("phone-b", "phone-a", "hub")
    owners = np.array(["hub", "phone-a", "phone-b", "other"])[np.arange(LABELS.size) % 4]
    parts = partition(ByClient(), Dealt(LABELS, 10, 3, owners, ids), seed=1)
    assert [np.unique(owners[part]).tolist() for part in parts] == [["phone-b"], ["phone-a"], ["hub"]]
    with pytest.raises(ConfigError, match="no example is of watch, but some are of other clients"):
        partition(ByClient(), Dealt(LABELS, 10, 2, owners, ("hub", "watch")), seed=1)
    numbers = np.arange(LABELS.size) % 4
    parts = partition(ByClient(), Dealt(LABELS, 10, 2, numbers, ("3", "1")), seed=1)
    assert [np.unique(numbers[part]).tolist() for part in parts] == [[3], [1]]
    as_pandas_has_them = Examples(np.zeros((LABELS.size, 1), np.int32), LABELS, owners.astype(object))
    named = partition(ByClient(), Dealt(LABELS, 10, 2, as_pandas_has_them.owners), seed=1)
    assert all(np.unique(owners[part]).size == 1 for part in named)


class _Returning:
    """A partitioner that returns this in place of the rows."""

    def __init__(self, returned: object) -> None:
        self.returned = returned

    def deal(self, *_: object) -> Any:
        return self.returned


class _Unseeded:
    def deal(self, dealt: Dealt, rng: np.random.Generator) -> Any:
        del rng
        return np.array_split(np.random.default_rng().permutation(dealt.labels.size), dealt.clients)


@pytest.mark.parametrize(
    ("partitioner", "clients", "message"),
    [
        (_Unseeded(), 2, r"_Unseeded\.deal differs where `rng`, its only source of chance, is the same$"),
        (Iid(), 6001, r"clients\.count = 6001: must be from 1 to the 6000"),
        (Iid(), 0, r"clients\.count = 0"),
        (DominantLabel(dominant_share=0.05), 10, r"partition\.dominant_share = 0\.05: must be from 1/10"),
        (DominantLabel(dominant_share=0.9), 1, r"partition\.dominant_share = 0\.9: no label has the 5333 examples"),
        (Shards(1000), 10, r"partition\.per_client = 1000: makes 10000 shards of 6000 examples"),
        (ByClient(), 301, r"clients\.count = 301: .* at most the 300 owners"),
        (_Returning([np.arange(LABELS.size)] * 2), 2, "gives an example to two clients"),
        (_Returning(None), 2, r"_Returning\.deal must return a list of arrays, the rows .*; returned NoneType$"),
        (_Returning([None, None]), 2, r"_Returning\.deal must return .*; returned NoneType for one of them$"),
        (_Returning([[0], [[1]]]), 2, r"_Returning\.deal must return .*; returned list for one of them$"),
    ],
)
def test_what_cannot_be_done_names_its_key(partitioner: Partitioner, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        deal(partitioner, clients)


def test_numbers_beyond_the_classes_are_no_classes() -> None:
    counted = np.random.default_rng(1).poisson(3, 100)  # with a task that predicts one number
    with pytest.raises(ConfigError, match="deals out by class, and the examples of"):
        partition(Shards(), Dealt(counted, 1, 4), seed=1)
    assert [part.size for part in partition(Iid(), Dealt(counted, 1, 4), seed=1)] == [25] * 4


def test_sizes_and_labels_are_spread_as_concentrations_say_from_the_least_to_the_greatest() -> None:
    parts = deal(LabelDirichlet(1e-9), 10)
    assert np.mean([np.bincount(LABELS[part]).max() / part.size for part in parts]) > 0.8
    for partitioner in (DominantLabel(1e100, 0.1), LabelDirichlet(1e100)):
        assert {part.size for part in deal(partitioner, 10)} == {LABELS.size // 10}
    parts = deal(DominantLabel(), 300, labels=np.tile(LABELS, 10))
    relative = np.array([part.size for part in parts]) / (10 * LABELS.size / 300)
    # A client's share of Dirichlet(3, …, 3) is about Gamma(3)/3: its standard deviation is 1/√3 of its mean.
    assert relative.std() == pytest.approx(3**-0.5, abs=0.06)


class _Sorting:
    def deal(self, dealt: Dealt, rng: np.random.Generator) -> list[IntArray]:
        (dealt.labels if dealt.owners is None else dealt.owners).sort()
        return np.array_split(rng.permutation(dealt.labels.size), dealt.clients)


@pytest.mark.parametrize("owned", [False, True])
def test_a_partitioner_cannot_change_what_it_is_given(owned: bool) -> None:
    labels, owners = np.array([1, 0, 1, 0]), np.array([3, 2, 1, 0])
    with pytest.raises(ValueError, match="read-only"):
        partition(_Sorting(), Dealt(labels, 2, 2, owners if owned else None), seed=0)
    assert (labels.tolist(), owners.tolist()) == ([1, 0, 1, 0], [3, 2, 1, 0])
