"""Plays a run that is dealt canaries; in one line, that it failed or leaks more than it claims: exit status 1.

python tests/mutants/audit_of_a_run.py RUN_DIR UNIT
"""

import sys
from pathlib import Path

import pausefl
from pausefl_audit.audit import Audit, play_with_canaries
from pausefl_audit.noted import guesses_of
from pausefl_proto.errors import PauseflError

_ROUNDS = {"coordinate": 12, "vector": 200}
"""Some 3,000 canaries, or 800: each enough for half the noise."""


def main() -> None:
    """Exit with a line where canaries tell more than was claimed."""
    run_dir, unit = sys.argv[1:]
    settings = {
        "experiment.rounds": _ROUNDS[unit],
        "clients.count": 4,
        "selection.m": 4,
        "workload.model": "synthetic",
        "latency.delay.kind": "none",
        "metrics.enabled": False,
        "privacy.unit": unit,
        "privacy.eta": 1e-4,
        "privacy.epsilon_budget": 1e4,  # ε = 1 in every release
    }
    experiment = pausefl.load("demo", settings)
    try:
        guesses = guesses_of(play_with_canaries(experiment, (), Path(run_dir)))
        Audit(experiment, (), (), "", (), guesses).raise_if_broken()
    except PauseflError as error:
        sys.exit(str(error).split(": ")[-1])


if __name__ == "__main__":
    main()
