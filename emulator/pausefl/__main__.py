"""`python -m pausefl` is the `pausefl` command."""

import gc
import sys

from pausefl.runtime.processes.log_file import open_standard_files


def main() -> None:
    """Run the `pausefl` command. Ctrl-C prints one line, also while modules are still being imported."""
    open_standard_files()
    try:
        from pausefl import cli

        cli.main()
    except KeyboardInterrupt:
        print("pausefl: interrupted", file=sys.stderr)
        from pausefl_process.ending import INTERRUPTED  # only now: it imports asyncio

        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()  # the interpreter's end need not look for garbage among all imported modules


if __name__ == "__main__":
    main()
