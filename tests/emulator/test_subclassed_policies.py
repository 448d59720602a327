"""A policy of one's own that derives from one of ours is simulated and reported as its parent is."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.results.reading import RunData
from pausefl.results.report.learning import learning
from pausefl.results.stored_summary import Summary
from pausefl.studies.simulation.engine import is_compiled
from pausefl.studies.simulation.outputs import run_simulation, setting_of
from pausefl_server.records import LogEvent, Observation, RoundRecord, Timing

MODULE = '''
from dataclasses import dataclass

from pausefl_server.selection.policies.fed_ts import FedTs
from pausefl_server.selection.policies.pause import Pause


@dataclass(frozen=True)
class MyPause(Pause):
    """PAUSE under another name, with a parameter that only its author reads."""

    note: str = "mine"


@dataclass(frozen=True)
class Hasty(Pause):
    """PAUSE that searches in a way of its own."""

    def _search(self, choice, context):
        return choice.exact(), {"hasty": 1.0}


@dataclass(frozen=True)
class MyFedTs(FedTs):
    """Fed-TS under another name."""
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policies_of_mine.py").write_text(MODULE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies_of_mine", raising=False)


def found_by(policy: str, folder: Path) -> dict[str, Any]:
    experiment = parse_experiment("clients.count = 8", [f'selection.policy="{policy}"', "selection.m=3"])
    return run_simulation(experiment, 60, folder) | {"policy": ""}


def test_a_subclass_of_pause_is_simulated_as_pause(tmp_path: Path) -> None:
    assert found_by("policies_of_mine:MyPause", tmp_path / "own") == found_by("pause", tmp_path / "ours")


@pytest.mark.parametrize(("name", "compiled"), [("MyPause", True), ("Hasty", False)])
def test_compiled_rounds_stand_in_for_a_subclass_that_chooses_as_pause_does(name: str, compiled: bool) -> None:
    experiment = parse_experiment("clients.count = 8", [f'selection.policy="policies_of_mine:{name}"'])
    assert is_compiled(selected_policy(experiment.selection), setting_of(experiment)) is compiled


def record(t: int, joined: Sequence[str], **drifts: float) -> RoundRecord:
    ids = {name: name.replace("_", "-") for name in drifts}
    return RoundRecord(
        round=t,
        attempt=1,
        chosen=tuple(ids.values()),
        weights=None,
        observations=tuple(
            Observation(ids[name], Timing(1.0), 1.0, 10, 0, 0.0, 0.0, statistics={"drift": drift})
            for name, drift in drifts.items()
        ),
        events=tuple(LogEvent("joined", client_id) for client_id in joined),
        round_latency_s=1.0,
        wall_clock_s=float(t),
        selection_s=1e-4,
        model_digest="",
    )


def test_a_subclass_of_fed_ts_is_reported_as_fed_ts(tmp_path: Path) -> None:
    log = [
        record(1, ("original-000", "original-001"), original_000=0.1, original_001=0.2),
        record(2, ("late-000", "late-001"), late_000=1.0, late_001=9.0),
    ]
    summary = cast(Summary, {"policy": "fed-ts", "policy_parameters": {"m": 2}, "seed": 1})
    tables: dict[str, Any] = {
        name: {}
        for name in (
            *("clients", "round_latency", "breakdown", "suspect_rounds", "ping_baseline"),
            *("leakage", "greatest_leakage", "accuracy", "censored_latencies", "choices"),
        )
    }
    ours = RunData(path=tmp_path, config="", summary=summary, records=log, **tables)
    own = replace(ours, summary={**summary, "policy": "policies_of_mine:MyFedTs"})
    expected, found = learning(ours), learning(own)
    assert expected is not None
    assert found is not None
    np.testing.assert_array_equal(found.s, expected.s)
    np.testing.assert_array_equal(found.f, expected.f)
    np.testing.assert_array_equal(found.threshold, expected.threshold)
