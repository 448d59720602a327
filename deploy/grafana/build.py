"""Writes the dashboards as Grafana reads them: `python deploy/grafana/build.py [FOLDER]`, dashboards/ unless said."""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Panel

from latency import latency
from overview import overview
from privacy import privacy

GRAFANA = "11.6.0"
"""The version whose dashboards the SDK writes."""


def main() -> None:
    """Write them all."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards"
    for make in (overview, latency, privacy):
        dashboard = make().build()
        for place, panel in enumerate(dashboard.panels or [], start=1):
            assert isinstance(panel, Panel)
            # Without a version Grafana takes a panel for an old one, and migrates it.
            panel.id_val, panel.plugin_version = place, GRAFANA
        text = json.dumps(dashboard, cls=JSONEncoder, indent=1, ensure_ascii=False)
        (folder / f"{make.__name__}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
