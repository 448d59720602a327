"""`make chaos`: play whole runs under faults until enough have struck; writes docs/results/chaos.jsonl.

python tests/chaos [--faults 10000] [--seed 1]        all scenarios in turn; each play is written down at once
python tests/chaos --go-on                            after an interruption: what was played is not played again
python tests/chaos --scenario federation --seed 17    one play alone, as it was; writes nothing
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.scenarios import SCENARIOS, in_turn
from chaos.schedule import Played

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "docs/results/chaos.jsonl"
_PLAY_WITHIN_S = 600.0
_LAST = 10


def main() -> int:
    """Play until enough faults have struck; returns 0 if every invariant held."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that no process is left behind
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it by default
    if options.scenario:
        return int("violated" in _play(options.scenario, options.seed))
    text = _RESULTS.read_text("utf-8") if options.go_on and _RESULTS.exists() else ""
    plays: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    for scenario, seed in in_turn(options.seed):
        faults = sum(sum(play["faults"].values()) for play in plays)
        print(f"{faults} of {options.faults} faults", flush=True)
        if faults >= options.faults and {play["scenario"] for play in plays} == set(SCENARIOS):
            break
        if any((play["scenario"], play["seed"]) == (scenario, seed) for play in plays):
            continue
        plays.append(_play(scenario, seed))
        _RESULTS.write_text("".join(f"{json.dumps(play)}\n" for play in plays), "utf-8")
        if "violated" in plays[-1]:
            return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first play")
    parser.add_argument("--scenario", choices=SCENARIOS, help="play this one alone")
    parser.add_argument("--go-on", action="store_true", help="keep what docs/results/chaos.jsonl holds")
    return parser.parse_args()


def _play(scenario: str, seed: int) -> dict[str, Any]:
    """Play once; returns a line of the results. `violated` names a broken invariant, printed with the schedule."""
    (_ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{scenario}-{seed}-", dir=_ROOT / "build"))
    play, began_s = SCENARIOS[scenario](seed, folder), time.monotonic()
    print(f"{scenario} {seed}: ", end="", flush=True)
    violated, played = "", play.played
    try:
        asyncio.run(asyncio.wait_for(play.play(), _PLAY_WITHIN_S))
    except Exception as failed:
        violated = repr(failed)
        _tell(failed, played, folder, f"python tests/chaos --scenario {scenario} --seed {seed}")
    else:
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - began_s, 1)
    held = "" if violated else ": all held"
    print(f"{sum(played.faults.values())} faults, {played.rounds} rounds, {seconds} s{held}", flush=True)
    counts = {"faults": dict(sorted(played.faults.items())), "held": dict(sorted(played.checks.items()))}
    play_of = {"scenario": scenario, "seed": seed, "rounds": played.rounds, "seconds": seconds, **counts}
    said = {"skipped": played.skipped, "reasons": played.reasons, "violated": violated}
    return play_of | {name: value for name, value in said.items() if value}


def _tell(failed: Exception, played: Played, folder: Path, again: str) -> None:
    print("DOES NOT HOLD")
    schedule = [str(fault) for fault in played.struck]
    (folder / "schedule").write_text("\n".join(schedule), "utf-8")
    print(*schedule[-_LAST:], sep="\n")
    traceback.print_exception(failed, limit=-2)
    print(f"files, with the whole schedule: {folder}\nagain: {again}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
