"""What a reader types: pages that explain a task from start to end, and each example as its README says."""

import ast
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

import numpy as np
import pytest
import tomli_w
from PIL import Image

import pausefl
from rigs.command import kill_group, python, run, summary_of
from rigs.command import played as play
from rigs.places import ROOT
from rigs.waiting import free_port

PARTS = re.compile(r"(?ms)^```(?P<language>\w*)\n(?P<block>.*?)^```|(?P<printed>(?:^    \S[^\n]*\n)+)")


class Reader:
    """Follows a page's instructions in a folder; `smaller` maps texts of shown commands to what is typed instead."""

    def __init__(self, folder: Path, smaller: Mapping[str, str]) -> None:
        self.folder = folder
        self.smaller = smaller
        self.seen = ""
        self._started: list[subprocess.Popen[str]] = []
        shutil.copytree(ROOT / "examples", folder / "examples")

    def follow(self, text: str) -> None:
        """Type each command, make each edit, and check that each line shown as output appears."""
        file, end = Path(), 0
        for part in PARTS.finditer(text):
            named = re.findall(r"`([\w/]+\.(?:py|toml))`", text[end : part.start()])
            file, end = self.folder / named[-1] if named else file, part.end()
            match part["language"], part["block"]:
                case None, _ if self.seen:
                    self._find(part["printed"])
                case None, _:
                    pass  # no command was typed yet
                case "toml", keys:
                    _change_keys(file, keys)
                case "python", code if "def " in code:
                    _replace_function(file, code)
                case "python", code:
                    self.seen += python("-c", code, cwd=self.folder)
                case _, commands:
                    self._type(commands)

    def _type(self, commands: str) -> None:
        for shown, typed in self.smaller.items():
            commands = commands.replace(shown, typed)
        for command in commands.replace("\\\n", " ").splitlines():
            stays = "--stay" in command
            out = DEVNULL if stays else PIPE
            started = subprocess.Popen(command, **self._shell, stdout=out, stderr=STDOUT, text=True)
            self._started.append(started)
            if not stays:
                printed, _ = started.communicate()
                assert started.returncode == 0, command + printed
                self.seen += printed

    @property
    def _shell(self) -> dict[str, Any]:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
        return {"cwd": self.folder, "shell": True, "start_new_session": True, "env": environment}

    def _find(self, printed: str) -> None:
        """Raise AssertionError if a shown line was neither printed nor written to a file; its numbers may differ."""
        files = "".join(file.read_text("utf-8") for file in self.folder.glob("*.toml"))
        there = {_without_figures(line) for line in (self.seen + files).splitlines()}
        shown = [line for line in printed.splitlines() if "…" not in line and re.search("[a-z]", line)]
        assert [line for line in shown if _without_figures(line) not in there] == []

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                kill_group(process)


def _without_figures(line: str) -> str:
    """A line without its numbers and without the text in brackets, which vary with the number of seeds."""
    return " ".join(re.sub(r"-?\d+(\.\d+)?", "0", re.sub(r"\([^)]*\)", "()", line)).split())


def _change_keys(file: Path, keys: str) -> None:
    content = tomllib.loads(file.read_text("utf-8"))
    for table, changes in tomllib.loads(keys).items():
        content[table] = {**content.get(table, {}), **changes}
    file.write_text(tomli_w.dumps(content), "utf-8")


def _replace_function(file: Path, code: str) -> None:
    (function,) = (node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef))
    lines = file.read_text("utf-8").splitlines()
    (old,) = (n for n in ast.parse("\n".join(lines)).body if isinstance(n, ast.FunctionDef) and n.name == function.name)
    lines[old.lineno - 1 : old.end_lineno] = code.splitlines()
    file.write_text("\n".join(lines), "utf-8")


@pytest.mark.end_to_end
@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "smaller"),
    [
        ("docs/own-policy.md", {"--virtual": "--virtual --set experiment.rounds=16"}),
        ("docs/own-fleet.md", {"=100": "=30", "--seeds 5 --virtual": "--seeds 2 --virtual", "=25": "=2"}),
    ],
)
def test_a_page_can_be_typed_from_start_to_end(page: str, smaller: dict[str, str], tmp_path: Path) -> None:
    with closing(Reader(tmp_path, {**smaller, "50051": str(free_port())})) as reader:
        reader.follow((ROOT / page).read_text("utf-8"))


EXAMPLES = ROOT / "examples"


def played(example: str, folder: Path, *small: str) -> pausefl.Run:
    """A finished run of an example, in which no job failed."""
    all_of_them = ("latency.time_scale=0.05", "evaluation.every=2", "clients.per_process=4", *small)
    settings = [f"--set={setting}" for setting in all_of_them]
    play("run", EXAMPLES / example / "experiment.toml", "--run-dir", folder / "run", *settings)
    found = pausefl.open(folder / "run")
    assert not found.summary.get("failures")
    return found


def executed(code: str, folder: Path) -> str:
    """The output of a program that is run in a folder."""
    return python("-W", "error", "-c", code, cwd=folder, MPLBACKEND="agg")


def smaller(code: str) -> str:
    """The same program with fewer rounds, clients and runs."""
    clients = re.sub(r'"clients.count": \d+', '"clients.count": 3, "clients.per_process": 3', code)
    return re.sub(r"(rounds|ROUNDS) = .*", r"\1 = 2", clients).replace("[0.0, 5.0]", "[0.0]")


def test_the_index_names_every_example_and_how_it_is_run() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| \[\w+\]\((\w+)/[^)]*\) \|.*\| `([^`]+)` \|$", text, re.MULTILINE))
    assert sorted(rows) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    for folder, command in rows.items():
        named = [word for word in shlex.split(command) if "examples/" in word]
        assert named
        assert all((ROOT / word).exists() and folder in word for word in named)


@pytest.mark.slow
def test_a_policy_with_a_memory_comes_to_prefer_fast_clients(tmp_path: Path) -> None:
    """By round 2, each of six clients was chosen once. Later choices follow from the policy's memory alone."""
    small = ("experiment.rounds=8", "clients.count=6", "workload.model=synthetic", "latency.time_scale=0.02")
    found = played("policy", tmp_path, *small, "selection.moving_average:MovingAverage.exploration=0.0")
    assert found.summary["policy"] == "moving_average:MovingAverage"
    chosen = found.columns("choices")
    assert len(set(chosen["client_id"][chosen["round"] <= 2])) == 6
    assert run("run", "--resume", tmp_path / "run", "--rounds", 10).returncode == 0
    assert summary_of(tmp_path / "run")["rounds"] == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "accuracy", "parameters"),
    [("model_and_data", 0.85, 30 * 16 + 16 + 16 * 2 + 2), ("training_method", 0.4, None)],
)
def test_examples_of_own_code_learn(example: str, accuracy: float, parameters: int | None, tmp_path: Path) -> None:
    small = ("experiment.rounds=6", "clients.count=4", "selection.m=2", "privacy.enabled=false")
    found = played(example, tmp_path, *small)
    assert found.summary["final_accuracy"] > accuracy
    assert parameters in {sum(array.size for array in found.model().values()), None}


@pytest.mark.slow
def test_a_client_has_the_examples_of_its_owner(tmp_path: Path) -> None:
    owners = played("owners", tmp_path, "experiment.rounds=2").columns("owners")
    assert owners["owner"].tolist() == owners["client_id"].tolist()
    assert len(set(owners["owner"].tolist())) == 8


def test_examples_with_owners_are_read_from_each_kind_of_file(tmp_path: Path) -> None:
    """Each owner has examples of its own class alone."""
    owners = ["anna", "bert"] * 20
    for part in ("train", "test"):
        (tmp_path / "leaf" / part).mkdir(parents=True)
        held = {name: {"x": [[0.5, k]] * 10, "y": [k] * 10} for k, name in enumerate(("anna", "bert"))}
        (tmp_path / "leaf" / part / "all.json").write_text(json.dumps({"user_data": held}))
    np.savez(tmp_path / "arrays.npz", x=np.zeros((40, 2)), y=np.arange(40) % 2, owner=owners)
    for k, owner in enumerate(owners):
        (tmp_path / "images" / owner).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 6)).save(tmp_path / "images" / owner / f"{owner}_{k}.png")
    module = runpy.run_path(str(shutil.copy(EXAMPLES / "owners/owned.py", tmp_path)))
    for kind, shape in {"leaf": (2,), "arrays": (2,), "images": (3, 32, 32)}.items():
        data = module[kind](1)
        assert (data.input_shape, data.classes) == (shape, 2)
        for examples in (data.train, data.validation, data.test):
            assert examples.owners.tolist() == [owners[label] for label in examples.labels]


@pytest.mark.slow
def test_an_aggregation_rule_combines(tmp_path: Path) -> None:
    small = ("experiment.rounds=4", "clients.groups.honest.count=3", "selection.m=3", "privacy.enabled=false")
    assert played("aggregation", tmp_path, *small).summary["rounds"] == 4


@pytest.mark.end_to_end
@pytest.mark.usefixtures("quickly_written")
def test_delays_are_those_of_the_file_in_its_order(tmp_path: Path) -> None:
    small = ["experiment.rounds=4", "workload.model=synthetic", "latency.time_scale=0.05", "clients.per_process=4"]
    experiment = pausefl.load(EXAMPLES / "measured_delays/experiment.toml", small)
    found = pausefl.run(experiment, tmp_path / "run", progress=False)
    file = EXAMPLES / "measured_delays/pings.csv"
    pings = np.genfromtxt(file, delimiter=",", skip_header=1, dtype=None, encoding="utf-8")
    device_of = {f"client-{k:03}": name for k, name in enumerate(dict.fromkeys(ping[0] for ping in pings))}
    seen = found.columns("observations")
    drawn = seen["drawn_down_s"] + seen["drawn_up_s"]
    for client, round_, drawn_s in zip(seen["client_id"], seen["round"], drawn, strict=True):
        measured = [ms for device, ms in pings if device == device_of[client]]
        assert drawn_s == pytest.approx(0.05 * measured[round_ - 1] / 1000, abs=1e-9)


@pytest.mark.slow
def test_a_sweep_draws_a_picture(tmp_path: Path) -> None:
    out = executed(smaller((EXAMPLES / "sweep/sweep.py").read_text("utf-8")), tmp_path)
    (folder,) = tmp_path.glob("runs/sweep-*")
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "sweep.csv").read_text("utf-8").count("\n") == 3
    assert str(folder.relative_to(tmp_path)) in out


@pytest.mark.slow
def test_a_notebooks_cells_run_in_order(tmp_path: Path) -> None:
    notebook: dict[str, Any] = json.loads((EXAMPLES / "notebook/compare.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), "clear the outputs"
    executed(smaller("\n".join("".join(cell["source"]) for cell in cells)), tmp_path)
    assert list(tmp_path.glob("runs/notebook/notebook.png"))
