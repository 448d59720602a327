"""Files, functions and constructors stay short enough to be read in one sitting."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("proto", "process", "server", "client", "emulator", "deploy", "docs", "examples", "benchmarks", "tests")
FILE_LINES = 400
FUNCTION_LINES = 70
CONSTRUCTOR_PARAMETERS = 7
DASHBOARDS = "deploy/grafana/"  # a dashboard is one list of panels, however many


def sources() -> Iterator[Path]:
    """Every Python file that a person wrote."""
    for path in itertools.chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in FOLDERS):
        if "_pb2" not in path.name and "build" not in path.parts:
            yield path


def sizes(what: str) -> list[tuple[int, str]]:
    """(size, where) of every file, function or constructor, the greatest first."""
    found = []
    for path in sources():
        text, name = path.read_text("utf-8"), str(path.relative_to(ROOT))
        if what == "file":
            found.append((len(text.splitlines()), name))
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not name.startswith(DASHBOARDS):
                where = f"{name}:{node.lineno} {node.name}"
                if what == "function":
                    found.append(((node.end_lineno or 0) - node.lineno + 1, where))
                elif node.name == "__init__":
                    arguments = node.args
                    found.append((len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1, where))
    return sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("what", "limit"),
    [("file", FILE_LINES), ("function", FUNCTION_LINES), ("constructor", CONSTRUCTOR_PARAMETERS)],
)
def test_nothing_outgrows_its_limit(what: str, limit: int) -> None:
    found = sizes(what)
    assert len(found) > 50, "there is something to measure"
    too_long = [f"{size} (at most {limit}): {where}" for size, where in found if size > limit]
    assert not too_long, "\n".join([f"too long, of every {what}:", *too_long])
