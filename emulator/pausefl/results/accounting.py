"""Accounts for the ε of releases: those of unanswered jobs, those that came late, and a tighter total.

Theorem 2 of PAUSE v2 adds up the ε_i, which always holds. Composing the releases' privacy loss distributions gives an
(ε, δ) guarantee with a smaller ε for a small δ. dp-accounting composes them and rounds upwards.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pausefl.results.reading import Columns, open_database, read_columns
from pausefl_proto.budget import Budget
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_server.clients import ClientTable
from pausefl_server.records import STILL_AT_WORK, LogEvent, RoundRecord

# A client's first hello reports what it had spent before the run. Each message reports the total of releases so far.
# Late releases are those that no earlier message reported and whose updates never came in time. Such a message may
# come after the answer with a later release.
_LATE_RELEASES = """
WITH told AS (
    SELECT round, sequence, client_id, released, epsilon_spent FROM events WHERE kind IN ('joined', 'reconciled')
    UNION ALL
    SELECT 0, 0, hello.key, json_extract(hello.value, '$[0]'), json_extract(hello.value, '$[1]')
    FROM meta, json_each(meta.value) AS hello WHERE meta.key = 'first hellos'
), known AS (
    SELECT *, max(released) OVER (PARTITION BY client_id ORDER BY round, sequence
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS released_before FROM told
), releases AS (
    SELECT round, client_id, released, epsilon_spent, 0 AS in_time, 0.0 AS epsilon FROM known
    WHERE released_before IS NULL OR released > released_before
    UNION ALL
    SELECT round, client_id, participation, epsilon_spent, 1, epsilon FROM observations WHERE participation > 0
), so_far AS (
    SELECT *, released - sum(in_time) OVER up_to AS late, epsilon_spent - sum(epsilon) OVER up_to AS late_epsilon
    FROM releases WINDOW up_to AS (PARTITION BY client_id ORDER BY released)
), since AS (
    SELECT *, late - lag(late) OVER before AS more, late_epsilon - lag(late_epsilon) OVER before AS more_epsilon
    FROM so_far WHERE NOT in_time WINDOW before AS (PARTITION BY client_id ORDER BY released)
)
SELECT min(round, (SELECT max(round) FROM rounds)) AS round, client_id, more AS releases, more_epsilon AS epsilon
FROM since WHERE more > 0 ORDER BY round, client_id
"""
# How many points the loss distribution of all releases together is discretised to.
_POINTS = 20_000
# Composing this many takes about 20 s. A limit is needed because the client itself reports how often it released.
_MOST_COMPOSED = 10_000
# Above this, e^ε and the values that the composition computes from it overflow float64.
_GREATEST_COMPOSED = 700.0


def tighter_epsilon(budget: Budget, unit: PrivacyUnit, participations: int, delta: float) -> float | None:
    """ε of (ε, δ) in `unit` after `participations` releases of one client; None if dp-accounting is not installed.

    unit "coordinate": a release is the Laplace mechanism with scale 1/ε_i times its sensitivity. unit "vector": it is
    any ε_i-DP mechanism, whose loss is at most that of randomised response (Kairouz, Oh and Viswanath, 2015). Some ε_i
    are added without composition: those after the 10,000th release, which are the least, and those above 700.
    """
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    spent, numbers = budget.spent(participations), range(1, min(participations, _MOST_COMPOSED) + 1)
    composed = [epsilon for epsilon in map(budget.epsilon, numbers) if 0 < epsilon <= _GREATEST_COMPOSED]
    if not composed:
        return spent
    rounding = {"value_discretization_interval": sum(composed) / _POINTS}
    total = privacy_loss_distribution.identity(**rounding)
    for epsilon in composed:
        if unit == "coordinate":
            release = privacy_loss_distribution.from_laplace_mechanism(1 / epsilon, **rounding)
        else:
            stated = common.DifferentialPrivacyParameters(epsilon, 0.0)
            release = privacy_loss_distribution.from_privacy_parameters(stated, **rounding)
        total = total.compose(release)
    # Discretising rounds up, so the plain sum, which is a guarantee too, may be smaller.
    return min(float(total.get_epsilon_for_delta(delta)) + max(0.0, spent - sum(composed)), spent)


class UnansweredJobs:
    """Counts, per client, the unanswered jobs: each may have charged a release that the server does not know of.

    A client charges a release before it sends it. The count ends when it answers a later job or sends its ledger.
    """

    def __init__(self) -> None:
        self._jobs: Counter[str] = Counter()  # unanswered jobs, by client
        self._known: Counter[str] = Counter()  # the most releases that each client has reported

    def add(self, attempt: RoundRecord) -> None:
        """Count the jobs of the next attempt at a round. Attempts must be added in the order of the log."""
        self.settle(attempt.events)
        for observation in attempt.observations:
            del self._jobs[observation.client_id]
            self._newly_known(observation.client_id, observation.participation)
        self._jobs.update(miss.client_id for miss in attempt.misses if miss.kind in STILL_AT_WORK)

    def settle(self, events: Iterable[LogEvent]) -> None:
        """Update the counts by what later events say about unanswered jobs."""
        for event in events:
            client_id = event.client_id
            told = self._newly_known(client_id, event.released) if event.kind in ("joined", "reconciled") else 0
            if event.kind == "joined":
                del self._jobs[client_id]
            elif event.kind == "reconciled":  # the answer may be to any of its jobs, not only to the last one
                self._jobs[client_id] = max(0, self._jobs[client_id] - told)
            elif event.kind == "withdrawn" and self._jobs[client_id] > 0:
                self._jobs[client_id] -= 1
            elif event.kind == "unsettled":
                self._jobs[client_id] += 1

    def releases_at_most(self, table: ClientTable, budget: Budget) -> dict[str, int]:
        """By client, the most releases that it can have charged within its budget."""
        most = dict(zip(table.ids, table.released.tolist(), strict=True))
        for client_id in self._known.keys() | self._jobs.keys():
            # A client is not in the table if the run went back to a round before it joined and it has not rejoined.
            released, jobs = most.get(client_id, self._known[client_id]), self._jobs[client_id]
            most[client_id] = released + next((n for n in range(jobs, 0, -1) if budget.affords(released + n)), 0)
        return most

    def _newly_known(self, client_id: str, released: int) -> int:
        """Note that a client reports `released` releases; returns how many of them are new."""
        more = max(0, released - self._known[client_id])
        self._known[client_id] += more
        return more


def late_releases(run_dir: Path) -> Columns:
    """Releases whose updates were late, lost, rejected or taken back, as reported by their clients.

    A row per reporting message: the round before which it came, the client, how many releases, and their ε.
    """
    with open_database(run_dir) as database:
        return read_columns(database, _LATE_RELEASES)
