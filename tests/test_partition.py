"""How examples are dealt out to clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_client.data.partition import Kind, partition
from pausefl_proto.errors import ConfigError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))


@given(
    kind=st.sampled_from(["iid", "dirichlet"]),
    n=st.integers(1, 400),
    clients=st.integers(1, 40),
    classes=st.integers(1, 10),
    concentration=st.floats(0.05, 50),
    seed=st.integers(0, 2**40),
)
def test_every_example_goes_to_one_client_and_no_client_goes_without(
    kind: Kind, n: int, clients: int, classes: int, concentration: float, seed: int
) -> None:
    clients = min(clients, n)
    labels = np.random.default_rng(seed).integers(0, classes, n)
    # Nothing dominates, so that any labels will do.
    parts = partition(
        kind,
        labels,
        clients=clients,
        classes=classes,
        seed=seed,
        concentration=concentration,
        dominant_share=1 / classes,
    )
    assert len(parts) == clients
    assert all(part.size for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@given(seed=st.integers(0, 2**40), clients=st.integers(8, 60), dominant_share=st.floats(0.1, 0.5))
def test_dominant_labels_leave_every_example_with_one_client(seed: int, clients: int, dominant_share: float) -> None:
    try:
        parts = partition(
            "dirichlet",
            LABELS,
            clients=clients,
            classes=10,
            seed=seed,
            dominant_share=dominant_share,
            concentration=9.0,
        )
    except ConfigError:
        # A very large client's dominant label may not exist; that takes a large share and few clients.
        assert dominant_share > 0.3
        assert clients < 30
    else:
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(LABELS.size))


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = {part.size for part in partition("iid", LABELS, clients=7, classes=10, seed=1)}
    assert sizes == {857, 858}


def test_dominant_label_is_about_a_quarter() -> None:
    parts = partition("dirichlet", LABELS, clients=30, classes=10, seed=1)
    shares = [np.bincount(LABELS[part]).max() / part.size for part in parts]
    assert np.mean(shares) == pytest.approx(0.25, abs=0.02)
    dominant = {int(np.bincount(LABELS[part]).argmax()) for part in parts}
    assert dominant == set(range(10))


def test_sizes_are_spread_as_dirichlet_shares_are() -> None:
    parts = partition("dirichlet", np.tile(LABELS, 10), clients=300, classes=10, seed=1)
    relative = np.array([part.size for part in parts]) / (10 * LABELS.size / 300)
    # A share of Dirichlet(3, …, 3) is about Gamma(3)/3: standard deviation 1/√3 of its mean.
    assert relative.std() == pytest.approx(3**-0.5, abs=0.06)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_the_seed_decides(kind: Kind) -> None:
    first, same, other = (partition(kind, LABELS, clients=5, classes=10, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "sorted"}, r'workload\.partition = "sorted": must be'),
        ({"clients": 6001}, r"clients\.count = 6001: must be from 1 to the 6000"),
        ({"clients": 0}, r"clients\.count = 0"),
        ({"concentration": 0.0}, r"workload\.concentration = 0\.0"),
        ({"concentration": float("nan")}, r"workload\.concentration = nan"),
        ({"dominant_share": 0.05}, r"workload\.dominant_share = 0\.05: must be from 1/10"),
        ({"dominant_share": float("nan")}, r"workload\.dominant_share = nan"),
        ({"dominant_share": 0.9, "clients": 1}, r"workload\.dominant_share = 0\.9: no label has the 5333 examples"),
    ],
)
def test_what_cannot_be_done_names_its_key(change: dict[str, object], message: str) -> None:
    arguments = {"kind": "dirichlet", "clients": 10, "concentration": 3.0, "dominant_share": 0.25} | change
    kind = arguments.pop("kind")
    with pytest.raises(ConfigError, match=message):
        partition(kind, LABELS, classes=10, seed=1, **arguments)  # type: ignore[arg-type]
