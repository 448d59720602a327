"""Events that wait for the next commit. Repeated events are merged, so that no client can make the log grow at will."""

from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import compress

from pausefl_server.records import EventKind, LogEvent

# Repeated events of these kinds are merged: only their number and the greatest release they state matter.
_MERGED: tuple[EventKind, ...] = ("missed", "rejected", "reconciled")
# Events of these kinds state what a client has spent, or may have spent.
_OF_SPENDING: tuple[EventKind, ...] = ("reconciled", "unsettled")


class PendingEvents:
    """A round's events in order, at most a few per client. Merging does not change the result of folding them."""

    def __init__(self, events: Iterable[LogEvent] = ()) -> None:
        # In order, by kind, client and number. Numbers grow, but a client has one "joined" at most, number 0, and one
        # "left" at most before it, number 0, and after it, number 1.
        self._events: dict[tuple[EventKind, str, int], LogEvent] = {}
        self._last: dict[tuple[EventKind, str], int] = {}  # the number of the last event of a kind and client
        self._owed: dict[str, list[int]] = {}  # the numbers of each client's "unsettled" events, of removed ones too
        self._next = 0
        self._logged: tuple[LogEvent, ...] = ()  # those that the last commit wrote
        self.add(*events)

    def add(self, *events: LogEvent) -> None:
        """Append events in this order, or merge each into an earlier event of its kind and client."""
        for event in events:
            self._add(event)

    def take(self) -> tuple[LogEvent, ...]:
        """Remove and return all events."""
        events = self.waiting()
        self._events.clear()
        self._last.clear()
        self._owed.clear()
        return events

    def waiting(self) -> tuple[LogEvent, ...]:
        """Return all events, which go on waiting."""
        return tuple(self._events.values())

    def to_log(self) -> tuple[LogEvent, ...]:
        """Return all events, for a commit that writes them as events of no attempt so far; they go on waiting."""
        self._logged = self.waiting()
        return self._logged

    def has_logged(self, taken: Iterable[LogEvent]) -> bool:
        """Whether the last commit wrote all hellos ("joined") among `taken`, the events that were taken since."""
        hellos = {event for event in taken if event.kind == "joined"}
        return not hellos or hellos <= set(self._logged)

    def put_back(self, events: Iterable[LogEvent]) -> None:
        """Put events that were taken back, before those that came since."""
        self.add(*events, *self.take())

    def take_known(self, clients: Container[str]) -> tuple[LogEvent, ...]:
        """Remove and return all events, except those about the spending of unknown clients, which go on waiting.

        Unknown are clients that are neither in `clients` nor have a "joined" event here. Their events wait until they
        join: the run went back to a round before they first joined.
        """
        events = self.take()
        came = {event.client_id for event in events if event.kind == "joined"}
        is_early = [e.kind in _OF_SPENDING and e.client_id not in clients and e.client_id not in came for e in events]
        self.add(*compress(events, is_early))
        return tuple(event for event, is_one in zip(events, is_early, strict=True) if not is_one)

    def retired(self) -> set[str]:
        """The clients that retired and whose retirement is not committed yet."""
        return {client_id for kind, client_id in self._last if kind == "retired"}

    def not_settled_by(self, owed: Iterable[LogEvent]) -> list[LogEvent]:
        """The "unsettled" events in `owed` of clients that said hello again during the round that ends now.

        Such a hello is logged after the round's jobs, but came before their end. So it does not settle them.
        """
        return [event for event in owed if ("joined", event.client_id, 0) in self._events]

    def _add(self, event: LogEvent) -> None:
        kind, client_id = event.kind, event.client_id
        last, owed = self._last.get((kind, client_id)), self._last.get(("unsettled", client_id))
        if kind == "joined":
            self._join(event)
        elif kind == "left":
            self._events[kind, client_id, int(("joined", client_id, 0) in self._events)] = event
        # A "reconciled" settles the "unsettled" before it, so it is not merged into one that stands before that.
        elif kind in _MERGED and last is not None and (kind != "reconciled" or owed is None or owed < last):
            kept = self._events[kind, client_id, last]
            most = max((kept, event), key=lambda e: e.released)
            self._events[kind, client_id, last] = replace(most, detail=kept.detail, count=kept.count + event.count)
        else:
            if kind == "unsettled" and last is not None and self._events[kind, client_id, last].detail == event.detail:
                del self._events[kind, client_id, last]  # the same job: only events after the new one can settle it
            if kind == "unsettled":
                self._owed.setdefault(client_id, []).append(self._next)
            self._last[kind, client_id] = self._next
            self._events[kind, client_id, self._next] = event
            self._next += 1

    def _join(self, event: LogEvent) -> None:
        """Keep a client's first "left" and its last "joined" and "left", however often it comes and goes.

        A later "joined" takes the place of an earlier one, because events between the two may need the client's row.
        "Unsettled" events are dropped: the client has said hello, and its ledger tells what it spent.
        """
        self._last.pop(("unsettled", event.client_id), None)
        for number in self._owed.pop(event.client_id, ()):
            self._events.pop(("unsettled", event.client_id, number), None)
        self._events.pop(("left", event.client_id, 1), None)
        self._events["joined", event.client_id, 0] = event
