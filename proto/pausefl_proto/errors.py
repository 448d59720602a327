"""The errors that cross a package's border; those of one package alone stand where they are raised.

A command ends with exit status 2 on a `ConfigError` and with 1 on any other `PauseflError`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PauseflError(Exception):
    """A failure whose message is fit for a user: one line that names what to change."""


class ConfigError(PauseflError):
    """Bad input: an unknown key, a value out of range, a missing file. Nothing was started."""


class WireError(PauseflError):
    """The other side sent something that the protocol does not allow; the message is the reason of the rejection."""


class DamageError(WireError):
    """Bytes were changed, lost or reordered on the way; their sender still has them and can send them again."""


class TryLaterError(WireError):
    """The server cannot take the message now; the same one may be taken later."""


class EvaluatorLost(PauseflError):
    """The evaluator cannot be reached; training goes on without evaluations."""


class EvaluatorStuck(EvaluatorLost):
    """The evaluator is there, and has taken longer for an answer than it may."""


class BudgetError(PauseflError):
    """A release would pass the client's privacy budget, or the two sides do not agree on it."""


class WrittenOff(PauseflError):
    """A release was charged and its bytes are gone: its job is not answered, as fresh noise would leak more."""


class LedgerError(PauseflError):
    """A ledger cannot be opened, is another experiment's, or does not hold together."""


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first PauseflError of an exception group as itself: a user needs one line, not a tree."""
    # Not by except*: Python 3.11.2, Debian 12's, puts whatever is raised there into a group again.
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
