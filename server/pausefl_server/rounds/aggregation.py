"""What becomes of a round's updates: which enter the model, and with what weight. Changes nothing that it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pausefl_proto.arrays import FloatArray
from pausefl_proto.wire import Vector
from pausefl_server.model.aggregation import capped_shares, outliers
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.records import LogEvent, Observation
from pausefl_server.rounds.open_round import OpenRound
from pausefl_server.selection.validation import checked_inspection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


@dataclass(frozen=True, slots=True)
class WeightedUpdate:
    """What a client gives to a model: a vector, (d,) float32, and what it weighs there."""

    client_id: str
    vector: Vector
    weight: float


@dataclass(frozen=True, slots=True)
class AggregatedRound:
    """The model after a round, and what is to be written down of the updates that it was made of."""

    model: GlobalModel
    observations: Mapping[str, Observation]
    """Those of the round that the policy's statistics were added to, by client."""
    capped: tuple[LogEvent, ...]
    """One for each client whose weight was cut."""
    rejected: tuple[LogEvent, ...]
    """One for each update that was too great beside the others."""
    late_rejected: Mapping[int, str]
    """Those of them that were late, by their places among these, and why."""


def aggregate(
    open_round: OpenRound, late: Sequence[WeightedUpdate], state: RunState, model: GlobalModel, settings: ServerSettings
) -> AggregatedRound:
    """The model moved by the updates that came and that the policy admits; the same one where there are none.

    `late` ones, which no policy inspects, come last.
    """
    admitted, observations = _inspect(open_round, state, model.model_size)
    selection = open_round.selection
    weights: FloatArray
    if selection.weights is None:
        weights = state.table.n_examples[selection.rows[admitted]].astype(np.float64)
    else:
        weights = selection.weights[admitted]
    fresh = [open_round.updates[open_round.chosen[i]] for i in admitted]
    updates = [*(WeightedUpdate(u.client_id, u.vector, w) for u, w in zip(fresh, weights, strict=True)), *late]
    found = _outliers(updates, settings.aggregation.norm_limit, model.model_size)
    # One that was drawn twice has one fresh update, and may have a late one besides.
    reasons = {(updates[i].client_id, i < len(fresh)): reason for i, reason in found.items()}
    events = tuple(LogEvent("rejected", client_id, reason) for (client_id, _), reason in reasons.items())
    late_rejected = {i - len(fresh): reason for i, reason in found.items() if i >= len(fresh)}
    updates = [update for i, update in enumerate(updates) if i not in found]
    if not updates:
        return AggregatedRound(model, observations, (), events, late_rejected)
    shares, capped = _capped(updates, settings.aggregation.weight_share_max)
    vectors, clients = [u.vector for u in updates], len(state.table)
    model = model.updated(vectors, shares, settings.aggregation, settings.optimizer, clients=clients)
    return AggregatedRound(model, observations, capped, events, late_rejected)


def _inspect(open_round: OpenRound, state: RunState, model_size: int) -> tuple[list[int], dict[str, Observation]]:
    """Show the policy the updates while they are at hand.

    Returns the positions of those that may enter the model, and the observations with what it found.
    """
    arrived = open_round.arrived()
    client_ids = [open_round.chosen[i] for i in arrived]
    vectors = [open_round.updates[client_id].vector[:model_size] for client_id in client_ids]
    inspection = state.policy.inspect(state.table, open_round.selection.rows[arrived], vectors)
    if inspection is None:
        return arrived, {}
    checked_inspection(inspection, len(arrived), open_round.job.round)
    observations: dict[str, Observation] = {}
    for client_id, found in zip(client_ids, inspection.statistics, strict=True):
        observation = observations.get(client_id, open_round.observations[client_id])  # one may be drawn twice
        observations[client_id] = replace(observation, statistics={**observation.statistics, **found})
    return [i for i, is_admitted in zip(arrived, inspection.admitted, strict=True) if is_admitted], observations


def _outliers(updates: list[WeightedUpdate], norm_limit: float | None, model_size: int) -> dict[int, str]:
    """The places of the updates that are too great beside the others, and why each is."""
    return {} if norm_limit is None else outliers([update.vector[:model_size] for update in updates], norm_limit)


def _capped(updates: list[WeightedUpdate], share_max: float) -> tuple[FloatArray, tuple[LogEvent, ...]]:
    """The weights, no client's share above `share_max`, and the events of those that were cut.

    A client's several updates divide its share in proportion to their weights.
    """
    weights = np.array([update.weight for update in updates])
    if share_max == 1:
        return weights, ()
    place = {client_id: i for i, client_id in enumerate(dict.fromkeys(update.client_id for update in updates))}
    client = np.array([place[update.client_id] for update in updates])
    stated = np.zeros(len(place))
    np.add.at(stated, client, weights)
    shares = capped_shares(stated, share_max)
    parts = zip(place, stated / stated.sum(), shares, strict=True)
    cut = (client_id for client_id, share, capped in parts if capped < share * (1 - 1e-9))
    events = tuple(LogEvent("capped", client_id, "weight in the average") for client_id in cut)
    return shares[client] * (weights / stated[client]), events
