"""What becomes of a round's updates where some did not come, some are not admitted, and some come late besides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.records import LogEvent
from pausefl_server.release_checks import Release
from pausefl_server.rounds.aggregation import AggregatedRound, WeightedUpdate, aggregate
from pausefl_server.rounds.elapsed import Elapsed
from pausefl_server.rounds.messages import Dispatch
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.selection.base import Context, Inspection, Policy, Selection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState
from rigs.coordinator import answer_of
from rigs.settings import server_settings

IDS = ("a", "b", "c", "d", "e")


@dataclass(frozen=True)
class NotTheSecond(Policy):
    """Notes what it is shown, and lets all but the second row into the model."""

    def select(self, state: Any, context: Context) -> Selection:  # noqa: ARG002
        return Selection(context.eligible)

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:  # noqa: ARG002
        shown = zip(rows.tolist(), updates, strict=True)
        return Inspection([{"row": float(row), "size": float(update.size)} for row, update in shown], rows != 1)


def aggregated(
    updates: dict[str, Vector],
    settings: ServerSettings,
    weights: FloatArray | None = None,
    late: Sequence[WeightedUpdate] = (),
) -> AggregatedRound:
    """A round of five clients of which these have answered, with a model of zeros and two values."""
    state = RunState.start(NotTheSecond(5), 1)
    state.table.apply_events([LogEvent("joined", i, n_examples=10 * (k + 1)) for k, i in enumerate(IDS)], round=1)
    opened = OpenStep(1, needed=5, time_scale=settings.time_scale, elapsed=Elapsed(0.0, 0.0))
    opened.give(Dispatch(1, 1, (), 0.0, 0.0), Selection(np.arange(5), weights), IDS, sent_s=0.0, timeout_s=1.0)
    for client_id, vector in updates.items():
        opened.take(answer_of(client_id, 1, Release(), vector=vector), state.table, settings, now_s=1.0)
    size = next(iter(updates.values())).size
    model = GlobalModel.start(np.zeros(size, np.float32), ServerOptimizer(), model_size=2)
    return aggregate(opened, late, state, model, settings)


def random_updates(ids: str, size: int) -> dict[str, Vector]:
    return {i: np.random.default_rng(ord(i)).standard_normal(size, np.float32) for i in ids}


def test_each_update_keeps_its_row_and_its_weight_where_others_are_left_out() -> None:
    updates = random_updates("bcd", 2)
    weights = np.array([1.0, 2.0, 5.0, 7.0, 16.0])
    for given, (c, d) in ((weights, (5.0, 7.0)), (None, (30.0, 40.0))):
        found = aggregated(updates, server_settings(2), given)
        assert {i: o.statistics["row"] for i, o in found.observations.items()} == {"b": 1.0, "c": 2.0, "d": 3.0}
        mean = (c * updates["c"] + d * updates["d"]) / (c + d)
        np.testing.assert_allclose(found.model.theta, mean, atol=1e-6)


def test_a_control_variate_is_neither_shown_to_the_policy_nor_counted_in_a_norm() -> None:
    updates = random_updates("abcd", 4)
    updates["c"][2:] = 1e6
    found = aggregated(updates, server_settings(2, aggregation=Aggregation(norm_limit=30.0)))
    assert found.rejected == ()
    assert {o.statistics["size"] for o in found.observations.values()} == {2.0}


def test_a_fresh_and_a_late_update_of_a_client_are_rejected_each() -> None:
    unit, great = np.ones(2, np.float32), np.full(2, 1000.0, np.float32)
    late = [WeightedUpdate("c", great, 1.0), WeightedUpdate("a", unit, 1.0)]
    updates = {"a": unit, "c": great, "d": unit, "e": unit}
    found = aggregated(updates, server_settings(2, aggregation=Aggregation(norm_limit=3.0)), late=late)
    assert [(event.kind, event.client_id) for event in found.rejected] == [("rejected", "c")] * 2
    assert list(found.late_rejected) == [0]
    np.testing.assert_allclose(found.model.theta, unit)
