"""A selection policy: a small validated record of parameters plus four pure functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray, IntArray, read_only
from pausefl_proto.number_types import Bounded, Count
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.selection.observed import PolicyRound


@dataclass(frozen=True)
class Oracle:
    """Each client's true latency law, by client id, which only a simulator knows. For `fastest`, `genie` and `oort`."""

    mean_latency_s: Mapping[str, float]
    """E[τ_k]."""
    mean_inverse_latency: Mapping[str, float]
    """E[1/τ_k], so μ_k = τ_min · E[1/τ_k] (PAUSE v2, eq. (10))."""


@dataclass(frozen=True)
class Context:
    """Everything a policy may look at when it chooses for `round` (from 1). Policies never change it.

    The table is the run's own, and nothing guards it: what is written there is gone once the run is resumed.
    """

    round: int
    """The round to choose for, from 1."""
    table: ClientTable
    """The table of all clients, from the rounds before this one."""
    eligible: IntArray
    """Rows that may be chosen, ascending, read-only; never empty. Clients that rest after misses are not among them."""
    rng: np.random.Generator
    """A function of (seed, "selection", round, attempt)."""
    epsilon_budget: float | None = None
    """ε̄, None in a run without privacy."""
    weight_share_max: float = 1.0
    """The greatest share of the data that one client counts for (`aggregation.weight_share_max`)."""
    oracle: Oracle | None = None
    """The true latency laws; None for policies that do not need them (`Policy.needs_oracle`)."""
    clock: Callable[[], float] | None = None
    """Seconds, for policies with a time cap alone."""
    concurrency: int | None = None
    """C, how many clients are at work at once in an asynchronous run, whose policy is asked whenever places are free:
    its m is then their number, `eligible` the idle clients, `round` the step. None in rounds."""
    jobs: int = 0
    """J, how many jobs were handed out so far in an asynchronous run."""

    def __post_init__(self) -> None:
        """`checked` compares a choice with these rows, so a policy must not have changed them."""
        object.__setattr__(self, "eligible", read_only(self.eligible))

    @property
    def effective_tau_min_s(self) -> float:
        """τ_min as configured, else `ClientTable.effective_tau_min_s`'s estimate."""
        return self.table.effective_tau_min_s

    @property
    def rounds_before(self) -> float:
        """How many rounds there have been: t − 1 in round t; in an asynchronous run J/C, the rounds of C jobs."""
        return self.round - 1 if self.concurrency is None else self.jobs / self.concurrency


@dataclass(frozen=True)
class Selection:
    """The rows chosen for a round, with optional aggregation weights (one per row; None: by data size, eq. (2)).

    A row may stand twice (clustered sampling): the client then trains once and counts twice.
    """

    rows: IntArray
    """The chosen rows of the client table, int64, each one of `Context.eligible`."""
    weights: FloatArray | None = None
    """One weight per row, float64, finite and above 0; None: by data size."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers to log about the choice, by name (energy, gap, steps)."""
    cluster_penalty_s: float = 0.0
    """R2's δ_τ term for this set (PAUSE v2, after eq. (22)); goes to a column of its own. Finite."""


@dataclass(frozen=True)
class Inspection:
    """A policy's findings in a round's n updates while the vectors were at hand."""

    statistics: Sequence[Mapping[str, float]]
    """A dict of finite numbers by name for each update: they stand in its observation, all that `observe` gets to see.

    Names that begin with "label_" are left to the clients' own label counts."""
    admitted: BoolArray
    """(n,) which updates may enter the model."""


@dataclass(frozen=True)
class Policy(Bounded, ABC):
    """Base of all policies. `m` is how many clients a round takes, or how many originals where newcomers are classified
    apart; with fewer eligible, all of them are taken. In an asynchronous run, `select` is asked of a policy whose m is
    the number of free places, see `Context.concurrency`.

    A policy with a memory of its own (beyond the client table) returns it from `start` and folds records into it with
    `observe`; the caller keeps it, so resuming is replaying. Bounds are annotations, `pausefl_proto.number_types`; what
    these cannot say, subclasses check in `__post_init__`, by ValueErrors of the form "alpha = -1: must be ...".
    """

    m: Count

    needs_loss: ClassVar[bool] = False
    """True for policies that need clients to disclose their training loss."""
    needs_rounds: ClassVar[bool] = False
    """True for policies that choose or judge a round as a whole: no asynchronous run takes them."""

    @property
    def needs_oracle(self) -> bool:
        """True for policies that must be told the true latency laws."""
        return False

    @property
    def disclosures(self) -> frozenset[str]:
        """Values that clients must disclose for this policy: in a private run, all must stand in privacy.disclose."""
        return frozenset({"loss"} if self.needs_loss else ())

    def check_clients(self, client_ids: Sequence[str], at_once: int) -> None:
        """Raise ValueError if these parameters do not fit these clients, at most `at_once` of them in a round."""

    def warm_up(self) -> None:
        """Load what `select` needs, such as compiled code, so that round 1 does not pay for it."""

    def start(self) -> Any:
        """The policy's own state before round 1."""
        return None

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection | None:
        """Inspect the updates, (d,) float32 each, that came from `rows` of the table.

        Called in selection order before they are aggregated; the vectors are gone afterwards. None: nothing.
        """
        return None

    def observe(self, state: Any, record: PolicyRound, table: ClientTable) -> Any:
        """The state after `record`; `table` already includes it. Must not change its arguments.

        Missed latencies are censored: `record.misses` holds their lower bounds. No estimate of latencies counts what a
        stop or a sleep touched, whose `teaches` is False.
        """
        return state

    def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
        """How many updates make the asynchronous step that is open, with these rows at work; K unless overridden."""
        return buffer

    def tiers_of(self, state: Any, table: ClientTable) -> IntArray | None:
        """(K,) the tier of each row, from 0, for `asynchronous.rule` "fedat"; None for all other policies.

        `select` is then asked with the idle clients of one tier as eligible.
        """
        return None

    @abstractmethod
    def select(self, state: Any, context: Context) -> Selection:
        """Choose among `context.eligible`: a pure function of its arguments. `checked` says what is allowed."""
