"""`make gpu`: run all tests and measurements that need a GPU. Writes docs/results/gpu.json and docs/gpu.png; 8 minutes.

Needs Python, torch and a CUDA device, and no network: images are random, of the workloads' sizes. Each part runs in
a process of its own, and its result is stored when it ends. So a part that fails or hangs does not affect the others.

python -m benchmarks.gpu                      all parts
python -m benchmarks.gpu training small_mnist one of MEASUREMENTS for one workload, printed as JSON
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from benchmarks.busy import busy_share
from benchmarks.own.together import together_case
from benchmarks.own.training import PRESETS, clients_of
from pausefl.results.report.style import RC, SERIES
from pausefl_process.files import write_durably

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs/results/gpu.json"
PICTURE = ROOT / "docs/gpu.png"
TESTS = (
    "emulator/test_training",
    "client/test_batched_training",
    "client/test_recorded_passes",
    "emulator/test_privacy_mechanism",
)
"""Test files with tests that need CUDA. These have "cuda" in their names or cases, by which pytest selects them."""
_STEPS = 100
_ROUNDS = 100
_ROUNDS_PROFILED = 3
_ROUNDS_WATCHED = 1000
_LONGEST_S = 180.0
_LINES_KEPT = 100
_TOO_LATE = -1
_MODULE = "benchmarks.gpu"
_IMAGES = "benchmarks.own.training:noise_of_cifar"
ON_GPU = ["--set", "workload.device=cuda", "--set", f"workload.dataset={_IMAGES}", "--set", "metrics.enabled=false"]
RUN = ["--set", f"experiment.rounds={_ROUNDS}", "--quiet"]
IN_ONE_PROCESS = ["--virtual", "--set", "workload.step_s=0.01"]
RUNS = {
    "30 clients in one process, one by one": [*IN_ONE_PROCESS, "--set", "clients.batched=off"],
    "30 clients in one process, together": [*IN_ONE_PROCESS, "--set", "clients.batched=on"],
    "30 clients in five processes, without delays": [
        "--set",
        "clients.per_process=6",
        "--set",
        'latency.delay={kind="none"}',
    ],
}


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0 if all parts succeeded, 1 if a part failed, 2 without a CUDA device."""
    if not torch.cuda.is_available():
        built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda or '(none)'}"
        print(f"gpu: torch finds no CUDA device here, so nothing was measured; {built}", file=sys.stderr)
        return 2
    if arguments:
        measure, *which = arguments
        print(json.dumps(MEASUREMENTS[measure](*which, torch.device("cuda"))))
        return 0
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "parts": []}
    with tempfile.TemporaryDirectory(prefix="pausefl-gpu-") as folder:
        for name, command in commands(Path(folder)).items():
            print(f"{name} ...", flush=True)
            found["parts"].append(part := {"name": name, **played(command, logs=Path(folder))})
            write_durably(RESULT, json.dumps(found) + "\n")
            print(f"{name}: {part['took_s']:.0f} s, {'ok' if not failures(part) else '; '.join(failures(part))}")
    with mpl.rc_context(RC):
        draw(found).savefig(PICTURE, dpi=110)
    print(f"{RESULT}, {PICTURE}")
    return int(any(map(failures, found["parts"])))


def commands(folder: Path) -> Mapping[str, Sequence[str]]:
    """The commands of the parts, by name. Runs are written to `folder`."""
    files = [f"tests/{name}.py" for name in TESTS]
    measured = {f"{what}, {preset}": [*_python(_MODULE), what, preset] for preset in PRESETS for what in MEASUREMENTS}
    runs = {
        name: [*_pausefl("run", "small_cifar"), *ON_GPU, *RUN, *settings, "--run-dir", str(folder / str(i))]
        for i, (name, settings) in enumerate(RUNS.items())
    }
    return {
        "tests": [*_python("pytest"), "-q", "-k", "cuda", *files],
        **measured,
        "audit": [*_pausefl("audit", "small_cifar"), *ON_GPU, "--uploads", "2000"],
        "audits of runs": [*_python("benchmarks.audited"), "cuda"],
        **runs,
    }


def failures(part: Mapping[str, Any]) -> list[str]:
    """Messages that say what went wrong with a part. Empty if nothing did."""
    values: Mapping[str, Any] = part["values"] or {}
    told = {
        f"exit status {part['exit_status']}: {part['last_line']}": part["exit_status"] != 0,
        "nothing was measured": part["exit_status"] == 0 and part["values"] is None and _MODULE in part["command"],
        "no CUDA graph was captured": values.get("recordings") == 0,
        "memory in use has grown": any(values.get(f"{kind}_growth_bytes", 0) > 0 for kind in ("allocated", "pinned")),
        "the profiler saw nothing on the device": "busy_share" in values and values["busy_share"] is None,
    }
    return [what for what, is_so in told.items() if is_so]


def training(preset: str, device: torch.device, steps: int = _STEPS, most_steps: int | None = None) -> dict[str, Any]:
    """Times a workload's clients one by one and together, on processor and `device`. `most_steps`: see `clients_of`."""
    torch.set_num_threads(1)
    on_processor = together_case(preset, clients_of(preset, torch.device("cpu"), most_steps), min(steps, 20))
    case = together_case(preset, clients_of(preset, device, most_steps), steps)
    return {"preset": preset, "device": device.type, "on_processor": on_processor, **case}


def busy(preset: str, device: torch.device, most_steps: int | None = None) -> dict[str, Any]:
    """The share of time in which `device` is busy while clients train together, with CUDA graphs where it has them."""
    torch.set_num_threads(1)
    clients = clients_of(preset, device, most_steps)
    for t in (1, 2):  # a step is captured when its shapes occur for the second time
        clients.replayed(t)

    def rounds() -> None:
        for t in range(_ROUNDS_PROFILED):
            clients.replayed(3 + t)

    return {"preset": preset, "busy_share": busy_share(rounds, device)}


def memory(preset: str, device: torch.device, rounds: int = _ROUNDS_WATCHED) -> dict[str, Any]:
    """By how many bytes memory grows while clients train together: on the device (in use, reserved) and page-locked.

    Three rounds come first, in which steps are captured. All workloads but the first play a tenth of the rounds.
    """
    clients = clients_of(preset, device)
    rounds = rounds if preset == PRESETS[0] else rounds // 10
    for t in (1, 2, 3):
        clients.replayed(t)
    before = _memory_bytes()
    for t in range(4, 4 + rounds):
        clients.replayed(t)
    grown = {f"{kind}_growth_bytes": now - before[kind] for kind, now in _memory_bytes().items()}
    return {"preset": preset, "rounds": rounds, **grown}


WAYS = {
    "alone_s": "one by one",
    "together_s": "together",
    "captured_s": "one by one, CUDA graphs",
    "replayed_s": "together, CUDA graphs",
}
"""The ways of training a round's clients, in the order in which they are drawn."""

MEASUREMENTS: Mapping[str, Callable[..., dict[str, Any]]] = {"training": training, "busy": busy, "memory": memory}
"""The measurements of each workload, by name."""


def _memory_bytes() -> dict[str, int]:
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(), "pinned": pinned}


def draw(found: Mapping[str, Any]) -> Figure:
    """A bar chart of the times in `WAYS` by workload and device. CUDA graphs exist on a GPU only."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    shares = {v["preset"]: v["busy_share"] for v in _values(found) if "busy_share" in v}
    cases = [(c, label) for values in _values(found) if "on_processor" in values for c, label in _cases(values, shares)]
    for offset, ((key, label), colour) in enumerate(zip(WAYS.items(), SERIES, strict=False)):
        bars = {i + 0.2 * (offset - 1.5): 1e3 * case[key] for i, (case, _) in enumerate(cases) if key in case}
        if bars:
            axes.bar(list(bars), list(bars.values()), 0.18, color=colour.light, label=label)
    axes.set_xticks(range(len(cases)), [label for _, label in cases])
    axes.set(yscale="log", ylabel="training of a round (ms)", title=str(found["device"]))
    axes.yaxis.set_major_formatter("{x:g}")
    if cases:
        axes.legend()
    return figure


def _values(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [part["values"] for part in found["parts"] if part["values"]]


def _cases(values: Mapping[str, Any], shares: Mapping[str, float | None]) -> Iterator[tuple[Mapping[str, Any], str]]:
    share = shares.get(values["preset"])
    yield values["on_processor"], f"{values['preset']}\ncpu"
    yield values, f"{values['preset']}\n{values['device']}" + ("" if share is None else f", {share:.0%} busy")


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", module]


def _pausefl(*arguments: str) -> list[str]:
    return [*_python("pausefl"), *arguments]


def played(command: Sequence[str], logs: Path | None = None, within_s: float = _LONGEST_S) -> dict[str, Any]:
    """Run a command. Returns its exit status, its duration, its last line of output, and the JSON that it printed.

    For a command that failed there are also its last lines of output, and of the logs of runs in the folder `logs`.
    """
    began_s, began = time.perf_counter(), time.time()
    with _output() as out, _output() as err:
        try:
            status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=err, check=False, timeout=within_s).returncode
        except subprocess.TimeoutExpired:
            status = _TOO_LATE
        out.seek(0)
        err.seek(0)
        printed, lines = _lines(out.read()), _lines(err.read())
    if status == _TOO_LATE:
        lines.append(f"not at its end after {within_s:g} s")
    found = next((json.loads(line) for line in reversed(printed) if line.startswith("{")), None)
    return {
        "command": " ".join(command[1:]),
        "exit_status": status,
        "took_s": time.perf_counter() - began_s,
        "last_line": next(iter([*lines[-1:], *printed[-1:]]), ""),
        "values": found if status == 0 else None,
        **({"said": [*printed[-_LINES_KEPT:], *lines[-_LINES_KEPT:], *_logged(logs, began)]} if status else {}),
    }


def _output() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def _logged(folder: Path | None, since: float) -> list[str]:
    """The last lines of those logs in a folder that changed since the time `since` (time.time)."""
    logs = sorted(folder.rglob("*.log")) if folder else []
    fresh = (path for path in logs if path.stat().st_mtime >= since)
    return [line for path in fresh for line in _lines(path.read_text("utf-8", "replace"))[-_LINES_KEPT:]]


def _lines(text: str) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [line.strip() for line in plain.split("\n") if line.strip()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
