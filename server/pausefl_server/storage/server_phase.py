"""How far the server that plays a run, or played it last, has come, as run.db's table `meta` holds it."""

from enum import StrEnum

SERVER_PHASE = "has_ended"
"""The key of a run's `ServerPhase`; it is missing until a server has sent a job or has ended in order."""


class ServerPhase(StrEnum):
    """Each phase by its text in run.db; the texts are older than the phases."""

    AT_WORK = "no"
    """A job has been sent, and the server has not ended in order since."""
    KILLED = "killed"
    """A server was at work when it ended, and another has begun."""
    ENDED = "ended"
    """The server has ended in order: no job is out. The summary is not that of this end yet."""
    SUMMARISED = "yes"
    """The server has ended in order, and the summary of this end is being written, or is there."""
