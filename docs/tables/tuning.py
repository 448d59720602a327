"""Makes the tables of docs/tuning.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Case = Mapping[str, Any]


def tuning_tables(searches: Sequence[Case]) -> str:
    """The tables of each search: its best settings on fresh seeds, and their figures on the real clock."""
    return "\n\n".join(_tuning_table(search) for search in searches)


def tuning_search(run_dir: Path) -> dict[str, Any]:
    """The tables' data of one search: its summary, its sizes, and the recommended and the published setting."""
    summary = json.loads((run_dir / "tuning.json").read_text("utf-8"))
    front = [{**point, "point": _short_keys(point["point"])} for point in summary["front"]]
    shown = [point for point in front if point["name"] in {"recommended", "published"}]
    size = {"trials": len(summary["trials"]), "front_size": len(front) - 1}
    return {**summary, **size, "front": shown, "name": run_dir.name}


def _tuning_table(search: Case) -> str:
    keys, objectives = [key.rpartition(".")[2] for key in search["keys"]], search["objectives"]
    columns = ["setting", *keys, *(objective["label"] for objective in objectives)]
    fresh, trials = (search[f"{kind}_seeds"] for kind in ("fresh", "trial"))
    found = f"{search['trials']} settings, seeds {trials[0]} to {trials[-1]}: {search['front_size']} on the front"
    how = "simulated" if search["by"] == "simulate" else f"{search['clock']} clock"
    lines = [
        f"### `{search['name']}`",
        "",
        f"`{search['command']}`",
        "",
        f"{found}. Fresh seeds {fresh[0]} to {fresh[-1]}, {how}:",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
        *(_tuning_row(point, keys, objectives) for point in search["front"]),
    ]
    if search["confirmed"]:
        real, objectives = search["real_seeds"], search["confirmed_objectives"]
        heads = ["setting", *(objective["label"] for objective in objectives)]
        lines += ["", f"On the real clock, fresh seeds {real[0]} to {real[-1]}:", ""]
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        lines += [_tuning_row(point, [], objectives) for point in search["confirmed"]]
    return "\n".join([*lines, "", f"![The front of {search['name']}](tuning-{search['name']}.png)"])


def _tuning_row(point: Case, keys: Sequence[str], objectives: Sequence[Case]) -> str:
    values = (f"{point['point'][key]:.3g}" if key in point["point"] else "" for key in keys)
    return f"| {point['name']} | " + " | ".join([*values, *(_tuned(point, each["name"]) for each in objectives)]) + " |"


def _tuned(point: Case, name: str) -> str:
    change, figure = point["changes"].get(name), f"{point['figures'][name]:.3g}"
    if change is None:
        return figure if point["name"] == "published" else f"0 → {figure}"
    interval = "" if change["low"] is None else f" [{100 * change['low']:+.0f}, {100 * change['high']:+.0f}]"
    return f"{figure} ({100 * change['mean']:+.0f} %{interval})"


def _short_keys(point: Case) -> dict[str, Any]:
    return {key.rpartition(".")[2]: value for key, value in point.items()}
