"""`make gpu`: it says if a machine has no GPU. Its parts also run on a processor, which is used here instead."""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gpu
from benchmarks.audited import audited
from benchmarks.busy import busy_share, covered
from benchmarks.own.training import PRESETS
from pausefl.cli import whole_parser
from pausefl.experiment.experiment import load_experiment
from rigs.places import ROOT

Printed = pytest.CaptureFixture[str]
RUNS = gpu.RUNS.values()
CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_no_gpu_is_one_line(capsys: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "RESULT", tmp_path / "gpu.json")
    assert gpu.main([]) == 2
    said = "gpu: torch finds no CUDA device here, so nothing was measured; torch "
    assert re.fullmatch(re.escape(said) + r"\S+ is built for CUDA \S+\n", capsys.readouterr().err)
    assert not gpu.RESULT.exists()


def test_training_is_measured_for_every_workload_and_drawn() -> None:
    measured = [gpu.training(preset, CPU, steps=1, most_steps=1) for preset in PRESETS]
    assert all(case["alone_s"] > 0 and case["together_s"] > 0 for m in measured for case in (m, m["on_processor"]))
    shares = [gpu.busy(preset, CPU, most_steps=1) for preset in PRESETS]
    assert all(0 < share["busy_share"] <= 1 for share in shares)
    parts = [{"values": json.loads(json.dumps(values))} for values in (*measured, *shares)]
    axes = gpu.draw({"device": "a processor", "parts": [*parts, {"values": None}]}).axes[0]
    assert len(axes.patches) == 2 * 2 * len(PRESETS)
    assert all("busy" in label.get_text() for label in axes.get_xticklabels()[1::2])
    assert {"1", "10"} & {label.get_text() for label in axes.get_yticklabels()}  # as plain text, not as mathematics


@pytest.mark.end_to_end
def test_a_run_is_audited() -> None:
    changes = {"experiment.rounds": 2, "workload.model": "synthetic", "clients.count": 10}
    found = audited("virtual clock", "cpu", changes)
    assert (found["releases"], found["canaries"]) == (10, 64 * 10)
    assert 0 < found["lower_bound"] <= found["epsilon"] == pytest.approx(3.92, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda span: (min(span), max(span)))))
def test_spans_that_overlap_count_once(spans: list[tuple[int, int]]) -> None:
    assert covered(spans) == len({unit for start, end in spans for unit in range(start, end)})


def test_a_device_is_busy_while_it_computes() -> None:
    matrix = torch.ones(500, 500)
    busy = busy_share(lambda: [matrix @ matrix for _ in range(50)], CPU)
    number = torch.ones(1)
    idle = busy_share(lambda: [number + 1, sum(range(1_000_000))], CPU)
    assert busy is not None
    assert busy > 0.3
    assert idle is not None
    assert 0 < idle < 0.1
    assert busy_share(lambda: sum(range(1000)), CPU) is None


def test_a_command_is_told_by_its_end_and_one_that_hangs_is_ended(tmp_path: Path) -> None:
    for name, at_s in (("earlier", 1.0), ("run", time.time() + 60)):  # file systems' clocks may be behind
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.log").write_text(f"it was the server of {name}\n")
        os.utime(tmp_path / name / "server.log", (at_s, at_s))
    script = "print('first'); print('\\x1b[1mlast\\x1b[0m\\n'); raise SystemExit(3)"
    failed = gpu.played([sys.executable, "-c", script], logs=tmp_path)
    assert (failed["exit_status"], failed["last_line"]) == (3, "last")
    assert failed["took_s"] > 0
    assert failed["said"] == ["first", "last", "it was the server of run"]
    assert gpu.played([sys.executable, "-c", "import os; os.write(2, bytes([255, 10])); exit(1)"])["said"] == ["\ufffd"]
    assert gpu.failures(failed) == ["exit status 3: last"]
    late = gpu.played([sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(60)"], within_s=2.0)
    assert late["said"] == ["begun", "not at its end after 2 s"]
    assert gpu.failures(late) == ["exit status -1: not at its end after 2 s"]


@pytest.mark.parametrize(
    ("values", "failures"),
    [
        ({"recordings": 3, "busy_share": 0.6, "pinned_growth_bytes": 0}, []),
        ({"recordings": 0}, ["no CUDA graph was captured"]),
        ({"busy_share": None}, ["the profiler saw nothing on the device"]),
        ({"pinned_growth_bytes": 512, "reserved_growth_bytes": 0}, ["memory in use has grown"]),
        ({"allocated_growth_bytes": 0, "reserved_growth_bytes": 512}, []),
    ],
)
def test_what_a_part_measures_may_fail_it(values: dict[str, Any], failures: list[str]) -> None:
    """The values are found even if other output follows them."""
    script = "import sys; print(sys.argv[1]); print('bye', file=sys.stderr)"
    part = gpu.played([sys.executable, "-c", script, json.dumps(values)])
    assert part["values"] == values
    assert gpu.failures(part) == failures


def test_every_file_of_tests_that_needs_cuda_is_played() -> None:
    mark = 'reason="no CUDA ' + 'device"'
    needing = [f"{path.parent.name}/{path.stem}" for path in ROOT.glob("tests/*/test_*.py") if mark in path.read_text()]
    assert sorted(needing) == sorted(gpu.TESTS)


@pytest.mark.parametrize(
    "arguments",
    [["audit", "small_cifar", *gpu.ON_GPU], *(["run", "small_cifar", *gpu.ON_GPU, *gpu.RUN, *own] for own in RUNS)],
)
def test_its_commands_and_settings_exist(arguments: list[str]) -> None:
    options = whole_parser().parse_args(arguments)
    experiment = load_experiment(options.config, options.overrides)
    assert experiment.workload.device == "cuda"
    assert experiment.experiment.clock == ("virtual" if "--virtual" in arguments else "real")
