"""Recomputes what a policy such as Fed-TS learned about newcomers, round by round, by replaying the run's log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pausefl.results.reading import Columns, RunData
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import ConfigError
from pausefl_server.records import RoundRecord
from pausefl_server.selection import policy_class
from pausefl_server.selection.newcomers import is_original
from pausefl_server.selection.policies.fed_ts import FedTs, Posteriors
from pausefl_server.state import RunState, replay


@dataclass(frozen=True)
class Learning:
    """What the policy learned about the run's n newcomers. Index 0 of an array by round is round 1."""

    newcomers: NDArray[np.str_]
    """(n,) ids, sorted by (round joined, id)."""
    join_round: IntArray
    """(n,) the round before which each newcomer joined."""
    chosen: NDArray[np.bool_]
    """(rounds, n) whether each newcomer was chosen in each round."""
    s: IntArray
    """(rounds, n) s of each newcomer's Beta(s, f) after each round."""
    f: IntArray
    drifts: Columns
    """A row per drift since the first insertion: round, client_id, drift; original: whether the client is an original,
    whose drift is computed as if it were a newcomer; small: whether it counted as a success, false for originals."""
    threshold: FloatArray
    """(rounds,) the threshold that the drifts of a round were compared with; NaN in rounds without a threshold."""

    @property
    def sizes(self) -> Mapping[int, IntArray]:
        """By the round of an insertion: (rounds,) p, how many newcomers of this insertion were chosen in each round."""
        return {
            int(insertion): self.chosen[:, self.join_round == insertion].sum(axis=1)
            for insertion in np.unique(self.join_round)
        }


def learning(run: RunData) -> Learning | None:
    """Replay a run's log and return what the policy learned. None without newcomers or without such posteriors."""
    policy = _policy(run)
    if policy is None:
        return None
    fresh = RunState.start(policy, run.summary["seed"])
    # By round. A failed attempt at a round has no drifts, and the committed one, which comes last, replaces it.
    posteriors: dict[int, Posteriors] = {0: fresh.policy_state}
    thresholds: dict[int, float | None] = {}
    drifts: list[tuple[Any, ...]] = []

    def note(record: RoundRecord, state: RunState) -> None:
        posteriors[record.round] = state.policy_state
        classified = _classified(record, posteriors[record.round - 1], state)
        drifts.extend(classified)
        small = [drift for _, _, drift, _, is_small in classified if is_small]
        newcomers, limit = sum(not original for *_, original, _ in classified), state.policy_state.threshold
        # A single drift succeeds, whatever the threshold is, and so may drifts that are all above it.
        decides = newcomers > 1 and limit is not None and max(small, default=0.0) <= limit
        thresholds[record.round] = limit if decides else None

    state = replay(fresh, run.records, note)
    return _assemble(run, state, [*posteriors.values()][1:], drifts, np.array([*thresholds.values()], np.float64))


def _policy(run: RunData) -> FedTs | None:
    """The run's policy with its parameters. None if it has no such posteriors or its class cannot be imported."""
    try:
        found = policy_class(run.summary["policy"])
    except ConfigError:  # a user's own policy may be missing on this machine
        return None
    return found(**run.summary["policy_parameters"]) if issubclass(found, FedTs) else None


def _classified(record: RoundRecord, before: Posteriors, state: RunState) -> list[tuple[Any, ...]]:
    """Rows for a round's drifts: (round, client id, drift, whether the client is an original, whether a success)."""
    table = state.table
    measured = [o for o in record.observations if "drift" in o.statistics]
    rows = table.rows(o.client_id for o in measured)
    small = state.policy_state.grown(len(table)).successes[rows] > before.grown(len(table)).successes[rows]
    columns = zip(measured, is_original(table)[rows].tolist(), small.tolist(), strict=True)
    return [(record.round, o.client_id, o.statistics["drift"], original, is_small) for o, original, is_small in columns]


def _assemble(
    run: RunData, state: RunState, posteriors: list[Posteriors], drifts: list[tuple[Any, ...]], threshold: FloatArray
) -> Learning | None:
    table = state.table
    rows = np.flatnonzero(~is_original(table))
    if not rows.size:
        return None
    counts = np.array([p.counts(rows, len(table)) for p in posteriors])
    names = ("round", "client_id", "drift", "original", "small")
    ids, first = np.array(table.ids)[rows], table.joined_round[rows].min()
    drifts = [drift for drift in drifts if drift[0] >= first]
    return Learning(
        newcomers=ids,
        join_round=table.joined_round[rows],
        chosen=np.array([np.isin(ids, record.chosen) for record in run.records]),
        s=counts[:, 0],
        f=counts[:, 1],
        drifts={name: np.array([drift[i] for drift in drifts]) for i, name in enumerate(names)},
        threshold=threshold,
    )
