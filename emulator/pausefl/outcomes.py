"""Ends commands with an exit status that says how they ended; docs/events.md describes the statuses."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pausefl.extras import needs
from pausefl_process.ending import BAD_INPUT, INTERRUPTED
from pausefl_process.events import Outcome
from pausefl_process.plugins import errors_of_own_code
from pausefl_proto.errors import ConfigError, PauseflError

FAILED = 1

EPILOG = (
    f"exit status: 0: done (a run: every round was played, or privacy budgets ended it as planned); {FAILED}: it"
    f" failed, or a run ended early; {BAD_INPUT}: bad input; {INTERRUPTED}: interrupted"
)


class RunInterrupted(PauseflError):
    """A signal ended a run before its last round; the message says how to go on."""


def exit_with_status(command: Callable[..., None], *arguments: Any) -> None:
    """Run a command. If it fails, print one line that says why, and exit with the status for that failure."""
    try:
        with needs(), errors_of_own_code():
            command(*arguments)
    except PauseflError as error:
        _fail(error)
    except KeyboardInterrupt:
        _fail(RunInterrupted("interrupted"))
    except OSError as error:
        if error.filename is None:
            raise
        _fail(ConfigError(f"{error.filename}: cannot be read or written ({error.strerror})"))


@contextmanager
def while_output_is_read() -> Iterator[None]:
    """Exit with FAILED if the output of the block cannot be written, for example because the disk is full.

    The exit is silent if the reader of the output has gone (`| head -1`). Characters outside its encoding are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            with suppress(OSError):  # it is not a file
                os.set_blocking(stream.fileno(), True)  # else a slow reader is an error, if a parent has set this
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            with suppress(OSError):  # the terminal may be gone
                print(f"pausefl: its output or a connection failed ({error.strerror or error})", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        sys.exit(FAILED)


def _fail(error: PauseflError) -> None:
    interrupted_or_failed = INTERRUPTED if isinstance(error, RunInterrupted) else FAILED
    print(f"pausefl: {error}", file=sys.stderr)
    sys.exit(BAD_INPUT if isinstance(error, ConfigError) else interrupted_or_failed)


def check_outcome(outcome: Outcome, reason: str, go_on: str) -> None:
    """Raise PauseflError for a run that failed, and RunInterrupted for one that a signal ended.

    `go_on` is the command that goes on with the run.
    """
    if outcome == "failed":
        raise PauseflError(f"the run ended early: {reason}")
    if outcome == "interrupted":
        raise RunInterrupted(f"{reason}; go on with: {go_on}")


def with_resume_command(error: PauseflError, go_on: str, run: str = "") -> PauseflError:
    """Return the error that ended a run, with the command that goes on with the run once its cause is mended.

    ConfigError and RunInterrupted stay as they are. An empty `go_on` adds no command: the caller goes on by itself.
    """
    if isinstance(error, ConfigError | RunInterrupted):
        return error
    advice = f"; go on with: {go_on}" if go_on else ""
    return PauseflError(f"{run + ': ' if run else ''}{error}{advice}")
