"""The tasks of an allocation are one fleet, and say why one cannot take part."""

import json
import multiprocessing
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pausefl_client.privacy.ledger import verified_spend
from pausefl_process.events import Failed, Notice
from rigs.command import PAUSEFL, synthetic
from rigs.refusals import complaint
from rigs.waiting import wait_for


@contextmanager
def tasks_of(config: Path, shared: Path, rounds: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The three tasks of an allocation; rank 0 is started last and serves."""
    options = f"--shared={shared}", f"--set=experiment.rounds={rounds}", "--ranks=3"
    words = [*PAUSEFL, "allocation", str(config), *options]
    with ExitStack() as running:
        tasks = [running.enter_context(subprocess.Popen([*words, f"--rank={rank}"])) for rank in (1, 2, 0)]
        for task in tasks:
            running.callback(task.kill)
        yield tasks


@pytest.mark.end_to_end
def test_the_tasks_of_an_allocation_are_one_fleet_which_another_goes_on_with(tmp_path: Path) -> None:
    """It works over TLS, with tokens: a client with `tls.ca` accepts nothing less. A killed task loses no ε."""
    config, shared = synthetic(tmp_path, clients=5, m=2, train_s=0.02), tmp_path / "shared"
    ledger = shared / "clients-1-of-2/ledgers/client-000.db"
    with tasks_of(config, shared, 30) as (killed, other, serving):
        wait_for(lambda: sum(wal.stat().st_size for wal in ledger.parent.glob("*-000.db-wal")) > 60_000, "releases")
        killed.kill()
        killed.wait()
        spent = verified_spend(ledger).released
        serving.send_signal(signal.SIGINT)
        assert (serving.wait(), other.wait()) != (0, 0)
    assert spent > 0
    (shared / "server-0-0-0").write_text("localhost:1", "utf-8")  # left by a server that was killed
    with tasks_of(config, shared, 32) as tasks:
        assert [task.wait() for task in tasks] == [0, 0, 0]
    summary = json.loads((shared / "run/summary.json").read_text("utf-8"))
    assert (summary["rounds"], summary["outcome"]) == (32, "completed")
    ledgers = {task: sorted(task.glob("ledgers/*.db")) for task in sorted(shared.glob("clients-*"))}
    assert {task.name: [path.stem for path in paths] for task, paths in ledgers.items()} == {
        "clients-1-of-2": ["client-000", "client-001"],
        "clients-2-of-2": ["client-002", "client-003", "client-004"],
    }
    released = {path.stem: verified_spend(path).released for paths in ledgers.values() for path in paths}
    assert sum(released.values()) >= 32 * 2
    assert released["client-000"] >= spent, "ledgers go on where they were"
    assert not list(shared.glob("server-*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--rank and --ranks: are needed, both, where srun does not start this command"),
        (["--rank=0", "--ranks=1"], "--rank 0 --ranks 1: must count 2 tasks or more"),
        (["--rank=-1", "--ranks=2"], "--rank -1 --ranks 2: must count 2 tasks or more"),
        (["--rank=2", "--ranks=2"], "--rank 2 --ranks 2: must count 2 tasks or more, from 0 on"),
        (["--rank=1", "--ranks=6"], "--ranks 6: one serves, and the others have too few clients (clients.count = 4)"),
        (["--rank=1", "--ranks=2", "--set=experiment.clock=virtual"], "pausefl allocation takes"),
        (["--rank=1", "--ranks=2"], "within 0.1 s (clients.connect_timeout_s): 127.0.0.1:1 cannot be reached"),
        (["--rank=0", "--ranks=4"], "--ranks 4: goes on with clients of other tasks"),
    ],
)
def test_a_task_that_cannot_take_part_says_why(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    (tmp_path / "clients-1-of-1").mkdir()
    (tmp_path / "server-0-0-0").write_text("127.0.0.1:1", "utf-8")
    where = synthetic(tmp_path, clients=4), "--shared", tmp_path, "--set=clients.connect_timeout_s=0.1"
    assert said in complaint(capsys, "allocation", *where, *options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_task_begins_with_a_gpu_of_its_own_and_hears_its_clients_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(name: str, _: object, plan: Any, *arguments: Any, needs_torch: bool) -> Any:
        said = [*([Notice("a reason" * 99)] * 99), Failed(f"torch = {needs_torch}, {plan.process}", True)]
        return multiprocessing.get_context("fork").Process(target=lambda: [*map(arguments[-1].send, said)], name=name)

    monkeypatch.setattr("pausefl.runtime.forks.forked_client", refusing)
    with socket.create_server(("127.0.0.1", 0)) as serving:
        (tmp_path / "server-0-0-0").write_text("127.0.0.1:{1}".format(*serving.getsockname()), "utf-8")
        task = "allocation", synthetic(tmp_path, clients=2, m=1), "--shared", tmp_path, "--rank=2", "--ranks=3"
        assert complaint(capsys, *task) == "pausefl-client-001: torch = False, 1"


def test_a_client_ends_where_its_server_ended_before_it_listened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = tmp_path / "server-0-0-0"
    notice.write_text("", "utf-8")
    monkeypatch.setattr("time.sleep", lambda _: notice.unlink())
    task = "allocation", synthetic(tmp_path), "--shared", tmp_path, "--rank=1", "--ranks=2"
    assert complaint(capsys, *task, status=1) == "the server has ended before it listened; the first task says why"
