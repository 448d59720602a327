"""`make gpu`: everything that only a GPU can show, into docs/results/gpu.json and docs/gpu.png; some 8 minutes.

Needs Python, torch and a CUDA device, and no network: images are random ones of the workloads' sizes.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from benchmarks.busy import busy_share
from pausefl.bench.training import PRESETS, clients_of
from pausefl.bench.training.together import RoundsOfClients, together_case
from pausefl.report.style import RC, SERIES
from pausefl_process.files import write_durably

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs/results/gpu.json"
PICTURE = ROOT / "docs/gpu.png"
_STEPS = 100
_ROUNDS = 100
_ROUNDS_PROFILED = 3
_IMAGES = "pausefl.bench.training.images:noise_of_cifar"
ON_GPU = ["--set", "workload.device=cuda", "--set", f"workload.dataset={_IMAGES}", "--set", "metrics.enabled=false"]
RUN = ["--set", f"experiment.rounds={_ROUNDS}", "--quiet"]
IN_ONE_PROCESS = ["--virtual", "--set", "workload.step_s=0.01"]
RUNS = {
    "30 clients in one process, one by one": [*IN_ONE_PROCESS, "--set", "clients.batched=off"],
    "30 clients in one process, together": [*IN_ONE_PROCESS, "--set", "clients.batched=on"],
    "30 clients in five processes, without delays": [
        *("--set", "clients.per_process=6", "--set", 'latency.delay={kind="none"}'),
    ],
}


def main() -> int:
    """0 if all went well, 1 if tests, audit or a run failed or memory grew, 2 without a CUDA device."""
    if not torch.cuda.is_available():
        print("gpu: torch finds no CUDA device here, so nothing was measured", file=sys.stderr)
        return 2
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "tests": _played([sys.executable, "-m", "pytest", "-q", "-k", "cuda", "tests"]),
        "training": list(training(torch.device("cuda"))),
        "memory_growth_bytes": memory_growth_bytes(),
        "audit": _played([*_pausefl("audit", "small_cifar"), *ON_GPU, "--uploads", "2000"]),
        "runs": [_run(name, settings) for name, settings in RUNS.items()],
    }
    write_durably(RESULT, json.dumps(found, indent=1) + "\n")
    with mpl.rc_context(RC):
        draw(found).savefig(PICTURE, dpi=110)
    parts: list[dict[str, Any]] = [found["tests"], found["audit"], *found["runs"]]
    print(f"{RESULT}, {PICTURE}: " + "; ".join(part["last_line"] for part in parts))
    return int(found["memory_growth_bytes"] > 0 or any(part["exit_status"] for part in parts))


def training(device: torch.device, steps: int = _STEPS) -> Iterator[dict[str, Any]]:
    """Clients one by one and together, on the processor and on `device`, for each workload.

    `busy_share` is that of `device` in rounds together, whose passes are CUDA graphs where there are such.
    """
    torch.set_num_threads(1)
    for preset in PRESETS:
        yield {**together_case(preset, clients_of(preset, torch.device("cpu")), min(steps, 20)), **_of(preset, "cpu")}
        clients = clients_of(preset, device)
        case = together_case(preset, clients, steps)
        yield {**case, **_of(preset, device.type), "busy_share": busy_share(partial(_some_rounds, clients), device)}


def _of(preset: str, device: str) -> dict[str, str]:
    return {"preset": preset, "device": device}


def _some_rounds(clients: RoundsOfClients) -> None:
    for t in range(1, _ROUNDS_PROFILED + 1):
        clients.replayed(t)


def memory_growth_bytes() -> int:
    """By how much the device's memory in use grows over 1,000 rounds together, after the first."""
    clients = clients_of(PRESETS[0], torch.device("cuda"))
    clients.replayed(1)
    before = torch.cuda.memory_allocated()
    for t in range(2, 1002):
        clients.replayed(t)
    return torch.cuda.memory_allocated() - before


def draw(found: Mapping[str, Any]) -> Figure:
    """A round's training one by one, together and, on a GPU, replayed as CUDA graphs, by workload and device."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    cases: Sequence[Mapping[str, Any]] = found["training"]
    ways = ("alone_s", "one by one"), ("together_s", "together"), ("replayed_s", "together, CUDA graphs")
    for offset, ((key, label), colour) in enumerate(zip(ways, SERIES, strict=False)):
        bars = {i + 0.27 * (offset - 1): 1e3 * case[key] for i, case in enumerate(cases) if key in case}
        if bars:
            axes.bar(list(bars), list(bars.values()), 0.25, color=colour.light, label=label)
    axes.set_xticks(range(len(cases)), [_label(case) for case in cases])
    axes.set(yscale="log", ylabel="training of a round (ms)", title=str(found["device"]))
    axes.legend()
    return figure


def _label(case: Mapping[str, Any]) -> str:
    busy = f", {case['busy_share']:.0%} busy" if "busy_share" in case else ""
    return f"{case['preset']}\n{case['device']}{busy}"


def _run(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """100 rounds of small CIFAR."""
    with tempfile.TemporaryDirectory(prefix="pausefl-gpu-") as folder:
        place = ["--run-dir", f"{folder}/run"]
        played = _played([*_pausefl("run", "small_cifar"), *ON_GPU, *RUN, *settings, *place])
    return {"name": name, "rounds": _ROUNDS, **played}


def _pausefl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pausefl", *arguments]


def _played(command: Sequence[str]) -> dict[str, Any]:
    """How a command ended, how long it took, and what it said last."""
    began_s = time.perf_counter()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout + ended.stderr).split("\n")
    return {
        "command": " ".join(command[1:]),
        "exit_status": ended.returncode,
        "took_s": time.perf_counter() - began_s,
        "last_line": next((line.strip() for line in reversed(said) if line.strip()), ""),
    }


if __name__ == "__main__":
    sys.exit(main())
