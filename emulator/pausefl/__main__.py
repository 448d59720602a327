"""`python -m pausefl` is the `pausefl` command."""

import sys

from pausefl.runtime.processes.log_file import open_standard_files
from pausefl_process.ending import INTERRUPTED


def main() -> None:
    """Run the `pausefl` command. Ctrl-C prints one line, also while modules are still being imported."""
    open_standard_files()
    try:
        from pausefl import cli

        cli.main()
    except KeyboardInterrupt:
        print("pausefl: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
