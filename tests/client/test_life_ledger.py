"""The ledger of a client that outlives runs: a budget for each run, and one for its whole life."""

import math
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_client.privacy.ledger import Ledger, Life, ReleaseKey, verified_spend
from pausefl_proto.budget import Budget
from pausefl_proto.errors import BudgetError, LedgerError

BUDGET = Budget(10.0, 0.5)
HOLDER = {"unit": "vector", "client_id": "a", "noise": "fresh"}
KILLED = """
import itertools, sys
from pathlib import Path
from pausefl_client.privacy.ledger import Ledger, Life, ReleaseKey
from pausefl_proto.budget import Budget
path, begun = Path(sys.argv[1]), int(sys.argv[2])
for run in itertools.count(begun):
    ledger = Ledger(path, Budget(10.0, 0.5), Life(f"run {run}", 100.0), unit="vector", client_id="a", noise="fresh")
    for round in range(1, 4):
        charge = ledger.next_charge()
        ledger.record(ReleaseKey(f"run {run}", round, 1, "model"), charge, "update", memoryview(b"noised"))
        print(ledger.in_all.released, ledger.in_all.epsilon, flush=True)
    ledger.close()
"""


def opened(path: Path, run: str, lifetime: float = math.inf) -> Ledger:
    return Ledger(path, BUDGET, Life(run, lifetime), **HOLDER)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=8), st.floats(1.0, 40.0))
def test_budgets_add_up(tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str, int]], lifetime: float) -> None:
    """Runs come, go and come back; each spends its own schedule, and none what the life does not have."""
    path, released = tmp_path_factory.mktemp("life") / "a.db", dict.fromkeys("abc", 0)
    for run, wanted in runs:
        with closing(opened(path, run, lifetime)) as ledger:
            assert ledger.spent.released == released[run]
            assert ledger.spent.epsilon == pytest.approx(BUDGET.spent(released[run]))
            for _ in range(wanted):
                before = sum(map(BUDGET.spent, released.values()))
                if before + BUDGET.epsilon(released[run] + 1) > lifetime * (1 + 1e-9):
                    with pytest.raises(BudgetError, match="--epsilon-lifetime is"):
                        ledger.next_charge()
                    break
                released[run] += 1
                key = ReleaseKey(run, released[run], 1, "model")
                ledger.record(key, ledger.next_charge(), "update", memoryview(b"noised"))
                found = ledger.open_release()
                assert found is not None
                assert (found.key, found.charge.participation) == (key, released[run])
        in_all = sum(map(BUDGET.spent, released.values()))
        assert verified_spend(path).released == sum(released.values())
        assert verified_spend(path).epsilon == pytest.approx(in_all)
        assert in_all <= lifetime * (1 + 1e-9)


def test_no_kill_forgets_what_a_life_has_spent(tmp_path: Path) -> None:
    path, begun = tmp_path / "a.db", 0
    for seed in range(6):
        command = [sys.executable, "-c", KILLED, str(path), str(begun)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            told = [child.stdout.readline()]
            time.sleep(random.Random(seed).uniform(0.0, 0.05))
            child.kill()
            told += child.stdout.read().splitlines()
        if not told[0]:  # its life is spent
            break
        last_line = [line.split() for line in told if len(line.split()) == 2][-1]
        released, epsilon = int(last_line[0]), float(last_line[1])
        found = verified_spend(path)
        assert released <= found.released <= released + 1
        assert epsilon <= found.epsilon <= 100.0
        begun += 1000  # the killed run does not go on
    lifetime, said = (
        verified_spend(path).epsilon + BUDGET.epsilon(1) / 2,
        "release 1 of this run would bring the epsilon",
    )
    with closing(opened(path, "the last", lifetime)) as last, pytest.raises(BudgetError, match=said):
        last.next_charge()


def test_a_release_of_another_run_is_sent_in_none(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "a.db", "first")) as first:
        first.record(ReleaseKey("first", 1, 1, "model"), first.next_charge(), "update", memoryview(b"noised"))
    with closing(opened(tmp_path / "a.db", "second")) as second:
        assert second.open_release() is None
        assert second.next_charge().participation == 1


def test_a_lifes_ledger_and_a_runs_do_not_pass_for_each_other(tmp_path: Path) -> None:
    opened(tmp_path / "life.db", "run").close()
    with pytest.raises(LedgerError, match=r"life\.db: is another experiment's, its schedule is 'unknown'"):
        Ledger(tmp_path / "life.db", BUDGET, **HOLDER)
    Ledger(tmp_path / "run.db", BUDGET, **HOLDER).close()
    with pytest.raises(LedgerError, match=r"run\.db: is another .* its budget is 'unknown', not 'one a run'"):
        opened(tmp_path / "run.db", "run")
