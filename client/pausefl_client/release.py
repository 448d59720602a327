"""What leaves a client: its update, clipped, noised, and charged to its ledger."""

from dataclasses import dataclass

from pausefl.budget import Budget
from pausefl.wire import Vector, digest
from pausefl_client.ledger import Charge, Ledger, ReleaseKey
from pausefl_client.privacy import Mechanism, entropy_rng


def schedule_key(budget: Budget, mechanism: Mechanism) -> str:
    """The privacy a client agrees to, as text; server and client compare it at hello."""
    return f"{budget.key}, unit={mechanism.unit}, clip={mechanism.clip!r}"


@dataclass(frozen=True, slots=True)
class Released:
    """A vector that may leave, (d,) float32, with its digest and (in a private run) what it cost."""

    vector: Vector
    digest: str
    charge: Charge | None


class Releaser:
    """Clip, noise, charge, in this order, before anything is sent; without a ledger the update leaves as it is."""

    def __init__(self, private: tuple[Mechanism, Ledger] | None) -> None:
        self._private = private

    @property
    def ledger(self) -> Ledger | None:
        """The client's ledger, None in a run without privacy."""
        return self._private[1] if self._private else None

    def release(self, update: Vector, key: ReleaseKey) -> Released:
        """Make `update` fit to leave. Nothing may be sent when this raises (BudgetError, LedgerError)."""
        if self._private is None:
            return Released(update, digest(update), None)
        mechanism, ledger = self._private
        charge = ledger.next_charge()
        noised = mechanism.privatise(update, charge.epsilon, entropy_rng())
        noised_digest = digest(noised)
        ledger.record(key, charge, noised_digest)
        return Released(noised, noised_digest, charge)
