"""Budgets as a user sees them: one budget for one data set; how budgets end a run, and where they are reported."""

import itertools
import os
import re
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pausefl
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.in_force import in_force
from pausefl.results import accounting
from pausefl.results.accounting import tighter_epsilon
from pausefl.results.reading import CLIENTS
from pausefl.runtime.client.plan import ClientPlan, client_plan
from pausefl.runtime.client.privacy import open_privacies
from pausefl.runtime.client.process import make_trainers
from pausefl.runtime.run_dir import made_run_dir
from pausefl_client.data.datasets import Dataset, Examples
from pausefl_client.data.holdings import dealing_of, holding_of, synthetic_holding
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_client.training.trainer import Trainer
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_server.records import LogEvent, Observation, RoundRecord
from pausefl_server.storage.store import Store
from rigs.command import played, summary_of, synthetic
from rigs.databases import opened_connections
from rigs.log import observation, query, record
from rigs.refusals import complaint

RNG = np.random.default_rng(1)
EXAMPLES = Examples(RNG.integers(0, 256, (50, 1, 8, 8), np.uint8), RNG.integers(0, 10, 50))
TWO = "[clients]\ncount = 2\n[selection]\nm = 1\n[workload]\nexamples = 40\n"
SYNTHETIC = TWO.replace("examples = 40", 'model = "synthetic"')
RENAMED = "[clients.groups.phones]\ncount = 2\n[selection]\nm = 1\n[workload]\nexamples = 40\nlearning_rate = 0.5\n"


def twins(seed: int) -> Dataset:
    """A data set whose examples are all equal."""
    same = EXAMPLES.take(np.zeros(8, np.int64))
    return Dataset("twins", same, same, same, classes=10)


def release(text: str, folder: Path, *overrides: str, own: Path | None = None) -> dict[str, int]:
    """Open the clients' ledgers as their process does, release once each; returns the ledgers' counts of releases."""
    shared = [] if own else [f"privacy.ledger_dir={folder}"]
    plan, released = client_plan(parse_experiment(text, [*shared, *overrides])), {}
    with ExitStack() as closing:
        for client_id, privacy in open_privacies(plan, trainers_of(plan), own or folder, closing).items():
            assert privacy is not None
            key = ReleaseKey(f"run of {client_id}", 1 + privacy.ledger.spent.released, 1, "model")
            Releaser(privacy).release(np.ones(3, np.float32), key)
            released[client_id] = privacy.ledger.spent.released
    return released


def trainers_of(plan: ClientPlan) -> dict[str, Trainer]:
    return make_trainers(plan.training, plan.training.client_ids)


def test_equal_examples_have_one_digest_whatever_their_order() -> None:
    assert holding_of(EXAMPLES.take(np.random.default_rng(2).permutation(50)), "a") == holding_of(EXAMPLES, "a")


@pytest.mark.parametrize(
    "other",
    [
        EXAMPLES.take(np.arange(49)),
        EXAMPLES.take(np.arange(50) % 49),  # one example twice, another missing
        Examples(EXAMPLES.inputs, (EXAMPLES.labels + 1) % 10),
        Examples(EXAMPLES.inputs ^ (np.arange(50 * 64).reshape(EXAMPLES.inputs.shape) == 0), EXAMPLES.labels),
        Examples(EXAMPLES.inputs.reshape(50, 1, 4, 16), EXAMPLES.labels),
        Examples(EXAMPLES.inputs.astype(np.float32), EXAMPLES.labels),
    ],
    ids=["one less", "one twice", "labels", "one bit", "shape", "type"],
)
def test_other_examples_have_another_digest(other: Examples) -> None:
    assert holding_of(other, "a").examples != holding_of(EXAMPLES, "a").examples


def test_a_dealing_is_told_by_the_rows_of_every_client() -> None:
    parts = [np.arange(3), np.arange(3, 7)]
    how: dict[str, Any] = {"dataset": "digits", "examples": 7, "split_seed": 1}
    assert dealing_of(parts, **how) == dealing_of(iter(parts), **how)
    assert dealing_of(parts, **how) != dealing_of([np.arange(4), np.arange(4, 7)], **how)
    for other in ({"dataset": "mnist"}, {"examples": None}, {"split_seed": 2}):
        assert dealing_of(parts, **how | other) != dealing_of(parts, **how)


def test_without_data_the_id_stands_for_them() -> None:
    assert synthetic_holding("a") == synthetic_holding("a") != synthetic_holding("b")
    assert synthetic_holding("a").dealing == synthetic_holding("b").dealing


def test_the_holding_is_of_the_data_before_a_client_alters_them() -> None:
    honest, flipping = (
        parse_experiment(TWO.replace("[clients]\ncount = 2", f"[clients.groups.client]\ncount = 2\n{behaves}"))
        for behaves in ("", 'behaviours = [{ kind = "label-flip" }, { kind = "quantity-skew" }]')
    )
    one, other = (make_trainers(client_plan(e).training, ["client-000"])["client-000"] for e in (honest, flipping))
    assert one.holding == other.holding
    assert one.label_counts != other.label_counts


def test_a_renamed_group_goes_on_with_the_budget_of_its_examples(tmp_path: Path) -> None:
    assert release(TWO, tmp_path) == {"client-000": 1, "client-001": 1}
    assert release(RENAMED, tmp_path, "experiment.rounds=7") == {"phones-000": 2, "phones-001": 2}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("change", ["experiment.seed=2", "workload.examples=41", "workload.partition=shards"])
def test_examples_that_may_be_in_another_ledger_begin_none(tmp_path: Path, change: str) -> None:
    release(TWO, tmp_path)
    with pytest.raises(ConfigError, match=r"ledger_dir = .*dealt out otherwise .* may be client-000's"):
        release(TWO, tmp_path, change)


def test_in_a_folder_of_one_run_a_ledger_is_one_clients_and_bound_to_its_examples(tmp_path: Path) -> None:
    assert release(TWO, tmp_path, own=tmp_path) == {"client-000": 1, "client-001": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"client-000.db", "client-001.db"}
    with pytest.raises(ConfigError, match=r"client-000\.db: is another experiment's, its examples is '\w+', not"):
        release(TWO, tmp_path, "experiment.seed=2", own=tmp_path)


def test_two_clients_that_hold_the_same_examples_are_not_given_two_budgets(tmp_path: Path) -> None:
    text = TWO.replace("examples = 40", f'dataset = "{__name__}:twins"')
    sys.modules.setdefault(__name__, sys.modules[twins.__module__])
    with pytest.raises(ConfigError, match="client-000 and client-001 hold the same examples"):
        release(text, tmp_path)
    plan = client_plan(parse_experiment(text, [f"privacy.ledger_dir={tmp_path}"]))
    trainers = trainers_of(plan)
    with ExitStack() as closing:  # as if in two processes
        open_privacies(plan, {"client-000": trainers["client-000"]}, tmp_path, closing)
        with pytest.raises(ConfigError, match="is open in another process"):
            open_privacies(plan, {"client-001": trainers["client-001"]}, tmp_path, closing)


def test_the_same_rows_of_another_split_begin_no_ledger(tmp_path: Path) -> None:
    """One client holds all rows. The seed draws which examples these are, and two seeds share most of them."""
    all_rows = "[clients]\ncount = 1\n[selection]\nm = 1\n"
    release(all_rows, tmp_path)
    with pytest.raises(ConfigError, match=r"dealt out otherwise \(by another seed, data set,"):
        release(all_rows, tmp_path, "experiment.seed=2")
    assert len(list(tmp_path.iterdir())) == 1


def test_of_two_dealings_at_once_the_second_finds_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has found an empty folder and has not yet begun its ledgers."""
    with ThreadPoolExecutor(1) as executor:
        started: list[Future[dict[str, int]]] = []

        def begun(*arguments: Any, **identity: Any) -> Ledger:
            if not started:
                started.append(executor.submit(release, TWO, tmp_path, "experiment.seed=2"))
                wait(started, timeout=2.0)  # the second must wait for the first, so this times out
            return Ledger(*arguments, **identity)

        monkeypatch.setattr("pausefl.runtime.client.privacy.Ledger", begun)
        assert release(TWO, tmp_path) == {"client-000": 1, "client-001": 1}
        with pytest.raises(ConfigError, match="dealt out otherwise"):
            started[0].result()


def begin(path: Path, **identity: str) -> None:
    with closing(Ledger(path, Budget(100.0, 0.04), **identity)) as ledger:
        privacy = ReleasePrivacy(Mechanism("vector", 1.0), ledger, lambda _: NumpyLaplace(entropy_rng()))
        Releaser(privacy).release(np.ones(3, np.float32), ReleaseKey("run", 1, 1, "model"))


def test_the_folder_of_a_ledger_is_on_disk_before_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a power cut removed the folder, its ledgers and their record of spent ε would be gone, too."""
    synced, fsync = list[Path](), os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", record)
    begin(tmp_path / "runs/one/ledgers/a.db", unit="vector")
    assert set(synced) == {tmp_path, tmp_path / "runs", tmp_path / "runs/one"}
    synced.clear()
    begin(tmp_path / "runs/one/ledgers/b.db", unit="vector")
    assert synced == [tmp_path / "runs/one"]


def test_a_release_costs_no_more_after_many_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger outlives runs. The unit is a step of SQLite's machine: a scan of releases takes about 20 for each."""
    opened, taken = opened_connections(monkeypatch), itertools.count()
    with closing(Ledger(tmp_path / "a.db", Budget(10.0, 0.0001), unit="vector", examples="a", noise="fresh")) as ledger:
        opened[-1].set_progress_handler(lambda: next(taken) < 0, 1)  # false: go on
        seen = []
        for round_ in range(1, 302):
            seen.append(next(taken))
            key = ReleaseKey("run", round_, 1, "model")
            ledger.open_release()
            ledger.has_answered(key)
            ledger.record(key, ledger.next_charge(), "update", memoryview(b"noised"))
    assert seen[300] - seen[299] < 1.2 * (seen[3] - seen[2])


BUDGET = Budget(10.0, 0.04)
BUDGETS = {
    "clients.per_process": 3,
    "selection.policy": "random",
    "privacy.epsilon_budget": 10.0,
    "metrics.enabled": False,
}


@pytest.mark.parametrize("floor", [f"privacy.epsilon_floor={BUDGET.epsilon(5)!r}", "privacy.noise_to_clip_max=6.1"])
@pytest.mark.slow
def test_a_run_says_when_its_budgets_end_and_stops_then(tmp_path: Path, floor: str) -> None:
    """Six clients with five releases each, two per round: 13 to 15 rounds, as one client may be left over."""
    assert 2 / BUDGET.epsilon(5) < 6.1 < 2 / BUDGET.epsilon(6)
    config = synthetic(tmp_path, rounds=100, clients=6, more=BUDGETS)
    played("run", config, "--run-dir", tmp_path / "run", "--set", floor)
    summary = summary_of(tmp_path / "run")
    assert 13 <= summary["rounds"] <= 15
    assert summary["outcome"] == "budgets_spent"
    assert re.fullmatch(r"privacy budgets: [01] of 6 clients .*, and 2 are needed", summary["stopped_because"])
    assert summary["retired_clients"] >= 5
    assert summary["max_epsilon_spent"] == pytest.approx(BUDGET.spent(5))
    assert summary["epsilon_at_delta"] == pytest.approx(tighter_epsilon(BUDGET, "coordinate", 5, 1e-5))
    for ledger in (tmp_path / "run/ledgers").glob("*.db"):
        assert query(ledger, "SELECT max(participation) FROM releases")[0][0] <= 5
    retired = query(tmp_path / "run/run.db", "SELECT DISTINCT client_id FROM events WHERE kind = 'retired'")
    assert len(retired) == summary["retired_clients"]
    (announced,) = re.findall(r"used up about round (\d+) of 100", (tmp_path / "run/server.log").read_text())
    assert 13 <= int(announced) <= 15
    page = (tmp_path / "run/report.html").read_text()
    assert f"{summary['retired_clients']} of 6 did" in page
    assert "Budgets are per run" in page


@pytest.mark.usefixtures("quickly_written")
def test_ledgers_that_come_from_elsewhere_are_found_in_the_log(tmp_path: Path) -> None:
    """A client decides where its ledger is; the server's configuration does not know."""
    changes = ["experiment.clock=virtual", "experiment.rounds=2", "selection.m=2", "privacy.epsilon_budget=10.0"]
    experiment = parse_experiment(SYNTHETIC, changes)
    one = pausefl.run(experiment, tmp_path / "one", progress=False).summary
    (tmp_path / "two/ledgers").mkdir(parents=True)
    shutil.copy(tmp_path / "one/ledgers/client-000.db", tmp_path / "two/ledgers")
    two = pausefl.run(experiment, tmp_path / "two", progress=False).summary
    shared = parse_experiment(SYNTHETIC, [*changes, f"privacy.ledger_dir={tmp_path / 'ledgers'}"])
    first = pausefl.run(shared, tmp_path / "three", progress=False).summary
    assert [told["budget_per"] for told in (one, two, first)] == ["run", "data holder", "data holder"]
    assert two["max_epsilon_spent"] == pytest.approx(BUDGET.spent(4))


@pytest.mark.parametrize(
    ("begun", "then", "message"),
    [
        ("privacy.reproducible_noise=true", "privacy.eta=0.04", "its noise is 'reproducible', not 'fresh'"),
        ("workload.model_bytes=4000000", "workload.model_bytes=400", "its model size is '1000000', not '100'"),
    ],
)
def test_releases_that_do_not_add_up_are_not_charged(tmp_path: Path, begun: str, then: str, message: str) -> None:
    for released in (1, 2):
        assert release(SYNTHETIC, tmp_path, begun, own=tmp_path)["client-000"] == released
    other = rf"client-000\.db: is another experiment's, {message}: change that back, or keep"
    with pytest.raises(ConfigError, match=other):
        release(SYNTHETIC, tmp_path, then, own=tmp_path)


def test_the_model_of_a_ledger_in_the_unit_of_a_vector_may_change(tmp_path: Path) -> None:
    for released, size in enumerate((4_000_000, 400), 1):
        sized = "privacy.unit=vector", f"workload.model_bytes={size}"
        assert release(SYNTHETIC, tmp_path, *sized, own=tmp_path)["client-000"] == released


def test_ledgers_that_cannot_be_used_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run finds a file in place of the folder, and a client's process another file in it."""
    folder, run_dir = tmp_path / "ledgers", ("--run-dir", tmp_path / "run")
    whose = "run", synthetic(tmp_path), *run_dir, "--set", f"privacy.ledger_dir={folder}"
    folder.write_text("a file")
    assert complaint(capsys, *whose).startswith(f'privacy.ledger_dir = "{folder}": cannot be written (')
    folder.unlink()
    folder.mkdir()
    (folder / "a.db").write_text("another file")
    said = complaint(capsys, *whose)
    assert re.match(rf'pausefl-client-00[01]: privacy\.ledger_dir = "{folder}": holds a\.db', said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("releases", [0, 1])
def test_refused_input_takes_no_ledger_away_that_has_released(tmp_path: Path, releases: int) -> None:
    """Some clients may have released in round 1 before another client's input is refused."""

    def refuse() -> None:
        with closing(Ledger(tmp_path / "run/ledgers/a.db", BUDGET, unit="vector")) as ledger:
            for _ in range(releases):
                ledger.record(ReleaseKey("run", 1, 1, "model"), ledger.next_charge(), "update", memoryview(b"noised"))
        raise ConfigError("bad input")

    with pytest.raises(ConfigError), made_run_dir(in_force(parse_experiment("")), tmp_path / "run"):
        refuse()
    assert (tmp_path / "run/ledgers/a.db").exists() == bool(releases)


def released(client_id: str, i: int) -> Observation:
    return observation(client_id, participation=i, epsilon=BUDGET.epsilon(i), epsilon_spent=BUDGET.spent(i))


def reconciled(client_id: str, i: int) -> LogEvent:
    return LogEvent("reconciled", client_id, "", epsilon_spent=BUDGET.spent(i), released=i)


def records() -> list[RoundRecord]:
    """a is used twice; b's second release was rejected before round 2."""
    joined = tuple(LogEvent("joined", c, n_examples=40) for c in "abc")
    first = record(1, released("a", 1), released("b", 1), events=joined)
    return [first, record(2, released("a", 2), events=(reconciled("b", 5),))]


def test_the_greatest_leakage_counts_what_was_spent_on_unused_updates(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.db")
    for r in records():
        store.commit_round(r)
    assert query(tmp_path / "run.db", "SELECT * FROM greatest_leakage") == [(1, BUDGET.spent(1)), (2, BUDGET.spent(5))]
    store.save_late_events(3, [reconciled("c", 7)])
    store.close()
    by_round = query(tmp_path / "run.db", "SELECT * FROM greatest_leakage")
    assert by_round == [(1, BUDGET.spent(1)), (2, BUDGET.spent(7))]
    assert query(tmp_path / "run.db", f"SELECT max(epsilon_spent) FROM ({CLIENTS})") == [(by_round[-1][1],)]


@pytest.mark.parametrize("unit", ["coordinate", "vector"])
def test_the_tighter_figure_is_a_bound_and_never_above_the_sum(unit: Any) -> None:
    for participations, delta in ((0, 1e-5), (1, 1e-5), (10, 1e-9), (100, 1e-5)):  # at 1e-9, rounding alone is above it
        tighter = tighter_epsilon(BUDGET, unit, participations, delta)
        assert tighter is not None
        assert 0 <= tighter <= BUDGET.spent(participations)
    assert tighter_epsilon(BUDGET, unit, 100, 1e-5) < 0.7 * BUDGET.spent(100)  # type: ignore[operator]  # None would fail
    loose, tight = (tighter_epsilon(BUDGET, unit, 100, delta) for delta in (1e-3, 1e-9))
    assert loose < tight  # type: ignore[operator]  # None would fail


def test_the_tighter_figure_takes_bounded_time_whatever_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tighter_epsilon(BUDGET, "coordinate", 100, 1e-5)
    monkeypatch.setattr(accounting, "_MOST_COMPOSED", 50)
    begun = tighter_epsilon(BUDGET, "coordinate", 50, 1e-5)
    assert whole is not None
    assert begun is not None
    for participations in (100, 2**32 - 1):
        bounded = tighter_epsilon(BUDGET, "coordinate", participations, 1e-5)
        assert bounded == pytest.approx(begun + BUDGET.spent(participations) - BUDGET.spent(50))
        assert bounded >= whole  # type: ignore[operator]  # None would fail


def test_the_tighter_figure_is_the_one_of_a_single_laplace_release() -> None:
    """δ(ε) = 1 − e^{(ε − ε_1)/2} for the Laplace mechanism (Balle and Wang, 2018), so ε = ε_1 + 2 ln(1 − δ)."""
    expected = BUDGET.epsilon(1) + 2 * np.log1p(-0.05)
    assert tighter_epsilon(BUDGET, "coordinate", 1, 0.05) == pytest.approx(expected, abs=1e-3)
