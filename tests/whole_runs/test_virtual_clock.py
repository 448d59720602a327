"""Whole runs on the virtual clock: exact, repeatable, and with the same rounds as on the real clock."""

import itertools
import math
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import pausefl
from benchmarks.own.twin import changed_choices, compared, median_residual_s, steps_compared
from pausefl.results.reading import CLIENTS
from pausefl.runtime.client.plan import TrainingPlan, client_plan
from pausefl.runtime.plan import plan_of
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import SHARED_STEPS
from pausefl.runtime.virtual import steps
from pausefl.runtime.virtual.process import play_virtually
from pausefl.studies.campaign import Plan, begin
from pausefl_client.privacy.ledger import verified_spend
from pausefl_process.events import ProgressEvent, RoundCommitted
from pausefl_server.records import RoundRecord
from rigs.command import Background, query, rounds_in, sets, summary_of
from rigs.databases import full_disk
from rigs.federation import log_of
from rigs.refusals import refused
from rigs.waiting import wait_for

SYNTHETIC = {
    "experiment.rounds": 12,
    "clients.count": 6,
    "selection.m": 3,
    "workload.model": "synthetic",
    "latency.time_scale": 1.0,
    "privacy.reproducible_noise": True,
}
TRAINING = {
    "experiment.rounds": 6,
    "clients.count": 5,
    "selection.m": 2,
    "workload.epochs": 1,
    "workload.max_steps": 3,
    "workload.step_s": 0.25,
    "privacy.reproducible_noise": True,
}
UNSTATED = {key: value for key, value in TRAINING.items() if key != "workload.step_s"}
ASYNCHRONOUS = {"server.mode": "asynchronous", "asynchronous.concurrency": 3, "asynchronous.buffer": 2}
TIERS = {**ASYNCHRONOUS, "asynchronous.concurrency": 4, "asynchronous.rule": "fedat"}
TIERS |= {"selection.policy": "fedat", "selection.fedat.tiers": 2}


def play(folder: Path, overrides: Mapping[str, Any]) -> list[RoundRecord]:
    """Play the demo on the virtual clock in this process; returns its log."""
    experiment = pausefl.load("demo", {"experiment.clock": "virtual", "metrics.enabled": False, **overrides})
    folder.mkdir(exist_ok=True)
    play_virtually(plan_of(experiment, folder.name), folder, lambda _: None)
    return log_of(folder)


def tables(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All tables of a run's log except `meta` and `seals`, which name the run."""
    with closing(sqlite3.connect(folder / "run.db")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: database.execute(f"SELECT * FROM {n}").fetchall() for n in names if n not in ("meta", "seals")}


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(SYNTHETIC, id="synthetic"),
        pytest.param(TRAINING, id="training"),
        pytest.param({**TRAINING, "selection.policy": "sa-pause"}, id="sa-pause"),
        pytest.param({**TRAINING, "clients.batched": "on", "selection.m": 3}, id="batched"),
        pytest.param({**TRAINING, "selection.over_selection": 0.5, "server.late": "buffer"}, id="over-selection"),
        pytest.param({**TRAINING, **ASYNCHRONOUS}, id="asynchronous"),
        pytest.param({**TRAINING, **TIERS}, id="fedat"),
    ],
)
def test_the_same_seed_gives_the_same_log_twice(overrides: dict[str, Any], tmp_path: Path) -> None:
    play(tmp_path / "one", overrides)
    play(tmp_path / "other", overrides)
    assert tables(tmp_path / "one") == tables(tmp_path / "other")
    assert tables(tmp_path / "one")["rounds"]


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_a_run_that_goes_on_is_to_the_last_digit_the_one_that_was_not_interrupted(scale: float, tmp_path: Path) -> None:
    """Once the resumed run's clock began at 0 again, and differences of times were rounded otherwise."""
    overrides = {**SYNTHETIC, "latency.time_scale": scale}
    for rounds in (5, 12):
        play(tmp_path / "twice", {**overrides, "experiment.rounds": rounds})
    whole, twice = play(tmp_path / "whole", overrides), log_of(tmp_path / "twice")
    assert [replace(record, events=()) for record in twice] == [replace(record, events=()) for record in whole]


@pytest.mark.slow
def test_an_interrupted_private_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Once an open round's jobs stayed charged, so the policy chose other clients when the round was played again."""
    experiment = pausefl.load("demo", {"experiment.clock": "virtual", **SYNTHETIC, "experiment.rounds": 60})
    for name, ends in (("whole", ()), ("cut", (5, 17))):
        for end in (*ends, 60):
            stop = Event()

            def stop_after(event: ProgressEvent, stop: Event = stop, end: int = end) -> None:
                if isinstance(event, RoundCommitted) and event.round >= end:
                    stop.set()

            run_experiment(experiment, tmp_path / name, stop_after, resume=True, has_report=False, stop=stop)
    logs = [[replace(record, events=()) for record in log_of(tmp_path / name)] for name in ("whole", "cut")]
    assert logs[0] == logs[1]


@pytest.mark.end_to_end
def test_a_scheduler_that_ends_all_processes_is_heard_once(background: Background, tmp_path: Path) -> None:
    """Once the playing process got a second signal from its parent, which ended it at once."""
    words = sets("experiment.rounds=1000000", "workload.model=synthetic")
    process = background("run", "demo", "--virtual", *words, "--run-dir", tmp_path / "run")
    wait_for(lambda: rounds_in(tmp_path / "run"), "rounds", running=process)
    others = psutil.Process(process.pid).children(recursive=True)
    for one in others:
        one.send_signal(signal.SIGUSR2)  # Slurm sends it before a job's time is over
    for one in (psutil.Process(process.pid), *others):
        one.terminate()
    process.wait(60)
    assert summary_of(tmp_path / "run")["outcome"] == "interrupted"


def test_an_exchange_takes_what_was_drawn_and_stated_and_nothing_else(tmp_path: Path) -> None:
    """Some models wait until their client's link has let a late update out, which counts as drawn."""
    late = {"latency.delay": {"kind": "exponential", "mean_s": 2.0}, "selection.over_selection": 1.0}
    late |= {"latency.signal": "round_trip", "latency.time_scale": 1.0, "experiment.rounds": 12}
    rounds = play(tmp_path / "run", {**TRAINING, **late})
    for observation in (o for record in rounds for o in record.observations):
        drawn_s = observation.drawn_down_s + observation.drawn_up_s
        assert observation.latency_s == pytest.approx(drawn_s + 3 * 0.25, abs=1e-6)
        assert observation.timing.train_s == pytest.approx(3 * 0.25, abs=1e-6)
    ends_s = [record.wall_clock_s for record in rounds]
    for record, begin_s, end_s in zip(rounds, [0.0, *ends_s[:-1]], ends_s, strict=True):
        assert end_s - begin_s == pytest.approx(record.round_latency_s, abs=1e-6)


def test_with_equal_delays_steps_are_taken_when_a_queue_of_c_servers_is_done(tmp_path: Path) -> None:
    """C jobs begin at once and each takes d. Arrival n is at d ceil(n/C), and each K-th arrival makes a step."""
    delay = {"kind": "constant", "value_s": 0.25}
    overrides = {"latency.delay": delay, "latency.tau_min_s": 0.1, "privacy.enabled": False, **ASYNCHRONOUS}
    steps = play(tmp_path / "run", {**SYNTHETIC, **overrides, "selection.policy": "random"})
    taken_s = [0.25 * math.ceil(2 * n / 3) for n in range(1, 13)]
    assert [step.elapsed_s for step in steps] == pytest.approx(taken_s, abs=1e-6)
    assert summary_of(tmp_path / "run")["idle_share"] == pytest.approx(0.0, abs=1e-6)


def test_a_slow_device_is_slow_in_virtual_time_too(tmp_path: Path) -> None:
    groups = {"slow": {"count": 3, "behaviours": [{"kind": "slow-device", "factor": 4.0}]}, "quick": {"count": 3}}
    rounds = play(
        tmp_path / "run",
        {**SYNTHETIC, "clients.groups": groups, "workload.train_s": 0.5, "selection.policy": "all", "selection.m": 6},
    )
    for observation in (o for record in rounds for o in record.observations):
        expected_s = 2.0 if observation.client_id.startswith("slow") else 0.5
        assert observation.timing.train_s == pytest.approx(expected_s, abs=1e-6)


def one_slow(factor: float) -> dict[str, Any]:
    """Two clients that train for 0.1 s, and a third that takes `factor` times as long."""
    groups = {"late": {"count": 1, "behaviours": [{"kind": "slow-device", "factor": factor}]}, "quick": {"count": 2}}
    return {**SYNTHETIC, "clients.count": 3, "clients.groups": groups, "workload.train_s": 0.1}


def test_a_job_that_the_end_of_a_run_breaks_off_was_work_until_then(tmp_path: Path) -> None:
    """One of three clients trains for an hour. The run ends before, and goes on."""
    for rounds in (4, 12):
        steps = {"experiment.rounds": rounds, "selection.policy": "random", "asynchronous.buffer": 1}
        play(tmp_path / "run", {**one_slow(36_000.0), **ASYNCHRONOUS, **steps})
        late, *others = (idle_share for *_, idle_share in query(tmp_path / "run", CLIENTS))
        assert late == pytest.approx(0.0, abs=1e-9)
        assert summary_of(tmp_path / "run")["clients_at_work"] == pytest.approx(3 - sum(others))


def test_a_round_ends_at_its_deadline(tmp_path: Path) -> None:
    """One client trains for an hour, so rounds last exactly as long as the deadline."""
    ends = {"selection.policy": "all", "server.round_timeout_s": 20.0, "server.rest_rounds_max": 0}
    rounds = play(tmp_path / "run", {**one_slow(36_000.0), "experiment.rounds": 2, **ends})
    assert [[miss.client_id for miss in record.misses] for record in rounds] == [["late-000"], ["late-000"]]
    assert [record.round_latency_s for record in rounds] == [pytest.approx(20.0)] * 2
    censored = query(tmp_path / "run", "SELECT client_id, kind, waited_s FROM censored_latencies")
    assert censored == [("late-000", "timeout", pytest.approx(20.0))] * 2
    summary = summary_of(tmp_path / "run")
    assert (summary["missed_jobs"], summary["censored_rounds"]) == ({"timeout": 2}, 2)
    assert summary["total_latency_s"] == pytest.approx(summary["wall_clock_s"]) == pytest.approx(40.0)
    assert summary["measured_latency_s"] < 20.0


def test_a_summary_counts_what_its_log_and_its_ledgers_hold(tmp_path: Path) -> None:
    """Two of three clients are asked and one is waited for: the slow one never answers."""
    asked = {"selection.policy": "random", "selection.m": 1, "selection.over_selection": 1.0, "latency.tau_min_s": 0.84}
    rounds = play(tmp_path / "run", {**one_slow(1000.0), **asked, "experiment.rounds": 9})
    summary = summary_of(tmp_path / "run")
    ((withdrawn,),) = query(tmp_path / "run", "SELECT count(*) FROM events WHERE kind = 'withdrawn'")
    assert summary["withdrawn_jobs"] == withdrawn > 0
    latencies_s = [o.latency_s for record in rounds for o in record.observations]
    assert summary["clamped_latencies"] == sum(latency_s < 0.84 for latency_s in latencies_s)
    assert 0 < summary["clamped_latencies"] < 9
    spent = sorted(verified_spend(ledger).epsilon for ledger in (tmp_path / "run/ledgers").glob("*.db"))
    assert (summary["median_epsilon_spent"], summary["max_epsilon_spent"]) == pytest.approx(spent[1:])
    assert spent[1] < spent[2]


def test_a_job_withdrawn_while_it_trains_is_not_charged(tmp_path: Path) -> None:
    """Over-selection: the slowest of three is not needed. Its job is withdrawn long before its training ends."""
    chosen = {"selection.policy": "random", "selection.m": 2, "selection.over_selection": 0.5}
    rounds = play(tmp_path / "run", {**one_slow(1000.0), "experiment.rounds": 4, **chosen})
    assert {len(record.observations) for record in rounds} == {2}
    with closing(sqlite3.connect(next((tmp_path / "run/ledgers").glob("late-000*.db")))) as ledger:
        assert ledger.execute("SELECT count(*) FROM releases").fetchone() == (0,)


def test_clients_come_and_go_with_the_rounds_also_of_a_run_that_goes_on(tmp_path: Path) -> None:
    gone = {"count": 2, "leave_round": 6, "leave": "kill"}
    groups = {"here": {"count": 2}, "later": {"count": 2, "join_round": 4}, "gone": gone}
    overrides = {**SYNTHETIC, "clients.groups": groups, "selection.policy": "all", "clients.minimum": 2}
    for rounds in (5, 12):
        played = play(tmp_path / "run", {**overrides, "experiment.rounds": rounds})
    seen = [{c.partition("-")[0] for c in record.chosen} for record in played]
    assert seen == [{"here", "gone"}] * 3 + [{"here", "gone", "later"}] * 2 + [{"here", "later"}] * 7


@pytest.mark.slow
def test_a_client_that_is_away_when_the_run_ends_does_not_make_it_fail(tmp_path: Path) -> None:
    """Its last updates were all rejected, so it rests; when it comes back, the server has ended."""
    groups = {"clients.groups.honest.count": 2, "clients.groups.loud.count": 1}
    loud = {"clients.groups.loud.behaviours": [{"kind": "scaled-update", "factor": 3e38}]}
    open_run = {"clients.count": 3, "privacy.enabled": False, "latency.delay.kind": "none", "experiment.rounds": 9}
    assert len(play(tmp_path / "run", {**SYNTHETIC, **groups, **loud, **open_run})) == 9
    summary = summary_of(tmp_path / "run")
    assert (summary["outcome"], summary["rejected_updates"]) == ("completed", 9)


@pytest.mark.usefixtures("quickly_written")
def test_a_run_in_a_process_of_its_own_is_the_same(tmp_path: Path) -> None:
    overrides = {"experiment.clock": "virtual", **TRAINING, "workload.optimizer": "sgd"}
    run = pausefl.run(pausefl.load("demo", overrides), tmp_path / "run", progress=False)
    assert (run.summary["clock"], run.summary["rounds"]) == ("virtual", TRAINING["experiment.rounds"])
    assert run.summary["final_accuracy"] is not None
    assert "virtual seconds" in (tmp_path / "run/report.html").read_text("utf-8")
    assert play(tmp_path / "again", overrides) == log_of(tmp_path / "run")


@pytest.mark.slow
def test_the_real_clock_plays_the_same_rounds(tmp_path: Path) -> None:
    """With clients that come late, go, are killed or come and go, and a missed deadline, choices and misses agree."""
    groups = {
        "here": {"count": 3},
        "later": {"count": 1, "join_round": 3},
        "gone": {"count": 1, "leave_round": 4, "leave": "kill"},
        "fickle": {"count": 1, "availability": {"kind": "cycle", "on_rounds": 1, "off_rounds": 1}},
        "late": {"count": 1, "behaviours": [{"kind": "slow-device", "factor": 1000.0}]},
    }
    overrides = {
        **SYNTHETIC,
        "experiment.rounds": 5,
        "metrics.enabled": False,
        "clients.count": 7,
        "clients.groups": groups,
        "clients.minimum": 5,
        "selection.m": 5,
        "selection.policy": "random",
        "workload.train_s": 0.02,
        "latency.time_scale": 0.01,
        "server.round_timeout_s": 5.0,
        "server.rest_rounds_max": 0,
    }
    virtual = play(tmp_path / "virtual", overrides)
    pausefl.run(pausefl.load("demo", overrides), tmp_path / "real", progress=False)
    real = log_of(tmp_path / "real")
    assert [record.chosen for record in real] == [record.chosen for record in virtual]
    missed = [[miss.client_id for miss in record.misses] for record in virtual]
    assert [[miss.client_id for miss in record.misses] for record in real] == missed
    assert ["late-000"] in missed
    assert ["fickle-000" in record.chosen for record in virtual] == [True, False, True, False, True]
    assert compared(real, virtual, 0.0)["same_sets"] == 5
    assert "did not come or go" not in (tmp_path / "real/server.log").read_text("utf-8")


def test_steps_compare_by_elapsed_time_and_staleness(tmp_path: Path) -> None:
    steps = play(tmp_path / "run", {**SYNTHETIC, **ASYNCHRONOUS, "selection.policy": "random"})
    found = steps_compared([replace(record, elapsed_s=2 * record.elapsed_s) for record in steps], steps)
    assert found["elapsed_ratio"] == pytest.approx(2.0)
    of_updates = sqlite3.connect(tmp_path / "run/run.db").execute("SELECT avg(staleness) FROM updates").fetchone()
    assert found["real_staleness"] == found["virtual_staleness"] == pytest.approx(of_updates[0])
    assert found["virtual_staleness"] > 0


def test_virtual_latencies_change_no_choice_of_a_virtual_log(tmp_path: Path) -> None:
    overrides = {**SYNTHETIC, "latency.signal": "round_trip", "selection.policy": "pause"}
    rounds = play(tmp_path / "run", overrides)
    experiment = pausefl.load("demo", {**overrides, "experiment.clock": "virtual"})
    assert changed_choices(experiment, rounds, rounds) == {"changed_choices": 0, "changed_gap_max": 0.0}

    slowed = [
        replace(record, observations=tuple(replace(o, drawn_up_s=10.0 * i) for i, o in enumerate(record.observations)))
        for record in rounds
    ]
    found = changed_choices(experiment, slowed, rounds)
    assert found["changed_choices"] > 0
    assert found["changed_gap_max"] > 0


def test_the_error_of_a_latency_leaves_out_what_an_undelayed_exchange_takes(tmp_path: Path) -> None:
    def slowed(record: RoundRecord) -> RoundRecord:
        timings = [replace(o.timing, round_trip_s=o.timing.round_trip_s + 0.25) for o in record.observations]
        seen = zip(record.observations, timings, strict=True)
        return replace(record, observations=tuple(replace(o, timing=timing) for o, timing in seen))

    rounds = play(tmp_path / "run", SYNTHETIC)
    slower = [slowed(record) for record in rounds]
    assert median_residual_s(slower, rounds) == pytest.approx(0.25)
    found = compared(slower, rounds, 0.2)
    assert [found["residual_p50_ms"], found["error_p50_ms"]] == pytest.approx([250, 50])


class Nonzero(nn.Linear):
    """A model that fails where its weights are 0, as one that divides by them may."""

    def __init__(self, _: tuple[int, ...], classes: int) -> None:
        super().__init__(64, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.weight.any()
        return super().forward(inputs.flatten(1))


def test_a_step_that_is_not_stated_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNSTATED, "workload.model", f"{__name__}:Nonzero")
    rounds = play(tmp_path / "run", {**UNSTATED, "experiment.rounds": 2})
    (step_s,) = {round(o.timing.train_s / 3, 9) for record in rounds for o in record.observations}
    assert (tmp_path / "run/step.json").read_text("utf-8") == f'{{"step_s": {step_s}}}\n'
    play(tmp_path / "run", {**UNSTATED, "experiment.rounds": 3})
    assert {round(o.timing.train_s / 3, 9) for o in log_of(tmp_path / "run")[-1].observations} == {step_s}


CHANGED_STEPS: dict[str, dict[str, Any]] = {
    "large batches": {"workload.batch_size": 64},
    "fedprox": {"workload.proximal_mu": 0.1},
    "another optimizer": {"workload.optimizer_options": {"weight_decay": 0.1}},
}


def unstated(changes: dict[str, Any]) -> TrainingPlan:
    """The training plan of an experiment that does not state the duration of a step."""
    return client_plan(pausefl.load("demo", {"experiment.clock": "virtual", **UNSTATED, **changes})).training


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign's folder, in which the first step measured takes 1 s, the second 2 s, and so on."""
    measured = itertools.count(1.0)
    monkeypatch.setattr(steps, "_measured_step_s", lambda _: next(measured))
    begin(tmp_path, Plan("compare", "", {}))
    return tmp_path


def test_the_runs_of_a_campaign_that_train_alike_have_the_same_step(campaign: Path) -> None:
    """Even if a run's folder lies one level deeper."""
    found = {}
    for name, changes in {"one": {}, "runs/other": {"experiment.seed": 2}, **CHANGED_STEPS}.items():
        (campaign / name).mkdir(parents=True)
        found[name] = steps.with_step_time(unstated(changes), campaign / name).workload.step_s
    assert found == {"one": 1, "runs/other": 1, "large batches": 2, "fedprox": 3, "another optimizer": 4}


def test_a_shared_step_survives_a_disk_that_takes_no_other(campaign: Path) -> None:
    """Once the file was overwritten in place: a torn file ended every later run of the campaign."""
    for name in ("one", "large"):
        (campaign / name).mkdir()
    assert steps.with_step_time(unstated({}), campaign / "one").workload.step_s == 1
    shared = campaign / SHARED_STEPS
    before = shared.read_text("utf-8")
    with full_disk(len(before) + 10), pytest.raises(OSError, match="File too large"):
        steps.with_step_time(unstated(CHANGED_STEPS["large batches"]), campaign / "large")
    assert shared.read_text("utf-8") == before


def test_a_step_is_that_of_an_honest_device(tmp_path: Path) -> None:
    """The first client's behaviours, which would fail here, are left out where a step is measured for all devices."""
    dropped = {"count": 1, "behaviours": [{"kind": "dropout", "probability": 1.0}]}
    steps.with_step_time(unstated({"clients.groups": {"first": dropped, "plain": {"count": 4}}}), tmp_path)
    assert (tmp_path / "step.json").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"latency.injection": "netem", "clients.per_process": 1}, 'goes without latency.injection = "netem"'),
        ({"metrics.client_port": 0}, "goes without metrics.client_port = 0"),
        ({"evaluation.address": "there:1"}, 'goes without evaluation.address = "there:1"'),
        ({"tls.certificate": "a.pem", "tls.key": "a.key"}, 'goes without tls.certificate = "a.pem"'),
        ({"tls.ca": "ca.pem"}, 'goes without tls.ca = "ca.pem"'),
        ({"admission.tokens": "tokens.txt"}, 'goes without admission.tokens = "tokens.txt"'),
        ({"workload.step_s": 1.0, "workload.training_time": {"kind": "constant", "value_s": 1.0}}, "states the same"),
        ({"workload.training_time": {"kind": "normal", "mean_s": 0.0, "sd_s": 1.0}}, "workload.training_time"),
        ({"workload.model": "synthetic", "workload.step_s": 1.0}, "takes no steps"),
    ],
)
def test_what_the_virtual_clock_cannot_play_is_refused_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with refused(message):
        pausefl.load("demo", {"experiment.clock": "virtual", **overrides})
