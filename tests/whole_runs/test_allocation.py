"""The tasks of an allocation, as processes here: one serves, the others are clients, and all meet in one folder."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pausefl_client.privacy.ledger import verified_spend
from rigs.command import PAUSEFL, synthetic
from rigs.refusals import complaint
from rigs.waiting import wait_for


@contextmanager
def tasks_of(config: Path, shared: Path, rounds: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The tasks of an allocation of three; the last of them serves."""
    words = [
        *PAUSEFL,
        "allocation",
        str(config),
        f"--shared={shared}",
        f"--set=experiment.rounds={rounds}",
        "--ranks=3",
    ]
    with ExitStack() as running:
        tasks = [running.enter_context(subprocess.Popen([*words, f"--rank={rank}"])) for rank in (1, 2, 0)]
        for task in tasks:
            running.callback(task.kill)
        yield tasks


def play(config: Path, shared: Path, rounds: int) -> None:
    """An allocation of three tasks, to its end."""
    with tasks_of(config, shared, rounds) as tasks:
        assert [task.wait() for task in tasks] == [0, 0, 0]


@pytest.mark.end_to_end
def test_the_tasks_of_an_allocation_are_one_fleet_which_another_goes_on_with(tmp_path: Path) -> None:
    """Over TLS, with tokens: clients whose plan has `tls.ca` speak no other way."""
    config, shared = synthetic(tmp_path, clients=5, m=2), tmp_path / "shared"
    for rounds in (4, 6):
        shared.mkdir(exist_ok=True)
        (shared / "server-0-0-0").write_text("localhost:1", "utf-8")  # of one that was killed
        play(config, shared, rounds)
        summary = json.loads((shared / "run/summary.json").read_text("utf-8"))
        assert (summary["rounds"], summary["outcome"]) == (rounds, "completed")
    ledgers = {task: sorted(task.glob("ledgers/*.db")) for task in sorted(shared.glob("clients-*"))}
    assert {task.name: [path.stem for path in paths] for task, paths in ledgers.items()} == {
        "clients-1-of-2": ["client-000", "client-001"],
        "clients-2-of-2": ["client-002", "client-003", "client-004"],
    }
    released = [verified_spend(path).released for paths in ledgers.values() for path in paths]
    assert sum(released) == 6 * 2, "ledgers go on where they were"
    assert not list(shared.glob("server-*"))


@pytest.mark.end_to_end
def test_a_killed_task_loses_no_epsilon(tmp_path: Path) -> None:
    config, shared = synthetic(tmp_path, clients=5, m=2, train_s=0.02), tmp_path / "shared"
    ledger = shared / "clients-1-of-2/ledgers/client-000.db"
    with tasks_of(config, shared, 60) as (killed, other, serving):
        wait_for(
            lambda: sum(path.stat().st_size for path in ledger.parent.glob("client-000.db-wal")) > 60_000, "releases"
        )
        killed.kill()
        killed.wait()
        spent = verified_spend(ledger).released
        serving.send_signal(signal.SIGINT)
        assert (serving.wait(), other.wait()) != (0, 0)
    assert spent > 0
    play(config, shared, 60)
    assert verified_spend(ledger).released >= spent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--rank and --ranks: are needed, both, where srun does not start this command"),
        (["--rank=0", "--ranks=1"], "--rank 0 --ranks 1: must count 2 tasks or more"),
        (["--rank=2", "--ranks=2"], "--rank 2 --ranks 2: must count 2 tasks or more, from 0 on"),
        (["--rank=1", "--ranks=6"], "--ranks 6: one serves, and the others have too few clients (clients.count = 4)"),
        (["--rank=1", "--ranks=2", "--set=experiment.clock=virtual"], "pausefl allocation takes"),
        (["--rank=1", "--ranks=2"], "no server listened there within 0.1 s"),
        (["--rank=0", "--ranks=4"], "--ranks 4: goes on with clients of other tasks"),
    ],
)
def test_a_task_that_cannot_take_part_says_why(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    (tmp_path / "clients-1-of-1").mkdir()
    where = synthetic(tmp_path, clients=4), "--shared", tmp_path, "--set=clients.connect_timeout_s=0.1"
    assert said in complaint(capsys, "allocation", *where, *options)


def test_a_client_ends_where_its_server_ended_before_it_listened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = tmp_path / "server-0-0-0"
    notice.write_text("", "utf-8")
    monkeypatch.setattr("time.sleep", lambda _: notice.unlink())
    task = "allocation", synthetic(tmp_path), "--shared", tmp_path, "--rank=1", "--ranks=2"
    said = complaint(capsys, *task, status=1)
    assert said == "the server has ended before it listened; the first task says why"
