"""The releases that clients charged for updates that did not come while their round was open."""

from pathlib import Path

from pausefl.results.reading import Columns, open_database, read_columns

# Events of a round come before its answers. A client's first hello tells of what it had spent before the run.
_LATE_RELEASES = """
WITH told AS (
    SELECT round, client_id, participation AS released, epsilon_spent, 1 AS in_time, 0 AS sequence FROM observations
    UNION ALL
    SELECT round, client_id, released, epsilon_spent, 0, sequence FROM events WHERE kind IN ('joined', 'reconciled')
), known AS (
    SELECT *, max(released) OVER before AS released_before, max(epsilon_spent) OVER before AS spent_before FROM told
    WINDOW before AS (PARTITION BY client_id ORDER BY round, in_time, sequence
                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT min(round, (SELECT max(round) FROM rounds)) AS round, client_id,
       released - released_before AS releases, epsilon_spent - spent_before AS epsilon
FROM known WHERE NOT in_time AND released > released_before ORDER BY round, client_id
"""


def late_releases(run_dir: Path) -> Columns:
    """Per message that told of some: the round before which the server learnt of them, the client, how many, their ε.

    Those of updates that were late, lost, rejected or taken back; one that a client never told of is not among them.
    """
    with open_database(run_dir) as database:
        return read_columns(database, _LATE_RELEASES)
