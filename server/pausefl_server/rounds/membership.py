"""The connected clients: registration and loss, the roll call before a round, and pings of idle clients."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Iterable
from itertools import islice

from pausefl_process.events import Outcome
from pausefl_proto.errors import WireError
from pausefl_proto.excerpts import excerpt
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_server.clients import ClientTable
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.records import STILL_AT_WORK, LogEvent, unsettled
from pausefl_server.rounds.admission import check_hello, differing_modules, joined
from pausefl_server.rounds.messages import Dispatch, Peer, Refusal, Register, Update
from pausefl_server.rounds.open_step import OpenStep
from pausefl_server.settings import ServerSettings


class PingSchedule:
    """Schedules `per_s` pings a second on average, and at most one second's share of them at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._clients: OrderedDict[str, None] = OrderedDict()
        self._allowance = 0.0
        self._last_s: float | None = None

    def join(self, client_id: str) -> None:
        """Ping this client too, after all clients that wait for their turn."""
        self._clients[client_id] = None

    def leave(self, client_id: str) -> None:
        """Stop pinging the client."""
        del self._clients[client_id]

    def take_due(self, now_s: float, busy: Container[str]) -> list[str]:
        """Return the clients to ping now, and move them to the end of the queue. Busy clients keep their places."""
        if self._last_s is not None:
            self._allowance = min(self._allowance + self._per_s * (now_s - self._last_s), max(self._per_s, 1.0))
        self._last_s = now_s
        due = list(islice((c for c in self._clients if c not in busy), int(self._allowance)))
        for client_id in due:
            self._clients.move_to_end(client_id)
        self._allowance -= len(due)
        return due


class Membership:
    """The connected clients. It tells the observer which clients come and go, and returns the events to log."""

    def __init__(self, settings: ServerSettings, table: ClientTable, observer: RunObserver) -> None:
        """`table` is the run's client table, which the coordinator updates."""
        self._settings = settings
        self._table = table
        self._observer = observer
        self._peers: dict[str, Peer] = {}
        self._ping_schedule = PingSchedule(settings.pings_per_s)
        self._claims: dict[str, int] = {}  # how many releases each client counted when it first joined
        self._jobs: Counter[str] = Counter()  # how many jobs each client was handed
        self._last_jobs: dict[str, tuple[int, int]] = {}  # round and attempt of each client's last unanswered job
        self._told = set[str]()  # the modules of which a client had another version
        self._expected: frozenset[str] = frozenset()  # the clients expected at the last roll call
        self._coming: frozenset[str] = frozenset()  # those that it newly expected
        self._going: frozenset[str] = frozenset()  # those that it no longer expected

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._peers

    def register(self, message: Register, round: int) -> list[LogEvent]:
        """Register a client after `round` committed rounds; WireError, with what to change, if it does not fit."""
        hello, client_id = message.hello, message.hello.client_id
        try:
            self._check_count(client_id)
            check_hello(hello, self._settings, self._table, self._peers)
            if not message.is_owner:
                self._check_claim(client_id, hello.ledger.released)
        except WireError as error:
            self._observer.rejected(f"client {client_id!r} was refused: {error}")
            raise
        self._claims.setdefault(client_id, hello.ledger.released)
        self._peers[client_id] = message.peer
        self._ping_schedule.join(client_id)
        self._observer.arrived(client_id, len(self._peers), round)
        for module in sorted(differing_modules(hello.own_code, self._settings.own_code) - self._told):
            self._told.add(module)  # it is often so at all clients
            self._observer.noticed(f"{client_id} has other code in {module} than the server: it may train otherwise")
        return joined(hello, message.is_owner, message.host)

    def _check_count(self, client_id: str) -> None:
        most, claims, rows = self._settings.clients, self._claims, self._table.row_of
        if most is None or client_id in claims or client_id in rows or len(claims) + len(rows) < most:
            return
        if len(claims.keys() | rows.keys()) >= most:  # most ids are in both
            raise WireError(f"this run has all its clients.count = {most} clients")

    def to_come(self) -> int:
        """How many of the run's clients were never here, though any round may have them."""
        most = self._settings.clients if self._settings.expected is None else None
        return 0 if most is None else most - len(self._claims.keys() | self._table.row_of.keys())

    def _check_claim(self, client_id: str, released: int) -> None:
        """Raise WireError if a client that has not proven its id counts more than one release for each of its jobs.

        Its count when it first joins is believed: its ledger may be older than the run, or than this process.
        One more release is allowed, which may be under way for an earlier stream's job.
        """
        possible = self._claims.get(client_id, released) + self._jobs[client_id] + 1
        if released > possible:
            raise WireError(
                f"the client's ledger counts {released} releases, at most {possible} are possible since it first joined"
                " this server; a client that shows by certificate or token who it is is believed, see [admission]"
            )

    def remove(self, peer: Peer, reason: str, round: int) -> LogEvent | None:
        """Remove a client whose stream has ended; None if another stream of the same client has replaced it."""
        client_id = peer.client_id
        if self._peers.get(client_id) is not peer:
            return None
        del self._peers[client_id]
        self._ping_schedule.leave(client_id)
        reason = "it is away now, as its availability says" if client_id in self._going else reason
        self._observer.departed(client_id, reason, len(self._peers), round)
        return LogEvent("left", client_id, reason)

    def offer(self, client_id: str, message: Dispatch | pb.Ack) -> None:
        """Hand a message to a client if it is connected and its mailbox has room. A stuck stream delays no round."""
        if isinstance(message, Dispatch):  # a client that is away may have the job from a server that was killed
            self._jobs[client_id] += 1
            self._last_jobs[client_id] = message.key
        if (peer := self._peers.get(client_id)) is not None:
            peer.offer(message)

    def answered(self, answer: Update | Refusal) -> None:
        """Note that a job is answered, so that it need not be withdrawn."""
        if self._last_jobs.get(answer.client_id) == (answer.round, answer.attempt):
            del self._last_jobs[answer.client_id]

    def owed(self, step: OpenStep, clients: Iterable[str]) -> list[LogEvent]:
        """The "unsettled" events of those given clients, and clients missed, that may charge an unanswered job."""
        if self._settings.budget is None:
            return []
        silent = (c for c, miss in step.misses.items() if miss.kind in STILL_AT_WORK)
        keys = ((c, step.jobs[c].job.key) for c in (*clients, *silent))
        return [unsettled(c, *key) for c, key in keys if self._last_jobs.get(c) == key]

    def withdraw_job(self, client_id: str) -> tuple[int, int] | None:
        """Withdraw a client's last job if it is unanswered and the client connected; returns the unanswered job."""
        if (job := self._last_jobs.get(client_id)) is not None and (peer := self._peers.get(client_id)) is not None:
            peer.offer(pb.Withdraw(round=job[0], attempt=job[1]))
        return job

    def send_pings(self, now_s: float, busy: Container[str]) -> None:
        """Ping the idle clients whose turn it is."""
        for client_id in self._ping_schedule.take_due(now_s, busy):
            self._peers[client_id].offer(pb.Ping())

    def dismiss_all(self, reason: str) -> None:
        """Say goodbye to all clients, for good."""
        for peer in self._peers.values():
            peer.offer(pb.Goodbye(reason=reason + self._settings.farewell, final=True))

    def first_minimum(self, round: int) -> int:
        """How many clients the server waits for before the first round that it plays, `round`."""
        if self._settings.expected is None:
            return self._settings.minimum_clients
        return min(self._settings.minimum_clients, len(self._settings.expected(round)))

    def call_roll(self, round: int) -> bool:
        """Find out which clients should come or go with `round`; False if none should."""
        if self._settings.expected is None:
            return False
        before, self._expected = self._expected, self._settings.expected(round)
        self._coming, self._going = self._expected - before, before - self._expected
        return bool(self._coming or self._going)

    def late(self) -> frozenset[str]:
        """The clients that should have come or gone since the last roll call, and have not."""
        return (self._coming - self._peers.keys()) | (self._going & self._peers.keys())

    def can_select(self, retired: Collection[str]) -> bool:
        """Whether a connected client may still be chosen. `retired` clients, still active in the table, may not."""
        return any(self._may_release(client_id, retired) for client_id in self._peers)

    def end_without_any(self, retired: Collection[str]) -> tuple[Outcome, str]:
        """The outcome and the reason of a run that ends because `can_select` is False: budgets, if all are spent."""
        if not (retired or self._table.retired.any()):
            return "failed", "no client is connected"
        known = self._table.row_of.keys() if self._settings.expected is None else self._expected
        if away := sorted(c for c in known if self._may_release(c, retired)):
            return "failed", f"no client with privacy budget left is connected; away: {excerpt(', '.join(away))}"
        return "budgets_spent", "every client has spent its budget"

    def _may_release(self, client_id: str, retired: Collection[str]) -> bool:
        row = self._table.row_of.get(client_id)
        return client_id not in retired and (row is None or not self._table.retired[row])
