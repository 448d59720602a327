"""The phase of the server that plays a run, or played it last, as stored in run.db's table `meta`."""

from enum import StrEnum

SERVER_PHASE = "has_ended"
"""The key of the `ServerPhase` in `meta`. It is missing until a server sends a job or ends in order."""


class ServerPhase(StrEnum):
    """The phases. Their texts in run.db come from older versions, in which there were fewer phases."""

    AT_WORK = "no"
    """A job has been sent, and the server has not ended in order since."""
    KILLED = "killed"
    """A server ended while it was at work, and another has started since."""
    ENDED = "ended"
    """The server has ended in order, so no client has a job. The summary of this end is not written yet."""
    SUMMARISED = "yes"
    """The server has ended in order, and the summary of this end is being written or is written."""
