"""Newcomers' policies on drawn drifts: the regret on training intervals, by hand and in `simulate`."""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pausefl.cli import main
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.groups import drift_laws_of, presence_of
from pausefl.experiment.population.availability import Presence
from pausefl.experiment.population.simulated_drifts import BernoulliDrift, DriftLaw, LogNormalDrift
from pausefl.experiment.server_records import selected_policy
from pausefl.experiment.toml_source import preset_names
from pausefl.studies.simulation.curves import growth_fits
from pausefl.studies.simulation.engine import is_compiled, simulate
from pausefl.studies.simulation.newcomers import DriftSetting, Insertion, NewcomerResult, simulate_newcomers
from pausefl.studies.simulation.outputs import run_simulation, setting_of
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.selection import Context, Selection
from pausefl_server.selection.newcomers import NewcomerPolicy
from pausefl_server.selection.policies.chr import Chr
from pausefl_server.selection.policies.fed_ts import DriftUcb, FedTs, Posteriors
from pausefl_server.selection.policies.pause import Pause
from rigs.refusals import refused

IDS = (*(f"original-{k}" for k in range(6)), *(f"relevant-{k}" for k in range(3)), *(f"harmful-{k}" for k in range(3)))
JOIN, LEAVE = 5, 40


def play(policy: NewcomerPolicy, rounds: int, stay: int = 6, /, *, seed: int = 1, **laws: DriftLaw) -> NewcomerResult:
    """Simulate originals from round 1, of which `stay` remain, and newcomers from round 5; `laws` by id prefix."""
    there = np.ones((rounds, len(IDS)), np.bool_)
    there[: JOIN - 1, 6:] = there[JOIN - 1 :, stay:6] = False
    of_client = {client_id: laws.get(client_id.split("-")[0], BernoulliDrift(0.85)) for client_id in IDS}
    return simulate_newcomers(policy, DriftSetting(of_client, Presence(IDS, there), seed), rounds)


def times_chosen(result: NewcomerResult, kind: str) -> int:
    return sum(int(n) for i, n in zip(result.table.ids, result.table.chosen, strict=True) if i.startswith(kind))


@pytest.mark.parametrize(
    "law", [BernoulliDrift(0.85), BernoulliDrift(0.0), LogNormalDrift(1.0, 0.25), LogNormalDrift(0.5, 1.0)]
)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.2])
def test_a_law_draws_as_it_says(law: DriftLaw, threshold: float) -> None:
    drawn = law.sample(np.random.default_rng(1), 40_000)
    assert (drawn >= 0).all()
    assert (drawn <= threshold).mean() == pytest.approx(law.share_up_to(threshold), abs=0.01)
    assert drawn.mean() == pytest.approx(law.mean, abs=0.02)
    if isinstance(law, LogNormalDrift):
        assert drawn.std() == pytest.approx(law.sd, rel=0.1)


def insertion(chosen: Any, small: tuple[float, ...] = (0.9, 0.7, 0.4, 0.1)) -> Insertion:
    relevant = np.array([u > 0.5 for u in small])
    return Insertion(3, ("a", "b", "c", "d"), np.array(small), relevant, np.array(chosen, np.bool_))


def test_an_irrelevant_newcomer_costs_its_gap_to_the_critical_one() -> None:
    """The critical newcomer is chosen first in round 2, then in 4 and 5. So I(1) ends in round 4, and I(2) in 5."""
    it = insertion([[1, 0, 0, 1], [1, 1, 1, 0], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 1]])
    assert it.critical == 1
    assert it.gaps == pytest.approx([0, 0, 0.3, 0.6])
    assert it.regret == pytest.approx([0.6, 0.3, 0.9, 0, 0.6, 0.9])
    lengths, regrets = it.intervals()
    assert lengths.tolist() == [2, 1]
    assert regrets == pytest.approx([0.9, 0.6])


@given(arrays(np.bool_, st.tuples(st.integers(1, 40), st.just(4))))
def test_intervals_tile_the_rounds_from_the_first_to_the_last_selection(chosen: np.ndarray) -> None:
    it = insertion(chosen)
    lengths, regrets = it.intervals()
    selections = np.flatnonzero(chosen[:, 1])
    assert len(lengths) == max(0, len(selections) - 1)
    if len(selections):
        assert lengths.sum() == selections[-1] - selections[0]
        assert regrets.sum() == pytest.approx(it.regret[selections[0] + 1 : selections[-1] + 1].sum())


@pytest.mark.parametrize("small", [(0.9, 0.8, 0.7, 0.6), (0.1, 0.2, 0.3, 0.4)])
def test_with_one_kind_alone_there_is_nothing_to_regret(small: tuple[float, ...]) -> None:
    it = insertion([[1, 1, 1, 1]] * 3, small)
    assert it.critical is None
    assert it.regret.tolist() == [0, 0, 0]
    assert [part.size for part in it.intervals()] == [0, 0]


def test_taking_everybody_costs_every_gap_in_every_round_and_without_newcomers_the_originals_are_chosen() -> None:
    alone = simulate_newcomers(FedTs(2), DriftSetting({i: BernoulliDrift(0.5) for i in IDS}, Presence.of_all(IDS)), 30)
    assert (alone.insertions, alone.regret.tolist(), alone.table.chosen.sum()) == ((), [0] * 30, 60)
    result = play(FedTs(3, newcomer_share=1.0), 60, harmful=BernoulliDrift(0.25))
    assert result.threshold == pytest.approx((0.15 + 0.75) / 2)
    assert result.regret[: JOIN - 1].sum() == 0
    assert result.regret[JOIN - 1 :] == pytest.approx(3 * 0.6)
    lengths, regrets = result.insertions[0].intervals()
    assert lengths.tolist() == [1] * 55
    assert regrets == pytest.approx(3 * 0.6)


@pytest.mark.parametrize(
    ("policy", "relevant", "harmful"),
    [
        (FedTs(3), BernoulliDrift(0.85), BernoulliDrift(0.2)),
        (FedTs(3, newcomer_share=1.0, search_after=4), LogNormalDrift(1.0, 0.3), LogNormalDrift(2.0, 0.3)),
        (DriftUcb(3), BernoulliDrift(0.85), BernoulliDrift(0.2)),
        (Chr(3), LogNormalDrift(1.0, 0.3), LogNormalDrift(2.0, 0.3)),
    ],
)
def test_what_is_learnt_ends_the_regret(policy: NewcomerPolicy, relevant: DriftLaw, harmful: DriftLaw) -> None:
    result = play(policy, 600, relevant=relevant, harmful=harmful)
    assert times_chosen(result, "relevant") > 5 * times_chosen(result, "harmful")
    _, regrets = result.insertions[0].intervals()
    assert regrets[:20].mean() > 5 * regrets[-200:].mean()


def test_draws_are_the_same_for_every_policy_and_length() -> None:
    short, long = (play(FedTs(3), rounds, harmful=BernoulliDrift(0.2)) for rounds in (50, 120))
    assert np.array_equal(short.insertions[0].chosen, long.insertions[0].chosen[:50])
    other = play(FedTs(3), 50, seed=2, harmful=BernoulliDrift(0.2))
    assert not np.array_equal(short.insertions[0].chosen, other.insertions[0].chosen)
    laws: dict[str, DriftLaw] = {"a": LogNormalDrift(1.0, 0.2), "b": BernoulliDrift(0.5)}
    setting = DriftSetting(laws, Presence.of_all(["a", "b"]), seed=3)
    assert np.array_equal(list(setting.drifts(5000))[:10], list(setting.drifts(10)))


def test_only_harmful_newcomers_are_let_in_by_half_unless_guarded() -> None:
    """Two-means compares a newcomer with those chosen beside it, so its chance varies. The guard asks the originals."""
    laws: dict[str, DriftLaw] = dict.fromkeys(("relevant", "harmful"), LogNormalDrift(5.0, 0.5))
    for guarded, least, most in ((False, 0.35, 0.65), (True, 0.0, 0.0)):
        policy = FedTs(3, newcomer_share=1.0, guard="leave-one-out" if guarded else "none")
        result = play(policy, 200, seed=1, original=LogNormalDrift(1.0, 0.1), **laws)
        assert least <= result.state.successes[6:12].sum() / (6 * 196) <= most
        assert (result.regret == 0).all()


@pytest.mark.parametrize(("less", "more"), [("relevant", "harmful"), ("harmful", "relevant")])
def test_laws_under_which_the_chances_contradict_the_means_are_refused(less: str, more: str) -> None:
    """Skewed drifts with a great mean are mostly small. The regret of choosing such clients would be below 0."""
    skewed: dict[str, DriftLaw] = {less: LogNormalDrift(1.4, 1.4), more: LogNormalDrift(2.0, 20.0)}
    refusal = r"^clients\.groups: these drift laws do not tell relevant from irrelevant newcomers: .*"
    chances = rf" {more}-0 .* small with a chance of 0\.\d+, {less}-0 of 0\.\d+$"
    with pytest.raises(ConfigError, match=refusal + chances):
        play(FedTs(3, search_after=3), 40, seed=1, original=LogNormalDrift(1.0, 0.2), **skewed)


def test_an_original_that_is_alone_leaves_newcomers_unrated() -> None:
    """As in a run, the guard has nothing to compare with when the other originals have left."""
    laws = dict.fromkeys(("original", "relevant"), LogNormalDrift(1.0, 0.1)) | {"harmful": LogNormalDrift(9.0, 0.5)}
    for guarded, rated in ((False, 6 * 46), (True, 0)):
        policy = FedTs(2, newcomer_share=1.0, guard="leave-one-out" if guarded else "none")
        state = play(policy, 50, 1, seed=1, **laws).state
        assert state.successes.sum() + state.failures.sum() == rated


CONFIG = """
experiment.seed = 3
selection = { policy = "fed-ts", m = 3 }
[clients.groups]
first = { count = 6, drift = { kind = "lognormal", mean = 1.0, sd = 0.2 } }
late = { count = 2, join_round = 4, leave_round = 40, drift = { kind = "lognormal", mean = 1.0, sd = 0.2 } }
[clients.groups.noisy]
count = 2
join_round = 4
availability = { kind = "cycle", on_rounds = 5, off_rounds = 2 }
drift = { kind = "lognormal", mean = 3.0, sd = 0.4 }
"""


def drift_setting(experiment: Experiment, rounds: int) -> DriftSetting:
    presence = presence_of(experiment.groups, rounds, 3)
    assert presence is not None
    return DriftSetting(drift_laws_of(experiment.groups), presence, 3)


def test_newcomers_are_chosen_only_while_they_are_there_and_a_round_with_nobody_there_passes() -> None:
    alone = DriftSetting({"a": BernoulliDrift(0.5)}, Presence(("a",), np.array([[True], [False], [True]])))
    assert simulate_newcomers(FedTs(1), alone, 3).table.chosen.tolist() == [2]
    setting = drift_setting(parse_experiment(CONFIG, ["selection.fed-ts.newcomer_share=1.0"]), 70)
    (joined,) = simulate_newcomers(FedTs(3, newcomer_share=1.0), setting, 70).insertions
    assert joined.client_ids == ("late-000", "late-001", "noisy-000", "noisy-001")
    assert joined.relevant.tolist() == [True, True, False, False]
    there = np.arange(1, 71)
    assert np.array_equal(joined.chosen[:, 0], (there >= 4) & (there < 40))
    assert np.array_equal(joined.chosen[:, 2], (there >= 4) & ((there - 1) % 7 < 5))


def test_a_simulation_leaves_intervals_curves_and_a_figure(tmp_path: Path) -> None:
    summary = run_simulation(parse_experiment(CONFIG), 90, tmp_path / "out")
    names = {"intervals.csv", "selections.csv", *(f"simulation.{end}" for end in ("csv", "json", "pdf", "png"))}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert json.loads((tmp_path / "out/simulation.json").read_text()) == summary
    assert (summary["policy"], summary["rounds"], summary["clients"], summary["seed"]) == ("fed-ts", 90, 10, 3)
    (joined,) = summary["insertions"]
    assert (joined["join_round"], joined["critical"], joined["relevant"]) == (4, "late-000", 2)
    chances = joined["small_drift_probability"]
    gap = chances["critical"] - chances["greatest of irrelevant"]
    assert joined["warm_up_rounds"] == pytest.approx(24 * math.log(90) / gap**2)
    curve = list(csv.DictReader((tmp_path / "out/simulation.csv").read_text().splitlines()))
    assert [int(row["round"]) for row in curve] == list(range(1, 91))
    assert float(curve[-1]["regret"]) == pytest.approx(summary["regret"])
    assert float(curve[-1]["regret"]) == pytest.approx(gap * int(curve[-1]["irrelevant_chosen"]))
    groups = list(csv.DictReader((tmp_path / "out/intervals.csv").read_text().splitlines()))
    assert [(int(g["first"]), int(g["last"])) for g in groups][:3] == [(1, 1), (2, 3), (4, 7)]
    assert int(groups[-1]["last"]) == joined["intervals"]
    means = [(int(g["last"]) - int(g["first"]) + 1, float(g["mean_regret"])) for g in groups]
    assert sum(n * mean for n, mean in means) == pytest.approx(joined["intervals"] * joined["mean_interval_regret"])


@pytest.mark.usefixtures("quickly_written")
def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "newcomers.toml"
    config.write_text(CONFIG)
    main(["simulate", str(config), "--rounds", "200", "--run-dir", str(tmp_path / "a")])
    said = capsys.readouterr().out
    assert "joined before round 4: relevant newcomers chosen" in said
    assert "training intervals of late-000" in said
    main(["simulate", str(config), "--rounds", "3", "--run-dir", str(tmp_path / "b")])
    assert "no regret: there are no relevant beside irrelevant newcomers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clients.groups.late.drift={}", "clients.groups.late.drift: a simulation of newcomers draws drifts"),
        ('clients.groups.late.drift={kind="gamma"}', 'drift.kind = "gamma": must be one of bernoulli, lognormal'),
        ('clients.groups.late.drift={kind="lognormal", mean=1.0}', "clients.groups.late.drift.sd"),
        ('clients.groups.late.drift={kind="bernoulli", small=0.5, sd=1.0}', "late.drift.sd: unknown key"),
    ],
)
def test_bad_drifts_are_named(override: str, message: str, tmp_path: Path) -> None:
    with refused(message):
        run_simulation(parse_experiment(CONFIG, [override]), 5, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith("fedts_")])
def test_every_preset_with_newcomers_can_be_simulated(name: str, tmp_path: Path) -> None:
    summary = run_simulation(load_experiment(name), 100, tmp_path / "out")
    for joined in summary["insertions"]:
        assert joined["critical"].startswith("relevant")
        assert joined["mean_chosen"]["relevant"] > joined["mean_chosen"]["irrelevant"]
    assert len(summary["insertions"]) == (4 if name.endswith("_scale") else 1)


@dataclass(frozen=True)
class Greedy(FedTs):
    """A policy that chooses a row that does not exist."""

    def select(self, _: Any, context: Context) -> Selection:
        return Selection(np.append(context.eligible, len(context.table)))


class Curious(FedTs):
    """A policy that needs the clients' losses."""

    needs_loss: ClassVar[bool] = True


def test_a_policy_of_ones_own_is_held_to_what_can_be_simulated() -> None:
    with refused("selection.policy: in round 1 it chose row 6: must be one of context.eligible", PauseflError):
        play(Greedy(3), 5)
    with refused("selection.policy: Curious needs clients to disclose their loss"):
        play(Curious(3), 5)


def test_pause_is_simulated_with_those_who_are_there() -> None:
    delay = '[latency]\ntau_min_s = 0.05\n[latency.delay]\nkind = "halves"\n'
    experiment = parse_experiment(CONFIG + delay, ["selection.policy=pause"])
    setting = setting_of(experiment, 60)
    assert not is_compiled(Pause(3), setting)
    third, fifth, before_40, result = (simulate(Pause(3), setting, rounds) for rounds in (3, 5, 39, 60))
    assert result.client_ids == tuple(sorted(experiment.client_ids))
    assert len(third.chosen) == 6
    assert fifth.chosen[6:].any()
    assert before_40.chosen[[6, 7]].tolist() == result.chosen[[6, 7]].tolist()
    assert (np.diff(result.genie_regret) > -1e-9).all()


def test_latencies_are_those_of_the_client_whatever_its_row() -> None:
    """A newcomer's row is the last one, even if its id comes first."""
    groups = "[clients.groups.b]\ncount = 1\n[clients.groups.a]\ncount = 1\njoin_round = 2\n"
    rest = '[selection]\npolicy = "all"\nm = 1\n[latency]\ntau_min_s = 0.01\n'
    experiment = parse_experiment(groups + rest)
    setting = setting_of(experiment, 2)
    result = simulate(selected_policy(experiment.selection), setting, 2)
    (latencies,) = setting.latencies_s(2)
    assert result.client_ids == ("b-000", "a-000")
    assert result.total_latency_s == pytest.approx([latencies[0, 1], latencies[0, 1] + latencies[1].max()])


@pytest.mark.parametrize("level", [0.0, 0.3, 8000.0])
def test_rounding_of_a_regret_that_does_not_grow_is_no_growth(level: float) -> None:
    n = np.arange(1, 2000)
    assert growth_fits(n, level + 1e-13 * max(1.0, level) * np.sqrt(n)) == {}
    assert growth_fits(n, level + 1e-6 * max(1.0, level) * np.sqrt(n))


KINDS = """
experiment.seed = 3
selection = { policy = "fed-ts", m = 3 }
[clients.groups]
first = { count = 6, drift = { kind = "bernoulli", small = 0.9 } }
able = { count = 2, join_round = 4, drift = { kind = "bernoulli", small = 0.9 } }
fair = { count = 1, join_round = 4, drift = { kind = "bernoulli", small = 0.8 } }
poor = { count = 1, join_round = 4, drift = { kind = "bernoulli", small = 0.3 } }
worst = { count = 1, join_round = 4, drift = { kind = "bernoulli", small = 0.1 } }
"""
"""Newcomers of several kinds, so that each figure must pick the right ones."""
ROUNDS = 60


def test_small_drifts_are_shares_of_those_seen_and_the_warm_up_is_of_the_newcomer_nearest(tmp_path: Path) -> None:
    """The prior of each posterior, Beta(1, 1), counts as no drift."""
    experiment = parse_experiment(KINDS)
    result = simulate_newcomers(FedTs(3), drift_setting(experiment, ROUNDS), ROUNDS)
    assert isinstance(result.state, Posteriors)
    shares = run_simulation(experiment, ROUNDS, tmp_path / "out", is_drawn=False)["classified_small"]
    for kind, groups in {"relevant": ("able", "fair"), "irrelevant": ("poor", "worst")}.items():
        rows = [row for row, client_id in enumerate(result.table.ids) if client_id.startswith(groups)]
        small, great = result.state.successes[rows].sum(), result.state.failures[rows].sum()
        assert shares[kind] == pytest.approx(small / (small + great))
    (joined,) = run_simulation(parse_experiment(KINDS), ROUNDS, tmp_path / "other", is_drawn=False)["insertions"]
    assert joined["critical"] == "fair-000"
    assert joined["warm_up_rounds"] == pytest.approx(24 * math.log(ROUNDS) / (0.8 - 0.3) ** 2)
    with (tmp_path / "other/intervals.csv").open() as file:
        assert {row["client_id"] for row in csv.DictReader(file)} == {"fair-000"}
