"""What the server of a run noted of its clients' canaries (`dealt`), and what guesses of their signs tell.

The number of right guesses of one run bounds ε from below (Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
Training Run", NeurIPS 2023, for pure local DP; `findings.chance_right`). Rounds, steps and late answers may mix: a coin
is tossed for one job.
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
    """A built-in policy that also notes what came back at the canaries' places: "pausefl_audit.noted:pause"."""
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
    return dataclass(frozen=True)(type(name, (policy,), body))


def with_canaries(experiment: Experiment) -> Experiment:
    """The experiment as a run that can be audited; a policy of one's own chooses at random there."""
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
    """What was guessed of a run's canaries, by claimed ε, the greatest first; nothing where it was dealt none.

    Of a small claim, a sign is guessed where noise of the charged scale makes one e^ε times as likely as the other:
    beyond the bounds of the clip, or nearly there, as some encodings round. Of others, every sign (`guesses_all`).
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
