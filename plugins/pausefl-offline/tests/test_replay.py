"""A log replayed through a policy: its own chooses the same, another's rounds are estimated."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pausefl
from pausefl.cli import main
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.results.reading import read_log
from pausefl.runtime.run_dir import stored_experiment
from pausefl_offline.counterfactual import play_on_log
from pausefl_offline.plots import draw_replay
from pausefl_offline.replay import check_same, choices_on, rules_of
from pausefl_offline.replay_outputs import in_words
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.records import Miss, MissKind, RoundRecord
from pausefl_server.selection.base import Oracle
from rigs.experiments import SMALL, play, small
from rigs.federation import PRIVATE, clients, federation, network_settings, private
from rigs.log import changing_log
from rigs.policies import BUDGET, CASES, DEADLINE_S, IDS, Play, policy_of
from rigs.refusals import refused

pytestmark = pytest.mark.usefixtures("quickly_written")

NAMES = [f"client-{k}" for k in range(6)]
ORACLE = Oracle({c: 0.1 + 0.1 * k for k, c in enumerate(NAMES)}, {c: 10 / (1 + k) for k, c in enumerate(NAMES)})


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "fedat"])  # it needs steps, which replay refuses
async def test_every_policy_chooses_again_what_it_chose_over_the_network(case: str, tmp_path: Path) -> None:
    """Private runs over gRPC; two clients join after the first rounds."""
    changes: dict[str, Any] = {"rounds": 8, "minimum_clients": 4, "privacy": PRIVATE, "tau_min_s": None}
    ledgers = {name: private(tmp_path / "ledgers", name) for name in NAMES}
    async with federation(tmp_path, policy_of(case, m=2), oracle=ORACLE, **changes) as server, clients() as some:
        for name in NAMES[:4]:
            some.start(name, await server.port, privacy=ledgers[name])
        await server.event("round")
        for name in NAMES[4:]:
            some.start(name, await server.port, privacy=ledgers[name])
        await server.finished()
    log = read_log(tmp_path)
    assert len(log) == 8
    choices = choices_on(log, policy_of(case, m=2), network_settings(**changes), ORACLE)
    assert [choice.recorded for choice in choices] == [record.chosen for record in log]
    check_same(choices)


# -- estimates for other policies, on latencies that are functions of (client, round): the truth can be played


def experiment_of(policy: str, *more: str, seed: int = 1, m: int = 4) -> Experiment:
    groups = "[clients.groups.client]\ncount = 13"
    selection = f'[selection]\npolicy = "{policy}"\nm = {m}'
    return parse_experiment("\n".join([f"[experiment]\nseed = {seed}", groups, selection, *more]))


def played(policy: str, rounds: int, seed: int = 1, silent: tuple[str, ...] = ()) -> Sequence[RoundRecord]:
    return Play(policy_of(policy), seed=seed, silent=silent).rounds(rounds).records


def total_s(log: Sequence[RoundRecord]) -> float:
    return sum(record.round_latency_s for record in log)


@pytest.mark.parametrize("policy", ["pause", "random", "ucb", "clustered", "all", "sa-pause"])
def test_the_logs_own_policy_needs_no_extrapolation_and_waits_what_was_waited(policy: str) -> None:
    log = played(policy, 20)
    estimate = play_on_log(experiment_of(policy, "[selection.sa-pause]\nsteps = 50"), log, draws=3)
    assert [each.chosen for each in estimate.draws[0]] == [record.chosen for record in log]
    assert not estimate.by_round("extrapolated").any()
    assert estimate.by_round("waited_s").sum(axis=1) == pytest.approx([total_s(log)] * 3)
    spent = [o.epsilon_spent for record in log for o in record.observations]
    assert estimate.max_epsilon_spent == pytest.approx([max(spent)] * 3)


@pytest.mark.slow
def test_intervals_hold_what_the_other_policy_really_waits() -> None:
    """A 95 % interval holds the truth in nine of ten logs on average; it does so in seven or more with 99.9 %."""
    held = 0
    for seed in range(1, 11):
        estimate = play_on_log(experiment_of("random", seed=seed), played("ucb", 40, seed), draws=40)
        low, high = np.quantile(estimate.by_round("waited_s").sum(axis=1), (0.025, 0.975))
        held += low <= total_s(played("random", 40, seed)) <= high
        assert 0 < (estimate.by_round("extrapolated") > 0).mean() <= 1
    assert held >= 7


def cut_short(log: Sequence[RoundRecord], m: int) -> Sequence[RoundRecord]:
    """The log as if each round had ended with its first m answers."""
    records = []
    for record in log:
        ordered = sorted(record.observations, key=lambda o: o.latency_s)
        end_s = ordered[m - 1].latency_s
        misses = tuple(Miss(o.client_id, "unneeded", end_s, end_s) for o in ordered[m:])
        kept = tuple(ordered[:m])
        records.append(dataclasses.replace(record, observations=kept, misses=misses, round_latency_s=end_s))
    return records


@pytest.mark.parametrize(("asked", "waited_for", "error"), [(6, 5, 0.03), (7, 5, 0.1)])
def test_a_client_that_the_log_did_not_wait_for_answers_later(asked: int, waited_for: int, error: float) -> None:
    """Rounds that end early show what waiting for all would cost. Only answers at their bounds are taken too low."""
    play = Play(policy_of("random", m=asked)).rounds(120)
    log = cut_short(play.records, waited_for)
    estimate = play_on_log(experiment_of("random", m=5), log, draws=5)
    rounds = enumerate(estimate.draws[0], start=1)
    truth_s = sum(max(play.observation(c, t).latency_s for c in each.chosen) for t, each in rounds)
    assert estimate.by_round("waited_s").sum(axis=1).mean() == pytest.approx(truth_s, rel=error)
    assert 0 < estimate.by_round("at_bounds").sum() / estimate.by_round("asked").sum() < 1.1 * error


def test_a_logs_own_rounds_need_no_draw_though_some_were_not_waited_for() -> None:
    log = cut_short(Play(policy_of("random", m=7)).rounds(20).records, m=5)
    estimate = play_on_log(experiment_of("random", "over_selection = 0.4", m=5), log, draws=3)
    assert [each.chosen for each in estimate.draws[0]] == [record.chosen for record in log]
    assert estimate.by_round("waited_s").sum(axis=1) == pytest.approx([total_s(log)] * 3)
    assert not estimate.by_round("extrapolated").any()
    assert not estimate.by_round("at_bounds").any()


def test_misses_stay_misses_and_a_client_that_the_log_never_asked_is_told_apart() -> None:
    never = play_on_log(experiment_of("all"), played("fastest", 6), draws=2)
    assert (never.by_round("never_observed") == len(IDS) - 4).all()
    assert (never.by_round("extrapolated") == len(IDS) - 4).all()
    assert (never.by_round("asked") == len(IDS)).all()
    log = played("all", 5, silent=(IDS[0],))
    estimate = play_on_log(experiment_of("random", "[server]\nrest_rounds_max = 1"), log, draws=2)
    asked = [IDS[0] in each.chosen for each in estimate.draws[0]]
    assert any(asked)
    assert [waited == 2.0 for waited in estimate.by_round("waited_s")[0]] == asked


def test_a_round_without_an_update_is_tried_again_as_often_as_a_server_does() -> None:
    """Only one client ever answers; the others are waited for until the deadline."""
    log = played("all", 6, silent=IDS[1:])
    estimate = play_on_log(experiment_of("random", "[server]\nrounds_without_update_max = 2", m=1), log, draws=3)
    failed, without_update = estimate.by_round("failed_attempts"), estimate.by_round("without_update")
    assert without_update.any()
    assert (failed[without_update] == 2).all()
    assert (estimate.by_round("waited_s")[without_update] == 2 * DEADLINE_S).all()
    assert (estimate.by_round("asked") == np.minimum(1 + failed, 2)).all()
    patient = experiment_of("random", "[server]\nrounds_without_update_max = 20", m=1)
    estimate = play_on_log(patient, log, draws=1)
    assert not estimate.by_round("without_update").any()
    assert all(each.chosen == (IDS[0],) for each in estimate.draws[0])


def test_budgets_end_an_estimate_where_they_end_a_run() -> None:
    """The run ends once fewer than m clients may release, not when the last one has retired."""
    five_releases = "[privacy]\nepsilon_budget = 100.0\neta = 0.5\nepsilon_floor = 5.0"
    estimate = play_on_log(experiment_of("random", five_releases), played("random", 20), draws=3)
    for asked in estimate.by_round("asked"):
        assert (end := asked.argmin()) > 10
        assert asked.tolist() == [4] * end + [0] * (20 - end)


def test_a_round_that_spends_the_budgets_in_failed_attempts_had_no_update() -> None:
    """The budgets are spent after fewer attempts than a server makes, so the run would have ended in this round."""
    few_releases = "[privacy]\nepsilon_budget = 100.0\neta = 0.5\nepsilon_floor = 5.0"
    server = "[server]\nrounds_without_update_max = 1000\nrest_rounds_max = 0"
    estimate = play_on_log(experiment_of("all", f"{few_releases}\n{server}"), played("all", 3, silent=IDS), draws=1)
    assert estimate.by_round("failed_attempts")[0, 0] > 1
    assert estimate.by_round("without_update")[0].tolist() == [True, False, False]
    assert estimate.by_round("beyond_budgets")[0].tolist() == [False, True, True]


def test_only_a_job_that_was_refused_spends_nothing() -> None:
    log = played("all", 5, silent=IDS)
    kinds: tuple[tuple[MissKind, int], ...] = (("refused", 0), ("rejected", 5), ("timeout", 5), ("lost", 5))
    once = experiment_of("all", "[server]\nrounds_without_update_max = 1\nrest_rounds_max = 0")
    for kind, releases in kinds:
        misses = [tuple(dataclasses.replace(miss, kind=kind) for miss in record.misses) for record in log]
        records = [dataclasses.replace(r, misses=of) for r, of in zip(log, misses, strict=True)]
        (spent,) = play_on_log(once, records, draws=1).max_epsilon_spent
        assert spent == pytest.approx(BUDGET.spent(releases)), kind


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("fed-ts", "--policy fed-ts: judges the updates themselves, which a log does not keep"),
        ("pow-d", "--policy pow-d: needs clients to disclose their loss, which this log does not have"),
    ],
)
def test_what_the_log_lacks_is_one_line(policy: str, line: str) -> None:
    log = played("random", 3)
    silent = [tuple(dataclasses.replace(o, loss=None) for o in record.observations) for record in log]
    records = [dataclasses.replace(r, observations=of) for r, of in zip(log, silent, strict=True)]
    with refused(line):
        play_on_log(experiment_of(policy, "[privacy]\nenabled = false"), records, draws=1)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    play(small({"experiment.rounds": 6, "clients.count": 5}), folder)
    return folder


def test_a_run_is_replayed_by_the_library_and_a_damaged_log_names_its_round(run_dir: Path, tmp_path: Path) -> None:
    found = pausefl.replay(run_dir)
    assert found.summary["same_choices"] == found.summary["rounds"] == 6
    damaged = tmp_path / "damaged"
    shutil.copytree(run_dir, damaged)
    with changing_log(damaged) as database:
        chosen = json.loads(database.execute("SELECT chosen FROM rounds WHERE round = 4").fetchone()[0])
        other = sorted({c for choice in found.choices for c in choice.recorded} - set(chosen))
        database.execute("UPDATE rounds SET chosen = ? WHERE round = 4", (json.dumps([chosen[0], other[0]]),))
    with pytest.raises(PauseflError, match="round 4, attempt 1: the policy chooses"):
        pausefl.replay(damaged)


def test_the_failed_attempts_that_ended_a_run_are_waits_too(run_dir: Path, tmp_path: Path) -> None:
    """The log has these attempts at the round after the last one."""
    ended, whole = tmp_path / "ended", pausefl.replay(run_dir)
    shutil.copytree(run_dir, ended)
    with changing_log(ended) as database:
        database.execute("INSERT INTO failed_attempts SELECT * FROM rounds WHERE round = 6")
        database.execute("UPDATE failed_attempts SET round = 7, round_latency_s = 0.5")
    estimate = pausefl.replay(ended, policy="random", draws=2).summary
    assert estimate["recorded_failed_attempts_s"] == 0.5
    assert estimate["recorded_total_latency_s"] == pytest.approx(whole.summary["total_latency_s"])
    assert any("waited 0.5 emulated s more in failed attempts" in line for line in in_words(estimate))

    log = read_log(ended)
    *_, last = choices_on(log, *rules_of(stored_experiment(ended)), log.failed_attempts())
    with changing_log(ended) as database:
        database.execute("UPDATE failed_attempts SET chosen = ?", (json.dumps(last.chosen),))
    own = pausefl.replay(ended).summary
    assert own["attempts"] == 7
    assert own["total_latency_s"] == pytest.approx(whole.summary["total_latency_s"] + 0.5)


def test_dropouts_cost_what_they_cost_in_the_run(tmp_path: Path) -> None:
    """A client that drops out spends nothing. A round in which all drop out is tried again, as the log says."""
    experiment = parse_experiment("""
experiment = { rounds = 12, clock = "virtual" }
clients.groups.shaky = { count = 8, behaviours = [{ kind = "dropout", probability = 0.5 }] }
selection = { policy = "random", m = 2 }
server.rounds_without_update_max = 10
workload.model = "synthetic"
""")
    ran = pausefl.run(experiment, tmp_path / "run", progress=False).summary
    found = pausefl.replay(tmp_path / "run", policy="random", draws=2).summary
    assert ran["failed_attempts"] > 0
    assert found["failed_attempts"] == dict.fromkeys(("mean", "low", "high"), ran["failed_attempts"])
    for figure in ("total_latency_s", "max_epsilon_spent"):
        assert found[figure]["low"] == found[figure]["high"] == pytest.approx(ran[figure])
    assert found["recorded_total_latency_s"] == pytest.approx(ran["total_latency_s"])
    assert found["extrapolated"]["choices"] == found["rounds_without_update"] == 0
    assert any("attempts failed" in line for line in in_words(found))


def test_an_estimate_says_that_budgets_end_before_the_log_does(tmp_path: Path) -> None:
    """The estimated total then covers fewer rounds than the recorded one. Both equal those of a run of the policy."""
    one = {"experiment.rounds": 12, "selection.policy": "random", "selection.m": 1, "privacy.epsilon_floor": 3.0}
    pausefl.run(parse_experiment("", {**SMALL, **one}), tmp_path / "one", progress=False)
    three = {**SMALL, **one, "selection.m": 3}
    ran = pausefl.run(parse_experiment("", three), tmp_path / "three", progress=False).summary
    assert ran["outcome"] == "budgets_spent"
    found = pausefl.replay(tmp_path / "one", overrides={"selection.m": 3}, draws=2).summary
    assert found["rounds_beyond_budgets"] == pytest.approx(1 - ran["rounds"] / 12)
    assert found["max_epsilon_spent"]["mean"] == pytest.approx(ran["max_epsilon_spent"])
    assert found["extrapolated"]["rounds"] == 1.0  # in all rounds played, since the log has one of three clients
    (line,) = [line for line in in_words(found) if "budget" in line]
    assert line.startswith(f"{found['rounds_beyond_budgets']:.1%} of rounds were not played")


def test_an_estimate_is_written_with_its_caveat(run_dir: Path, tmp_path: Path) -> None:
    found = pausefl.replay(run_dir, policy="random", draws=5, folder=tmp_path / "out")
    summary = json.loads((tmp_path / "out/replay.json").read_text())
    assert summary == found.summary
    assert "does not depend on who else is chosen" in summary["caveat"]
    assert summary["total_latency_s"]["low"] <= summary["total_latency_s"]["mean"] <= summary["total_latency_s"]["high"]
    lines = (tmp_path / "out/replay.csv").read_text().splitlines()
    assert lines[0] == "round,recorded,chosen,recorded_s,waited_s,low_s,high_s,extrapolated"
    assert len(lines) == 7
    assert (tmp_path / "out/replay.png").stat().st_size > 0
    choices = choices_on(read_log(run_dir), *rules_of(parse_experiment((run_dir / "config.toml").read_text())))
    assert choices == list(pausefl.replay(run_dir).choices)


def test_shares_of_what_an_estimate_rests_on_are_counted(tmp_path: Path) -> None:
    """The log's policy takes the two fastest of five clients in each round, the other one all."""
    pausefl.run(small({"clients.count": 5, "selection.policy": "fastest"}), tmp_path / "run", progress=False)
    found = pausefl.replay(tmp_path / "run", policy="all", draws=2).summary
    rests = {"rounds": 1.0, "choices": 0.6, "choices_of_clients_never_observed": 0.6, "choices_at_lower_bounds": 0.0}
    assert found["extrapolated"] == pytest.approx(rests)
    assert found["on_the_logs_history"] == pytest.approx({"attempts": 3, "same_sets": 0, "shared_choices": 0.4})
    assert list(found["times_chosen"].values()) == [3.0] * 5


def test_the_command_says_it_and_refuses_other_keys(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", str(run_dir)])
    said = capsys.readouterr()
    assert said.err == ""
    assert "chose the same clients in all 6 rounds" in said.out
    with pytest.raises(ConfigError, match=r"--set experiment\.rounds: a replay changes who is chosen"):
        pausefl.replay(run_dir, overrides={"experiment.rounds": 3})
    with pytest.raises(ConfigError, match=r"^overrides = \[3\]: must be values by dotted key"):
        pausefl.replay(run_dir, overrides=[3])  # type: ignore[list-item] # on purpose


@pytest.mark.parametrize(
    ("mean_s", "low_s", "high_s"),
    [(2.0, 1.0, 3.0), (17.54998232522346, 17.549982325223457, 17.549982325223457), (9.0, 1.0, 2.0)],
    ids=["within", "equal draws, a mean rounded beyond them", "a few draws far beyond the others"],
)
def test_the_picture_has_the_draws_interval_wherever_the_mean_lies(mean_s: float, low_s: float, high_s: float) -> None:
    total = {"mean": mean_s, "low": low_s, "high": high_s}
    summary = {"policy": "pause", "recorded_policy": "all", "total_latency_s": total, "extrapolated": {"rounds": 0.0}}
    (axes,) = draw_replay(summary, [{"round": 1, "recorded_s": 1.0, "waited_s": mean_s}]).axes
    assert axes.lines[-1].get_ydata() == pytest.approx((low_s, high_s))
