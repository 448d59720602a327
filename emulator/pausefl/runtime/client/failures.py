"""Tells why jobs failed to the process that started the clients, which has access to their data.

In a private run the server is not told: the text may quote data.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from pausefl.runtime.client.plan import ClientPlan
from pausefl_client.session import FAILED_JOB
from pausefl_process.events import Notice, ProgressEvent, Report

_SHOWN = 10


@contextmanager
def telling_failures(plan: ClientPlan, report: Report) -> Iterator[None]:
    """In a private run, report why jobs fail in the block: what `pausefl_client.session` logs."""
    log, tell = logging.getLogger("pausefl.client"), partial(report_new, report, set[str]())

    def hear(record: logging.LogRecord) -> bool:
        if record.msg == FAILED_JOB and plan.privacy is not None:
            tell(Notice("client {} failed at round {}: {}".format(*record.args or ())))
        return True

    log.addFilter(hear)
    try:
        yield
    finally:
        log.removeFilter(hear)


def report_new(report: Report, told: set[str], event: ProgressEvent) -> None:
    """Pass notices on whose text after the first colon is not in `told`, for ten such texts at most; add it there."""
    if isinstance(event, Notice):
        reason = event.message.partition(": ")[2]
        if reason in told or len(told) == _SHOWN:
            return
        told.add(reason)
    report(event)
