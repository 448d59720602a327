"""Experiments as TOML documents: where they are read from, what `--set` changes, and what is filled in before types."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from pausefl_proto.errors import ConfigError

Overrides = Mapping[str, Any] | Sequence[str]
"""What changes an experiment: values by dotted key, or texts `key=value` as `--set` takes them."""


def preset_names() -> list[str]:
    """The presets that can be run by name."""
    folder = resources.files("pausefl").joinpath("presets")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def is_file(source: str) -> bool:
    """Whether it is the path of a file, not the name of a preset."""
    return Path(source).suffix == ".toml" or Path(source).is_file()


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Begin each ConfigError of the block with the file it is about, if there is one."""
    try:
        yield
    except ConfigError as error:
        raise (ConfigError(f"{file}: {error}") if file else error) from error.__cause__


def read_source(source: str) -> str:
    """The text of a TOML file, or of a preset by name."""
    path = Path(source)
    if is_file(source):
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read ({error})") from error
    names = preset_names()
    if source not in names:
        close = difflib.get_close_matches(source, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"presets: {', '.join(names)}"
        raise ConfigError(f'"{source}" is neither a .toml file nor a preset; {hint}')
    return resources.files("pausefl").joinpath("presets", f"{source}.toml").read_text("utf-8")


def own_document(file: str | None, overrides: Overrides) -> dict[str, Any]:
    """The tables that a client decides itself: of a TOML file, if there is one, and of overrides; ConfigError."""
    document = document_of(read_source(file) if file else "", overrides, file or "")
    for table, values in document.items():
        if not isinstance(values, dict):
            raise ConfigError(f"{table} = {values!r}: should be a table")
    return document


def document_of(text: str, overrides: Overrides, file: str = "") -> dict[str, Any]:
    """The tables of an experiment given as TOML text, with overrides; ConfigError where it is no TOML."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file or 'the experiment'}: not valid TOML: {error}") from error
    _anchor_files(document, Path(file).parent)
    for key, value in _values(overrides).items():
        _override(document, key, value)
    _count_groups(document)
    _anchor_files(document, Path())
    return document


def _values(overrides: Overrides) -> Mapping[str, Any]:
    if isinstance(overrides, Mapping):
        return overrides
    values = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not (separator and _is_dotted(key.strip())):
            raise ConfigError(f"--set {override}: must be table.key=value")
        values[key.strip()] = _toml_value(text.strip())
    return values


def _override(document: dict[str, Any], key: str, value: Any) -> None:
    if not _is_dotted(key):
        raise ConfigError(f'"{key}": must be table.key')
    *tables, name = key.split(".")
    for table in tables:
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            raise ConfigError(f"--set {key}: {table} is not a table")
    document[name] = value


def _is_dotted(key: str) -> bool:
    """Whether a key names a table and a key of it."""
    return "." in key and all(key.split("."))


def _count_groups(document: dict[str, Any]) -> None:
    """Groups say how many clients there are; whatever is malformed is left to be validated."""
    clients = document.get("clients")
    groups = clients.get("groups") if isinstance(clients, dict) else None
    if isinstance(groups, dict) and groups:
        counts = [group.get("count") if isinstance(group, dict) else None for group in groups.values()]
        if all(isinstance(count, int) for count in counts):
            document["clients"] = {"count": sum(counts), **document["clients"]}


def _anchor_files(value: object, folder: Path) -> None:
    """Make the paths of measured data, which begin in `folder`, absolute: a run may go on in another folder."""
    if isinstance(value, list):
        for part in value:
            _anchor_files(part, folder)
    if isinstance(value, dict):
        for kind, name in (("empirical", "file"), ("trace", "path")):
            if value.get("kind") == kind and isinstance(value.get(name), str):
                value[name] = str((folder / value[name]).absolute())
        for part in value.values():
            _anchor_files(part, folder)


def _toml_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none (so that --set selection.policy=random works)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
