"""Draws the dashboards from a Prometheus server, without Grafana: `draw.py URL FOLDER RUNS [MINUTES]`.

RUNS is the value of the variable `run`, such as "a|b". Panels have their units, legends and thresholds. Of their
transformations, only those that change the picture are carried out.
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

HERE = Path(__file__).parent
UNITS = {"s": "s", "percentunit": "", "Bps": "B/s", "bytes": "B", "decbytes": "B", "none": "", "prefix:ε ": ""}
LEGEND_MAX = 8
"""The most names in a legend. Grafana has a scroll bar instead."""
COLOURS = {"green": "#2a9d5c", "orange": "#e8912d", "red": "#c0392b", "text": "#1c2228"}

Series = dict[str, Any]


def main(url: str, folder: str, runs: str, minutes: str = "10") -> None:
    """Draw each dashboard into FOLDER/NAME.png."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 7, "axes.grid": True, "grid.alpha": 0.3})
    for path in sorted((HERE / "dashboards").glob("*.json")):
        board = json.loads(path.read_text("utf-8"))
        draw(board, Asked(url, runs, 60 * float(minutes), board)).savefig(Path(folder) / f"{path.stem}.png", dpi=110)


class Asked:
    """Queries a Prometheus server as Grafana does, for the chosen runs and time range."""

    def __init__(self, url: str, runs: str, range_s: float, board: dict[str, Any]) -> None:
        self._url, self._range_s, self._now_s = url, range_s, time.time()
        self._step_s = max(1.0, range_s / 300)
        self._values = {
            "__range": f"{range_s:.0f}s",
            "__rate_interval": f"{max(4, 4 * self._step_s):.0f}s",
            "run": runs,
        }
        self._one = runs.partition("|")[0]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query" and variable["name"] != "run":
                series, _, label = variable["query"]["query"].removeprefix("label_values(")[:-1].rpartition(", ")
                span = {"start": str(self._now_s - range_s), "end": str(self._now_s)}
                found = self._get(f"label/{label}/values", **{"match[]": self._filled(series)}, **span)
                self._values[variable["name"]] = ".*" if variable.get("multi") else (found or [""])[0]

    def series(self, target: dict[str, Any]) -> list[Series]:
        """The series that a query finds, each with its name from the legend and arrays of times and values."""
        query = self._filled(target["expr"])
        if target.get("instant"):
            found = self._get("query", query=query, time=str(self._now_s))["result"]
        else:
            span = {"start": str(self._now_s - self._range_s), "end": str(self._now_s), "step": str(self._step_s)}
            found = self._get("query_range", query=query, **span)["result"]
        return [self._named(one, target) for one in found]

    def _named(self, one: dict[str, Any], target: dict[str, Any]) -> Series:
        labels = {k: v for k, v in one["metric"].items() if k != "__name__"}
        legend = target.get("legendFormat") or ", ".join(labels.values())
        name = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)
        points = np.array(one.get("values") or [one["value"]], dtype=float)
        return {
            "name": name,
            "labels": labels,
            "t": points[:, 0] - self._now_s,
            "y": points[:, 1],
            "ref": target["refId"],
        }

    def _filled(self, text: str) -> str:
        text = text.replace('run="$run"', f'run="{self._one}"')
        for name in sorted(self._values, key=len, reverse=True):
            text = text.replace(f"${name}", self._values[name])
        return text

    def _get(self, path: str, **parameters: str) -> Any:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["data"]


def draw(board: dict[str, Any], asked: Asked) -> Figure:
    """A figure with all panels at their places in the dashboard."""
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    figure = Figure(figsize=(20, 0.42 * height))
    for panel in board["panels"]:
        place = panel["gridPos"]
        left, top, bottom = place["x"] / 24, 1 - place["y"] / height, 1 - (place["y"] + place["h"]) / height
        if panel["type"] == "row":
            figure.text(0.005, bottom, panel["title"], fontsize=11, weight="bold", va="bottom")
            continue
        axes = figure.add_axes(
            (left + 0.03, bottom + 0.9 / height, place["w"] / 24 - 0.04, top - bottom - 1.8 / height)
        )
        axes.set_title(panel["title"], fontsize=8, loc="left", weight="bold")
        found = [series for target in panel["targets"] for series in asked.series(target)]
        if all(series["ref"] == "budget" for series in found) and (panel["type"] != "stat" or not found):
            axes.text(0.5, 0.5, panel["fieldConfig"]["defaults"]["noValue"], ha="center", color="grey")
            axes.set_axis_off()
        else:
            KINDS[panel["type"]](axes, panel, found)
    return figure


def lines(axes: Axes, panel: dict[str, Any], found: list[Series]) -> None:
    """Draw values over time, stacked if the panel stacks them. A limit gets dashed thresholds."""
    shown = [series for series in found if series["ref"] != "budget"]
    if panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal":
        ends = [(s["t"][0] - 1e-3, s["t"][-1] + 1e-3) for s in shown]
        times = np.unique(np.concatenate([*(s["t"] for s in shown), *ends]))
        stacked = [np.interp(times, s["t"], s["y"], left=0, right=0) for s in shown]
        axes.stackplot(times, stacked, labels=[s["name"] for s in shown], alpha=0.7)
    else:
        for series in shown:
            axes.plot(series["t"], series["y"], linewidth=1, label=series["name"])
    for series in found:
        if series["ref"] == "budget":
            for share, colour in ((0.7, "orange"), (0.9, "red")):
                axes.axhline(share * series["y"][-1], color=COLOURS[colour], linestyle="--", linewidth=0.8)
            axes.set_ylim(0, series["y"][-1])
    scale(axes.yaxis, unit_of(panel))
    axes.set_xlabel("seconds before now")
    handles = axes.get_legend_handles_labels()[0][:LEGEND_MAX]
    axes.legend(
        handles=handles,
        fontsize=5,
        ncols=4,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=5,
        frameon=False,
    )


def numbers(axes: Axes, panel: dict[str, Any], found: list[Series]) -> None:
    """Draw large values one below the other, coloured by the panel's thresholds and mappings."""
    axes.set_axis_off()
    for i, series in enumerate(found):
        value = series["y"][-1]
        text, colour = shown_as(value, unit_of(panel)), colour_of(panel, value)
        for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
            said = mapping["options"].get(f"{value:g}")
            text, colour = (said["text"], COLOURS[said["color"]]) if said else (text, colour)
        axes.text(0.02, 1 - (i + 0.8) / max(2, len(found)), f"{text}", color=colour, fontsize=13, weight="bold")
        axes.text(0.5, 1 - (i + 0.8) / max(2, len(found)), series["name"], fontsize=7)


def bars(axes: Axes, panel: dict[str, Any], found: list[Series]) -> None:
    """Draw a bar for each series, as long as its last value."""
    shown = [series for series in found if series["ref"] != "budget"]
    axes.barh([s["name"] for s in shown], [s["y"][-1] for s in shown], color=COLOURS["green"])
    axes.set_xlim(0, max(s["y"][-1] for s in found))
    axes.invert_yaxis()
    scale(axes.xaxis, unit_of(panel))


def curves(axes: Axes, panel: dict[str, Any], found: list[Series]) -> None:
    """Draw a line for each run: the values of query B over those of query A at the same times."""
    for x in (s for s in found if s["ref"] == "A"):
        for y in (s for s in found if s["ref"] == "B" and s["labels"].get("run") == x["labels"].get("run")):
            _, of_x, of_y = np.intersect1d(x["t"], y["t"], return_indices=True)
            axes.plot(x["y"][of_x], y["y"][of_y], ".-", markersize=3, linewidth=0.8, label=x["labels"].get("run"))
    axes.set_xlabel(panel["fieldConfig"]["defaults"]["custom"].get("axisLabel", ""))
    scale(axes.yaxis, unit_of(panel))
    axes.legend(fontsize=6)


def heat(axes: Axes, _: dict[str, Any], found: list[Series]) -> None:
    """Draw histogram buckets over time. A bucket is its series minus the series of the bound below."""
    by_bound = sorted((float(s["labels"]["le"]), s) for s in found if s["labels"]["le"] != "+Inf")
    times = np.unique(np.concatenate([s["t"] for s in found]))
    counts = np.array([np.interp(times, s["t"], s["y"], left=0, right=0) for _, s in by_bound])
    cells = np.diff(counts, axis=0, prepend=0)
    axes.pcolormesh(times, [bound for bound, _ in by_bound], np.ma.masked_less_equal(cells, 0), cmap="Oranges")
    axes.set_yscale("log")
    axes.set_ylabel("s")


def table(axes: Axes, panel: dict[str, Any], found: list[Series]) -> None:
    """Draw a table with a row for each value of the joining label, or for each series if only labels are shown."""
    axes.set_axis_off()
    keys = [t["options"]["byField"] for t in panel["transformations"] if t["id"] == "joinByField"]
    if keys:
        names = next(t["options"]["renameByName"] for t in panel["transformations"] if t["id"] == "organize")
        columns = [keys[0], *names.values()]
        units = {
            styled["matcher"]["options"]: made["value"]
            for styled in panel["fieldConfig"]["overrides"]
            for made in styled["properties"]
            if made["id"] == "unit"
        }
        of_key: dict[str, dict[str, str]] = {}
        for series in found:
            name = names[f"Value #{series['ref']}"]
            of_key.setdefault(series["labels"][keys[0]], {})[name] = shown_as(series["y"][-1], units[name])
        cells = [[key, *(row.get(column, "") for column in columns[1:])] for key, row in of_key.items()]
    else:
        columns = next(t["options"]["include"]["names"] for t in panel["transformations"] if "include" in t["options"])
        cells = [[series["labels"].get(column, "") for column in columns] for series in found]
    axes.table(cells[:12], colLabels=columns, loc="upper left", cellLoc="left", edges="horizontal")


def unit_of(panel: dict[str, Any]) -> str:
    """The unit of a panel's values."""
    unit: str = panel["fieldConfig"]["defaults"]["unit"]
    return unit


def shown_as(value: float, unit: str) -> str:
    """A value with its unit, as Grafana's tiles show it."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if UNITS[unit].startswith("B"):
        return EngFormatter(UNITS[unit], places=1)(value)
    return f"ε {value:.3g}" if unit.startswith("prefix") else f"{value:.4g} {UNITS[unit]}"


def scale(axis: Axis, unit: str) -> None:
    """Label an axis with the unit of its values."""
    if unit == "percentunit":
        axis.set_major_formatter(PercentFormatter(1.0))
    elif UNITS[unit].startswith("B"):
        axis.set_major_formatter(EngFormatter(UNITS[unit]))
    else:
        axis.set_label_text("ε" if unit.startswith("prefix") else UNITS[unit])


def colour_of(panel: dict[str, Any], value: float) -> str:
    """The colour of the last threshold that a value reaches."""
    colour = "text"
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", []):
        if step.get("value") is None or value >= step["value"]:
            colour = step["color"]
    return COLOURS[colour]


KINDS = {
    "timeseries": lines, "stat": numbers, "bargauge": bars, "xychart": curves, "heatmap": heat, "table": table,
}  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
