"""Asynchronous settings without training: the closed form of a queue with C servers, places, staleness, budgets."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl.experiment.delay_laws import Constant, published_halves
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.server_records import check_policies
from pausefl.studies.simulation.engine import Setting, server_of, simulate
from pausefl.studies.simulation.outputs import in_words, run_simulation
from pausefl.studies.simulation.steps import simulate_steps
from pausefl_proto.arrays import IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_server.clients import ClientTable
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.selection import POLICIES, Context, Policy, PolicyRound, Selection, policy_class
from pausefl_server.selection.policies.pisces import Pisces
from pausefl_server.selection.policies.uniform import Random
from rigs.simulations import CONFIG

IDS = tuple(f"client-{k:02}" for k in range(12))


def setting_of(concurrency: int, buffer: int, seed: int = 1, budget: Budget | None = None, **steps: Any) -> Setting:
    """Published latencies of 12 clients."""
    asynchronous = Asynchronous(concurrency, buffer, **steps)
    server = server_of(0.05, budget, seed, is_asynchronous=True, asynchronous=asynchronous)
    return Setting(dict(zip(IDS, published_halves(12), strict=True)), dict.fromkeys(IDS, 100), server)


@dataclasses.dataclass(frozen=True)
class Noting(Random):
    """Random, which notes what it is told; of one run at a time."""

    told: list[PolicyRound] = dataclasses.field(default_factory=list)
    asked: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def observe(self, state: Any, record: PolicyRound, table: Any) -> Any:  # noqa: ARG002
        self.told.append(record)
        return state

    def select(self, state: Any, context: Context) -> Selection:
        self.asked.append((context.jobs, self.m))
        return super().select(state, context)


@given(st.integers(1, 6), st.data(), st.integers(1, 40), st.floats(0.05, 5.0), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_with_equal_delays_elapsed_time_is_that_of_a_queue_with_c_servers(
    concurrency: int, data: st.DataObject, steps: int, delay_s: float, seed: int
) -> None:
    """The n-th job of a D/D/C queue that always has work ends at d⌈n/C⌉, so step s at d⌈sK/C⌉."""
    buffer = data.draw(st.integers(1, concurrency))
    setting = setting_of(concurrency, buffer, seed)
    setting = dataclasses.replace(setting, laws=dict.fromkeys(IDS, Constant(delay_s)))
    result = simulate_steps(Random(concurrency), setting, steps)
    expected = delay_s * np.ceil(result.round * buffer / concurrency)
    np.testing.assert_allclose(result.total_latency_s, expected, rtol=1e-9)


def test_with_a_buffer_of_all_clients_steps_are_rounds() -> None:
    setting = setting_of(12, 12)
    steps, rounds = simulate_steps(Random(12), setting, 60), simulate(policy_class("all")(m=12), setting, 60)
    np.testing.assert_allclose(steps.total_latency_s, rounds.total_latency_s)
    assert steps.chosen.tolist() == rounds.chosen.tolist()


@pytest.mark.parametrize(("concurrency", "buffer"), [(5, 1), (5, 2), (8, 8)])
def test_places_are_filled_and_staleness_counts_steps_from_the_model_given(concurrency: int, buffer: int) -> None:
    policy = Noting(concurrency)
    simulate_steps(policy, setting_of(concurrency, buffer), 80)
    given_at: dict[str, int] = {}
    jobs = 0
    for record in policy.told:
        assert len(record.observations) == buffer
        for client_id in record.chosen:
            assert client_id not in given_at, "it was at work"
            given_at[client_id] = record.round
        for observation in record.observations:
            assert observation.staleness == record.round - given_at.pop(observation.client_id)
        jobs += len(record.chosen)
        assert len(given_at) <= concurrency
    assert policy.asked[0] == (0, concurrency)
    assert jobs >= 80 * buffer
    at_work = sum(len(record.chosen) for record in policy.told[:-1]) - 79 * buffer
    assert len(policy.told[-1].chosen) == max(0, buffer - at_work), "the last step hands out what it lacks"


@pytest.mark.parametrize(("bound", "within"), [(2, 0.98), (3, 1.0), (5, 1.0)])
def test_paced_steps_bound_staleness(bound: int, within: float) -> None:
    @dataclasses.dataclass(frozen=True)
    class Paced(Noting):
        def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
            return Pisces(self.m, staleness_bound=bound).updates_needed(table, at_work, buffer)

    laws = {i: Constant(0.1 * (1 + k)) for k, i in enumerate(IDS)}
    policy = Paced(5)
    simulate_steps(policy, dataclasses.replace(setting_of(5, 1), laws=laws), 200)
    staleness = [o.staleness for record in policy.told[20:] for o in record.observations]
    assert np.mean(np.array(staleness) <= bound) >= within


def test_a_client_whose_model_is_too_old_is_given_up() -> None:
    setting = setting_of(5, 1, staleness_max=2)
    slow = dataclasses.replace(setting, laws={**setting.laws, IDS[0]: Constant(1000.0)})
    policy = Noting(5)
    result = simulate_steps(policy, slow, 200)
    assert {o.staleness for record in policy.told for o in record.observations} <= {0, 1, 2}
    assert result.missed is not None
    assert result.missed[0] > 0


def test_fast_clients_spend_their_budget_first() -> None:
    budget = Budget(100.0, 0.5, epsilon_floor=5.0)
    result = simulate_steps(Random(5), setting_of(5, 1, budget=budget), 500)
    assert result.chosen.max() <= 5
    assert result.round[-1] < 500
    fast, slow = simulate_steps(Random(5), setting_of(5, 1), 100).chosen.reshape(2, 6).sum(axis=1)
    assert fast > 1.5 * slow


def checked(experiment: Experiment) -> Experiment:
    check_policies(experiment)
    return experiment


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_plays_steps_or_refuses_in_one_line(name: str, tmp_path: Path) -> None:
    base = parse_experiment(CONFIG.format(policy=name, partition="iid"))
    text = base.to_toml()
    overrides = ["server.mode=asynchronous", "asynchronous.concurrency=3", "asynchronous.buffer=2"]
    experiment = parse_experiment(text, [*overrides, "privacy.enabled=false"])
    policy = policy_class(name)
    if policy.needs_rounds or policy(m=3).disclosures or policy.inspect is not Policy.inspect:
        with pytest.raises(ConfigError, match=r"^[^\n]*$"):
            run_simulation(checked(experiment), 30, tmp_path)
        return
    summary = run_simulation(checked(experiment), 30, tmp_path)
    assert summary["rounds"] == 30
    assert next(iter(in_words(summary))).startswith("elapsed time ")
