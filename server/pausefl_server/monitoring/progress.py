"""What whoever watches a run is told: its rounds, when budgets will end, and which measurements are in doubt."""

from collections.abc import Callable, Mapping
from typing import Any

from pausefl_server.host_limits import advice
from pausefl_server.records import RoundRecord
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

Progress = Callable[[Mapping[str, Any]], None]

# How long before the budgets end it is said again.
_NOTICE_ROUNDS = 10
# Nobody follows more rounds than this, and every one shown takes time from the next.
_SHOW_EVERY_S = 0.05


class Announcer:
    """Turns committed rounds into progress events."""

    def __init__(self, settings: ServerSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._notices = 0  # how often it was said when the budgets will end
        self._doubts: set[str] = set()  # said once each
        self._shown_s = float("-inf")  # when a round was last shown

    def say(self, message: str) -> None:
        """Something that a person should read."""
        self._progress({"kind": "event", "message": message})

    def round_committed(
        self, record: RoundRecord, state: RunState, now_s: float, *, ends: int | None, connected: int, rejected: int
    ) -> None:
        """A round is on disk; `ends` is the round after which fewer than m clients have budget left."""
        self._announce_end(ends, record.round, state.policy.m)
        self._announce_doubts(record)
        if now_s - self._shown_s < _SHOW_EVERY_S and record.round < self._settings.rounds:
            return
        self._shown_s = now_s
        privacy = self._settings.privacy
        self._progress(
            {
                "kind": "round",
                "round": record.round,
                "rounds": self._settings.rounds,
                "chosen": list(record.chosen),
                "round_latency_s": record.round_latency_s,
                "total_latency_s": state.total_latency_s,
                "max_epsilon_spent": float(state.table.epsilon_spent.max(initial=0.0)),
                "epsilon_budget": privacy.budget.epsilon_budget if privacy else None,
                "privacy_unit": privacy.unit if privacy else None,
                "budgets_end_after_round": ends,
                "connected": connected,
                "rejected": rejected,
                "wall_clock_s": record.wall_clock_s,
                "selection_s": record.selection_s,
                "suspect": list(record.suspect),
                "suspect_rounds": state.suspect_rounds,
            }
        )

    def _announce_end(self, ends: int | None, round: int, m: int) -> None:
        """Say when the budgets will end the run: once as soon as it is known, and once more shortly before."""
        rounds = self._settings.rounds
        if ends is None or ends >= rounds:
            return
        due = 1 if ends - round > _NOTICE_ROUNDS else 2
        if self._notices < due:
            self._notices = due
            self.say(
                f"privacy budgets will be used up: after round {ends} of {rounds}, fewer than m = {m} clients left"
            )

    def _announce_doubts(self, record: RoundRecord) -> None:
        """Say why measurements are suspect and what to do: once for each reason."""
        for doubt in record.suspect:
            if doubt not in self._doubts:
                self._doubts.add(doubt)
                self.say(f"round {record.round} is suspect: {advice(doubt)}")
