"""The subcommands of `pausefl` beside those that play runs: what works on logs, searches, data and certificates."""

import argparse
import shlex
import sys
from pathlib import Path

from pausefl.terminal_table import plain_console
from pausefl_proto.errors import ConfigError


def refuse_beside(options: argparse.Namespace, what: str, *allowed: str) -> None:
    """ConfigError for an option beside `what` that is not allowed there, as it would change nothing."""
    if other := next((option for option in options.typed if option not in (what, *allowed)), None):
        goes = ", ".join(allowed)
        raise ConfigError(f"{other}: cannot go with {what}, which takes what is there as it was begun; only {goes} can")


def replay(options: argparse.Namespace) -> None:
    """Fold a log through its own policy, or through another."""
    from pausefl.offline.replay_outputs import as_json, in_words, replayed, write_replay

    if options.draws < 1:
        raise ConfigError(f"--draws {options.draws}: must be at least 1")
    found = replayed(Path(options.run_dir), options.policy, options.overrides, options.draws)
    written = write_replay(found, Path(options.out)) if options.out else []
    if options.json:
        print(as_json(found))
    else:
        print("\n".join([*in_words(found.summary), *(f"written: {path}" for path in written)]))


def fit_latency(options: argparse.Namespace) -> None:
    """Print the experiment whose laws are fitted to a fleet's latencies."""
    from pausefl.offline.latency_fit import fit_latency

    fit = fit_latency(Path(options.source))
    if options.figure:
        from pausefl.offline.fit_plot import draw_fit
        from pausefl.report.style import save_png

        save_png(draw_fit(fit), Path(options.figure))
        print(f"figure: {options.figure}", file=sys.stderr)
    print(fit.to_toml(), end="")


def tune(options: argparse.Namespace) -> None:
    """Search for settings, or go on with a search."""
    from pausefl.campaigns.tuning import resume_tuning, tune_experiment
    from pausefl.campaigns.tuning.outputs import confirmation_table, front_table
    from pausefl.campaigns.tuning.plan import TuningPlan
    from pausefl.config.experiment import load_experiment
    from pausefl.runtime.run_dir import new_run_dir

    console = plain_console()
    if (options.config is None) == (options.resume is None):
        raise ConfigError("pausefl tune: needs either CONFIG or --resume DIR")
    if options.resume:
        refuse_beside(options, "--resume", "--real-seeds")
        tuning = resume_tuning(Path(options.resume), console, options.real_seeds)
    else:
        plan = TuningPlan(
            source=load_experiment(options.config, options.overrides).to_toml(),
            search=options.search,
            by=options.by,
            trials=options.trials,
            seeds=options.seeds,
            fresh_seeds=options.fresh_seeds,
            target_accuracy=options.target_accuracy,
            real_seeds=options.real_seeds,
            command=shlex.join(["pausefl", *sys.argv[1:]]),
        )
        folder = new_run_dir(f"tune-{Path(options.config).stem}", options.run_dir)
        tuning = tune_experiment(plan, folder, console)
    console.print(front_table(tuning))
    if tuning.confirmed:
        console.print(confirmation_table(tuning))
    console.print(f"front: {tuning.folder / 'front.csv'}\nfigure: {tuning.folder / 'front.png'}", soft_wrap=True)


def report(options: argparse.Namespace) -> None:
    """Draw the reports of run directories again."""
    from pausefl.campaigns.redrawing import report_folder

    for folder in options.run_dirs:
        for path in report_folder(Path(folder), csv=options.csv):
            print(path)


def audit(options: argparse.Namespace) -> None:
    """Test the mechanism of a client by sending many uploads in two worlds."""
    from pausefl.audit import run_audit

    if options.uploads < 100:
        raise ConfigError(f"--uploads {options.uploads}: must be at least 100")
    if Path(options.config).is_dir():
        refuse_beside(options, "RUN_DIR", "--uploads")
    console = plain_console()
    with console.status(f"sending {options.uploads:,} uploads in each of two worlds, attack by attack"):
        for part in run_audit(options.config, options.overrides, options.uploads):
            console.print(part)


def data(options: argparse.Namespace) -> None:
    """Fetch data sets."""
    from pausefl_client.data.datasets import load_dataset, split_note

    data = load_dataset(options.name, seed=0)
    sizes = f"{len(data.train)} training, {len(data.validation)} validation, {len(data.test)} test examples"
    print(f"{data.name}: {sizes}, {data.classes} classes, inputs {'x'.join(map(str, data.input_shape))}")
    if note := split_note(data.name, len(data.test)):
        print(f"from {note}")


def certs(options: argparse.Namespace) -> None:
    """Make an authority, certificates and tokens."""
    from pausefl.certificates import make_certificates
    from pausefl.config.tables import ClientGroup

    if options.clients.isdecimal():
        count = int(options.clients)
        client_ids = ClientGroup(count=count).client_ids("client") if count else []
    else:
        client_ids = [client_id.strip() for client_id in options.clients.split(",") if client_id.strip()]
    for client_id in client_ids:
        if not client_id.isascii() or not client_id.isprintable() or "/" in client_id or client_id[0] == "-":
            raise ConfigError(f"--clients {client_id}: is no name for a file; letters, digits, - and _ make one")
    for line in make_certificates(Path(options.folder), options.hosts, client_ids):
        print(line)
