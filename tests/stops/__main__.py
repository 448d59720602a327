"""Plays stops and sleeps of servers and clients in real federations; writes docs/results/stops.jsonl.

python tests/stops [--stops 100] [--longest 90] [--federations 6] [--seed 1]     some minutes
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stops.play import play, stops

_RESULTS = Path(__file__).parents[2] / "docs/results/stops.jsonl"


async def _main() -> int:
    options = _options()
    planned = stops(options.stops, options.seed, 0.3, options.longest, options.kinds.split(","))
    n = options.federations
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(options.keep or folder) / str(number) for number in range(n)]
        for each in folders:
            each.mkdir(parents=True)
        plays = await asyncio.gather(
            *(play(planned[i::n], options.seed + i, each, is_patient=i % 2 == 0) for i, each in enumerate(folders))
        )
    found = [line for lines in plays for line in lines]
    text = "".join(f"{json.dumps(line)}\n" for line in found)
    with (Path(options.out) if options.out else _RESULTS).open("a" if options.more else "w") as file:
        file.write(text)
    print(text)
    return int(any(line.get("missed") or line.get("wrongly marked") for line in found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("stops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100, metavar="N")
    parser.add_argument("--longest", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--federations", type=int, default=6, metavar="N", help="how many are played at once")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--kinds", default="stop,sleep", help="stop, sleep, pause (which needs a cgroup v1 freezer)")
    parser.add_argument("--more", action="store_true", help="add to the results")
    parser.add_argument("--keep", default="", metavar="DIR", help="leave the runs there")
    parser.add_argument("--out", default="", metavar="FILE", help="write there instead")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
