"""The pages that tell a task from start to end: all that they show is typed in order, in a folder with the examples."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

import pytest
import tomli_w

from rigs.command import kill_group, python
from rigs.places import ROOT
from rigs.ports import free_port

PARTS = re.compile(
    r"^```(?P<language>\w*)\n(?P<block>.*?)^```|(?P<printed>(?:^    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Reader:
    """Does what a page says, in a folder; `smaller` names what is typed in the place of what is shown."""

    def __init__(self, folder: Path, smaller: Mapping[str, str]) -> None:
        self.folder = folder
        self.smaller = smaller
        self.seen = ""
        self._started: list[subprocess.Popen[str]] = []
        shutil.copytree(ROOT / "examples", folder / "examples")

    def follow(self, text: str) -> None:
        """Type each command, make each edit, and find each line that the page says is printed."""
        file, end = Path(), 0
        for part in PARTS.finditer(text):
            named = re.findall(r"`([\w/]+\.(?:py|toml))`", text[end : part.start()])
            file, end = self.folder / named[-1] if named else file, part.end()
            match part["language"], part["block"]:
                case None, _ if self.seen:
                    self._find(part["printed"])
                case None, _:
                    pass  # nothing was typed yet
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
            started = subprocess.Popen(
                command, **self._shell, stdout=DEVNULL if stays else PIPE, stderr=STDOUT, text=True
            )
            self._started.append(started)
            if not stays:
                printed, _ = started.communicate()
                assert started.returncode == 0, command + printed
                self.seen += printed

    @property
    def _shell(self) -> dict[str, Any]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            "cwd": self.folder,
            "shell": True,
            "start_new_session": True,
            "env": {**os.environ, "PATH": path, "COLUMNS": "80"},
        }

    def _find(self, printed: str) -> None:
        """AssertionError where words shown were neither printed nor written to a file, whatever the figures are."""
        files = "".join(file.read_text("utf-8") for file in self.folder.glob("*.toml"))
        there = {_without_figures(line) for line in (self.seen + files).splitlines()}
        shown = [line for line in printed.splitlines() if "…" not in line and re.search("[a-z]", line)]
        assert [line for line in shown if _without_figures(line) not in there] == []

    def leave(self) -> None:
        for process in self._started:
            if process.poll() is None:
                kill_group(process)


def _without_figures(line: str) -> str:
    """The words of a line: fewer seeds give other figures, and others in brackets."""
    return " ".join(NUMBER.sub("0", re.sub(r"\([^)]*\)", "()", line)).split())


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


@contextmanager
def reading(folder: Path, smaller: Mapping[str, str]) -> Iterator[Reader]:
    reader = Reader(folder, smaller)
    try:
        yield reader
    finally:
        reader.leave()


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
    with reading(tmp_path, {**smaller, "50051": str(free_port())}) as reader:
        reader.follow((ROOT / page).read_text("utf-8"))
