"""The errors that several packages share. An error of one package alone is defined where it is raised.

A command ends with exit status 2 on a `ConfigError`, and with 1 on any other `PauseflError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PauseflError(Exception):
    """Base of errors whose message is for the user: one line that names what to change."""


class ConfigError(PauseflError):
    """Bad input: an unknown key, a value out of range, a missing file. Nothing was started."""


class WireError(PauseflError):
    """The other side sent something that the protocol does not allow. The message is the reason for the rejection."""


class DamageError(WireError):
    """Bytes were changed, lost or reordered on the way. Their sender still has them and can send them again."""


class TryLaterError(WireError):
    """The server cannot accept the message now. It may accept the same message later."""


class EvaluatorLost(PauseflError):
    """The evaluator cannot be reached. Training goes on without evaluations."""


class EvaluatorStuck(EvaluatorLost):
    """The evaluator can be reached, but has not answered within its time limit."""


class BudgetError(PauseflError):
    """A release would exceed the client's privacy budget, or the two sides disagree about the budget."""


class WrittenOff(PauseflError):
    """A release was charged, but its bytes are lost. Its job stays unanswered, because new noise would leak more."""


class LedgerError(PauseflError):
    """A ledger cannot be opened, belongs to another experiment, or is inconsistent."""


@contextmanager
def first_error() -> Iterator[None]:
    """In place of an exception group of PauseflErrors alone, raise the first one: a user needs one line, not a tree."""
    # Python 3.11.2 (Debian 12) wraps errors raised within `except*` in a group again.
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PauseflError)
        if ours is None or others is not None:
            raise
        error: BaseException = ours
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
