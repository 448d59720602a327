"""The messages that the server's actors send each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Release
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector
from pausefl_server.records import Timing


@dataclass(frozen=True, slots=True)
class Dispatch:
    """To a client actor: send this round's job, whose messages are the same bytes for every client."""

    round: int
    attempt: int
    messages: Sequence[bytes]
    framing_s: float
    """How long it took to make the messages."""
    ready_s: float
    """When they were made, on the server's clock."""
    handed_over_s: float | None = None
    """When this client was first handed the job, if its stream has broken since: the round trip starts there. It is
    on the server's clock too."""
    theta: Vector | None = None
    """The job's model; None unless aggregation needs it (`ServerSettings.mixes_models`)."""

    @property
    def key(self) -> tuple[int, int]:
        """The job's round and attempt."""
        return self.round, self.attempt


Order = Dispatch | pb.Ack | pb.Withdraw | pb.Ping | pb.Goodbye
"""To a client actor: a job, or a message for its client. It pings only an idle client, with a nonce of its own."""


class Peer(Protocol):
    """A connected client as the coordinator sees it: its id, and a mailbox that never blocks."""

    @property
    def client_id(self) -> str:
        """The id the client said hello with."""

    def offer(self, message: Order, /) -> bool:
        """Hand over a message; False if the actor has stopped or its mailbox is full."""


@dataclass(frozen=True, slots=True)
class Register:
    """To the coordinator (ask): a client said hello. WireError, with the reason, if it cannot take part."""

    hello: pb.Hello
    peer: Peer
    is_owner: bool = False
    """Whether the client has proven its id."""
    host: str = ""
    """The client's address, as far as the transport knows it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """To the coordinator: this client's stream has ended."""

    peer: Peer
    reason: str
    handed_over_s: float | None = None
    """When the client was first handed the job that it has not answered; None if it owes no answer."""
    may_return: bool = True
    """False: the client said goodbye, or must stay away for a while. The server does not wait for it."""


@dataclass(frozen=True, slots=True)
class Update:
    """To the coordinator: an update that arrived undamaged, and the timing of its exchange."""

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
    """When its last frame was read, on the server's clock."""
    host: HostReport
    """How well the client's host kept time during the exchange."""
    server_host: HostReport
    """How well the server's host kept time during the exchange."""
    is_resent: bool
    """Whether the client says that it released the update in an earlier exchange."""
    still_before_s: float
    """How long the client says it stood still between the arrivals of the job that it answered last and of this one."""


RefusalKind = Literal[
    "refused",  # the client said that it has no update
    "exhausted",  # it said so because its privacy budget is spent: it will release nothing more
    "rejected",  # its answer was not accepted
    "withdrawn",  # it dropped a withdrawn job before it released anything for it
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """To the coordinator: a client answered a job without an update, or with one that was rejected."""

    client_id: str
    round: int
    attempt: int
    kind: RefusalKind
    reason: str
    release: Release = field(default_factory=Release)
    """The release that a rejected answer reports."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """To the coordinator: give up the open round and end the run, for this reason."""

    reason: str
