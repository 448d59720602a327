"""Reads experiments as TOML documents, applies overrides, and fills in counts and paths, before types are checked."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from pausefl.experiment.objects import as_toml, cells_of, folders_of
from pausefl.experiment.published import published_figures
from pausefl.experiment.validation import as_json
from pausefl_process.files import reason
from pausefl_proto.errors import ConfigError

Overrides = Mapping[str, Any] | Sequence[str]
"""Changes to an experiment: values by dotted key, or texts `key=value` as for `--set`."""

_PART = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'|[^.]+""")
"""A part of a dotted key: quoted, or anything up to the next dot."""


def preset_names() -> list[str]:
    """The presets that can be run by name."""
    folder = resources.files(__package__).joinpath("presets")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def is_file(source: str) -> bool:
    """Whether `source` is the path of a file, not the name of a preset."""
    return Path(source).suffix == ".toml" or Path(source).is_file()


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Put the name of the file, if there is one, before the message of each ConfigError of the block."""
    try:
        yield
    except ConfigError as error:
        raise (ConfigError(f"{file}: {error}") if file else error) from error.__cause__


def read_source(source: str) -> str:
    """The text of a TOML file, or of a preset or a published figure by name."""
    path = Path(source)
    if is_file(source):
        try:
            return path.read_text("utf-8-sig")  # an editor may have put a byte order mark first
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read ({reason(error)})") from error
    names = preset_names()
    if source not in names:
        figures = published_figures()
        if source in figures:
            preset, changes = figures[source]
            document = tomllib.loads(read_source(preset))
            for key, value in changes.items():
                _override(document, key, value)
            return tomli_w.dumps(document)
        close = difflib.get_close_matches(source.lower(), [*names, *figures], 1)
        hint = f"did you mean {close[0]}?" if close else f"presets: {', '.join(names)}"
        raise ConfigError(f'"{source}" is neither a .toml file nor a preset; {hint}')
    return resources.files(__package__).joinpath("presets", f"{source}.toml").read_text("utf-8")


def own_document(file: str | None, overrides: Overrides) -> dict[str, Any]:
    """The tables that a client sets itself, from overrides and a TOML file, if there is one. Raises ConfigError."""
    document = document_of(read_source(file) if file else "", overrides, file or "")
    for table, values in document.items():
        if not isinstance(values, dict):
            raise ConfigError(f"{table} = {values!r}: must be a table")
    return document


def resolved_source(source: str) -> str:
    """The text of `read_source`, with the file's relative paths and its folder of modules made absolute."""
    file = source if is_file(source) else ""
    document = _parsed(read_source(source), file)
    _anchor_code(document, file, [])
    return tomli_w.dumps(document)


def document_of(text: str, overrides: Overrides, file: str = "") -> dict[str, Any]:
    """The tables of an experiment's TOML text, with overrides. Raises ConfigError if the text is no TOML."""
    document, values = _parsed(text, file), override_values(overrides)
    for key, value in values.items():
        _override(document, key, value)
    _policy_of(document)
    _count_groups(document)
    _anchor_paths(document, Path())
    _anchor_code(document, file, list(values.values()) if isinstance(overrides, Mapping) else [])
    return document


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        document = _tables(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file or 'the experiment'}: not valid TOML: {error}") from error
    _anchor_paths(document, Path(file).parent)
    return document


def _tables(text: str) -> dict[str, Any]:
    """The tables of a TOML text, with dates as texts. ValueError if it is no TOML, RecursionError if it is too deep."""
    tables: dict[str, Any] = json.loads(as_json(tomllib.loads(text)))
    return tables


def override_values(overrides: Overrides) -> Mapping[str, Any]:
    """The values of overrides by dotted key, as TOML data. Raises ConfigError for malformed overrides."""
    is_listed = isinstance(overrides, Mapping | Sequence) and not isinstance(overrides, str)
    if not (is_listed and all(isinstance(key, str) for key in overrides)):
        raise ConfigError(f"overrides = {overrides!r}: must be values by dotted key, or a list of texts key=value")
    if isinstance(overrides, Mapping):
        return {key: as_toml(value, key) for key, value in overrides.items()}
    values = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not (separator and parts_of_key(key.strip())):
            raise ConfigError(f"--set {override}: must be table.key=value")
        values[key.strip()] = value_of_text(text.strip())
    return values


def _override(document: dict[str, Any], key: str, value: Any) -> None:
    if not (parts := parts_of_key(key)):
        first = next(iter(value), None) if isinstance(value, dict) else None
        raise ConfigError(f'"{key}": must be table.key{f", such as {key}.{first}" if first else ""}')
    *tables, name = parts
    for table in tables:
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            raise ConfigError(f"--set {key}: {table} is not a table")
    document[name] = value


def _policy_of(document: dict[str, Any]) -> None:
    """Replace a policy that was given as an object by its name, and put its parameters in a table of that name."""
    selection = document.get("selection")
    if not isinstance(selection, dict):
        return
    policy = selection.get("policy")
    if isinstance(policy, dict) and isinstance(policy.get("kind"), str):
        name, parameters = policy["kind"], {key: value for key, value in policy.items() if key != "kind"}
        m = {"m": parameters.pop("m")} if "m" in parameters else {}
        document["selection"] = {**selection, **m, "policy": name, name: parameters}


def _count_groups(document: dict[str, Any]) -> None:
    """Fill in missing counts of clients from ids and groups. Malformed values are left for validation."""
    clients = document.get("clients")
    groups = clients.get("groups") if isinstance(clients, dict) else None
    for table in [clients, *(groups.values() if isinstance(groups, dict) else ())]:
        if isinstance(table, dict) and isinstance(table.get("ids"), list) and table["ids"]:
            table.setdefault("count", len(table["ids"]))
    if isinstance(groups, dict) and groups:
        counts = [group.get("count") if isinstance(group, dict) else None for group in groups.values()]
        if all(isinstance(count, int) for count in counts):
            document["clients"] = {"count": sum(counts), **document["clients"]}


def _anchor_paths(document: dict[str, Any], folder: Path) -> None:
    """Make paths that are relative to `folder` absolute, as a run may go on in another folder.

    A ledger that is not found would begin anew, with a new budget.
    """
    for table, name in measured_files(document):
        table[name] = str((folder / table[name]).absolute())
    privacy, workload = document.get("privacy"), document.get("workload")
    if isinstance(privacy, dict) and privacy.get("ledger_dir") and isinstance(privacy["ledger_dir"], str):
        privacy["ledger_dir"] = str((folder / privacy["ledger_dir"]).absolute())
    if isinstance(workload, dict) and str(workload.get("dataset")).startswith("hf:"):
        name, *options = workload["dataset"].removeprefix("hf:").split("?")
        if name and (path := folder / name).is_dir():
            workload["dataset"] = "?".join([f"hf:{path.absolute()}", *options])


def measured_files(value: object) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields each table that names a file of measured data, and the key that names it."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from measured_files(part)
    if isinstance(value, dict):
        for kind, name in (("empirical", "file"), ("trace", "path")):
            if value.get("kind") == kind and isinstance(value.get(name), str):
                yield value, name


def _anchor_code(document: dict[str, Any], file: str, values: list[Any]) -> None:
    """Make `experiment.python_path` absolute, and add the folders of modules that these values of overrides need.

    The default is the folder of the file. Code without a module goes to `experiment.by_value`. Raises ConfigError if a
    relative path is no folder. An absolute path may belong to another machine.
    """
    table = document.setdefault("experiment", {})
    if not isinstance(table, dict):
        return
    folder = Path(file).absolute().parent if file else Path.cwd()
    if isinstance(table.get("python_path"), list):
        paths = table["python_path"]
        for path in (folder / each for each in paths if isinstance(each, str) and not Path(each).is_absolute()):
            if not path.is_dir():
                raise ConfigError(f'experiment.python_path: "{path}" is no folder')
        table["python_path"] = [str(folder / each) if isinstance(each, str) else each for each in paths]
    elif "python_path" not in table:
        table["python_path"] = [str(folder)] if file else []
    if (folders := folders_of(values)) and isinstance(table["python_path"], list):
        table["python_path"] += [each for each in dict.fromkeys(folders) if each not in table["python_path"]]
    if cells := cells_of(values):
        table["by_value"] = {**table.get("by_value", {}), **cells}


def parts_of_key(key: str) -> list[str]:
    """The tables and the final key that a dotted key names; quotes are as in TOML. Empty if the key is malformed."""
    texts = _PART.findall(key)
    parts = [value_of_text(text) if text[0] in "\"'" else text for text in texts]
    return parts if len(parts) > 1 and all(parts) and ".".join(texts) == key else []


def value_of_text(text: str) -> Any:
    """The TOML value of a text, or the text itself if it is none (so that --set selection.policy=random works)."""
    try:
        return _tables(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def listed_values(text: str) -> list[Any]:
    """The values between commas. Commas within brackets, braces and quotes separate nothing."""
    values, rest = list[Any](), text.split(",")
    while rest:
        may_go_on = rest[0].strip().startswith(("[", "{", '"', "'"))
        texts = [",".join(rest[:n]).strip() for n in range(1, len(rest) + 1 if may_go_on else 2)]
        whole = next((each for each in texts if value_of_text(each) != each), texts[-1])  # no TOML is its own value
        if whole:
            values.append(value_of_text(whole))
        rest = rest[whole.count(",") + 1 :]
    return values


def bare_or_quoted(name: str) -> str:
    """The key as TOML writes it, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
