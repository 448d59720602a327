"""The live page: a run as it looks now, in a browser, without anything but this server.

Every reader gets the whole snapshot, once a second at most and only when it has changed: one that is slow, or was away,
misses frames and nothing else, and no round waits for it.
"""

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pausefl_process.http_server import Response, Route, text_response
from pausefl_proto.arrays import FloatArray
from pausefl_server.host_limits import DOUBTS, clients_behind
from pausefl_server.monitoring.snapshot import PARTS, Clients, RunSnapshot, greatest_and_median, parts_of
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import ACCURACY, RoundRecord
from pausefl_server.settings import ServerSettings

_FRAME_EVERY_S = 1.0
READERS_MAX = 32
"""How many readers the page has at a time: each takes a thread."""
ROWS_MAX = 100
"""How many clients the table shows, and how many exchanges the waterfall."""

_MOST_NAMED = 3
# How long a reader hears nothing: proxies cut connections that are silent for longer.
_SILENCE_S = 15.0
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# Nothing from elsewhere, and nothing inline: a client's name cannot become a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)


class LivePage:
    """The routes of the live page, which are served until it is closed."""

    def __init__(self, telemetry: Telemetry, folder: Path) -> None:
        self._telemetry = telemetry
        self._folder = folder.resolve()
        self._closing = threading.Event()
        self._free_readers = threading.Semaphore(READERS_MAX)
        self._drawn: tuple[RunSnapshot, bytes] | None = None
        self.routes: dict[str, Route] = {
            "/": _static("page.html"),
            "/page.js": _static("page.js"),
            "/page.css": _static("page.css"),
            "/events": self._events,
        }

    def close(self) -> None:
        """Give every reader the last snapshot and let it go."""
        self._closing.set()

    def _events(self, _: Mapping[str, str]) -> Response:
        """The stream of frames, as server-sent events (HTML standard, 9.2)."""
        if not self._free_readers.acquire(blocking=False):
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "too many readers")
        frames = self._frames()
        # Begun here, so that it ends, and leaves its seat, even when its reader has gone already.
        return Response("text/event-stream", chain([next(frames)], frames))

    def _frames(self) -> Iterator[bytes]:
        try:
            shown, silent_s, is_last = None, 0.0, False
            yield b"retry: 2000\n\n"
            while True:
                now = self._telemetry.now
                if now is not shown:
                    yield self._draw(now)
                    shown, silent_s = now, 0.0
                elif silent_s >= _SILENCE_S:
                    yield b":\n\n"
                    silent_s = 0.0
                if is_last:
                    return
                is_last = self._closing.wait(_FRAME_EVERY_S)
                silent_s += _FRAME_EVERY_S
        finally:
            self._free_readers.release()

    def _draw(self, now: RunSnapshot) -> bytes:
        """One frame; the same bytes for all readers of one snapshot."""
        drawn = self._drawn
        if drawn is None or drawn[0] is not now:
            shown = {**frame(now, self._telemetry.settings), "folder": str(self._folder)}
            text = json.dumps(shown, separators=(",", ":"), ensure_ascii=False)
            self._drawn = drawn = now, f"data: {text}\n\n".encode()
        return drawn[1]


def frame(now: RunSnapshot, settings: ServerSettings) -> dict[str, Any]:
    """All that the page shows, ready for JSON; times in seconds, ε in the privacy unit, None for what is not known."""
    privacy, info, last = settings.privacy, settings.info, now.record
    is_timed = not now.is_over and settings.clock == "real"  # then the mean pace so far foretells the time left
    return {
        "run": {"name": info.run, "policy": info.policy, "dataset": info.dataset, "model": info.model},
        "unit": privacy.unit if privacy else None,
        "budget": privacy.budget.epsilon_budget if privacy else None,
        "private": privacy is not None and not privacy.reproducible_noise,
        "status": now.status,
        "minimum": settings.minimum_clients,
        "connected": now.connected,
        "round": now.round,
        "rounds": settings.rounds,
        "turn": "step" if settings.is_asynchronous else "round",
        "signal": settings.signal.replace("_", " "),
        "time_scale": settings.time_scale,
        "clock": settings.clock,
        "elapsed_s": now.elapsed_s if last else None,
        "wall_clock_s": last.wall_clock_s if last else None,
        **_work(now, settings),
        "left_s": last.wall_clock_s / last.round * (settings.rounds - last.round) if last and is_timed else None,
        "total_latency_s": now.total_latency_s,
        "latency": _rows(now.latency.points),
        "budgets_end": now.budgets_end,
        "rejected": now.rejected,
        "missed_jobs": sum(jobs for kind, jobs in now.missed.items() if kind != "unneeded"),
        "unneeded_jobs": now.missed["unneeded"],
        "late_updates": now.events["late"],
        "withdrawn_jobs": now.events["withdrawn"],
        "suspect_rounds": now.suspect_rounds,
        "suspect_observations": now.suspect_observations,
        "doubts": [{"rounds": n, "advice": DOUBTS[d]} for d, n in now.doubts.items()],
        "metric": next((e.metric for _, e in now.evaluations.values()), ACCURACY),
        "evaluations": {split: {"round": t, "accuracy": e.accuracy} for split, (t, e) in now.evaluations.items()},
        "accuracy": {split: _rows(curve.points) for split, curve in now.accuracy.items()},
        "no_accuracy": _no_accuracy(settings),
        "leakage": _rows(_leakage(now)) if privacy and now.round else [],
        "parts": PARTS,
        "last": _waterfall(now.record) if now.record else None,
        "clients": _table(now.clients, now.elapsed_s),
    }


def _work(now: RunSnapshot, settings: ServerSettings) -> dict[str, Any]:
    """Clients at work on average, the share of places that were empty, and the updates' mean staleness."""
    at_work = float(now.clients.at_work_s.sum()) / now.elapsed_s if now.elapsed_s else 0.0
    places, updates = settings.places(now.asked), int(now.exchanges.counts[0].sum())
    staleness = now.staleness / updates if settings.is_asynchronous and updates else None
    idle = max(0.0, 1 - at_work / places) if places else None
    return {"at_work": at_work, "places": places, "idle": idle, "staleness": staleness}


def _no_accuracy(settings: ServerSettings) -> str:
    if settings.info.model == "synthetic":
        return "Nothing is evaluated: the model is synthetic."
    return "Nothing yet." if settings.evaluation_every else "Evaluated at the end alone (evaluation.every = 0)."


def _leakage(now: RunSnapshot) -> FloatArray:
    """The curve, up to where it is now, of which the thinned one may not have the last points."""
    points, spent = now.leakage.points, greatest_and_median(now.clients.epsilon_spent)
    return np.vstack((points[points[:, 0] < now.round], (now.round, now.total_latency_s, now.elapsed_s, *spent)))


def _waterfall(record: RoundRecord) -> dict[str, Any]:
    """The slowest exchanges of a round, part by part, and whose hosts put it in doubt."""
    slowest = sorted(record.observations, key=lambda o: -o.timing.exchange_s)[:ROWS_MAX]
    return {
        "round": record.round,
        "chosen": len(set(record.chosen)),
        "answered": len(record.observations),
        "suspect": [_told(doubt, clients_behind(doubt, record.observations)) for doubt in record.suspect],
        "missed": [miss.client_id for miss in record.missed],
        "exchanges": [{"client": o.client_id, "parts": [_digits(p) for p in parts_of(o.timing)]} for o in slowest],
    }


def _told(doubt: str, whose: Sequence[str]) -> str:
    """A reason for doubt, and the first of the clients whose hosts gave it."""
    more = f" and {len(whose) - _MOST_NAMED} more" if len(whose) > _MOST_NAMED else ""
    return f"{doubt} ({', '.join(whose[:_MOST_NAMED])}{more})" if whose else doubt


def _table(clients: Clients, elapsed_s: float) -> dict[str, Any]:
    """The clients with the greatest latency, and those that spent most: each can be sorted by either.

    `idle` is the share of the elapsed time for which a client had no job.
    """
    rows = clients.foremost(ROWS_MAX)
    columns: dict[str, Sequence[Any]] = {
        "id": [clients.ids[row] for row in rows],
        "latency_s": _column(clients.latency_s[rows]),
        "round_trip_s": _column(clients.round_trip_s[rows]),
        "epsilon": _column(clients.epsilon_spent[rows]),
        "chosen": clients.chosen[rows].tolist(),
        "idle": np.clip(1 - clients.at_work_s[rows] / (elapsed_s or math.inf), 0, 1).tolist(),
        "connected": clients.connected[rows].tolist(),
        "retired": clients.retired[rows].tolist(),
    }
    cells = zip(*columns.values(), strict=True)
    return {
        "total": len(clients.ids),
        "shown_max": ROWS_MAX,
        "rows": [dict(zip(columns, row, strict=True)) for row in cells],
    }


def _rows(points: FloatArray) -> list[list[float | None]]:
    return [_column(point) for point in points]


def _column(values: FloatArray) -> list[float | None]:
    return [None if math.isnan(value) else _digits(value) for value in values.tolist()]


def _digits(value: float) -> float:
    """The value to six digits: more would not be seen, and the frame is half as long."""
    return float(f"{value:.6g}")


def _static(name: str) -> Route:
    body = resources.files(__package__).joinpath(name).read_bytes()
    kind = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    response = Response(kind, [body], {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"})
    return lambda _: response
