"""Draws docs/architecture.md from the imports: `python docs/draw_architecture.py`.

A test draws it again and compares. An arrow is an import; lazy ones count.
"""

import ast
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import grimp

DOCUMENT = Path(__file__).parent / "architecture.md"
PACKAGES = ("pausefl", "pausefl_server", "pausefl_client", "pausefl_process", "pausefl_proto")

_GENERATED = "pausefl_proto.v1"

_HEAD = """# Architecture

This page is drawn from the imports: `python docs/draw_architecture.py` writes it, and a test compares it. An arrow from
A to B says that A imports B. import-linter holds the directions (`make lint`; the contracts stand in `pyproject.toml`).
"""


def drawn() -> str:
    """The page as the code is now."""
    graph = grimp.build_graph(*PACKAGES)
    return "\n".join(
        (
            _HEAD,
            "## Packages\n",
            *_drawing(_arrows(graph, set(PACKAGES))),
            *_purposes(PACKAGES),
            *(line for package in PACKAGES[:3] for line in _subpackages(graph, package)),
            "",
        )
    )


def _subpackages(graph: grimp.ImportGraph, package: str) -> Iterator[str]:
    """The drawing and the table of one package's own packages."""
    packages = {m for m in graph.modules if m.rpartition(".")[0] == package and _is_package(m)}
    yield f"\n## Packages of `{package}`\n"
    yield from _drawing(_arrows(graph, packages))
    yield from _purposes(sorted(packages))


def _arrows(graph: grimp.ImportGraph, packages: set[str]) -> set[tuple[str, str]]:
    """Who imports whom among these packages."""
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = _package_of(module, packages), _package_of(imported, packages)
            if ends[0] and ends[1] and ends[0] != ends[1]:
                found.add((ends[0], ends[1]))
    return found


def _package_of(module: str, packages: set[str]) -> str:
    return next((package for package in packages if module == package or module.startswith(f"{package}.")), "")


def _drawing(arrows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield "```mermaid\nflowchart TD"
    yield from (f"    {_short(a)} --> {_short(b)}" for a, b in sorted(arrows))
    yield "```\n"


def _purposes(packages: Iterable[str]) -> Iterator[str]:
    """A row a package, with the first line of its docstring."""
    yield "| package | what is in it |\n|---|---|"
    yield from (f"| `{package}` | {_first_line(package)} |" for package in packages)


def _short(package: str) -> str:
    return "library[pausefl]" if package == "pausefl" else package.rpartition(".")[2] if package.count(".") else package


def _is_package(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and bool(spec.submodule_search_locations) and module != _GENERATED


def _first_line(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None, f"{package} has no __init__.py"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8")))
    assert docstring is not None, f"{package} has no docstring"
    return docstring.partition("\n")[0]


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(), "utf-8")
