"""The annealing chain: its neighbourhoods, its two implementations, and what it returns."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pausefl_server.search import annealing, brute_force
from pausefl_server.search.annealing import Cooling, anneal, anneal_additive
from pausefl_server.selection.policies.pause import Choice
from pausefl_server.selection.set_values import LabelDiversity, Recomputed
from rigs.clock import Clock
from rigs.policies import Play, context_of, policy_of


def problem(seed: int, n: int = 12, m: int = 4) -> dict[str, Any]:
    """A random clustered problem with distinct values."""
    rng = np.random.default_rng(seed)
    return {
        **{name: rng.random(n) for name in ("ucb", "g", "p", "value")},
        "cluster": rng.integers(0, 3, n),
        "marginal": np.array([0.0, 0.3]),
        "start": rng.choice(n, m, replace=False),
    }


def axes_of(task: dict[str, Any], neighbourhood: str) -> tuple[np.ndarray, ...]:
    return {"v2": (task["ucb"],), "v1": (task["ucb"], task["g"], task["p"]), "swap": ()}[neighbourhood]


def run(task: dict[str, Any], neighbourhood: str, cooling: Cooling, seed: int = 3, clock: Any = None) -> Any:
    chain = task["ucb"], task["value"], task["start"], axes_of(task, neighbourhood), cooling, seed, clock or Clock()
    return anneal_additive(*chain, task["cluster"], task["marginal"], np.zeros(3, np.int64))


def additive(task: dict[str, Any]) -> Recomputed:
    terms = {name: task[name] for name in ("ucb", "g", "p", "value", "cluster", "marginal")}
    return Recomputed(Choice(len(task["start"]), np.arange(len(task["ucb"])), **terms).worth)


def energy(task: dict[str, Any], rows: Any) -> float:
    return float(task["ucb"][rows].min()) + additive(task).reset(np.asarray(rows))


def neighbours_by_definition(task: dict[str, Any], current: set[int], neighbourhood: str) -> set[tuple[int, int]]:
    """All allowed swaps (out, in), by the definition of R1 and R2 in Section IV-A."""
    allowed = set()
    for out, incoming in itertools.product(current, set(range(len(task["ucb"]))) - current):
        after = (current - {out}) | {incoming}
        if neighbourhood == "swap" or any(
            min(current, key=axis.__getitem__) == out or min(after, key=axis.__getitem__) == incoming
            for axis in axes_of(task, neighbourhood)
        ):
            allowed.add((out, incoming))
    return allowed


@pytest.mark.parametrize("neighbourhood", ["v2", "v1", "swap"])
def test_neighbours_are_drawn_uniformly_from_the_papers_definition(neighbourhood: str) -> None:
    """After many swaps, as at the start."""
    task, is_swap = problem(1), neighbourhood == "swap"
    chain, current = annealing.chain_of(task["ucb"], task["start"], axes_of(task, neighbourhood), 1), set(task["start"])
    for _ in range(500):
        out, incoming, least = annealing.propose_swap(chain, is_swap)
        assert (out, incoming) in neighbours_by_definition(task, current, neighbourhood)
        annealing.apply_swap(chain, out, incoming)
        current = (current - {out}) | {incoming}
        assert least == min(current, key=task["ucb"].__getitem__)
    allowed = neighbours_by_definition(task, current, neighbourhood)
    draws = 400 * len(allowed)
    seen = Counter(annealing.propose_swap(chain, is_swap)[:2] for _ in range(draws))
    assert set(seen) == allowed
    # Each count is binomial with mean 400; six standard deviations.
    assert all(abs(count - 400) < 6 * math.sqrt(400) for count in seen.values())


@pytest.mark.parametrize("neighbourhood", ["v2", "v1", "swap"])
@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_chain_and_the_one_in_python_take_the_same_steps(neighbourhood: str, seed: int) -> None:
    task = problem(seed, n=40, m=6)
    cooling = Cooling(0.2, 300)
    compiled, _ = run(task, neighbourhood, cooling, seed)
    plain, _ = anneal(task["ucb"], additive(task), task["start"], axes_of(task, neighbourhood), cooling, seed, Clock())
    assert compiled.tolist() == plain.tolist()


@pytest.mark.parametrize("m", [1, 4, 11])
@pytest.mark.parametrize("neighbourhood", ["v2", "v1", "swap"])
def test_long_cooling_finds_the_optimum(m: int, neighbourhood: str) -> None:
    for seed in range(3):
        task = problem(seed, m=m)
        best = brute_force(task["ucb"], task["value"], m, task["cluster"], task["marginal"])
        found, steps = run(task, neighbourhood, Cooling(0.3, 20_000))
        assert steps == 20_000
        assert energy(task, found) == pytest.approx(energy(task, best))


def test_the_best_set_seen_is_returned_even_if_the_chain_leaves_it() -> None:
    """The chain accepts every swap, so it leaves its start, which is the optimum."""
    task = problem(0)
    task["start"] = brute_force(task["ucb"], task["value"], 4, task["cluster"], task["marginal"])
    found, _ = run(task, "swap", Cooling(1e9, 1000))
    assert found.tolist() == task["start"].tolist()


def test_a_cold_chain_never_accepts_a_worse_set() -> None:
    """With the acceptance probability's sign as printed, it would accept every worse set."""
    task = problem(2, n=30, m=5)
    energies = [energy(task, task["start"])]

    class Watched(Recomputed):
        current = frozenset(task["start"].tolist())

        def swap(self, out: int, incoming: int) -> None:
            super().swap(out, incoming)
            self.current = (self.current - {out}) | {incoming}
            energies.append(energy(task, sorted(self.current)))

    watched = Watched(additive(task).reset)
    anneal(task["ucb"], watched, task["start"], (task["ucb"],), Cooling(1e-12, 2000), 5, Clock())
    assert len(energies) > 3
    assert (np.diff(energies) >= -1e-12).all()


def test_the_time_cap_ends_the_chain() -> None:
    task = problem(3)
    _, steps = run(task, "v2", Cooling(1.0, 100_000, time_cap_s=5.0), clock=Clock(1.0))
    assert steps == 4 * annealing.CHUNK  # the fifth reading of the clock after the start reaches the cap
    _, steps = anneal(task["ucb"], additive(task), task["start"], (), Cooling(1.0, 100_000, 5.0), 0, Clock(1.0))
    assert steps == 4


def test_where_everyone_is_in_the_set_there_is_nothing_to_anneal() -> None:
    task = problem(5, n=4, m=4)
    assert run(task, "v2", Cooling(1.0, 100))[0].tolist() == [0, 1, 2, 3]
    assert anneal(task["ucb"], additive(task), task["start"], (), Cooling(1.0, 100), 0, Clock())[1] == 0


def test_a_function_of_the_set_and_its_swap_methods_agree() -> None:
    """Label diversity updated swap by swap equals label diversity computed anew."""
    histograms = np.random.default_rng(0).integers(0, 50, (20, 10)).astype(np.float64)
    fast, slow = LabelDiversity(histograms), Recomputed(LabelDiversity(histograms).reset)
    current = np.arange(5)
    assert fast.reset(current) == pytest.approx(slow.reset(current))
    for out, incoming in [(0, 7), (3, 19), (7, 0), (1, 8)]:
        assert fast.swapped(out, incoming) == pytest.approx(slow.swapped(out, incoming))
        fast.swap(out, incoming)
        slow.swap(out, incoming)
    assert fast.swapped(2, 11) == pytest.approx(slow.swapped(2, 11))


def test_label_diversity_is_one_for_complementary_clients_and_none_for_a_single_label() -> None:
    diversity = LabelDiversity(np.array([[10.0, 0.0], [0.0, 10.0], [10.0, 0.0]]))
    assert [diversity.reset(np.array(pair)) for pair in ([0, 1], [0, 2])] == pytest.approx([1.0, 0.0], abs=1e-6)
    play = Play(policy_of("sa-pause labels")).rounds(1)
    play.table.label_counts = {0: np.array([5.0])}  # as its client states
    context = context_of(play.table, 2)
    diversity = LabelDiversity.of(context, context.eligible)
    assert [diversity.reset(np.array([k])) for k in (0, 1)] == pytest.approx([0.0, 1.0], abs=1e-6)
    play.table.label_counts = {0: np.array([5.0, 0.0]), 1: np.array([0.0, 95.0])}
    of_few = LabelDiversity.of(context, np.array([0, 1])).reset(np.array([0, 1]))
    assert of_few == pytest.approx(-sum(q * math.log2(q) for q in (0.05, 0.95))), "few examples are not made more"


@pytest.mark.parametrize("stated", [np.full(10, 1e9), np.ones(1024), np.array([0.0, 1e12])])
def test_no_client_makes_its_sets_diverse_by_what_it_states(stated: np.ndarray) -> None:
    """Each client holds one of ten classes. A lie gains no more than the uniform labels of a client that is silent."""
    table = Play(policy_of("sa-pause labels")).rounds(1).table
    context = context_of(table, 2)
    table.label_counts = {k: table.n_examples[k] * np.eye(10)[k % 10] for k in range(1, 13)}
    honest, silent = np.array([1, 2]), np.array([1, 0])
    of_silent = LabelDiversity.of(context, np.arange(13))
    table.label_counts[0] = stated
    of_liar = LabelDiversity.of(context, np.arange(13))
    assert of_liar.reset(honest) == pytest.approx(of_silent.reset(honest))
    assert of_liar.reset(silent) <= of_silent.reset(silent) + 1e-9
