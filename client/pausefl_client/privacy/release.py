"""Makes a client's release: its update, clipped, noised, charged to its ledger, and encoded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pausefl_client.privacy.ledger import Charge, Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import LaplaceSource, Mechanism
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.errors import BudgetError, LedgerError, WrittenOff
from pausefl_proto.wire import Vector, digest

NoiseFor = Callable[[ReleaseKey], LaplaceSource]
"""The source of one release's noise; a fresh one for every release."""


def schedule_key(budget: Budget, mechanism: Mechanism, noise: str) -> str:
    """The privacy a client agrees to, as text: compared at hello, and by the client with every job."""
    return (
        f"{budget.key}, epsilon_floor={budget.epsilon_floor!r}, unit={mechanism.unit}, clip={mechanism.clip!r},"
        f" noise={noise}"
    )


@dataclass(frozen=True, slots=True)
class Released:
    """A vector that may leave, encoded as it travels, with its digest and (in a private run) what it cost."""

    vector: npt.NDArray[Any]
    """(d,) float32, or the bytes of another encoding."""
    digest: str
    charge: Charge | None


@dataclass(frozen=True)
class ReleasePrivacy:
    """How a client protects its updates, and where it writes down what they cost."""

    mechanism: Mechanism
    ledger: Ledger
    noise_for: NoiseFor


class Releaser:
    """Clip, noise, charge, encode, in this order, before anything is sent; without privacy, encode alone."""

    def __init__(self, privacy: ReleasePrivacy | None, encoding: Encoding = FLOAT32, statistics: int = 0) -> None:
        """The last values of an update, so many as are `statistics`, are left as they are."""
        self._privacy = privacy
        self._encoding = encoding.beside(statistics)
        self._statistics = statistics

    @property
    def ledger(self) -> Ledger | None:
        """The data holder's ledger, None in a run without privacy."""
        return self._privacy.ledger if self._privacy else None

    def recall(self, key: ReleaseKey) -> Released | None:
        """The bytes that were released for `key` before a crash; None when it may train and release afresh.

        BudgetError when the budget allows no fresh release. WrittenOff when `key` was answered but its bytes are gone:
        answering with fresh noise would leak the same update again.
        """
        if self._privacy is None:
            return None
        ledger = self._privacy.ledger
        kept = ledger.open_release()
        if kept is not None and kept.key == key and kept.noised is not None:
            vector: Vector = np.frombuffer(kept.noised, "<f4")
            if digest(vector) != kept.update_digest:
                raise LedgerError(f"the bytes kept for release {kept.charge.participation} are not those it charged")
            return self._encoded(vector, kept.update_digest, kept.charge)
        if ledger.has_answered(key):
            raise WrittenOff(f"round {key.round} was answered before a crash and its bytes are gone: written off")
        ledger.next_charge()
        return None

    def release(self, update: Vector, key: ReleaseKey) -> Released:
        """Make `update` fit to leave. Nothing may be sent when this raises (BudgetError, LedgerError)."""
        if self._privacy is None:
            return self._encoded(update, digest(update), None)
        mechanism, ledger = self._privacy.mechanism, self._privacy.ledger
        charge = ledger.next_charge()
        d = update.size - self._statistics
        noised = mechanism.privatise(update[:d], charge.epsilon, self._privacy.noise_for(key))
        if self._statistics:
            noised = np.concatenate((noised, update[d:]))
        noised_digest = digest(noised)
        ledger.record(key, charge, noised_digest, noised.data.cast("B"))
        return self._encoded(noised, noised_digest, charge)

    def settle(self) -> None:
        """The server needs the last release's bytes no more."""
        if self._privacy is not None:
            self._privacy.ledger.settle()

    def _encoded(self, vector: Vector, vector_digest: str, charge: Charge | None) -> Released:
        """Equal vectors give equal bytes, so the ledger keeps the vector, and a release is repeated from it."""
        encoded = self._encoding.encode(vector)
        return Released(encoded, vector_digest if encoded is vector else digest(encoded), charge)


def error_in_general(error: BaseException) -> str:
    """The kind of error, in words that hold no data and may leave a private client."""
    match error:
        case BudgetError():
            return "its privacy budget allows no further release"
        case WrittenOff():
            return "it was answered before, and its bytes are gone: written off"
        case LedgerError():
            return "its ledger takes no release; its own log says why"
    return "it failed at the job; its own log says why"
