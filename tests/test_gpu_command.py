"""`make gpu`: on a machine without a GPU it says so; its parts work on a processor too, which stands for one."""

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gpu
from benchmarks.busy import busy_share, covered
from pausefl.bench.training import PRESETS
from pausefl.bench.training.images import noise_of_cifar
from pausefl.cli import parser
from pausefl.config.experiment import load_experiment

RUNS = gpu.RUNS.values()
ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_it_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main() == 2
    assert capsys.readouterr().err == "gpu: torch finds no CUDA device here, so nothing was measured\n"
    assert not gpu.RESULT.exists()


def test_training_is_measured_for_every_workload_and_drawn() -> None:
    cases = list(gpu.training(torch.device("cpu"), steps=1))
    assert [case["preset"] for case in cases[::2]] == list(PRESETS)
    assert all(case["alone_s"] > 0 and case["together_s"] > 0 for case in cases)
    assert all(0 < case["busy_share"] <= 1 for case in cases[1::2])
    figure = gpu.draw({"device": "a processor", "training": json.loads(json.dumps(cases))})
    assert len(figure.axes[0].patches) == 2 * len(cases)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda span: (min(span), max(span)))))
def test_spans_that_overlap_count_once(spans: list[tuple[int, int]]) -> None:
    assert covered(spans) == len({unit for start, end in spans for unit in range(start, end)})


def test_a_device_is_busy_while_it_computes() -> None:
    matrix = torch.ones(500, 500)
    assert busy_share(lambda: [matrix @ matrix for _ in range(50)], torch.device("cpu")) > 0.3
    assert busy_share(lambda: sum(range(1_000_000)), torch.device("cpu")) < 0.1


def test_a_command_is_told_by_its_end() -> None:
    failed = gpu._played(
        [sys.executable, "-c", "print('first'); print('\\x1b[1mlast\\x1b[0m\\n'); raise SystemExit(3)"]
    )
    assert (failed["exit_status"], failed["last_line"]) == (3, "last")
    assert failed["took_s"] > 0


@pytest.mark.parametrize(
    "arguments",
    [["audit", "small_cifar", *gpu.ON_GPU], *(["run", "small_cifar", *gpu.ON_GPU, *gpu.RUN, *own] for own in RUNS)],
)
def test_its_commands_and_settings_exist(arguments: list[str]) -> None:
    options = parser().parse_args(arguments)
    experiment = load_experiment(options.config, options.overrides)
    assert experiment.workload.device == "cuda"
    assert experiment.experiment.clock == ("virtual" if "--virtual" in arguments else "real")


def test_its_images_have_the_size_of_cifar() -> None:
    data = noise_of_cifar(1)
    assert data.train.inputs.shape == (40_000, 3, 32, 32)
