"""Releases whose updates did not come in time: what clients told of them, as the report draws it."""

from pathlib import Path

import numpy as np

from pausefl.results.accounting import late_releases
from pausefl.results.reading import PrivacyFigures, read_run
from pausefl.results.report import plots
from pausefl_server.records import LogEvent, Observation
from pausefl_server.storage.store import Store
from rigs.log import observation, record
from rigs.reports import write_run


def told(kind: str, client_id: str, released: int) -> LogEvent:
    return LogEvent(kind, client_id, released=released, epsilon_spent=released / 2)  # type: ignore[arg-type]


def answer(client_id: str, participation: int) -> Observation:
    return observation(client_id, participation=participation, epsilon=0.5, epsilon_spent=participation / 2)


def test_each_is_told_of_once_and_what_was_spent_before_the_run_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.db")
    joined = (told("joined", "a", 2), told("joined", "b", 0))
    store.commit_round(record(1, answer("a", 3), events=joined))
    store.commit_round(record(2, answer("a", 5), events=(told("reconciled", "b", 1), told("reconciled", "a", 4))))
    store.commit_round(record(3, answer("b", 2), events=(told("joined", "a", 5), told("reconciled", "b", 1))))
    store.save_late_events(4, [told("joined", "b", 4)])
    store.close()
    late = late_releases(tmp_path)
    rows = list(zip(*(late[name].tolist() for name in ("round", "client_id", "releases", "epsilon")), strict=True))
    assert rows == [(2, "a", 1, 0.5), (2, "b", 1, 0.5), (3, "b", 2, 1.0)]


def test_one_that_came_while_its_client_answered_the_next_round_is_late(tmp_path: Path) -> None:
    """What came meanwhile stands before the round after: the answer, with the later release, stands before it."""
    store = Store(tmp_path / "run.db")
    store.commit_round(record(1, answer("b", 1), events=(told("joined", "a", 0), told("joined", "b", 0))))
    store.commit_round(record(2, answer("a", 2)))
    store.commit_round(record(3, answer("a", 3), events=(told("reconciled", "a", 1),)))
    store.close()
    late = late_releases(tmp_path)
    rows = list(zip(*(late[name].tolist() for name in ("round", "client_id", "releases", "epsilon")), strict=True))
    assert rows == [(3, "a", 1, 0.5)]


def test_those_of_rounds_that_were_taken_back_are_late(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.db")
    store.commit_round(record(1, answer("a", 3), events=(told("joined", "a", 2),)))
    store.commit_round(record(2, answer("a", 4)))
    store.go_back_to(1)
    store.commit_round(record(2, answer("a", 5), attempt=2, events=tuple(store.late_events())))
    store.go_back_to(0)
    store.commit_round(record(1, answer("a", 6), attempt=2, events=tuple(store.late_events())))
    store.close()
    late = late_releases(tmp_path)
    assert late["client_id"].tolist() == ["a"] * len(late["client_id"])
    assert late["releases"].sum() == 3
    assert late["epsilon"].sum() == 1.5


def test_a_run_in_which_all_came_in_time_has_none(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    assert all(column.size == 0 for column in late_releases(run_dir).values())


def test_the_figure_has_a_ring_for_each(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    run = read_run(run_dir)
    ids, last = run.clients["client_id"], int(run.round_latency["round"].max())
    store = Store(run_dir / "run.db")
    store.save_late_events(last + 1, [told("reconciled", str(ids[1]), 1000)])
    store.close()
    privacy = PrivacyFigures("coordinate", 1.0, 1.0, 1.0)
    dots, rings = plots.releases(run, privacy).axes[0].collections
    assert len(np.asarray(dots.get_offsets())) == len(run.leakage["client_id"])
    assert np.asarray(rings.get_offsets()).tolist() == [[last, 1]]
    assert np.asarray(rings.get_facecolor()).size == 0
