"""Makes a client's releases: an update is clipped, noised, charged to the ledger, and encoded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import LaplaceSource, Mechanism
from pausefl_proto.budget import Budget, Release
from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.errors import BudgetError, LedgerError, WrittenOff
from pausefl_proto.wire import Vector, digest

NoiseFor = Callable[[ReleaseKey], LaplaceSource]
"""Makes the source of one release's noise, new for every release."""


def schedule_key(budget: Budget, mechanism: Mechanism, noise: str) -> str:
    """The privacy that a client agrees to, as text. The server compares it at hello, the client with every job."""
    return (
        f"{budget.key}, epsilon_floor={budget.epsilon_floor!r}, unit={mechanism.unit}, clip={mechanism.clip!r},"
        f" noise={noise}"
    )


@dataclass(frozen=True, slots=True)
class Released:
    """A vector that may leave the client, encoded for sending. `charge` is its cost, None in a run without privacy."""

    vector: npt.NDArray[Any]
    """(d,) float32, or the bytes of another encoding."""
    digest: str
    charge: Release | None


@dataclass(frozen=True)
class ReleasePrivacy:
    """How a client protects its updates, and the ledger in which it records their cost."""

    mechanism: Mechanism
    ledger: Ledger
    noise_for: NoiseFor


class Releaser:
    """Clips, noises, charges and encodes an update, in this order, before it is sent. Without privacy, only encodes."""

    def __init__(self, privacy: ReleasePrivacy | None, encoding: Encoding = FLOAT32, statistics: int = 0) -> None:
        """The last `statistics` values of an update are running statistics: they are not clipped or noised."""
        self._privacy = privacy
        self._encoding = encoding.beside(statistics)
        self._statistics = statistics

    @property
    def ledger(self) -> Ledger | None:
        """The data holder's ledger. None in a run without privacy."""
        return self._privacy.ledger if self._privacy else None

    def recall(self, key: ReleaseKey) -> Released | None:
        """The bytes that were released for `key` before a crash. None if the client may train and release anew.

        BudgetError if the budget allows no new release. WrittenOff if `key` was answered but its bytes are gone: an
        answer with new noise would leak the same update again.
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
        """Make a release of `update`. If this raises (BudgetError, LedgerError), nothing may be sent."""
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
        """Note that the server no longer needs the last release's bytes."""
        if self._privacy is not None:
            self._privacy.ledger.settle()

    def _encoded(self, vector: Vector, vector_digest: str, charge: Release | None) -> Released:
        """A vector encoded for sending. Equal vectors give equal bytes, so the ledger keeps only the vector."""
        encoded = self._encoding.encode(vector)
        return Released(encoded, vector_digest if encoded is vector else digest(encoded), charge)


def error_in_general(error: BaseException) -> str:
    """The kind of an error, in words without data, which may leave a private client."""
    match error:
        case BudgetError():
            return "its privacy budget allows no further release"
        case WrittenOff():
            return "it was answered before, and its bytes are gone: written off"
        case LedgerError():
            return "its ledger takes no release; its own log says why"
    return "it failed at the job; its own log says why"
