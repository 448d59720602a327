"""Decides which of a round's updates enter the model, and with what weight. No argument is changed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pausefl_process.global_generators import seeded_server_code
from pausefl_proto.arrays import FloatArray
from pausefl_proto.wire import Vector
from pausefl_server.model.aggregation import capped_shares, outliers
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import TierModels
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.records import LogEvent, Observation
from pausefl_server.rounds.late_updates import dropped, merged
from pausefl_server.rounds.messages import Update
from pausefl_server.rounds.open_step import Draw, OpenStep
from pausefl_server.selection.validation import checked_inspection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


@dataclass(frozen=True, slots=True)
class WeightedUpdate:
    """One update to aggregate: a vector, (d,) float32, and its weight before the staleness discount."""

    client_id: str
    vector: Vector
    weight: float
    staleness: int = 0
    """τ, by how many steps the model that the update was made from is older than the one that it changes."""
    base: Vector | None = None
    """The model that the update was made from; None unless the rule needs it."""


@dataclass(frozen=True, slots=True)
class AggregatedRound:
    """The model after a round, and the log entries about its updates."""

    model: GlobalModel
    observations: Mapping[str, Observation]
    """The changed observations, by client: their updates entered the model, or the policy added statistics."""
    events: tuple[LogEvent, ...]
    """What became of updates: "rejected" as outliers, "capped" in time or weight, late ones "merged" or "dropped"."""


def aggregate(
    step: OpenStep, late: Sequence[tuple[Update, float]], state: RunState, model: GlobalModel, settings: ServerSettings
) -> AggregatedRound:
    """The model moved by the updates that the policy admits; the same model if there are none.

    `late` updates, each with its weight, come last. No policy inspects them.
    """
    with seeded_server_code(settings.seed, "inspection", step.number, state.policy):
        admitted, observations = _inspect(step, state, model.model_size)
    updates = []
    for draw in admitted:
        vector, base = step.updates[draw.client_id].vector, step.jobs[draw.client_id].job.theta
        weight = step.weight(draw, state.table)
        updates.append(WeightedUpdate(draw.client_id, vector, weight, step.number - draw.round, base))
    updates += [WeightedUpdate(u.client_id, u.vector, weight, step.number - u.round) for u, weight in late]
    if not updates:
        return AggregatedRound(model, observations, tuple(step.capped))
    limit = settings.aggregation.norm_limit
    found = {} if limit is None else outliers([update.vector[: model.model_size] for update in updates], limit)
    # A client that was drawn twice has one fresh update, and may have a late one besides.
    fresh = len(admitted)
    reasons = {(updates[i].client_id, i < fresh): reason for i, reason in found.items()}
    events = (*(LogEvent("rejected", client_id, reason) for (client_id, _), reason in reasons.items()), *step.capped)
    of_late = enumerate((update for update, _ in late), fresh)
    fates = [dropped(update, found[i]) if i in found else merged(update, step.number) for i, update in of_late]
    kept, steps = [i for i in range(len(updates)) if i not in found], settings.asynchronous
    updates = [mixed(updates[i], steps, model) for i in kept]
    discounts = np.array([steps.weight(update.staleness) for update in updates])
    if steps.normaliser == "discounted":
        updates = [replace(u, weight=u.weight * s) for u, s in zip(updates, discounts.tolist(), strict=True)]
        discounts = np.ones(len(updates))
    shares, capped = _capped(updates, settings.aggregation.weight_share_max)
    coefficients = shares / shares.sum() * discounts
    of_client = Counter[str]()
    for i, coefficient in zip(kept, coefficients.tolist(), strict=True):
        if i < fresh:
            of_client[admitted[i].client_id] += coefficient
    for client_id, weight in of_client.items():
        observations[client_id] = replace(observations.get(client_id, step.observations[client_id]), weight=weight)
    vectors, clients, optimizer = [u.vector for u in updates], len(state.table), settings.optimizer
    if (tiers := state.policy.tiers_of(state.policy_state, state.table)) is not None:
        optimizer = TierModels(steps.concurrency // steps.buffer, int(tiers[state.table.rows(step.updates)].max()))
    with seeded_server_code(settings.seed, "aggregation", step.number, settings.aggregation.rule, optimizer):
        model = model.updated(vectors, shares, settings.aggregation, optimizer, clients=clients, discounts=discounts)
    return AggregatedRound(model, observations, (*events, *capped, *fates))


def mixed(update: WeightedUpdate, steps: Asynchronous, model: GlobalModel) -> WeightedUpdate:
    """The update as the change that mixes its client's own model into this one; the same unless it has a base."""
    if update.base is None:
        return update
    vector, d = update.vector.copy(), update.vector.size - model.statistics_size
    vector[:d] += update.base[:d] - model.theta[:d]
    vector[:d] *= np.float32(steps.mixed_share)
    return replace(update, vector=vector)


def _inspect(step: OpenStep, state: RunState, model_size: int) -> tuple[list[Draw], dict[str, Observation]]:
    """Let the policy inspect the updates that came.

    Returns the draws whose updates may enter the model, and the observations with the policy's statistics added.
    """
    arrived = step.arrived()
    client_ids = [draw.client_id for draw in arrived]
    vectors = [step.updates[client_id].vector[:model_size] for client_id in client_ids]
    inspection = state.policy.inspect(state.table, state.table.rows(client_ids), vectors)
    if inspection is None:
        return arrived, {}
    checked_inspection(inspection, len(arrived), step.number)
    observations: dict[str, Observation] = {}
    for client_id, found in zip(client_ids, inspection.statistics, strict=True):
        observation = observations.get(client_id, step.observations[client_id])  # one may be drawn twice
        observations[client_id] = replace(observation, statistics={**observation.statistics, **found})
    return [draw for draw, is_admitted in zip(arrived, inspection.admitted, strict=True) if is_admitted], observations


def _capped(updates: list[WeightedUpdate], share_max: float) -> tuple[FloatArray, tuple[LogEvent, ...]]:
    """The weights, with no client's share above `share_max`, and an event for each client whose share was cut.

    If a client has several updates, they divide its share in proportion to their weights.
    """
    weights = np.array([update.weight for update in updates])
    if share_max == 1:
        return weights, ()
    ids, client = np.unique([update.client_id for update in updates], return_inverse=True)
    stated = np.bincount(client, weights).astype(float)
    shares = capped_shares(stated, share_max)
    parts = zip(ids.tolist(), stated / stated.sum(), shares, strict=True)
    cut = (client_id for client_id, share, capped in parts if capped < share * (1 - 1e-9))
    events = tuple(LogEvent("capped", client_id, "weight in the average") for client_id in cut)
    return shares[client] * (weights / stated[client]), events
