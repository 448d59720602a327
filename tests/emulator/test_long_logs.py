"""What a long run's log takes in memory: next to nothing for an observation, whatever is done with it."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from pausefl.results import reading
from pausefl.results.reading import read_run
from pausefl.results.report import plots
from pausefl.results.report.comparison.why import draw_why
from pausefl.results.report.html import run_page
from pausefl.results.tally import RunTally
from pausefl_proto.wire import digest
from pausefl_server.records import LogEvent, Observation, RoundRecord, Timing
from pausefl_server.selection.policies.everyone import All
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.restore import restore
from pausefl_server.storage.store import Store
from rigs.coordinator import SIZE
from rigs.reports import summary
from rigs.settings import server_settings

CLIENTS = tuple(f"client-{k:03}" for k in range(50))
ROUNDS = 200, 600
BYTES_AN_OBSERVATION = 200
"""Some twenty columns of eight bytes; as Python's objects an observation takes a kilobyte."""
THETA = np.zeros(SIZE, np.float32)


def records(rounds: int) -> Iterator[RoundRecord]:
    joined = tuple(LogEvent("joined", c, n_examples=40) for c in CLIENTS)
    for t in range(1, rounds + 1):
        seen = tuple(
            Observation(c, Timing(0.5 + k / 100, train_s=0.1), 0.5 + k / 100, 40, t, 0.01, 0.01 * t, drawn_up_s=0.3)
            for k, c in enumerate(CLIENTS)
        )
        chosen, events = CLIENTS, joined if t == 1 else ()
        yield RoundRecord(t, 1, chosen, None, seen, events, 1.0, float(t), 1e-4, digest(THETA))


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of the two lengths."""
    return [written(tmp_path_factory.mktemp(f"{rounds}-rounds"), rounds) for rounds in ROUNDS]


def written(run_dir: Path, rounds: int) -> Path:
    with closing(Store(run_dir / "run.db")) as store:
        for record in records(rounds):
            store.commit_round(record)
    with closing(Checkpoint(run_dir / "checkpoints")) as checkpoint:
        checkpoint.save(rounds, THETA)
    (run_dir / "summary.json").write_text(json.dumps(summary(rounds=rounds)))
    (run_dir / "config.toml").write_text('[workload]\nmodel = "synthetic"\n')
    return run_dir


def summarised(run_dir: Path) -> None:
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        tally = RunTally(store.log(), store.failed_attempts(), store.late_events())
        assert tally.timing_error_s["p50"] is not None


def reported(run_dir: Path) -> None:
    run = read_run(run_dir)
    figures = plots.draw_all(run)
    assert {"latency", "breakdown", "waterfall", "releases"} <= figures.keys()
    assert f">1–{run.summary['rounds']}<" in run_page(run, {})


def compared(run_dir: Path) -> None:
    assert draw_why({"pause": [read_run(run_dir)]}) is not None


def resumed(run_dir: Path) -> None:
    with ExitStack() as opened:
        store = opened.enter_context(closing(Store(run_dir / "run.db")))
        checkpoint = opened.enter_context(closing(Checkpoint(run_dir / "checkpoints")))
        settings = server_settings(SIZE, privacy=None, rounds=1000)
        start = restore(settings, All(50), THETA, store, checkpoint, lambda *_: None, say=lambda _: None)
        assert start.state.table.chosen.min() == start.state.round > 0


def peak_bytes(work: Callable[[Path], None], run_dir: Path) -> int:
    tracemalloc.start()
    try:
        work(run_dir)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("work", [summarised, reported, compared, resumed])
def test_memory_hardly_grows(
    run_dirs: list[Path], work: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "MOST_DOTS", 1000)  # of which both runs have more
    monkeypatch.setattr(reading, "_ROWS_AT_ONCE", 1000)
    work(run_dirs[0])  # what is imported and cached at first is no part of it
    least, most = (peak_bytes(work, run_dir) for run_dir in run_dirs)
    observations = (ROUNDS[1] - ROUNDS[0]) * len(CLIENTS)
    assert (most - least) / observations < BYTES_AN_OBSERVATION
