"""What the server's actors say to each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pausefl_process.host_monitor import HostReport
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector
from pausefl_server.ledger import Release
from pausefl_server.records import Timing

if TYPE_CHECKING:
    from pausefl_server.client_actor import ClientActor


@dataclass(frozen=True, slots=True)
class Dispatch:
    """To a client actor: send this round's job, whose messages are the same bytes for every client."""

    round: int
    attempt: int
    messages: Sequence[bytes]
    framing_s: float
    """How long it took to make the messages."""
    ready_s: float
    """When they were made (the server's clock)."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """To a client actor: the commit that used its update is on disk."""

    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """To a client actor: ping it, if it is idle."""


@dataclass(frozen=True, slots=True)
class Dismiss:
    """To a client actor: say goodbye. `final`: the client shall not connect again."""

    reason: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class Register:
    """To the coordinator (ask): a client said hello. Answered with a Welcome, or WireError says why not."""

    hello: pb.Hello
    actor: "ClientActor"


@dataclass(frozen=True, slots=True)
class Lost:
    """To the coordinator: this client's stream has ended."""

    actor: "ClientActor"
    reason: str


@dataclass(frozen=True, slots=True)
class Update:
    """To the coordinator: an update whose bytes are sound, and how long everything took."""

    client_id: str
    round: int
    attempt: int
    vector: Vector
    timing: Timing
    drawn_down_s: float
    drawn_up_s: float
    release: Release
    loss: float | None
    statistics: Mapping[str, float]
    bytes_down: int
    bytes_up: int
    arrived_s: float
    """When its last frame was read (the server's clock)."""
    host: HostReport


@dataclass(frozen=True, slots=True)
class Pinged:
    """To the coordinator: how long an idle client took to answer a ping."""

    client_id: str
    ping_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """To the coordinator: a client answered a job without an update, or with one that was rejected."""

    client_id: str
    round: int
    reason: str
    rejected: bool
    """True: it sent something that was not accepted; False: it says itself that it cannot."""
    exhausted: bool = False
    """True: its privacy budget is spent; it will release nothing more."""
    release: Release = field(default_factory=Release)


@dataclass(frozen=True, slots=True)
class Shutdown:
    """To the coordinator: end the run after what is in flight, for this reason."""

    reason: str
