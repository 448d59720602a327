"""Where and how the server of a run listens."""

from dataclasses import dataclass, field

from pausefl_proto.endpoint import DEAD_AFTER_S
from pausefl_proto.tls import Tls
from pausefl_server.connections.peer_limits import HELLO_TIMEOUT_S
from pausefl_server.rounds.admission import Admission
from pausefl_server.settings import MetricsSettings


@dataclass(frozen=True)
class Endpoints:
    """Where and how the server listens; port 0 takes any free port."""

    host: str
    port: int
    metrics: MetricsSettings | None = None
    """None: no metrics are served."""
    tls: Tls | None = None
    """None: connections are not encrypted."""
    dead_after_s: float = DEAD_AFTER_S
    """How long a client may be silent, pings included, before its stream is closed."""
    hello_timeout_s: float = HELLO_TIMEOUT_S
    """How long a connection may last before its client has said hello."""
    admission: Admission = field(default_factory=Admission)
    offer: str = ""
    """The experiment as JSON, for clients that have no file of it, or that outlive the run."""
