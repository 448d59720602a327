"""The subcommands for reports, benchmarks, data sets, certificates and checks."""

import argparse
import sys
from pathlib import Path

from pausefl.cli.option_values import experiment_of, listed_names
from pausefl_proto.errors import ConfigError


def report(options: argparse.Namespace) -> None:
    """Draw the reports of run directories again."""
    from pausefl.studies.redrawing import report_folder

    for folder in options.run_dirs:
        for path in report_folder(Path(folder), csv=options.csv, formats=listed_names(options.formats)):
            print(path)


def bench(options: argparse.Namespace) -> None:
    """Measure this machine."""
    from pausefl.bench import run_benchmark

    sizes = {"clients": options.clients, "payload_bytes": options.payload_bytes}
    given = {name: size for name, size in sizes.items() if size is not None}
    run_benchmark(options.name, given, as_json=options.json)


def data(options: argparse.Namespace) -> None:
    """Check that a data set is there, or download it."""
    from pausefl_client.data.datasets import load_dataset, split_note

    data = load_dataset(options.name, seed=0)
    sizes = f"{len(data.train)} training, {len(data.validation)} validation, {len(data.test)} test examples"
    print(f"{data.name}: {sizes}, {data.classes} classes, inputs {'x'.join(map(str, data.input_shape))}")
    if note := split_note(data.name, len(data.test)):
        print(f"from {note}")


def certs(options: argparse.Namespace) -> None:
    """Make a certificate authority, certificates and tokens."""
    from pausefl.certificates import make_certificates
    from pausefl.experiment.experiment import parse_experiment

    if options.clients.isdecimal():
        count = options.clients.lstrip("0")
        client_ids = parse_experiment("", [f"clients.count={count}", "selection.m=1"]).client_ids if count else []
    else:
        client_ids = listed_names(options.clients)
    for client_id in client_ids:
        if not client_id.isascii() or not client_id.isprintable() or "/" in client_id or client_id[0] == "-":
            raise ConfigError(f"--clients {client_id}: is no name for a file; letters, digits, - and _ make one")
    for line in make_certificates(Path(options.folder), options.hosts, client_ids):
        print(line)


def validate(options: argparse.Namespace) -> None:
    """Print an experiment with all its settings, and try out its own code."""
    if options.list:
        from pausefl.cli.registries import listed

        print("\n".join(listed()))
        return
    if options.config is None:
        raise ConfigError("needs CONFIG or --list")
    from pausefl.experiment.in_force import in_force, listing
    from pausefl.runtime.evaluator.preflight import check_own_code, try_out
    from pausefl.runtime.run_dir import check_goes_on
    from pausefl.studies.ahead import ahead

    experiment = experiment_of(options)
    if options.run_dir is not None:
        check_goes_on(in_force(experiment), Path(options.run_dir))
    check_own_code(experiment)
    found = try_out(experiment, lambda text: print(f"pausefl: {text}", file=sys.stderr))
    print(listing(experiment), end="")  # only now: a refusal comes alone
    for line in (*found, *ahead(experiment, options.config)):
        print(f"# {line}")


def completion(options: argparse.Namespace) -> None:
    """Print a shell's completion script."""
    import shtab

    from pausefl.cli import whole_parser

    print(shtab.complete(whole_parser(), options.shell))
