"""Writes the dashboards as JSON for Grafana: `python deploy/grafana/build.py [FOLDER]` (default: dashboards/)."""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Panel, RowPanel

from latency import latency
from overview import overview
from privacy import privacy

GRAFANA = "11.6.0"
"""The Grafana version for which the SDK writes dashboards."""

EVENTS = (
    ("begun or resumed", "green", 'process_start_time_seconds{run=~"$run",job="pausefl-server"} * 1000', True),
    ("over", "blue", 'pausefl_finished{run=~"$run"} == 1', False),
    ("evaluator lost", "red", 'pausefl_evaluator_connected{run=~"$run"} == 0', False),
    ("suspect rounds", "orange", 'max by (run) (increase(pausefl_suspect_rounds_total{run=~"$run"}[15s])) > 0', False),
)
"""The events marked in every panel: title, colour, query, and whether the query's value is the event's time in ms."""


def annotation(name: str, colour: str, expr: str, is_time: bool) -> dict[str, object]:
    """An event as an annotation in a dashboard's JSON. The SDK cannot write annotations with queries."""
    source = {"type": "prometheus", "uid": "${source}"}
    shown = {"name": name, "iconColor": colour, "enable": True, "expr": expr, "titleFormat": f"{{{{run}}}}: {name}"}
    return {**shown, "datasource": source, "step": "5s", "useValueForTime": "on" if is_time else False}


def main() -> None:
    """Write all dashboards."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards"
    for make in (overview, latency, privacy):
        dashboard = make().build()
        for place, panel in enumerate(dashboard.panels or [], start=1):
            assert isinstance(panel, Panel | RowPanel)
            panel.id_val = place
            if isinstance(panel, Panel):  # without a version, Grafana migrates it as an old panel
                panel.plugin_version = GRAFANA
        document = json.loads(json.dumps(dashboard, cls=JSONEncoder))
        document["annotations"] = {"list": [annotation(*about) for about in EVENTS]}
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (folder / f"{make.__name__}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
