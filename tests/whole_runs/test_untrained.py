"""Runs that train nothing do not count as finished: models that fail, and how each command ends."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pausefl.outcomes import FAILED
from pausefl_process.ending import INTERRUPTED
from pausefl_process.events import Notice
from pausefl_server.rounds.messages import Refusal, RefusalKind
from pausefl_server.selection.policies.baselines import All
from rigs.command import Background, query, rounds_in, run, summary_of, synthetic
from rigs.coordinator import MakeRig
from rigs.places import ROOT
from rigs.waiting import wait_for

Demo = Callable[..., subprocess.CompletedProcess[str]]

MODELS = """
import math
import multiprocessing

from torch import nn


def wrong_shape(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape) - 1, classes))


class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)[:, 1:])  # a pixel is lost


def shifted(shape, classes):
    return Shifted(math.prod(shape), classes)


def evaluated_only(shape, classes):
    return Blind(math.prod(shape), classes)


class Blind(nn.Linear):
    def forward(self, x):
        if not self.training:
            raise KeyError("cannot be evaluated")
        return super().forward(x.flatten(1))


def raising(shape, classes):
    raise LookupError("no weights at hand")


def normalised(shape, classes):
    inside = nn.Linear(math.prod(shape), 8), nn.BatchNorm1d(8), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *inside, nn.Linear(8, classes))


class Homesick(nn.Linear):
    def forward(self, x):
        if multiprocessing.current_process().name != "pausefl-evaluator":
            raise RuntimeError("not at home\\nat all")
        return super().forward(x.flatten(1))


def homesick(shape, classes):
    return Homesick(math.prod(shape), classes)
"""
# 165 examples in batches of 20: some clients' last batches hold a single example.
PARTIAL = {
    "clients.count": 8,
    "selection.m": 4,
    "workload.examples": 165,
    "workload.batch_size": 20,
    "experiment.rounds": 6,
    "latency.delay.kind": "none",
    "latency.time_scale": 1,
    "evaluation.every": 0,
}


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """(model, overrides) -> the finished `pausefl run demo` with that model of `MODELS`, played in tmp_path/run."""
    (tmp_path / "failing_models.py").write_text(MODELS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def play(model: str, changes: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        settings = {"workload.model": f"failing_models:{model}", **changes}
        overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return run("run", "demo", "--run-dir", tmp_path / "run", *overrides)

    return play


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "said", "place"),
    [
        ("wrong_shape", r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(20x64 and 63x10\)", "def wrong_"),
        ("shifted", r"RuntimeError: mat1 and mat2 shapes cannot be multiplied \(20x63 and 64x10\)", "a pixel is lost"),
        ("evaluated_only", "KeyError: 'cannot be evaluated'", "raise KeyError"),
        ("raising", "LookupError: no weights at hand", "raise LookupError"),
    ],
)
def test_a_model_that_cannot_be_trained_ends_the_run_with_its_error_and_place(
    demo: Demo, tmp_path: Path, model: str, said: str, place: str
) -> None:
    done = demo(model, {})
    assert done.returncode == FAILED
    (line,) = done.stderr.splitlines()
    number = next(number for number, text in enumerate(MODELS.splitlines(), start=1) if place in text)
    where = re.escape(f"({tmp_path / 'failing_models.py'}:{number})")
    assert re.fullmatch(rf'pausefl: workload\.model = "failing_models:{model}" .* failed: {said} {where}', line), line
    assert not (tmp_path / "run/clients.log").exists()  # no client was started
    assert rounds_in(tmp_path / "run") == 0


@pytest.mark.parametrize("private", ["false", "true"])
@pytest.mark.slow
def test_failed_jobs_are_counted_and_shown_with_the_errors_own_line(demo: Demo, tmp_path: Path, private: str) -> None:
    done = demo("normalised", {**PARTIAL, "privacy.enabled": private})
    assert done.returncode == 0, done.stderr
    summary = summary_of(tmp_path / "run")
    ((failed,),) = query(tmp_path / "run", "SELECT count(*) FROM misses WHERE kind = 'refused'")
    assert failed > 0
    assert summary["missed_jobs"] == {"refused": failed}
    said = "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 8])"
    assert done.stdout.count(said) >= 1
    assert re.search(rf"missed jobs\s+{failed} \({failed} refused", done.stdout)
    report = (tmp_path / "run/report.html").read_text("utf-8")
    assert f"{failed} refused" in report
    told = "it failed at the job; its own log says why" if private == "true" else said
    assert summary["failures"] == [{"reason": told, "jobs": failed}]
    server = (tmp_path / "run/server.log").read_text() + report + (tmp_path / "run/summary.json").read_text()
    assert (said in server) is (private == "false")  # the server of a private run gets no text of errors


@pytest.mark.slow
def test_a_private_virtual_run_shows_why_jobs_or_the_measured_step_failed(demo: Demo) -> None:
    virtual = {**PARTIAL, "experiment.clock": "virtual"}
    assert "one training step and one evaluation before round 1 failed" in demo("wrong_shape", virtual).stderr
    done = demo("normalised", virtual)
    assert done.returncode == FAILED
    (line,) = done.stderr.splitlines()
    assert "measuring workload.step_s, which is not set, by training client-000 failed: ValueError" in line
    done = demo("normalised", {**virtual, "workload.step_s": 0.01})
    assert done.returncode == 0, done.stderr
    assert ": ValueError: Expected more than 1 value per channel when training" in done.stdout


@pytest.mark.slow
def test_a_run_whose_clients_all_fail_stops_after_three(demo: Demo, tmp_path: Path) -> None:
    done = demo("homesick", {**PARTIAL, "privacy.enabled": "false", "experiment.rounds": 100})
    assert done.returncode == FAILED
    assert re.fullmatch(
        r"pausefl: the run ended early: no client gave an update in 3 attempts in a row; the last one, client-\d+:"
        r" RuntimeError: not at home at all \(\S+failing_models.py:\d+\)",
        done.stderr.strip(),
    )
    summary = summary_of(tmp_path / "run")
    assert (summary["outcome"], summary["rounds"], summary["missed_jobs"]) == ("failed", 0, {"refused": 12})
    assert summary["failed_attempts"] == 3
    assert "This run failed before its last round." in (tmp_path / "run/report.html").read_text("utf-8")


async def refuse(r: Any, peer: Any, round: int, reason: str, *, exhausted: bool = False) -> None:
    job = await peer.next_job()
    assert job.round == round
    kind: RefusalKind = "exhausted" if exhausted else "refused"
    await r.coordinator.tell(Refusal(peer.client_id, round, job.attempt, kind, reason))


async def test_an_update_in_between_begins_the_count_anew_and_each_reason_is_told_once(rig: MakeRig) -> None:
    async with rig(All(1), rounds=99, minimum_clients=1, rest_rounds_max=0, rounds_without_update_max=2).playing() as r:
        a = await r.join("a", manual=True)
        await refuse(r, a, 1, "out of memory")
        await a.answer(1, attempt=(await a.next_job()).attempt)
        await refuse(r, a, 2, "out of memory")
        await refuse(r, a, 2, "too hot")
    assert r.coordinator.outcome == "failed"
    assert r.coordinator.stopped_because.endswith("in 2 attempts in a row; the last one, a: too hot")
    (record,) = r.store.rounds()
    assert [(a.attempt, len(a.misses), len(a.observations)) for a in record.attempts] == [(1, 1, 0), (2, 0, 1)]
    failed = [(a.round, a.attempt, a.misses[0].reason) for a in r.store.log().failed_attempts()]
    assert failed == [(2, 1, "out of memory"), (2, 2, "too hot")]
    said = [e.message for e in r.shown_of(Notice) if "gave no update" in e.message]
    assert said == ["client a gave no update in round 1: out of memory", "client a gave no update in round 2: too hot"]


def documented() -> list[tuple[int, str]]:
    """(status, outcome) of each row of docs/events.md."""
    text = (ROOT / "docs/events.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w*) ?\|", text.partition("## Exit statuses")[2], re.MULTILINE)
    return [(int(status), outcome) for status, outcome in rows]


def expect(outcome: str, status: int, run_dir: Path) -> None:
    """Check that summary.json names this outcome, and that docs/events.md gives its status."""
    assert (status, outcome) in documented()
    assert summary_of(run_dir)["outcome"] == outcome


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_run_whose_last_clients_with_budget_are_lost_has_failed(rig: MakeRig, rounds: int) -> None:
    """The log may know already that a has spent its budget, or may get this with the next round."""
    async with rig(All(1), rounds=100, minimum_clients=2, connect_timeout_s=0.05).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        await refuse(r, a, 1, "spent", exhausted=True)
        for number in range(1, rounds + 1):
            await b.play(number)
        await r.lose(b)
    told = "no client with privacy budget left is connected; away: b"
    assert (r.coordinator.outcome, r.coordinator.stopped_because) == ("failed", told)


async def test_who_has_left_as_planned_keeps_no_budget_for_the_run(rig: MakeRig) -> None:
    settings = {"minimum_clients": 2, "connect_timeout_s": 0.1, "expected": lambda t: frozenset("a" if t > 1 else "ab")}
    async with rig(All(1), rounds=100, **settings).playing() as r:
        a, b = await r.join_all("ab", manual=True)
        for peer in a, b:
            await peer.play(1)
        await r.until_called(2)
        await r.lose(b)
        await refuse(r, a, 2, "spent", exhausted=True)
    told = "every client has spent its budget"
    assert (r.coordinator.outcome, r.coordinator.stopped_because) == ("budgets_spent", told)


@pytest.mark.end_to_end
def test_an_interrupted_server_says_how_to_go_on(tmp_path: Path, background: Background) -> None:
    config, run_dir = synthetic(tmp_path, rounds=100_000), tmp_path / "run"
    process = background("server", config, "--run-dir", run_dir)
    wait_for(lambda: b'"ready"' in (tmp_path / "output").read_bytes(), "the server", running=process)
    os.kill(process.pid, signal.SIGTERM)
    expect("interrupted", process.wait(60), run_dir)
    last = (tmp_path / "output").read_text().splitlines()[-1]
    assert last == f"pausefl: stopped by SIGTERM; go on with: pausefl server CONFIG --resume --run-dir {run_dir}"


@pytest.mark.slow
def test_a_command_that_goes_on_with_an_interrupted_run_works(tmp_path: Path, background: Background) -> None:
    process = background("run", synthetic(tmp_path, rounds=40, train_s=0.05), "--run-dir", tmp_path / "run")
    wait_for(lambda: rounds_in(tmp_path / "run") >= 1, "round 1", running=process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == INTERRUPTED
    _, _, command = (tmp_path / "output").read_text().splitlines()[-1].partition("go on with: pausefl ")
    expect("completed", run(*command.split()).returncode, tmp_path / "run")
