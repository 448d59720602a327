"""Writes docs/architecture.md and its pictures from the code's imports: `python docs/draw_architecture.py`.

A test writes them again and compares. An arrow is an import, including lazy imports.
"""

import ast
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import grimp

FOLDER = Path(__file__).parent
PACKAGES = ("pausefl", "pausefl_server", "pausefl_client", "pausefl_process", "pausefl_proto")

_LEFT_OUT = {"pausefl_proto.v1", "pausefl.__main__"}
"""Modules that are left out: generated code, and a module of one line."""

_WIDTH, _STEP = 132, 38
"""The width of a box, and the shift to the right from one box to the next, in pixels."""

_STYLE = """<style>
text { font: 13px monospace; text-anchor: middle; fill: #222; }
rect { fill: #eef1fb; stroke: #6474b8; }
path { fill: none; stroke: #6474b8; stroke-width: 1.5; marker-end: url(#head); }
@media (prefers-color-scheme: dark) { text { fill: #eee; } rect { fill: #2b3050; } }
</style>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0,0L8,4L0,8z" style="fill: #6474b8; stroke: none; marker-end: none"/></marker>"""

_HEAD = """# Architecture

`python docs/draw_architecture.py` writes this page: drawings from the imports, tables from the docstrings. A test
compares it with the code. A line that leaves A on its right and ends in an arrow on B says that A imports B.
import-linter holds the directions (`make lint`; the contracts stand in `pyproject.toml`).

## A round through the code

Read these names in this order to see how a round is played. An *actor* is an object with a mailbox that handles one
message after the other (`pausefl_server.actor`).

1. `pausefl.runtime.run.run_experiment` starts a run's processes. In the server's process,
   `pausefl_server.service.serve` restores the run from its log, and starts the actors `StoreActor`, `EvaluatorActor`
   and `Coordinator`. `pausefl_server.connections.stream_handler.ClientStreamHandler` gives each client that connects
   an actor of its own, a `ClientActor`.
2. `pausefl_server.rounds.coordinator.Coordinator._play` begins a round. It folds what has happened since the last
   round, such as clients that joined or left, into the run's state, `pausefl_server.state.RunState`.
3. `pausefl_server.rounds.preparation.Preparer` has the policy select clients, and cuts the model into frames.
4. `pausefl_server.connections.client_actor.ClientActor` sends the job to its client and times the exchange: from the
   first frame of the model handed over to the last frame of the update received.
5. On the client, `pausefl_client.session.ClientSession` has its `pausefl_client.link.Link` hold the model back for
   the emulated delay. Then its trainer trains, `pausefl_client.training.trainer.Trainer`.
6. `pausefl_client.privacy.release.Releaser` clips the update, adds noise, and charges the client's ledger by
   `pausefl_client.privacy.ledger.Ledger.record`, which is durable. Only then does the answer leave, after the delay
   of the way back. Until step 9 the ledger keeps its bytes: if the job comes again, the client sends the same ones.
7. `ClientActor` checks the answer and tells the coordinator. `pausefl_server.rounds.open_step.OpenStep` decides which
   clients miss the round. Once enough have answered, `pausefl_server.rounds.aggregation.aggregate` makes the next
   model from the updates.
8. `pausefl_server.rounds.coordinator.Coordinator._commit` has `pausefl_server.storage.store_actor.StoreActor` write
   model and round to the disk. Then the round counts.
9. The next round's job tells its clients that the last round is committed. The other clients of the last round get an
   `Ack`. Both let `ClientSession` forget the bytes that it kept.
"""


def drawn() -> dict[str, str]:
    """The page and its pictures for the current code, by file name."""
    graph = grimp.build_graph(*PACKAGES)
    inside = {package: set(_packages_of(graph, package)) for package in PACKAGES}
    pictures = {
        "architecture.svg": _picture(_arrows(graph, set(PACKAGES))),
        **{_file_of(package): _picture(_arrows(graph, found)) for package, found in inside.items() if found},
    }
    page = (
        _HEAD,
        "## Packages\n\n![Imports between the packages](architecture.svg)\n",
        *_purposes(PACKAGES),
        *(line for package in PACKAGES for line in _contents(graph, package)),
        "",
    )
    return {"architecture.md": "\n".join(page), **pictures}


def _contents(graph: grimp.ImportGraph, package: str) -> Iterator[str]:
    """Yields the picture and the table of a package's subpackages, then the table of its other modules."""
    packages = _packages_of(graph, package)
    if packages:
        yield f"\n## Packages of `{package}`\n"
        yield f"![Imports between the packages of {package}]({_file_of(package)})\n"
        yield from _purposes(packages)
    yield f"\n## Modules of `{package}`\n"
    yield from _purposes(sorted(_inside(graph, package) - set(packages)), "module")


def _packages_of(graph: grimp.ImportGraph, package: str) -> list[str]:
    return sorted(filter(_is_package, _inside(graph, package)))


def _inside(graph: grimp.ImportGraph, package: str) -> set[str]:
    return {module for module in graph.modules if module.rpartition(".")[0] == package and module not in _LEFT_OUT}


def _arrows(graph: grimp.ImportGraph, packages: set[str]) -> set[tuple[str, str]]:
    """The imports between these packages, as pairs (importer, imported)."""
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = _package_of(module, packages), _package_of(imported, packages)
            if ends[0] and ends[1] and ends[0] != ends[1]:
                found.add((ends[0], ends[1]))
    return found


def _package_of(module: str, packages: set[str]) -> str:
    return next((package for package in packages if module == package or module.startswith(f"{package}.")), "")


def _picture(arrows: set[tuple[str, str]]) -> str:
    """An SVG of boxes on a diagonal, each below all its importers. Lines go right from a box and down into another."""
    sorter = TopologicalSorter[str]()
    for importer, imported in sorted(arrows):
        sorter.add(importer, imported)
    order = list(sorter.static_order())[::-1]
    place = {name: (2 + _STEP * k, 2 + 46 * k) for k, name in enumerate(order)}
    lines = [
        f'<path d="M{place[a][0] + _WIDTH},{place[a][1] + 15}H{place[b][0] + _WIDTH - 12}V{place[b][1] - 2}"/>'
        for a, b in sorted(arrows)
    ]
    boxes = [
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="30" rx="4"/>'
        f'<text x="{x + _WIDTH / 2:g}" y="{y + 20}">{_short(name)}</text>'
        for name, (x, y) in place.items()
    ]
    width, height = place[order[-1]][0] + _WIDTH + 2, place[order[-1]][1] + 32
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join((f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', _STYLE, *lines, *boxes, "</svg>\n"))


def _purposes(names: Iterable[str], kind: str = "package") -> Iterator[str]:
    """Yields a table with a row for each package or module, with the first paragraph of its docstring."""
    yield f"| {kind} | what is in it |\n|---|---|"
    yield from (f"| `{name}` | {_first_paragraph(name)} |" for name in names)


def _short(package: str) -> str:
    return package.rpartition(".")[2]


def _file_of(package: str) -> str:
    return f"architecture-{package}.svg"


def _is_package(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and bool(spec.submodule_search_locations)


def _first_paragraph(name: str) -> str:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None, f"{name} has no __init__.py"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8")))
    assert docstring is not None, f"{name} has no docstring"
    return " ".join(docstring.partition("\n\n")[0].split("\n"))


if __name__ == "__main__":
    for name, text in drawn().items():
        (FOLDER / name).write_text(text, "utf-8")
