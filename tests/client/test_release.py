"""What leaves a client and what is on its disk before that; ledgers of clients that outlive runs."""

import math
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_client.privacy.ledger import KEPT_BYTES_MAX, Ledger, Life, ReleaseKey, verified_spend
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_proto.budget import Budget
from pausefl_proto.errors import BudgetError, LedgerError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import digest, unpack
from rigs.databases import full_disk
from rigs.log import query
from rigs.session import SCHEDULE, welcomed

D = 100
BUDGET = Budget(10.0, 0.04)
MECHANISM = Mechanism("coordinate", 0.002)
KEY = ReleaseKey("run", 1, 1, "model")


@contextmanager
def releasing(folder: Path) -> Iterator[Releaser]:
    with closing(Ledger(folder / "a.db", BUDGET, unit="coordinate", client_id="a", data="synthetic")) as ledger:
        yield Releaser(ReleasePrivacy(MECHANISM, ledger, lambda _: NumpyLaplace(entropy_rng())))


def test_a_release_is_clipped_noised_charged_and_kept(tmp_path: Path) -> None:
    with releasing(tmp_path) as releaser:
        released = releaser.release(np.full(D, 7.0, np.float32), KEY)
        assert (released.vector.shape, np.unique(released.vector).size) == ((D,), D)
        assert np.abs(released.vector).max() > MECHANISM.clip
        assert released.digest == digest(released.vector)
        kept = releaser.ledger.open_release()  # type: ignore[union-attr]  # None would fail
    assert kept is not None
    assert (kept.noised, kept.charge) == (released.vector.tobytes(), released.charge)


def test_after_a_crash_without_bytes_the_release_is_written_off_and_charged(tmp_path: Path) -> None:
    many = np.ones(KEPT_BYTES_MAX // 4 + 1, np.float32)
    with releasing(tmp_path) as releaser:
        releaser.release(many, KEY)
    with releasing(tmp_path) as releaser:
        with pytest.raises(PauseflError, match="its bytes are gone: written off"):
            releaser.recall(KEY)
        assert releaser.ledger.spent.epsilon == BUDGET.spent(1)  # type: ignore[union-attr]  # None would fail


def test_bytes_that_were_swapped_on_disk_are_not_sent(tmp_path: Path) -> None:
    with releasing(tmp_path) as releaser:
        releaser.release(np.ones(D, np.float32), KEY)
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        db.execute("UPDATE kept SET noised = ?", (np.ones(D, np.float32).tobytes(),))
    with releasing(tmp_path) as releaser, pytest.raises(LedgerError, match="are not those it charged"):
        releaser.recall(KEY)


def test_a_ledger_that_outlives_a_run_goes_on_counting(tmp_path: Path) -> None:
    """Two runs on the same data. Their rounds and models may even have the same names."""
    for run_id, i in (("one", 1), ("two", 2)):
        with releasing(tmp_path) as releaser:
            key = ReleaseKey(run_id, 1, 1, "model")
            assert releaser.recall(key) is None
            charge = releaser.release(np.ones(D, np.float32), key).charge
            assert charge is not None
            assert (charge.participation, charge.epsilon) == (i, BUDGET.epsilon(i))


async def test_nothing_is_sent_before_the_ledger_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first byte of each update, a copy of the ledger's files, as after a crash, already has the release."""
    seen = list[tuple[Any, ...]]()
    async with welcomed(ledger_in=tmp_path / "ledger") as (rig, stream):
        write = stream.write

        async def look_at_the_disk(data: bytes) -> None:
            result = pb.ClientMessage.FromString(unpack(data)[0]).result
            for file in (tmp_path / "ledger").iterdir():
                shutil.copy(file, tmp_path / file.name)
            seen.extend(query(tmp_path / "client-007.db", "SELECT max(participation), update_digest FROM releases"))
            assert seen[-1] == (result.release.participation, result.update.digest)
            await write(data)

        monkeypatch.setattr(stream, "write", look_at_the_disk)
        for round_ in (1, 2, 3):
            result, update = await stream.ask(rig.model, round_, SCHEDULE)
            assert result.update.digest == digest(np.frombuffer(update, "<f4"))
            stream.say(ack=pb.Ack(round=round_, attempt=1))
    assert [i for i, _ in seen] == [1, 2, 3]


async def test_a_restarted_client_sends_the_bytes_it_kept(tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        async with welcomed(ledger_in=tmp_path) as (rig, stream):
            answers.append(await stream.ask(rig.model, 1, SCHEDULE))
        rig.ledger.close()
    (first, update), (second, again) = answers
    assert (update, first.release) == (again, second.release)


async def test_an_acknowledged_round_asked_for_once_more_is_refused(tmp_path: Path) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, stream):
        await stream.ask(rig.model, 1, SCHEDULE)
        stream.say(ack=pb.Ack(round=1, attempt=1))
        result = await stream.refusal(rig.model, 1, SCHEDULE)
    assert result.status == pb.STATUS_FAILED
    assert "written off" in result.reason


async def test_a_job_under_another_schedule_is_a_mismatch_and_costs_nothing(tmp_path: Path) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, stream):
        for schedule in ("", "what only the server agreed to"):
            result = await stream.refusal(rig.model, 1, schedule)
            assert result.status == pb.STATUS_BUDGET_MISMATCH
            assert "this client agreed to" in result.reason
        result, _ = await stream.ask(rig.model, 1, SCHEDULE)
        assert (result.status, result.release.participation) == (pb.STATUS_OK, 1)


async def test_what_the_disk_does_not_take_is_not_sent(tmp_path: Path) -> None:
    async with welcomed(ledger_in=tmp_path) as (rig, stream):
        await stream.ask(rig.model, 1, SCHEDULE)
        with full_disk(2 << 12):  # no room for a third page in a -wal
            result = await stream.refusal(rig.model, 2, SCHEDULE)
        assert (result.status, result.reason) == (pb.STATUS_FAILED, "its ledger takes no release; its own log says why")
        result, _ = await stream.ask(rig.model, 3, SCHEDULE)
        assert result.release.participation == 2


LIFE_BUDGET = Budget(10.0, 0.5)
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
    return Ledger(path, LIFE_BUDGET, Life(run, lifetime), **HOLDER)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=8), st.floats(1.0, 40.0))
def test_budgets_add_up(tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str, int]], lifetime: float) -> None:
    """Runs start, end and return. Each spends by its own schedule, and never more than the lifetime budget has left."""
    path, released = tmp_path_factory.mktemp("life") / "a.db", dict.fromkeys("abc", 0)
    for run, wanted in runs:
        with closing(opened(path, run, lifetime)) as ledger:
            assert ledger.spent == pytest.approx((released[run], LIFE_BUDGET.spent(released[run])))
            for _ in range(wanted):
                before = sum(map(LIFE_BUDGET.spent, released.values()))
                if before + LIFE_BUDGET.epsilon(released[run] + 1) > lifetime * (1 + 1e-9):
                    with pytest.raises(BudgetError, match="--epsilon-lifetime is"):
                        ledger.next_charge()
                    break
                released[run] += 1
                key = ReleaseKey(run, released[run], 1, "model")
                ledger.record(key, ledger.next_charge(), "update", memoryview(b"noised"))
                found = ledger.open_release()
                assert found is not None
                assert (found.key, found.charge.participation) == (key, released[run])
        in_all = sum(map(LIFE_BUDGET.spent, released.values()))
        assert verified_spend(path) == pytest.approx((sum(released.values()), in_all))
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
        if not told[0]:  # its lifetime budget is spent
            break
        last_line = [line.split() for line in told if len(line.split()) == 2][-1]
        released, epsilon = int(last_line[0]), float(last_line[1])
        found = verified_spend(path)
        assert released <= found.released <= released + 1
        assert epsilon <= found.epsilon <= 100.0
        begun += 1000  # the killed run is not continued
    lifetime = verified_spend(path).epsilon + LIFE_BUDGET.epsilon(1) / 2
    said = "release 1 of this run would bring the epsilon"
    with closing(opened(path, "the last", lifetime)) as last, pytest.raises(BudgetError, match=said):
        last.next_charge()
    with closing(opened(path, "the last", verified_spend(path).epsilon + LIFE_BUDGET.epsilon(1))) as all_of_it:
        assert all_of_it.next_charge().participation == 1


def test_a_release_of_another_run_is_sent_in_none(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "a.db", "first")) as first:
        first.record(ReleaseKey("first", 1, 1, "model"), first.next_charge(), "update", memoryview(b"noised"))
    with closing(opened(tmp_path / "a.db", "second")) as second:
        assert (second.open_release(), second.next_charge().participation) == (None, 1)


def test_a_lifes_ledger_and_a_runs_do_not_pass_for_each_other(tmp_path: Path) -> None:
    opened(tmp_path / "life.db", "run").close()
    with pytest.raises(LedgerError, match=r"life\.db: is another experiment's, its schedule is 'unknown'"):
        Ledger(tmp_path / "life.db", LIFE_BUDGET, **HOLDER)
    Ledger(tmp_path / "run.db", LIFE_BUDGET, **HOLDER).close()
    with pytest.raises(LedgerError, match=r"run\.db: is another .* its budget is 'unknown', not 'one a run'"):
        opened(tmp_path / "run.db", "run")
