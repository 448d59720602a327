"""Events that wait for the next commit: repeated ones are merged, so that no client can make the log grow at will."""

from collections.abc import Container, Iterable
from dataclasses import replace

from pausefl_server.records import EventKind, LogEvent

_COMING_AND_GOING: tuple[EventKind, EventKind] = ("joined", "left")
# Of these it matters how often they happened, and the greatest release they tell of.
_MERGED: tuple[EventKind, ...] = ("missed", "rejected", "reconciled")
# These tell what a client has spent, or may have spent.
_OF_SPENDING: tuple[EventKind, ...] = ("reconciled", "unsettled")


class PendingEvents:
    """A round's events in order, a few per client at most. What they mean to a fold is kept."""

    def __init__(self, events: Iterable[LogEvent] = ()) -> None:
        self._next = 0
        self._events: dict[int, LogEvent] = {}  # by a growing number, so that any can be taken out again
        self._places: dict[tuple[EventKind, str], int] = {}
        self._logged: tuple[LogEvent, ...] = ()  # what the last commit wrote of them
        self.add(*events)

    def add(self, *events: LogEvent) -> None:
        """Take events in this order, or count each with an earlier one of its kind and client."""
        for event in events:
            self._add(event)

    def take(self) -> tuple[LogEvent, ...]:
        """All events, which wait no longer."""
        events = self.waiting()
        self._events.clear()
        self._places.clear()
        return events

    def waiting(self) -> tuple[LogEvent, ...]:
        """All events, which go on waiting."""
        return tuple(self._events.values())

    def to_log(self) -> tuple[LogEvent, ...]:
        """All events, which go on waiting, for a commit that writes them as what is known of by no attempt yet."""
        self._logged = self.waiting()
        return self._logged

    def has_logged(self, taken: Iterable[LogEvent]) -> bool:
        """Whether the last commit wrote each hello among the events that were taken since."""
        hellos = {event for event in taken if event.kind == "joined"}
        return not hellos or hellos <= set(self._logged)

    def put_back(self, events: Iterable[LogEvent]) -> None:
        """Let events that were taken wait again, before those that came since."""
        self.add(*events, *self.take())

    def take_known(self, clients: Container[str]) -> tuple[LogEvent, ...]:
        """All events, except what clients have spent, or may have, that are neither among these nor join with an event.

        Those wait until their client joins: the run went back to a round before it first came.
        """
        events = self.take()
        came = {event.client_id for event in events if event.kind == "joined"}
        early = [e for e in events if e.kind in _OF_SPENDING and e.client_id not in clients and e.client_id not in came]
        self.add(*early)
        return tuple(event for event in events if event not in early)

    def retired(self) -> set[str]:
        """Clients that have no budget left, as the log does not know yet."""
        return {client_id for kind, client_id in self._places if kind == "retired"}

    def not_settled_by(self, owed: Iterable[LogEvent]) -> list[LogEvent]:
        """Of the "unsettled" events in `owed`, those of clients that said hello again during the round that ends.

        Such a hello is logged after the round's jobs, but came before their end: it does not settle them.
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
                del self._events[self._places[key]]  # the same job: said after all that would settle it
            self._append(event)

    def _append(self, event: LogEvent) -> None:
        self._places[event.kind, event.client_id] = self._next
        self._events[self._next] = event
        self._next += 1

    def _place_to_merge(self, key: tuple[EventKind, str]) -> int | None:
        """Where an earlier event stands; None where a ledger's correction would settle what was owed after that one."""
        place, owed = self._places.get(key), self._places.get(("unsettled", key[1]))
        overtakes = key[0] == "reconciled" and place is not None and owed is not None and place < owed
        return None if overtakes else place

    def _merge(self, place: int, event: LogEvent) -> None:
        """A ledger is corrected upwards; of all else it matters how often it happened."""
        kept = self._events[place]
        greater = max((kept, event), key=lambda e: e.released)
        self._events[place] = replace(
            kept, count=kept.count + event.count, released=greater.released, epsilon_spent=greater.epsilon_spent
        )

    def _add_coming_or_going(self, event: LogEvent) -> None:
        """Of a client that comes and goes again and again, its first going and its last coming and going are kept.

        A later coming stands in the place of an earlier one: events between the two may need the client's row.
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
        """Forget what a client owed before it said hello with its ledger."""
        if self._places.pop(("unsettled", client_id), None) is not None:
            self._events = {
                place: event
                for place, event in self._events.items()
                if (event.kind, event.client_id) != ("unsettled", client_id)
            }
