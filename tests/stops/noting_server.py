"""`pausefl` with a server that records the begin and end of each exchange it measures, on its own clock.

python noting_server.py FILE server CONFIG ...
"""

import json
import sys
from pathlib import Path
from typing import Any

from pausefl.cli import main
from pausefl_server.rounds import observations, open_step
from pausefl_server.rounds.messages import Update


def note_exchanges(file: Path) -> None:
    """Write a line to `file` for each observation, once it is made."""
    observe = observations.observe

    def noting(update: Update, *arguments: Any, **options: Any) -> Any:
        seen, timing = observe(update, *arguments, **options), update.timing
        shares = {"download": timing.download_s + timing.injected_down_s, "training": timing.device_s}
        times = {"from_s": update.arrived_s - timing.round_trip_s, "to_s": update.arrived_s}
        with file.open("a") as lines:
            lines.write(json.dumps({"round": update.round, "client": update.client_id, **times, **shares}) + "\n")
        return seen

    vars(open_step)["observe"] = noting


if __name__ == "__main__":
    note_exchanges(Path(sys.argv.pop(1)))
    main()
