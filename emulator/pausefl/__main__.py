"""`python -m pausefl` is the `pausefl` command."""

import gc
import os
import signal
import sys

from pausefl.runtime.processes.log_file import open_standard_files


def main() -> None:
    """Run the `pausefl` command. A request to end prints one line, also while modules are still being imported."""
    # A process that makes data begins again with one order of sets, by which its code may number classes.
    if sys.argv[1:2] in (["evaluator"], ["client"]) and "PYTHONHASHSEED" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    open_standard_files()
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
                signal.signal(number, signal.default_int_handler)
        from pausefl import cli

        cli.main()
    except KeyboardInterrupt:
        print("pausefl: interrupted", file=sys.stderr)
        from pausefl_process.ending import INTERRUPTED  # only now: it imports asyncio

        sys.exit(INTERRUPTED)
    finally:
        exec("")  # once a KeyboardInterrupt has left an `exec`, CPython would end by SIGINT, without the status
        gc.freeze()  # the interpreter's end need not look for garbage among all imported modules


if __name__ == "__main__":
    main()
