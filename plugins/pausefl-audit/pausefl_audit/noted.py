"""Notes what a run's server receives of its clients' canaries (`dealt`), and guesses their signs.

The number of right guesses in one run bounds ε from below (Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
Training Run", NeurIPS 2023, for pure local DP; `findings.chance_right`). Rounds, steps and late answers may be mixed,
because each coin is tossed for a single job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pausefl.experiment.experiment import Experiment
from pausefl.results.reading import read_run
from pausefl.runtime.run_dir import stored_experiment
from pausefl_audit.dealt import Dealt, places, signs
from pausefl_audit.findings import Guesses, guesses_all
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.draws import generator
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.selection import POLICIES, Inspection, Policy

_KIND = f"{Dealt.__module__}:{Dealt.__name__}"


def __getattr__(name: str) -> type[Policy]:
    """A built-in policy that also notes the updates' values at the canaries, such as "pausefl_audit.noted:pause"."""
    if name not in POLICIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _noting(name)


@cache
def _noting(name: str) -> type[Policy]:
    policy: type[Policy] = POLICIES[name]

    def inspect(self: Policy, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection:
        seen = [{f"canary_{k}": float(v) for k, v in enumerate(u[places(u.size)])} for u in updates]
        own = policy.inspect(self, table, rows, updates)
        if own is None:
            return Inspection(seen, np.ones(len(updates), np.bool_))
        return Inspection([{**a, **b} for a, b in zip(own.statistics, seen, strict=True)], own.admitted)

    body: dict[str, Any] = {"__module__": __name__, "__doc__": policy.__doc__, "inspect": inspect}
    body["judges"] = policy.inspect is not Policy.inspect  # not because it notes
    return dataclass(frozen=True)(type(name, (policy,), body))


def with_canaries(experiment: Experiment) -> Experiment:
    """The experiment with canaries and a policy that notes them. A user's own policy is replaced by `random`."""
    behaviour, name = {"kind": _KIND, "unit": experiment.privacy.unit}, experiment.selection.policy
    groups = {
        f"clients.groups.{group}": {**table.model_dump(mode="json", exclude_none=True, exclude_unset=True)}
        | {"behaviours": [*table.behaviours, behaviour]}
        for group, table in experiment.groups.items()
    }
    noting = f"{__name__}:{name if name in POLICIES else 'random'}"
    own = {f'selection."{noting}"': experiment.selection.parameters(name)} if name in POLICIES else {}
    return experiment.replace({**groups, **own, "selection.policy": noting})


def guesses_of(run_dir: Path) -> list[Guesses]:
    """The guesses of the signs of a run's canaries, by claimed ε, the greatest first. Empty if it had no canaries.

    For a small claimed ε, a sign is guessed only if noise of the charged scale makes it e^ε times as likely as the
    other. This holds at and beyond the clip bounds; a margin allows for encodings that round. For a greater claimed ε,
    every sign is guessed (`guesses_all`).
    """
    experiment = stored_experiment(run_dir)
    unit, seed = experiment.privacy.unit, experiment.experiment.seed
    reach = experiment.privacy.clip * (0.99 if unit == "vector" else 0.495)
    chains = {c: group.behaviours for name, group in experiment.groups.items() for c in group.client_ids(name)}
    place = {c: k for c, chain in chains.items() for k, each in enumerate(chain) if each["kind"] == _KIND}
    found: dict[float, Guesses] = {}
    for record in read_run(run_dir).records:
        for o in record.observations:
            seen: FloatArray = np.array([v for name, v in o.statistics.items() if name.startswith("canary_")])
            if o.client_id not in place or not seen.size:
                continue
            seen = seen[:1] if unit == "vector" else seen
            key = ("behaviour", o.client_id, place[o.client_id], record.round - o.staleness)
            dealt, clear = signs(generator(seed, *key), seen.size), (np.abs(seen) >= reach) | guesses_all(o.epsilon)
            before = found.get(o.epsilon, Guesses(o.epsilon))
            right = int(((seen > 0) == (dealt > 0))[clear].sum())
            found[o.epsilon] = before.plus(Guesses(o.epsilon, 1, seen.size, int(clear.sum()), right))
    return sorted(found.values(), key=lambda guesses: -guesses.epsilon)
