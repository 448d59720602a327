"""Asynchronous steps against plain numpy: a coordinator with its real log, and clients that answer when told to.

Each test checks a sentence of FedBuff (Nguyen et al., 2022) or FedAsync (Xie et al., 2019); see `model.staleness`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl_process.host_monitor import UNWATCHED
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Release
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.model.staleness import (
    STALENESS_RULES,
    Asynchronous,
    ConstantStaleness,
    HingeStaleness,
    PolynomialStaleness,
    StalenessRule,
)
from pausefl_server.records import LogEvent, Ping, RoundRecord
from pausefl_server.rounds.choosing import free_places
from pausefl_server.rounds.messages import Refusal
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.baselines import Random
from pausefl_server.selection.policies.fedat import FedAt
from pausefl_server.settings import PrivacySettings
from pausefl_server.state import RunState
from rigs.coordinator import BUDGET, EXAMPLES, PRIVATE, SIZE, CoordinatorRig, FakePeer, MakeRig, update_of
from rigs.log import observation, record, table_of
from rigs.settings import server_settings


@dataclass(frozen=True)
class Dealt(FedAt):
    """FedAT with tiers that the test sets."""

    of_client: str = "0011"
    """The tiers of "a", "b", ...: one digit a client."""

    def tiers_of(self, state: tuple[int, ...], table: ClientTable) -> IntArray:
        return np.array([int(self.of_client[ord(client_id) - ord("a")]) for client_id in table.ids], np.int64)


@dataclass(frozen=True)
class Paced(Random):
    """A user's own policy. A step would need no update until a client at work is measured, then one of each."""

    def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
        return len(at_work) if table.measured[at_work].any() else 0


@dataclass(frozen=True)
class Counting(Random):
    """Random, which notes J."""

    asked: list[int] = field(default_factory=list)

    def select(self, state: Any, context: Context) -> Selection:
        self.asked.append(context.jobs)
        return super().select(state, context)


class Play:
    """A run whose clients answer in the order that the test says. Each answers the job that it has."""

    def __init__(self, rig: CoordinatorRig, peers: Sequence[FakePeer]) -> None:
        self.rig = rig
        self.jobs: dict[str, tuple[int, int]] = {}
        self.peers = {peer.client_id: peer for peer in peers}
        self.records: list[RoundRecord] = []
        self.events: list[tuple[str, str]] = []

    async def handed_out(self, count: int) -> list[str]:
        """Wait until `count` jobs have reached clients. Return the sorted ids of these clients."""
        came = []
        for _ in range(count):
            async with asyncio.timeout(20):
                peer = await self.rig.asked.get()
            job = await peer.next_job()
            self.jobs[peer.client_id] = job.round, job.attempt
            came.append(peer.client_id)
        return sorted(came)

    async def answer(self, *client_ids: str, **changes: Any) -> None:
        """Let clients answer their jobs, each with `update_of(client_id, round)`."""
        for client_id in client_ids:
            round_, attempt = self.jobs.pop(client_id)
            await self.peers[client_id].answer(round_, attempt=attempt, **changes)


async def joined(r: CoordinatorRig, client_ids: str) -> Play:
    """A run whose clients have all joined."""
    return Play(r, await r.join_all(client_ids, manual=True))


@asynccontextmanager
async def playing(
    rig: MakeRig, clients: str, steps: Asynchronous, policy: Policy | None = None, **changes: Any
) -> AsyncIterator[Play]:
    """Yield a run with these clients, which answer as the block says. Then wait for the run's end."""
    settings = {"rounds": 2, "minimum_clients": len(clients), "privacy": None, **changes}
    made = rig(policy or Random(steps.concurrency), is_asynchronous=True, asynchronous=steps, **settings)
    async with made.running() as r:
        play = await joined(r, clients)
        yield play
        await r.played()
        play.records, play.events = r.store.rounds(), r.events()


def theta(play: Play) -> Vector:
    return play.rig.coordinator.model.theta


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (PolynomialStaleness(), [1, 1 / math.sqrt(2), 1 / math.sqrt(10)]),
        (ConstantStaleness(), [1, 1, 1]),
        (HingeStaleness(), [1, 1, 1 / (10 * (9 - 4) + 1)]),
    ],
)
def test_staleness_weights_are_those_of_the_papers(rule: StalenessRule, weights: list[float]) -> None:
    assert [rule.weight(tau) for tau in (0, 1, 9)] == pytest.approx(weights)


def test_a_weight_may_be_a_number_of_numpy() -> None:
    class Single(StalenessRule):
        def weight(self, staleness: int) -> Any:
            return np.float32(1) / np.float32(1 + staleness)

    assert Asynchronous(staleness=Single()).weight(3) == 0.25


@pytest.mark.parametrize("rule", STALENESS_RULES.built_in)
def test_no_update_counts_more_for_an_older_model(rule: str) -> None:
    weights = [STALENESS_RULES[rule]().weight(tau) for tau in range(51)]
    assert weights[0] == 1
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] > 0


def test_tiers_are_formed_once_by_latency_when_all_there_were_measured_and_newcomers_are_in_the_slowest() -> None:
    policy, seen, table = FedAt(1, tiers=2), seen_by_policy(record(1)), table_of("a", "b", "c")
    (gone := table_of("a")).apply_events([LogEvent("left", "a")], 1)
    assert policy.observe((), seen, gone) == (), "no client is there"
    table.apply_round(record(1, observation("a", latency_s=2.0), observation("b", latency_s=1.0)))
    assert policy.observe((), seen, table) == ()
    table.apply_events([LogEvent("left", "c")], 2)
    assert (formed := policy.observe((), seen, table)) == (0, 0, 1)
    table.apply_events([LogEvent("joined", "d")], 3)
    assert policy.tiers_of(formed, table).tolist() == [0, 0, 1, 1]
    assert policy.observe(formed, seen, table) == formed


def test_a_tier_at_work_gets_no_further_place_and_another_no_more_than_its_round_has() -> None:
    settings = server_settings(8, rounds=9, asynchronous=Asynchronous(concurrency=4, buffer=2, rule="fedat"))
    state = RunState(Dealt(4, tiers=2, of_client="000111"), table_of(*"abcdef"), ())
    found = (
        free_places(settings, state, 1, idle, np.array(at_work, np.int64), lacks=4, answered=[], jobs=0)
        for idle, at_work in (([1, 2, 4, 5], [0]), ([1, 2, 4, 5], []), ([1, 2], [0]))
    )
    assert [free and (free.count, free.idle.tolist()) for free in found] == [(2, [4, 5]), (2, [1, 2]), None]


@pytest.mark.parametrize(("rule", "policy"), [("fedbuff", Random(4)), ("fedat", FedAt(4, tiers=1))])
async def test_with_k_c_and_all_clients_alike_it_is_fedavg_bit_for_bit(
    tmp_path: Path, rule: str, policy: Policy
) -> None:
    """The order of answers changes nothing: no client gets the same version twice, and sums have a fixed order."""
    final = []
    for order in ("abcd", "dbca", None):
        changes: dict[str, Any] = {"rounds": 3, "minimum_clients": 4}
        if order:
            changes |= few_steps(4, 3, buffer=4, rule=rule)
        async with CoordinatorRig(tmp_path / str(order), policy if order else Random(4), **changes).running() as r:
            play = await joined(r, "abcd")
            for _ in range(3):
                assert await play.handed_out(4) == [*"abcd"]
                await play.answer(*(order or "cabd"))
            await r.played()
            final.append([record.model_digest for record in r.store.rounds()])
    assert final[0] == final[1] == final[2]


@pytest.mark.parametrize("policy", [Random(1), Paced(1)])
async def test_a_sequence_of_one_client_is_plain_descent(rig: MakeRig, policy: Policy) -> None:
    async with playing(rig, "a", Asynchronous(concurrency=1, buffer=1), policy, rounds=4) as play:
        for _ in range(4):
            assert await play.handed_out(1) == ["a"]
            await play.answer("a")
    assert not any(record.failed_attempts for record in play.records)
    expected = play.rig.theta_0
    for number in range(1, 5):
        expected = expected + update_of("a", number)
    assert np.array_equal(theta(play), expected)


@pytest.mark.parametrize("rule", ["fedbuff", "fedasync"])
async def test_a_stale_update_enters_as_printed_and_rules_differ_by_the_models_way(rig: MakeRig, rule: str) -> None:
    """Without staleness, FedAsync's α is FedBuff's η_g. With it, they differ by α s(τ) (θ downloaded − θ)."""
    alpha, s = np.float32(0.5), np.float32(1 / math.sqrt(2))
    steps = Asynchronous(concurrency=2, buffer=1, rule=rule, alpha=0.5)  # type: ignore[arg-type]  # a valid name
    optimizer = ServerOptimizer(learning_rate=1.0 if rule == "fedasync" else 0.5)
    async with playing(rig, "ab", steps, optimizer=optimizer) as play:
        assert await play.handed_out(2) == ["a", "b"]
        await play.answer(*"ab")
    downloaded = play.rig.theta_0
    first = downloaded + alpha * update_of("a", 1)
    if rule == "fedbuff":
        second = first + alpha * s * update_of("b", 1)
    else:
        mixing = alpha * s
        second = (1 - mixing) * first + mixing * (downloaded + update_of("b", 1))
    np.testing.assert_allclose(theta(play), second, rtol=1e-6)
    assert [(o.client_id, o.staleness) for r in play.records for o in r.observations] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize(("normaliser", "factor"), [("plain", 1 / math.sqrt(2)), ("discounted", 1.0)])
async def test_equal_staleness_damps_with_the_plain_normaliser(rig: MakeRig, normaliser: str, factor: float) -> None:
    steps = Asynchronous(concurrency=4, buffer=2, normaliser=normaliser)  # type: ignore[arg-type]  # a valid name
    async with playing(rig, "abcd", steps) as play:
        await play.handed_out(4)
        await play.answer(*"dacb")
    weights, (c, b) = np.array([60.0, 30.0]), (update_of("c", 1), update_of("b", 1))
    first = (10 * update_of("a", 1) + 100 * update_of("d", 1)) / 110
    second = factor * (weights[0] * c + weights[1] * b) / weights.sum()
    np.testing.assert_allclose(theta(play), play.rig.theta_0 + first + second, rtol=1e-5)
    weighed = {o.client_id: o.weight for o in play.records[1].observations}
    assert weighed == pytest.approx({"b": factor / 3, "c": factor * 2 / 3})


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
async def test_a_step_is_taken_at_every_kth_arrival_and_its_sum_has_one_order(rig: MakeRig, order: str) -> None:
    async with playing(rig, "abcd", Asynchronous(concurrency=4, buffer=3)) as play:
        await play.handed_out(4)
        for client_id in order:
            assert play.rig.coordinator.state.round == 0
            await play.answer(client_id)
        await play.handed_out(2)
        after_one = theta(play)
        await play.answer(*play.jobs)
    assert [o.client_id for o in play.records[0].observations] == [*"abc"]
    expected = np.float32(0.1) * update_of("a", 1)
    for client_id, share in (("b", 0.3), ("c", 0.6)):
        expected = expected + np.float32(share) * update_of(client_id, 1)
    assert np.array_equal(after_one, play.rig.theta_0 + expected)


async def test_arrivals_beyond_the_kth_make_the_next_step_and_staleness_counts_from_the_download(rig: MakeRig) -> None:
    """Staleness does not count from the last upload. An idle client gets the newest model, so it is never stale."""
    async with playing(rig, "abc", Asynchronous(concurrency=2, buffer=1), rounds=5) as play:
        first = await play.handed_out(2)
        (idle,) = {*"abc"} - {*first}
        quick, slow = first
        await play.answer(quick)
        assert len(play.jobs) == 1
        for number in range(2, 5):
            (came,) = await play.handed_out(1)
            assert play.jobs[came] == (number, 1)
            await play.answer(came)
        await play.answer(slow)
    told = [(o.client_id, o.staleness) for record in play.records for o in record.observations]
    assert told[0] == (quick, 0)
    assert all(staleness == 0 for _, staleness in told[:4])
    assert told[4] == (slow, 4)
    assert (idle, 0) in told


async def test_elapsed_time_never_goes_back(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's work between an answer and a commit counts, even if the next answer took less emulated time."""
    now_s = [0.0]
    monkeypatch.setattr(UNWATCHED, "clock", lambda: now_s[-1])
    monkeypatch.setattr(Random, "inspect", lambda *_: now_s.append(5.0))
    async with playing(rig, "ab", Asynchronous(concurrency=2, buffer=1), rounds=3) as play:
        await play.handed_out(2)
        await play.answer("a", arrived_s=0.0)
        await play.handed_out(1)
        await play.answer(*"ba", arrived_s=5.0)
    first, second, _ = play.records
    assert first.observations[0].came_back_s + 5.0 == first.elapsed_s <= second.elapsed_s


async def test_free_places_are_given_at_once_until_the_last_step_has_all_it_needs(rig: MakeRig) -> None:
    """Any further job would spend ε for an update that no step uses. What is lost is replaced."""
    async with playing(rig, "abcd", Asynchronous(concurrency=3, buffer=2), rounds=2, privacy=PRIVATE) as play:
        first = await play.handed_out(3)
        await play.rig.coordinator.ask(Ping("a", 0.001))
        assert play.rig.asked.empty(), "at most three are at work"
        await play.answer(first[0])
        (fourth,) = await play.handed_out(1)
        assert fourth not in first, "whose update waits for its step is idle until then"
        await play.answer(first[1])  # the first step; two are at work, and the second step needs two
        await play.rig.coordinator.tell(Refusal(first[2], *play.jobs.pop(first[2]), "refused", "it has no data"))
        (instead,) = await play.handed_out(1)
        await play.answer(fourth, instead)
    assert sum(len(record.chosen) for record in play.records) == 5
    assert [len(record.observations) for record in play.records] == [2, 2]
    assert sum(peer.released for peer in play.peers.values()) == 4


@pytest.mark.parametrize("most", [1, 64])
async def test_a_client_whose_model_is_too_old_is_a_miss_and_its_update_is_charged_and_dropped(
    rig: MakeRig, most: int
) -> None:
    steps, stale = Asynchronous(concurrency=2, buffer=1, staleness_max=most), most + 2
    async with playing(rig, "ab", steps, rounds=stale + 2, privacy=PRIVATE, rejoin_timeout_s=0.0) as play:
        await play.handed_out(2)
        late = play.jobs["b"]
        for _ in range(stale):
            await play.answer("a")
            await play.handed_out(1)
        await play.handed_out(1)
        await play.rig.lose(play.peers["b"])  # with its next job
        while not play.rig.coordinator._open.misses:  # type: ignore[union-attr]  # noqa: ASYNC110 - one is open, silently
            await asyncio.sleep(0.001)
        await play.peers["b"].answer(late[0], attempt=late[1])
        await play.answer("a")
        await play.handed_out(1)
        await play.answer("a")
    misses = [(r.round, m.client_id, m.kind) for r in play.records for m in r.misses]
    assert misses == [(stale, "b", "timeout"), (stale + 1, "b", "lost")]
    assert play.peers["b"].withdrawn[0] == (1, 1)
    assert ("late", "b") in play.events
    assert play.rig.spent("b") == (1, BUDGET.spent(1))


async def test_a_budget_that_ends_retires_a_client_in_the_middle_of_a_step(rig: MakeRig) -> None:
    async with playing(rig, "abc", Asynchronous(concurrency=1, buffer=2), rounds=1, privacy=PRIVATE) as play:
        (spent,) = await play.handed_out(1)
        await play.rig.coordinator.tell(Refusal(spent, *play.jobs.pop(spent), "exhausted", "no budget is left"))
        for _ in range(2):
            (other,) = await play.handed_out(1)
            assert other != spent
            await play.answer(other)
    (record,) = play.records
    assert {o.client_id for o in record.observations} == {*"abc"} - {spent}
    assert ("retired", spent) in play.events


async def test_a_run_ends_with_its_budgets_and_what_its_clients_spent_is_what_the_log_has(rig: MakeRig) -> None:
    budget = replace(BUDGET, epsilon_floor=BUDGET.epsilon(3))  # three releases each
    privacy, steps = PrivacySettings(budget, "coordinate", "agreed"), Asynchronous(concurrency=3, buffer=2)
    made = rig(Random(3), is_asynchronous=True, asynchronous=steps, rounds=50, minimum_clients=4, privacy=privacy)
    async with made.running("abcd") as r:
        await r.played()
    assert r.coordinator.outcome == "budgets_spent"
    spent = {peer.client_id: (peer.released, budget.spent(peer.released)) for peer in r.peers}
    assert {client_id: r.spent(client_id) for client_id in "abcd"} == spent
    assert sum(released <= 3 for released, _ in spent.values()) == 4


async def test_answers_to_steps_that_never_were_enter_no_model_and_are_charged(rig: MakeRig) -> None:
    async with playing(rig, "ab", Asynchronous(concurrency=2, buffer=2), rounds=1, privacy=PRIVATE) as play:
        await play.handed_out(2)
        for job in ((2, 1), (0, 1), (1, 2), (2**32 - 1, 1)):
            await play.peers["a"].answer(job[0], attempt=job[1])
        await play.answer(*"ab")
    step = np.float32(0.25) * update_of("a", 1) + np.float32(0.75) * update_of("b", 1)
    assert np.array_equal(theta(play), play.rig.theta_0 + step)
    assert (play.rig.rejected(), play.rig.spent("a")) == (4, (5, BUDGET.spent(5)))


async def test_fewer_updates_make_a_step_where_no_client_is_at_work_and_none_can_be_asked(rig: MakeRig) -> None:
    async with playing(rig, "abc", Asynchronous(concurrency=3, buffer=3), rounds=1) as play:
        await play.handed_out(3)
        await play.rig.coordinator.tell(Refusal("a", *play.jobs.pop("a"), "refused", "it has no data"))
        await play.answer(*"bc")
    (record,) = play.records
    assert [o.client_id for o in record.observations] == ["b", "c"]
    assert [(miss.client_id, miss.kind) for miss in record.misses] == [("a", "refused")]


async def test_a_policy_is_told_how_many_jobs_were_handed_out_so_far_also_in_its_own_step(rig: MakeRig) -> None:
    policy = Counting(2)
    async with playing(rig, "abc", Asynchronous(concurrency=2, buffer=1), policy, rounds=2) as play:
        first, second = await play.handed_out(2)
        await play.rig.coordinator.tell(Refusal(first, *play.jobs.pop(first), "refused", "it has no data"))
        await play.handed_out(1)
        await play.answer(second)
        await play.answer(next(iter(play.jobs)))
    assert policy.asked[:2] == [0, 2]


@pytest.mark.usefixtures("short_drain")
@pytest.mark.parametrize("rule", ["fedbuff", "fedasync"])
async def test_after_a_kill_updates_without_a_step_are_asked_for_under_their_keys(tmp_path: Path, rule: str) -> None:
    changes = few_steps(3, 2, buffer=2, rule=rule, alpha=0.5) | {"minimum_clients": 4}
    async with CoordinatorRig(tmp_path, Random(3), **changes | {"rounds": 3}).running() as r:
        before = await joined(r, "abcd")
        first, second, travelling = await before.handed_out(3)
        await before.answer(first)
        (buffered,) = await before.handed_out(1)
        await before.answer(second)  # the first step
        await before.handed_out(1)
        keys = dict(before.jobs)
        await before.answer(buffered)  # waits for the second step when the server dies
        await before.handed_out(1)
        keys |= before.jobs
    async with CoordinatorRig(tmp_path, Random(3), **changes).running() as r:
        after = await resumed(before, r)
        assert await after.handed_out(4) == [*"abcd"]
        assert after.jobs == keys
        bytes_again = Release(1, BUDGET.epsilon(1), BUDGET.spent(1))
        await after.peers[buffered].answer(keys[buffered][0], bytes_again, attempt=keys[buffered][1])
        await after.answer(travelling)
        await r.played()
        one, two = r.store.rounds()
        assert [(o.client_id, o.participation, o.staleness) for o in two.observations] == [
            (client_id, 1, 1) for client_id in sorted([buffered, travelling])
        ]
        assert {o.client_id for o in one.observations} == {first, second}
    alpha, way = (0.5, 1.0) if rule == "fedasync" else (1.0, 0.0)
    expected = r.theta_0.astype(np.float64)
    for pair, s in ((first + second, 1.0), (buffered + travelling, 1 / math.sqrt(2))):
        mean = round_of(pair, np.zeros(SIZE), 1)
        expected = expected + alpha * s * (mean + way * (r.theta_0 - expected))
    np.testing.assert_allclose(r.coordinator.model.theta, expected, rtol=1e-5)


def round_of(pair: str, base: FloatArray, number: int) -> FloatArray:
    """The weighted mean of two clients' models, trained from `base` in step `number`."""
    weights = [EXAMPLES[client_id] for client_id in pair]
    return np.average([base + update_of(client_id, number) for client_id in pair], axis=0, weights=weights)


async def test_each_tier_plays_rounds_and_the_model_is_the_mean_of_theirs_also_after_a_kill(tmp_path: Path) -> None:
    """The fast tier makes two steps. Then a client of each tier answers, and in one of two runs the server dies."""
    changes, records = few_steps(4, 4, buffer=2, rule="fedat"), list[list[RoundRecord]]()

    async def finish(r: CoordinatorRig, play: Play) -> None:
        await play.answer(*"db")
        await r.played()
        records.append(r.store.rounds())

    for is_killed in (False, True):
        folder = tmp_path / str(is_killed)
        async with CoordinatorRig(folder, Dealt(4, tiers=2), **changes).running() as r:
            play = await begun(r, "abcd")
            assert play.jobs == {"a": (1, 1), "b": (1, 1), "c": (1, 2), "d": (1, 2)}
            for number in (2, 3):
                await play.answer(*"ba")
                assert await play.handed_out(2) == [*"ab"]
                assert play.jobs["a"] == play.jobs["b"] == (number, 1)
            await play.answer(*"ca")
            if not is_killed:
                await finish(r, play)
        if is_killed:
            async with CoordinatorRig(folder, Dealt(4, tiers=2), **changes).running() as r:
                after = await resumed(play, r)
                assert await after.handed_out(4) == [*"abcd"]
                for client_id, i, (number, attempt) in (("c", 1, (1, 2)), ("a", 3, (3, 1))):
                    again = Release(i, BUDGET.epsilon(i), BUDGET.spent(i))
                    await after.peers[client_id].answer(number, again, attempt=attempt)
                await finish(r, after)
    told = [{o.client_id: o.staleness for o in record.observations} for record in records[0]]
    assert told == [{"a": 0, "b": 0}, {"a": 0, "b": 0}, {"c": 2, "d": 2}, {"a": 1, "b": 1}]
    theta = [slow := r.theta_0.astype(np.float64)]
    for steps in ((1, 0), (2, 0), (2, 1), (3, 1)):
        if steps == (2, 1):
            slow = round_of("cd", theta[0], 1)
        else:
            fast = round_of("ab", theta[steps[0] - 1], steps[0])
        theta.append((steps[1] * fast + steps[0] * slow) / sum(steps))
    np.testing.assert_allclose(r.coordinator.model.theta, theta[-1], rtol=1e-5)
    digests = [[record.model_digest for record in of_run] for of_run in records]
    assert digests[0] == digests[1]


async def test_a_tier_waits_for_no_client_that_is_lost_or_refuses_and_keeps_the_answer_of_one_that_left(
    rig: MakeRig,
) -> None:
    steps = Asynchronous(concurrency=4, buffer=2, rule="fedat")
    async with playing(rig, "abcd", steps, Dealt(4, tiers=2), rejoin_timeout_s=0.05) as play:
        await play.handed_out(4)
        await play.answer("c")
        await play.rig.lose(play.peers["c"])
        await play.rig.coordinator.tell(Refusal("a", *play.jobs.pop("a"), "refused", "it has no data"))
        await play.answer("b")
        await play.rig.lose(play.peers["d"])
    assert [{o.client_id for o in record.observations} for record in play.records] == [{"b"}, {"c"}]
    assert {m.client_id: m.kind for record in play.records for m in record.misses} == {"a": "refused", "d": "lost"}


async def test_a_tier_that_has_all_its_answers_waits_for_none_of_another(rig: MakeRig) -> None:
    """Both tiers are complete at once, one with fewer than K answers. The other gets its next jobs meanwhile."""
    steps = Asynchronous(concurrency=4, buffer=2, rule="fedat")
    async with playing(rig, "abcd", steps, Dealt(4, tiers=2), rounds=3) as play:
        await play.handed_out(4)
        await play.rig.coordinator.tell(Refusal("d", *play.jobs.pop("d"), "refused", "it has no data"))
        await play.answer(*"abc")
        await play.handed_out(2)
        await play.answer(*"ab")
    assert [{o.client_id for o in record.observations} for record in play.records] == [{*"ab"}, {"c"}, {*"ab"}]


async def test_a_round_whose_clients_are_of_two_tiers_by_its_end_is_the_slower_tiers(rig: MakeRig) -> None:
    steps = Asynchronous(concurrency=4, buffer=2, rule="fedat")
    async with playing(rig, "abcd", steps, Dealt(4, tiers=2), rounds=1) as play:
        assert await play.handed_out(2) == [*"ab"]
        play.rig.coordinator.state.policy = Dealt(4, tiers=2, of_client="0111")  # formed anew, by latency
        await play.answer(*"ab")
    assert play.rig.coordinator.model.optimizer_state[-2:].tolist() == [0, 1]


def few_steps(concurrency: int, rounds: int, **of_steps: Any) -> dict[str, Any]:
    """Settings of an asynchronous run that needs exactly `concurrency` clients."""
    steps = Asynchronous(concurrency=concurrency, **of_steps)
    return {"is_asynchronous": True, "asynchronous": steps, "rounds": rounds, "minimum_clients": concurrency}


async def begun(r: CoordinatorRig, client_ids: str) -> Play:
    """A run whose clients all have their first job."""
    play = await joined(r, client_ids)
    await play.handed_out(len(client_ids))
    return play


async def resumed(before: Play, r: CoordinatorRig) -> Play:
    """The run after a kill. The clients of `before` have come back with their ledgers."""
    return Play(r, [await r.join(i, manual=True, released=peer.released) for i, peer in before.peers.items()])


@pytest.mark.usefixtures("short_drain")
async def test_a_kill_in_the_first_step_forgets_neither_its_jobs_nor_that_they_were_handed_out(tmp_path: Path) -> None:
    changes = few_steps(3, 1, buffer=2)
    async with CoordinatorRig(tmp_path, Random(3), **changes | {"rounds": 2}).running() as r:
        before = await begun(r, "abc")
    async with CoordinatorRig(tmp_path, Random(3), **changes).running() as r:
        after = await resumed(before, r)
        assert await after.handed_out(3) == [*"abc"]
        assert after.jobs == before.jobs
        await after.answer(*"ab")
        await r.played()
        assert r.coordinator.state.table.chosen.tolist() == [1, 1, 1]


async def test_a_policy_paces_steps_that_begin_with_kept_answers_or_after_a_kill(tmp_path: Path) -> None:
    """All answers come at once. The second step needs more than at its begin: it must not wait for clients at rest."""
    changes = few_steps(3, 3, buffer=1)
    async with CoordinatorRig(tmp_path, Paced(3), **changes | {"rounds": 4}).running() as r:
        before = await begun(r, "abc")
        await before.answer(*"abc")
        await before.handed_out(3)
    async with CoordinatorRig(tmp_path, Paced(3), **changes).running() as r:
        after = await resumed(before, r)
        await after.handed_out(3)
        await after.answer(*"abc")
        await r.played()
        assert [[o.client_id for o in record.observations] for record in r.store.rounds()] == [["a"], [*"bc"], [*"abc"]]


async def test_a_client_whose_model_grew_too_old_before_a_kill_is_a_miss_after_it(tmp_path: Path) -> None:
    changes = few_steps(2, 3, buffer=1, staleness_max=1)
    async with CoordinatorRig(tmp_path, Random(2), **changes).running() as r:
        before = await begun(r, "ab")
        for _ in range(2):
            await before.answer("a")
            await before.handed_out(1)
    async with CoordinatorRig(tmp_path, Random(2), **changes).running() as r:
        after = await resumed(before, r)
        await after.handed_out(2)
        await after.answer("a")
        await r.played()
        assert after.peers["b"].withdrawn[0] == (1, 1)
        assert [(miss.client_id, miss.kind) for miss in r.store.rounds()[-1].misses] == [("b", "timeout")]


async def test_a_kill_after_the_last_step_keeps_in_mind_who_may_have_charged_a_job(tmp_path: Path) -> None:
    changes = few_steps(3, 2, buffer=1)
    async with CoordinatorRig(tmp_path, Random(3), **changes).running() as r:
        play = await begun(r, "abc")
        committed = asyncio.Event()
        r.on_shown = lambda _: committed.set() if len(r.store.rounds()) == 2 else None
        await play.answer(*"ac")
        async with asyncio.timeout(20):
            await committed.wait()  # the run then waits for the outcome of the other job
    async with CoordinatorRig(tmp_path, Random(3), **changes).running() as r:
        await r.played()
        assert ("unsettled", "b") in r.events()


@pytest.mark.usefixtures("short_drain")
async def test_the_state_knows_as_the_log_does_whose_job_of_an_earlier_step_is_out_at_the_end(rig: MakeRig) -> None:
    async with playing(rig, "abc", Asynchronous(concurrency=3, buffer=1), privacy=PRIVATE) as play:
        await play.handed_out(3)
        await play.answer(*"ac")
    assert play.rig.coordinator.state.at_work == {"b": (1, 1)}
    assert play.peers["b"].withdrawn == [(1, 1)], "it need not go on"
