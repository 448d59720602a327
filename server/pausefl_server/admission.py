"""Who may take part: what a client's hello must say."""

from collections.abc import Container

from pausefl_proto.errors import TryLaterError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, Manifest
from pausefl_server.clients import ClientTable
from pausefl_server.ledger import check_ledger
from pausefl_server.records import LogEvent
from pausefl_server.settings import ServerSettings

# Sums of so many over any number of clients stay exact in int64 and float64.
_MOST_EXAMPLES = 10**9


def check_hello(hello: pb.Hello, settings: ServerSettings, table: ClientTable, connected: Container[str]) -> None:
    """Raise WireError, with what the client should change, unless it can take part."""
    privacy = settings.privacy
    if hello.protocol_version != PROTOCOL_VERSION:
        raise WireError(f"protocol version {hello.protocol_version}, this server speaks {PROTOCOL_VERSION}")
    if not hello.client_id:
        raise WireError("the client id is empty")
    if hello.client_id in connected:
        # It may be the same client, back before its old stream was found dead.
        raise TryLaterError(f"client id {hello.client_id!r} is connected already")
    if not 1 <= hello.n_examples <= _MOST_EXAMPLES:
        raise WireError(f"has {hello.n_examples} examples, must be 1 to {_MOST_EXAMPLES}")
    if Manifest.from_message(hello.manifest) != settings.manifest:
        raise WireError("the client's model is not this run's: its tensors differ in name, shape or order")
    schedule = privacy.schedule if privacy else ""
    if hello.ledger.schedule != schedule:
        raise WireError(f"privacy differs: the client agreed to {hello.ledger.schedule!r}, the run has {schedule!r}")
    row = table.row_of.get(hello.client_id)
    mirrored = int(table.released[row]) if row is not None else 0
    check_ledger(hello.ledger.released, hello.ledger.epsilon_spent, privacy.budget if privacy else None, mirrored)


def joined(hello: pb.Hello) -> LogEvent:
    """What the log is to know of a client that may take part."""
    ledger = hello.ledger
    return LogEvent(
        "joined",
        hello.client_id,
        n_examples=hello.n_examples,
        epsilon_spent=ledger.epsilon_spent,
        released=ledger.released,
    )
