"""The cost of releases: those that no answer tells of, those that came late, and a tighter sum of many.

Theorem 2 of PAUSE v2 adds the ε_i up, which always holds. Composing the releases' privacy loss distributions gives, for
a small δ, an (ε, δ) guarantee whose ε is smaller. The composition and its rounding (upwards) are dp-accounting's.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pausefl.results.reading import Columns, open_database, read_columns
from pausefl_proto.budget import Budget
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_server.clients import ClientTable
from pausefl_server.records import STILL_AT_WORK, LogEvent, RoundRecord

# A client's first hello tells of what it had spent before the run. A message that tells of n releases tells of all so
# far: late are those that no earlier message told of, and whose updates never came in time. It may come after the
# answer with a later release.
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
# The loss distribution of all releases together stands on so many points.
_POINTS = 20_000
# Composing so many takes some 20 s. How often a client says it has released is its own word.
_MOST_COMPOSED = 10_000
# Above this, e^ε and what the composition computes of it are no float64 any more.
_GREATEST_COMPOSED = 700.0


def tighter_epsilon(budget: Budget, unit: PrivacyUnit, participations: int, delta: float) -> float | None:
    """ε of (ε, δ) in `unit` for a client that released so often; None when dp-accounting is not installed.

    unit "coordinate": a release is the Laplace mechanism with scale 1/ε_i times its sensitivity. unit "vector": it is
    any ε_i-DP mechanism, whose loss is at most that of randomised response (Kairouz, Oh and Viswanath, 2015). The ε_i
    of releases after the 10,000th, which are the least, and those too great to be composed are added as they are.
    """
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    spent, numbers = budget.spent(participations), range(1, min(participations, _MOST_COMPOSED) + 1)
    composed = [epsilon for epsilon in map(budget.epsilon, numbers) if 0 < epsilon <= _GREATEST_COMPOSED]
    if not composed:
        return spent
    interval = sum(composed) / _POINTS
    total = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for epsilon in composed:
        if unit == "coordinate":
            release = privacy_loss_distribution.from_laplace_mechanism(
                1 / epsilon, value_discretization_interval=interval
            )
        else:
            release = privacy_loss_distribution.from_privacy_parameters(
                common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=interval
            )
        total = total.compose(release)
    # Discretising rounds up; the plain sum is a guarantee as well.
    return min(float(total.get_epsilon_for_delta(delta)) + max(0.0, spent - sum(composed)), spent)


class UnansweredJobs:
    """How many jobs each client may have charged a release for that the server's ledger does not count.

    A client charges a release before it sends it. One that did not answer a job may have charged one more for each such
    job, until it answers a later one or says hello with its ledger.
    """

    def __init__(self) -> None:
        self._jobs: Counter[str] = Counter()  # by client
        self._known: Counter[str] = Counter()  # the most releases that each client has told of

    def add(self, attempt: RoundRecord) -> None:
        """Count an attempt at a round, which follows those that were counted before."""
        self.settle(attempt.events)
        for observation in attempt.observations:
            del self._jobs[observation.client_id]
            self._newly_known(observation.client_id, observation.participation)
        self._jobs.update(miss.client_id for miss in attempt.misses if miss.kind in STILL_AT_WORK)

    def settle(self, events: Iterable[LogEvent]) -> None:
        """Take what clients said since."""
        for event in events:
            client_id = event.client_id
            told = self._newly_known(client_id, event.released) if event.kind in ("joined", "reconciled") else 0
            if event.kind == "joined":
                del self._jobs[client_id]
            elif event.kind == "reconciled":  # the answer to any of its jobs, not to its last one alone
                self._jobs[client_id] = max(0, self._jobs[client_id] - told)
            elif event.kind == "withdrawn" and self._jobs[client_id] > 0:
                self._jobs[client_id] -= 1
            elif event.kind == "unsettled":
                self._jobs[client_id] += 1

    def releases_at_most(self, table: ClientTable, budget: Budget) -> dict[str, int]:
        """The most releases that each client can have charged, as far as its budget allows."""
        most = dict(zip(table.ids, table.released.tolist(), strict=True))
        for client_id in self._known.keys() | self._jobs.keys():
            # Not in the table: it has not come again since the run went back to a round before it.
            released, jobs = most.get(client_id, self._known[client_id]), self._jobs[client_id]
            most[client_id] = released + next((n for n in range(jobs, 0, -1) if budget.affords(released + n)), 0)
        return most

    def _newly_known(self, client_id: str, released: int) -> int:
        """Take a client's count of its releases; returns how many of them were not known of."""
        more = max(0, released - self._known[client_id])
        self._known[client_id] += more
        return more


def late_releases(run_dir: Path) -> Columns:
    """Per message that told of some: the round before which the server learnt of them, the client, how many, their ε.

    Those of updates that were late, lost, rejected or taken back; one that a client never told of is not among them.
    """
    with open_database(run_dir) as database:
        return read_columns(database, _LATE_RELEASES)
