"""Composes the ε of a run's summary in the process that started the run, which has time to import scipy meanwhile."""

from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from pausefl.results.accounting import tighter_epsilon


def ask(line: "Connection[Any, Any]", *of: Any) -> float | None:
    """`tighter_epsilon` of these arguments, by the process at the other end of the line. Raises the error it had."""
    line.send(of)
    answer: float | Exception | None = line.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def answer_all(line: "Connection[Any, Any]") -> None:
    """Answer what `ask` asks at the other end of the line, until that is closed."""
    with suppress(ImportError):  # then every answer is None
        import_module("dp_accounting.pld.privacy_loss_distribution")
    with line, suppress(EOFError, OSError):
        while True:
            asked = line.recv()
            try:
                line.send(tighter_epsilon(*asked))
            except Exception as error:
                line.send(error)
