"""The interface of a selection policy: a validated record of parameters with pure functions."""

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
    """Means of each client's true latency law, by client id, which only an emulator knows (`Policy.needs_oracle`)."""

    mean_latency_s: Mapping[str, float]
    """E[τ_k], in seconds."""
    mean_inverse_latency: Mapping[str, float]
    """E[1/τ_k], in 1/s. It gives μ_k = τ_min · E[1/τ_k] (PAUSE v2, eq. (10))."""


@dataclass(frozen=True)
class Context:
    """Everything that a policy may read when it chooses clients for `round`. A policy must not change it.

    `table` is the run's own table and is not write-protected. A change made there is lost when the run is resumed.
    """

    round: int
    """The round to choose for, from 1."""
    table: ClientTable
    """The table of all clients, after the rounds before this one."""
    eligible: IntArray
    """Rows that may be chosen, ascending, read-only, never empty. Clients that rest after misses are left out."""
    rng: np.random.Generator
    """The random generator for this choice, a function of (seed, "selection", round, attempt)."""
    epsilon_budget: float | None = None
    """ε̄, the privacy budget of each client; None in a run without privacy."""
    weight_share_max: float = 1.0
    """The greatest share of all data that one client can count for (`aggregation.weight_share_max`)."""
    oracle: Oracle | None = None
    """The true mean latencies; None for policies that do not need them (`Policy.needs_oracle`)."""
    clock: Callable[[], float] | None = None
    """Returns the time in seconds. Only for policies that limit their own running time."""
    concurrency: int | None = None
    """C, the number of clients that work at once in an asynchronous run; None in a run with rounds. An asynchronous run
    asks its policy whenever places are free. Then m is the number of free places, `eligible` the idle clients, and
    `round` the step."""
    jobs: int = 0
    """J, the number of jobs handed out so far in an asynchronous run."""

    def __post_init__(self) -> None:
        """Makes `eligible` read-only: `checked` compares the choice with these rows, so no policy may change them."""
        object.__setattr__(self, "eligible", read_only(self.eligible))

    @property
    def effective_tau_min_s(self) -> float:
        """The configured τ_min, or else the estimate of `ClientTable.effective_tau_min_s`."""
        return self.table.effective_tau_min_s

    @property
    def rounds_before(self) -> float:
        """The number of rounds so far: t − 1 in round t; J/C in an asynchronous run, where C jobs count as a round."""
        return self.round - 1 if self.concurrency is None else self.jobs / self.concurrency


@dataclass(frozen=True)
class Selection:
    """A policy's choice for a round: the chosen rows, with optional aggregation weights.

    With weights, a row may appear twice (clustered sampling). That client trains once, and its update counts twice.
    """

    rows: IntArray
    """The chosen rows of the client table, int64, each one of `Context.eligible`."""
    weights: FloatArray | None = None
    """One aggregation weight per row, float64, finite and above 0. None: weights by data size (PAUSE v2, eq. (2))."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Finite numbers about the choice for the log, by name, such as energy, gap and steps."""
    cluster_penalty_s: float = 0.0
    """R2's δ_τ term for this set (PAUSE v2, after eq. (22)), finite. It is logged in its own column."""


@dataclass(frozen=True)
class Inspection:
    """What a policy computed from the vectors of a round's n updates, before these were discarded."""

    statistics: Sequence[Mapping[str, float]]
    """For each update, finite numbers by name. They are stored in its observation: `observe` sees them, not the vector.

    Names that begin with "label_" are reserved for the clients' own label counts."""
    admitted: BoolArray
    """(n,), whether each update may enter the model."""


@dataclass(frozen=True)
class Policy(Bounded, ABC):
    """Base of all policies.

    A policy may have a state beyond the client table. `start` returns it, and `observe` returns the next one after a
    round. The caller keeps it, so replaying the log restores it. Bounds of parameters are annotations
    (`pausefl_proto.number_types`). `__post_init__` of a subclass makes other checks and raises ValueErrors of the form
    "alpha = -1: must be ...".
    """

    m: Count
    """Clients that a round takes; all, if fewer are eligible. A `NewcomerPolicy` counts only originals. In an
    asynchronous run, m is the number of free places whenever `select` is called, see `Context.concurrency`."""
    needs_loss: ClassVar[bool] = False
    """True for policies that need clients to disclose their training loss."""
    needs_rounds: ClassVar[bool] = False
    """True for policies that choose or judge a round as a whole. Asynchronous runs refuse them."""

    @property
    def needs_oracle(self) -> bool:
        """True for policies that need the true mean latencies (`Context.oracle`)."""
        return False

    @property
    def disclosures(self) -> frozenset[str]:
        """Values that clients must disclose for this policy. A private run must list them all in privacy.disclose."""
        return frozenset({"loss"} if self.needs_loss else ())

    @property
    def judges(self) -> bool:
        """True for policies that judge updates, by an `inspect` of their own."""
        return type(self).inspect is not Policy.inspect

    def check_clients(self, client_ids: Sequence[str], at_once: int) -> None:
        """Raise ValueError if the parameters do not fit these clients, at most `at_once` of whom can be present."""

    def warm_up(self) -> None:
        """Load in advance what `select` needs, such as compiled code, so that round 1 is not delayed."""

    def start(self) -> Any:
        """Returns the policy's own state before round 1."""
        return None

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection | None:
        """Returns findings about the updates, (d,) float32 each, that came from `rows` of the table; None: no findings.

        Called before the updates are aggregated, in selection order. The vectors are discarded afterwards.
        """
        return None

    def observe(self, state: Any, record: PolicyRound, table: ClientTable) -> Any:
        """Returns the policy's state after `record`, which `table` already includes. Must not change its arguments.

        Latencies of misses are censored: `record.misses` holds their lower bounds. Estimates of latencies must skip
        entries whose `teaches` is False: a stopped process or a sleeping machine distorted them.
        """
        return state

    def counted(self, table: ClientTable) -> BoolArray:
        """Returns the clients that `m` counts, (K,). Default: all."""
        return np.ones(len(table), np.bool_)

    def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
        """Returns how many updates complete the open asynchronous step while these rows work. Default: `buffer` (K)."""
        return buffer

    def tiers_of(self, state: Any, table: ClientTable) -> IntArray | None:
        """Returns the tier of each row, (K,), from 0, for `asynchronous.rule` "fedat"; None for all other policies.

        With tiers, `select` is called for one tier at a time: only its idle clients are eligible.
        """
        return None

    @abstractmethod
    def select(self, state: Any, context: Context) -> Selection:
        """Returns a choice among `context.eligible`, as a pure function of the arguments. `checked` lists the rules."""
