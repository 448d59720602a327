"""The log of a process: lines for people, or JSON objects for machines."""

import json
import logging
import os
from pathlib import Path

from pausefl_process.events import RUN, envelope

VARIABLE = "PAUSEFL_LOG"
"""The environment variable that names json, quiet or verbose, separated by commas; child processes inherit it."""

_FIELDS = {"round": "round", "client_id": "client", "event": "event"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: the envelope of progress events, kind, logger, message.

    `round` and `client` follow where a line is about them, `event` where it is about a progress event, whose kind it
    then has, and `exception` with a traceback.
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
    """Set how this process and those it starts log: as JSON, no more than warnings, or a line an exchange as well."""
    asked = {"json": json, "quiet": quiet, "verbose": verbose}
    if any(asked.values()):
        os.environ[VARIABLE] = ",".join(word for word, is_asked in asked.items() if is_asked)


def is_json() -> bool:
    """Whether logs and progress are to be JSON, also on a terminal."""
    return "json" in _words()


def is_quiet() -> bool:
    """Whether nothing but warnings, errors and results is to be shown."""
    return "quiet" in _words()


def is_verbose() -> bool:
    """Whether each exchange of each client is to be logged."""
    return "verbose" in _words()


def set_up_log(run: str = "") -> None:
    """Log to standard error from now on, whatever was set up before; `run` is named in JSON, of this process alone."""
    if run:
        os.environ[RUN] = run
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter())
    # gRPC's traceback of a stream that was gone before it was ended says nothing of the server.
    handler.addFilter(lambda record: not record.getMessage().startswith("ExecuteBatchError raised in core"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING if is_quiet() else logging.INFO, force=True)


def add_warning(path: Path, message: str) -> None:
    """Add a line to a log that other processes write."""
    record = logging.makeLogRecord({"levelno": logging.WARNING, "levelname": "WARNING", "msg": message})
    with path.open("a", encoding="utf-8") as log:
        log.write(_formatter().format(record) + "\n")


def _formatter() -> logging.Formatter:
    return JsonFormatter() if is_json() else logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def _words() -> list[str]:
    return os.environ.get(VARIABLE, "").split(",")
