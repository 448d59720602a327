"""One name, one thing: no two modules define a public class or a type alias of the same name."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("proto", "process", "server", "client", "emulator")


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "v1" not in path.parts:  # generated from the .proto files, whose names are the wire's
                yield path


def defined(tree: ast.Module) -> Iterator[str]:
    """Classes, private ones too, and type aliases: capitalised names of types. Type variables are no types."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call()):
                continue
            case ast.Assign(targets=[ast.Name(id=name)]) if name.lstrip("_")[:1].isupper() and not name.isupper():
                yield name


def named_twice(sources: dict[str, str]) -> dict[str, list[str]]:
    """Name -> the modules that define it, where these are several; a leading underscore makes no other name."""
    places: dict[str, list[str]] = {}
    for module, source in sources.items():
        for name in defined(ast.parse(source)):
            places.setdefault(name.lstrip("_"), []).append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_a_name_stands_for_one_thing() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in modules()}
    assert len(sources) > 100
    assert named_twice(sources) == {}


def test_a_second_definition_is_found() -> None:
    sources = {"a": "class Stream: ...\nSplit = Literal['x']\nT = TypeVar('T')\nLIMIT = 3", "b": "class _Stream: ..."}
    assert named_twice(sources | {"c": "Split = str\nT = TypeVar('T')\nLIMIT = 4"}) == {
        "Stream": ["a", "b"],
        "Split": ["a", "c"],
    }
