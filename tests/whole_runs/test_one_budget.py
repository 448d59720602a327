"""One data set, one budget: ledgers that outlive runs are found by the examples they count for, not by names."""

import itertools
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.plan import ClientPlan, client_plan
from pausefl.runtime.client.privacy import open_privacies
from pausefl.runtime.client.process import make_trainers
from pausefl_client.data.datasets import Dataset, Examples
from pausefl_client.data.holdings import dealing_of, holding_of, synthetic_holding
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_client.training.trainer import Trainer
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from rigs.command import refusal, run, sets
from rigs.connections import opened_connections

RNG = np.random.default_rng(1)
EXAMPLES = Examples(RNG.integers(0, 256, (50, 1, 8, 8), np.uint8), RNG.integers(0, 10, 50))
TWO = "[clients]\ncount = 2\n[selection]\nm = 1\n[workload]\nexamples = 40\n"
RENAMED = "[clients.groups.phones]\ncount = 2\n[selection]\nm = 1\n[workload]\nexamples = 40\nlearning_rate = 0.5\n"


def twins(seed: int) -> Dataset:
    """A data set whose examples are all the same."""
    same = EXAMPLES.take(np.zeros(8, np.int64))
    return Dataset("twins", same, same, same, classes=10)


def release(text: str, folder: Path, *overrides: str, own: Path | None = None) -> dict[str, int]:
    """Open the clients' ledgers as their process does, release once each; how many releases each now counts."""
    shared = [] if own else [f"privacy.ledger_dir={folder}"]
    plan, released = client_plan(parse_experiment(text, [*shared, *overrides])), {}
    with ExitStack() as closing:
        for client_id, privacy in open_privacies(plan.privacy, trainers_of(plan), own or folder, closing).items():
            assert privacy is not None
            key = ReleaseKey(f"run of {client_id}", 1 + privacy.ledger.released, 1, "model")
            Releaser(privacy).release(np.ones(3, np.float32), key)
            released[client_id] = privacy.ledger.released
    return released


def trainers_of(plan: ClientPlan) -> dict[str, Trainer]:
    return make_trainers(plan.training, plan.training.client_ids)


# -- what a client holds


def test_equal_examples_have_one_digest_whatever_their_order() -> None:
    shuffled = EXAMPLES.take(np.random.default_rng(2).permutation(50))
    assert holding_of(shuffled, "a") == holding_of(EXAMPLES, "a")


@pytest.mark.parametrize(
    "other",
    [
        EXAMPLES.take(np.arange(49)),
        EXAMPLES.take(np.arange(50) % 49),  # one twice, one not at all
        Examples(EXAMPLES.inputs, (EXAMPLES.labels + 1) % 10),
        Examples(EXAMPLES.inputs ^ (np.arange(50 * 64).reshape(EXAMPLES.inputs.shape) == 0), EXAMPLES.labels),
        Examples(EXAMPLES.inputs.reshape(50, 64), EXAMPLES.labels),
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


# -- whose budget


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
    with ExitStack() as closing:  # as in two processes
        open_privacies(plan.privacy, {"client-000": trainers["client-000"]}, tmp_path, closing)
        with pytest.raises(ConfigError, match="is open in another process"):
            open_privacies(plan.privacy, {"client-001": trainers["client-001"]}, tmp_path, closing)


def test_the_same_rows_of_another_split_begin_no_ledger(tmp_path: Path) -> None:
    """One client holds all rows; which examples these are is drawn by the seed, and two seeds have most in common."""
    all_rows = "[clients]\ncount = 1\n[selection]\nm = 1\n"
    release(all_rows, tmp_path)
    with pytest.raises(ConfigError, match=r"dealt out otherwise \(by another seed, data set,"):
        release(all_rows, tmp_path, "experiment.seed=2")
    assert len(list(tmp_path.iterdir())) == 1


def test_of_two_dealings_at_once_the_second_finds_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started where the first has seen an empty folder, and has not begun its ledgers."""
    with ThreadPoolExecutor(1) as executor:
        started: list[Future[dict[str, int]]] = []

        def begun(*arguments: Any, **identity: Any) -> Ledger:
            if not started:
                started.append(executor.submit(release, TWO, tmp_path, "experiment.seed=2"))
                wait(started, timeout=2.0)  # which it uses up where the second waits for the first, as it should
            return Ledger(*arguments, **identity)

        monkeypatch.setattr("pausefl.runtime.client.privacy.Ledger", begun)
        assert release(TWO, tmp_path) == {"client-000": 1, "client-001": 1}
        with pytest.raises(ConfigError, match="dealt out otherwise"):
            started[0].result()


def begin(path: Path, **identity: str) -> None:
    with closing(Ledger(path, Budget(100.0, 0.04), **identity)) as ledger:
        privacy = ReleasePrivacy(Mechanism("vector", 1.0), ledger, lambda _: NumpyLaplace(entropy_rng()))
        Releaser(privacy).release(np.ones(3, np.float32), ReleaseKey("run", 1, 1, "model"))


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", ["run", "server", "validate"])
def test_bare_updates_of_examples_with_a_budget_are_refused(tmp_path: Path, command: str) -> None:
    place = [] if command == "validate" else ["--run-dir", tmp_path / "run"]
    bare = sets("privacy.enabled=false", f"privacy.ledger_dir={tmp_path / 'holders'}")
    line = refusal(run(command, "demo", *bare, *place))
    assert line.startswith("privacy.enabled = false: goes without privacy.ledger_dir only")
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_ledger_is_on_disk_before_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that a power cut takes away takes its ledgers along, and with them what was spent."""
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
    """A ledger outlives runs. Counted in steps of SQLite's machine: a scan of all releases takes some 20 for each."""
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
