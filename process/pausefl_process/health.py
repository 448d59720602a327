"""The health probes `/healthz` and `/readyz`, by which containers and clusters ask if a process is alive and ready."""

import asyncio
import threading
from collections.abc import Callable
from http import HTTPStatus

from pausefl_process.http_server import Response, Route, text_response

_TURNS_WITHIN_S = 2.0

Trouble = Callable[[], str]
"""Returns a problem in a few words, or an empty text if there is none. It may be called in any thread."""


def health_routes(loop: asyncio.AbstractEventLoop, trouble: Trouble, not_ready: Trouble) -> dict[str, Route]:
    """The routes of both probes: healthy if the event loop runs and `trouble` is empty, ready if `not_ready` is."""
    return {"/healthz": lambda _: _answer(trouble() or _stalled(loop)), "/readyz": lambda _: _answer(not_ready())}


def _stalled(loop: asyncio.AbstractEventLoop) -> str:
    turned = threading.Event()
    try:
        loop.call_soon_threadsafe(turned.set)
    except RuntimeError:
        return "the event loop has ended"
    return "" if turned.wait(_TURNS_WITHIN_S) else f"the event loop has not turned for {_TURNS_WITHIN_S:g} s"


def _answer(reason: str) -> Response:
    return text_response(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason or "ok")
