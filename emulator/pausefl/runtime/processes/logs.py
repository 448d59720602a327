"""The log of a process: lines for people, or JSON objects for machines."""

import json
import logging
import os
from pathlib import Path
from typing import Literal

from pausefl_process.events import RUN, envelope

VARIABLE = "PAUSEFL_LOG"
"""The environment variable with any of json, quiet and verbose, separated by commas. Child processes inherit it."""

_FIELDS = {"round": "round", "client_id": "client", "event": "event"}


class JsonFormatter(logging.Formatter):
    """Formats each line as one JSON object: the envelope of progress events, kind, logger, message.

    A line about a round or a client also has `round` or `client`. A line about a progress event has that event's kind,
    and the event as `event`. A line with a traceback has `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **envelope(record.levelname.lower(), record.created),
            "kind": getattr(record, "event", {}).get("kind", "log"),
            "logger": record.name,
            "message": record.getMessage(),
            **{shown: getattr(record, name) for name, shown in _FIELDS.items() if hasattr(record, name)},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def ask_for(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Set how this process and its children log: as JSON, only warnings (quiet), or also each exchange (verbose)."""
    asked = {"json": json, "quiet": quiet, "verbose": verbose}
    if any(asked.values()):
        os.environ[VARIABLE] = ",".join(word for word, is_asked in asked.items() if is_asked)


def is_asked_for(word: Literal["json", "quiet", "verbose"]) -> bool:
    """Whether this process, or the one that started it, was asked by `ask_for` to log in this way."""
    return word in os.environ.get(VARIABLE, "").split(",")


def set_up_log(run: str = "") -> None:
    """Log to standard error from now on, in place of any earlier setup. JSON lines name `run` as this process's run."""
    if run:
        os.environ[RUN] = run
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter())
    # gRPC logs this traceback if a stream was gone before it was ended. It says nothing about the server.
    handler.addFilter(lambda record: not record.getMessage().startswith("ExecuteBatchError raised in core"))
    logging.basicConfig(
        handlers=[handler], level=logging.WARNING if is_asked_for("quiet") else logging.INFO, force=True
    )


def add_warning(path: Path, message: str) -> None:
    """Append a warning to a log file that other processes write, and that its owner alone may read."""
    record = logging.makeLogRecord({"levelno": logging.WARNING, "levelname": "WARNING", "msg": message})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as log:
        log.write(_formatter().format(record) + "\n")


def _formatter() -> logging.Formatter:
    return JsonFormatter() if is_asked_for("json") else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
