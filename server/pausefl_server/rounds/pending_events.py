"""Events that wait for the next commit. Repeated events are merged, so that no client can make the log grow at will."""

from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import compress

from pausefl_server.records import EventKind, LogEvent

_COMING_AND_GOING: tuple[EventKind, EventKind] = ("joined", "left")
# Repeated events of these kinds are merged: only their number and the greatest release they state matter.
_MERGED: tuple[EventKind, ...] = ("missed", "rejected", "reconciled")
# Events of these kinds state what a client has spent, or may have spent.
_OF_SPENDING: tuple[EventKind, ...] = ("reconciled", "unsettled")


class PendingEvents:
    """A round's events in order, at most a few per client. Merging does not change the result of folding them."""

    def __init__(self, events: Iterable[LogEvent] = ()) -> None:
        self._next = 0
        self._events: dict[int, LogEvent] = {}  # by a growing number, so that each can be removed again
        self._places: dict[tuple[EventKind, str], int] = {}
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
        self._places.clear()
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
        return {client_id for kind, client_id in self._places if kind == "retired"}

    def not_settled_by(self, owed: Iterable[LogEvent]) -> list[LogEvent]:
        """The "unsettled" events in `owed` of clients that said hello again during the round that ends now.

        Such a hello is logged after the round's jobs, but came before their end. So it does not settle them.
        """
        return [event for event in owed if ("joined", event.client_id) in self._places]

    def _add(self, event: LogEvent) -> None:
        key = event.kind, event.client_id
        if event.kind in _COMING_AND_GOING:
            self._add_coming_or_going(event)
        elif event.kind in _MERGED and (place := self._place_to_merge(key)) is not None:
            self._merge(place, event)
        else:
            earlier = self._events.get(self._places.get(key, -1))
            if event.kind == "unsettled" and earlier is not None and earlier.detail == event.detail:
                del self._events[self._places[key]]  # the same job: only events after the new one can settle it
            self._append(event)

    def _append(self, event: LogEvent) -> None:
        self._places[event.kind, event.client_id] = self._next
        self._events[self._next] = event
        self._next += 1

    def _place_to_merge(self, key: tuple[EventKind, str]) -> int | None:
        """The place to merge into; None if there is none, or if an "unsettled" follows it that the event settles."""
        place, owed = self._places.get(key), self._places.get(("unsettled", key[1]))
        overtakes = key[0] == "reconciled" and place is not None and owed is not None and place < owed
        return None if overtakes else place

    def _merge(self, place: int, event: LogEvent) -> None:
        """Merge an event into the one at that place: counts are added, and the greater release is kept."""
        kept = self._events[place]
        greater = max((kept, event), key=lambda e: e.released)
        self._events[place] = replace(
            kept, count=kept.count + event.count, released=greater.released, epsilon_spent=greater.epsilon_spent
        )

    def _add_coming_or_going(self, event: LogEvent) -> None:
        """Keep a client's first "left" and its last "joined" and "left", however often it comes and goes.

        A later "joined" takes the place of an earlier one, because events between the two may need the client's row.
        """
        if event.kind == "joined":
            self._settle(event.client_id)
        came, left = (self._places.get((kind, event.client_id)) for kind in _COMING_AND_GOING)
        if event.kind == "left" and left is not None and (came is None or came < left):
            self._events[left] = event
        elif event.kind == "joined" and came is not None:
            self._events[came] = event
            if left is not None and came < left:
                del self._events[left], self._places["left", event.client_id]
        else:
            self._append(event)

    def _settle(self, client_id: str) -> None:
        """Drop a client's "unsettled" events: it has said hello, and its ledger tells what it spent."""
        if self._places.pop(("unsettled", client_id), None) is not None:
            self._events = {
                place: event
                for place, event in self._events.items()
                if (event.kind, event.client_id) != ("unsettled", client_id)
            }
