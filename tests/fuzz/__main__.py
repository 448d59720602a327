"""`make fuzz`: malformed messages against a server and against clients; writes docs/results/fuzz.json.

python tests/fuzz [--messages N] [--client-messages N] [--seed N] [--out FILE]
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fuzz.summary import Fuzz, failures  # noqa: E402 - after the path is set


def main() -> int:
    """Play the fuzz; returns 0 if every bound held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="to the server")
    parser.add_argument("--client-messages", type=int, default=100_000, help="to the clients")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs/results/fuzz.json")
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each connection that the server closes
    os.environ["GRPC_VERBOSITY"] = "NONE"
    os.nice(19)  # the fuzz must not take processor time from the server
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", flush=True)

    fuzz = Fuzz(options.messages, options.client_messages, options.seed, say)
    try:
        with tempfile.TemporaryDirectory(prefix="pausefl-fuzz-") as folder:
            asyncio.run(fuzz.run(Path(folder)))
    except KeyboardInterrupt:
        say("interrupted; what was found so far is kept")
    finally:
        options.out.write_text(json.dumps(fuzz.summary()) + "\n", "utf-8")
    for complaint in fuzz.complaints():
        say(complaint)
    for failure in (broken := failures(fuzz.summary())):
        say(f"does not hold: {failure}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
