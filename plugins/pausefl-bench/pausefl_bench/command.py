"""The command `pausefl bench`."""

from argparse import Namespace

from pausefl_bench import run_benchmark


def bench(options: Namespace) -> None:
    """Measure this machine. ConfigError for a bad name or option."""
    sizes = {"clients": options.clients, "payload_bytes": options.payload_bytes}
    given = {name: size for name, size in sizes.items() if size is not None}
    run_benchmark(options.name, given, as_json=options.json)
