"""The `pausefl` command. Each subcommand imports what it needs when it runs: a client needs no Prometheus, a server
without evaluation no torch."""

import argparse
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pausefl.arguments import make_parser
from pausefl.config.experiment import Experiment, load_experiment
from pausefl.config.toml_source import is_file, naming
from pausefl.exit_status import RunInterrupted, check_outcome, exit_with_status, resume_command
from pausefl_process.events import MetricsServed, print_event
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pausefl.campaigns.campaign import Show


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; the exit status is as `exit_status` and docs/events.md say."""
    options = parser().parse_args(arguments)
    exit_with_status(options.command, options)


def parser() -> argparse.ArgumentParser:
    """Return the parser of every subcommand; `command` in what it parses is the function that runs it."""
    return make_parser(
        {
            "run": _run,
            "compare": _compare,
            "sweep": _sweep,
            "simulate": _simulate,
            "server": _server,
            "client": _client,
            "evaluator": _evaluator,
            "report": _report,
            "audit": _audit,
            "bench": _bench,
            "data": _data,
            "certs": _certs,
            "validate": _validate,
        }
    )


def _back_to(options: argparse.Namespace) -> int | None:
    if options.back_to is not None and not options.resume:
        raise ConfigError(f"--back-to {options.back_to}: goes with --resume")
    back_to: int | None = options.back_to
    return back_to


def _load(options: argparse.Namespace) -> Experiment:
    from pausefl.config.server_records import check_policies

    experiment = load_experiment(options.config, options.overrides)
    with naming(options.config if is_file(options.config) else ""):
        check_policies(experiment)
    return experiment


def _name(options: argparse.Namespace) -> str:
    return Path(options.config).stem


def _run(options: argparse.Namespace) -> None:
    from pausefl.runtime.run import run_experiment
    from pausefl.runtime.run_dir import new_run_dir, stored_experiment
    from pausefl.runtime.terminal import make_view

    if (options.config is None) == (options.resume is None):
        raise ConfigError("pausefl run: needs either CONFIG or --resume RUN_DIR")
    if options.resume:
        run_dir = Path(options.resume)
        if options.overrides:
            raise ConfigError("--set: a resumed run goes on as it was begun")
        experiment = stored_experiment(run_dir)
        if not (run_dir / "run.db").exists():
            raise ConfigError(f"--resume {run_dir}: no round was ever played there")
    else:
        experiment, run_dir = _load(options), new_run_dir(_name(options), options.run_dir)
    console, back_to = Console(), _back_to(options)
    try:
        with make_view(console, f"{experiment.selection.policy} on {experiment.workload.dataset}") as view:
            summary = run_experiment(experiment, run_dir, view, resume=bool(options.resume), back_to=back_to)
    except KeyboardInterrupt:
        raise RunInterrupted(f"interrupted twice; go on with: {resume_command(run_dir)}") from None
    _print_summary(console, summary, run_dir)
    check_outcome(summary["outcome"], summary["stopped_because"], resume_command(run_dir))


def _print_summary(console: Console, summary: dict[str, Any], run_dir: Path) -> None:
    from pausefl.results.summary import summary_table

    console.print(summary_table(summary))
    console.print(f"report: {run_dir / 'report.html'}", soft_wrap=True)


def _compare(options: argparse.Namespace) -> None:
    from pausefl.campaigns.compare import compare_policies, compare_runs, print_comparison, resume_comparison
    from pausefl.runtime.run_dir import new_run_dir

    console = Console()
    if sum(given is not None for given in (options.config, options.runs, options.resume)) != 1:
        raise ConfigError("pausefl compare: needs one of CONFIG with --policies, --runs, or --resume")
    if options.resume:
        folder = Path(options.resume)
        comparison = resume_comparison(folder, _shower(console))
    elif options.runs:
        run_dirs = [Path(run_dir) for run_dir in options.runs]
        labels = _names(options.labels) if options.labels else [run_dir.name for run_dir in run_dirs]
        folder = new_run_dir("compare-runs", options.run_dir)
        comparison = compare_runs(run_dirs, labels, folder)
    else:
        policies = _names(options.policies or "")
        if not policies:
            raise ConfigError("--policies: needs at least one name")
        folder, experiment = new_run_dir(f"compare-{_name(options)}", options.run_dir), _load(options)
        comparison = compare_policies(experiment, policies, _seeds(options), folder, _shower(console))
    print_comparison(comparison, folder, console)


def _sweep(options: argparse.Namespace) -> None:
    from pausefl.campaigns.sweep import parse_grid, resume_sweep, run_sweep
    from pausefl.config.toml_source import resolved_source
    from pausefl.runtime.run_dir import new_run_dir

    console = Console()
    if (options.config is None) == (options.resume is None):
        raise ConfigError("pausefl sweep: needs either CONFIG or --resume DIR")
    if options.resume:
        sweep = resume_sweep(Path(options.resume), _shower(console))
    else:
        grid, folder = parse_grid(options.grid), new_run_dir(f"sweep-{_name(options)}", options.run_dir)
        sweep = run_sweep(resolved_source(options.config), grid, _seeds(options), folder, _shower(console))
    console.print(f"{len(sweep.rows)} runs: {sweep.folder / 'sweep.csv'}", highlight=False, soft_wrap=True)
    if (picture := sweep.folder / "sweep.png").exists():
        console.print(f"figure: {picture}", soft_wrap=True)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _seeds(options: argparse.Namespace) -> int:
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: must be at least 1")
    return int(options.seeds)


def _shower(console: Console) -> "Show":
    from pausefl.runtime.terminal import make_view

    return lambda title: make_view(console, title)


def _server(options: argparse.Namespace) -> None:
    from pausefl.runtime.run_dir import made_run_dir, new_run_dir
    from pausefl.runtime.server.plan import server_plan
    from pausefl.runtime.server.process import serve_run
    from pausefl_process.lifetime import allow_many_files

    allow_many_files()
    experiment = _load(options)
    _refuse_netem(experiment, "server")
    if options.resume and options.run_dir is None:
        raise ConfigError("--resume: needs --run-dir")
    run_dir = Path(options.run_dir) if options.resume else new_run_dir(_name(options), options.run_dir)
    with made_run_dir(experiment, run_dir, resume=options.resume):
        result = serve_run(server_plan(experiment, run_dir.name), run_dir, print_event, _back_to(options))
    check_outcome(result.outcome, result.stopped_because, f"pausefl server with --resume --run-dir {run_dir}")


def _evaluator(options: argparse.Namespace) -> None:
    from pausefl.evaluator.plan import evaluator_endpoint, evaluator_plan
    from pausefl.evaluator.process import serve_evaluator

    experiment = load_experiment(options.config, options.overrides)
    serve_evaluator(evaluator_plan(experiment), evaluator_endpoint(experiment), print_event)


def _client(options: argparse.Namespace) -> None:
    import asyncio
    import logging

    # Why a handshake failed is said in one line of ours; gRPC would put its own before it.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from pausefl.runtime.client.plan import client_plan
    from pausefl.runtime.client.process import take_part
    from pausefl_process.lifetime import allow_many_files, first_error, keep_freed_memory

    experiment, ledgers = load_experiment(options.config, options.overrides), Path(options.ledger_dir)
    _refuse_netem(experiment, "client")
    allow_many_files()
    keep_freed_memory()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    def tell(address: str) -> None:
        print_event(MetricsServed(f"http://{address}/metrics"))

    with _clients_to_be(experiment, options) as client_ids, first_error():
        asyncio.run(take_part(client_plan(experiment), client_ids, options.server, ledgers, on_metrics=tell))


def _refuse_netem(experiment: Experiment, command: str) -> None:
    if experiment.latency.injection == "netem":
        raise ConfigError(
            f'latency.injection = "netem": goes with pausefl run, which makes the namespaces; pausefl {command} takes'
            ' "link"'
        )


def _clients_to_be(experiment: Experiment, options: argparse.Namespace) -> AbstractContextManager[list[str]]:
    """The ids of the clients this process is, held against others where they go by slot."""
    from pausefl.runtime.client.slots import claimed_clients

    if options.count < 1:
        raise ConfigError(f"--count {options.count}: must be at least 1")
    if options.slot is None:
        if options.count > 1:
            raise ConfigError("--count: goes with --slot")
        return nullcontext([options.client_id])
    if options.slot != "auto" and not options.slot.isdecimal():
        raise ConfigError(f"--slot {options.slot}: must be auto or a number from 0")
    slot = None if options.slot == "auto" else int(options.slot)
    return claimed_clients(experiment.client_ids, slot, options.count, Path(options.ledger_dir))


def _simulate(options: argparse.Namespace) -> None:
    from pausefl.runtime.run_dir import new_run_dir
    from pausefl.simulation.outputs import in_words, run_simulation

    if options.rounds < 1:
        raise ConfigError(f"--rounds {options.rounds}: must be at least 1")
    folder = new_run_dir(f"simulate-{_name(options)}", options.run_dir)
    console, experiment = Console(), _load(options)
    with console.status(f"simulating {options.rounds:,} rounds of {experiment.selection.policy}"):
        summary = run_simulation(experiment, options.rounds, folder)
    for line in in_words(summary):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"figure: {folder / 'simulation.png'}", soft_wrap=True)


def _report(options: argparse.Namespace) -> None:
    from pausefl.report import report_runs

    for path in report_runs([Path(run_dir) for run_dir in options.run_dirs], csv=options.csv):
        print(path)


def _audit(options: argparse.Namespace) -> None:
    from pausefl.audit import run_audit

    if options.uploads < 100:
        raise ConfigError(f"--uploads {options.uploads}: must be at least 100")
    console = Console()
    with console.status(f"sending {options.uploads:,} uploads in each of two worlds, attack by attack"):
        for part in run_audit(options.config, options.overrides, options.uploads):
            console.print(part)


def _bench(options: argparse.Namespace) -> None:
    from pausefl.bench import run_benchmark

    given = {"clients": options.clients, "payload_bytes": options.payload_bytes}
    run_benchmark(options.name, {k: v for k, v in given.items() if v is not None}, as_json=options.json)


def _data(options: argparse.Namespace) -> None:
    from pausefl_client.data.datasets import load_dataset, split_note

    data = load_dataset(options.name, seed=0)
    sizes = f"{len(data.train)} training, {len(data.validation)} validation, {len(data.test)} test examples"
    print(f"{data.name}: {sizes}, {data.classes} classes, inputs {'x'.join(map(str, data.input_shape))}")
    if note := split_note(data.name, len(data.test)):
        print(f"from {note}")


def _certs(options: argparse.Namespace) -> None:
    try:
        from pausefl.certificates import make_certificates
    except ImportError as error:
        raise ConfigError(f'pausefl certs: needs the extra, pip install "pausefl[certs]" ({error})') from error
    from pausefl.config.tables import ClientGroup

    if options.clients.isdecimal() and int(options.clients):
        client_ids = ClientGroup(count=int(options.clients)).client_ids("client")
    else:
        client_ids = [client_id.strip() for client_id in options.clients.split(",") if client_id.strip()]
    for client_id in client_ids:
        if not client_id.isascii() or not client_id.isprintable() or "/" in client_id:
            raise ConfigError(f"--clients {client_id}: is no name for a file; letters, digits, - and _ make one")
    for line in make_certificates(Path(options.folder), options.hosts, client_ids):
        print(line)


def _validate(options: argparse.Namespace) -> None:
    if options.list:
        from pausefl.registries import listed

        print("\n".join(listed()))
        return
    if options.config is None:
        raise ConfigError("pausefl validate: needs CONFIG or --list")
    from pausefl.reference.listing import listing

    print(listing(_load(options)), end="")
