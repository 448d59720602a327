"""PAUSE by brute force: tries every set of m clients. Checks other searches on small networks; the papers time it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pausefl_proto.arrays import IntArray
from pausefl_proto.errors import ConfigError
from pausefl_server.search import brute_force
from pausefl_server.selection.base import Context
from pausefl_server.selection.policies.pause import Choice, Pause

MOST_SETS = 10_000_000


@dataclass(frozen=True)
class PauseBrute(Pause):
    """PAUSE (PAUSE v2, eq. (14)), solved by trying every set. Refuses more than 10⁷ sets in a round."""

    def check_clients(self, client_ids: Sequence[str], at_once: int) -> None:
        """Raise ConfigError if `at_once` clients make more than 10⁷ sets."""
        super().check_clients(client_ids, at_once)
        _sets_to_try(at_once, self.m)

    def warm_up(self) -> None:
        brute_force([1.0, 2.0], [0.0, 0.0], 1, [0, 0], [0.0])

    def _search(self, choice: Choice, context: Context) -> tuple[IntArray, dict[str, float]]:
        free, places = len(choice.rows) - len(choice.forced), choice.m - len(choice.forced)
        sets = _sets_to_try(free, places)
        positions = brute_force(choice.ucb, choice.value, choice.m, choice.cluster, choice.marginal, choice.forced)
        return positions, {"energy": choice.finite().energy(positions), "sets": float(sets)}


def _sets_to_try(free: int, places: int) -> int:
    """The number of sets of `places` clients among `free`. Raises ConfigError if there are more than MOST_SETS."""
    sets = math.comb(free, places)
    if sets > MOST_SETS:
        raise ConfigError(
            f'selection.policy = "pause-brute": there are {sets:,} sets of {places} of {free} clients to try,'
            f' at most {MOST_SETS:,} are allowed; "pause" is exact too'
        )
    return sets
