"""The `pausefl` command. Each subcommand imports what it needs when it runs: a client needs no Prometheus, a server
without evaluation no torch."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pausefl import commands
from pausefl.arguments import make_parser, parse
from pausefl.commands import refuse_beside
from pausefl.config.experiment import Experiment, load_experiment
from pausefl.config.toml_source import is_file, naming, own_document
from pausefl.config.validation import check_address, refuse_virtual
from pausefl.exit_status import RunInterrupted, check_outcome, exit_with_status, while_output_is_read, with_way_on
from pausefl.terminal_table import plain_console
from pausefl_process.ending import signals_to, sigterm_as_interrupt
from pausefl_process.events import MetricsServed
from pausefl_process.logs import ask_for, set_up_log
from pausefl_process.outbox import posted_output
from pausefl_proto.errors import ConfigError, PauseflError, first_error

if TYPE_CHECKING:
    from pausefl.campaigns.campaign import Player, Show


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; the exit status is as `exit_status` and docs/events.md say."""
    # Else gRPC writes a line for each handshake that fails: as many as strangers like, and before ours that says why.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Children inherit it: SIGUSR1 is answered by who waits in an event loop, and ends nobody else.
    with sigterm_as_interrupt(), signals_to(signal.SIG_IGN, signal.SIGUSR1), while_output_is_read():
        options = parse(parser(), arguments)
        if "log_json" in options:
            ask_for(json=options.log_json, quiet=options.quiet, verbose=options.verbose)
        exit_with_status(options.command, options)


def parser() -> argparse.ArgumentParser:
    """Return the parser of every subcommand; `command` in what it parses is the function that runs it."""
    return make_parser(
        {
            "run": _run,
            "compare": _compare,
            "sweep": _sweep,
            "reproduce": _reproduce,
            "simulate": _simulate,
            "tune": commands.tune,
            "replay": commands.replay,
            "fit-latency": commands.fit_latency,
            "server": _server,
            "client": _client,
            "evaluator": _evaluator,
            "report": commands.report,
            "audit": commands.audit,
            "bench": _bench,
            "data": commands.data,
            "certs": commands.certs,
            "validate": _validate,
            "completion": _completion,
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
    from pausefl.runtime.run_dir import has_rounds, new_run_dir, resume_command, stored_experiment, with_rounds
    from pausefl.runtime.terminal import JsonView, make_view

    if (options.config is None) == (options.resume is None):
        raise ConfigError("pausefl run: needs either CONFIG or --resume RUN_DIR")
    if options.resume:
        run_dir = Path(options.resume)
        refuse_beside(options, "--resume", "--rounds", "--back-to", "--json", "--log-json", "--quiet", "--verbose")
        experiment = stored_experiment(run_dir)
        if options.rounds is not None:
            experiment = with_rounds(experiment, _at_least_1("--rounds", options.rounds))
        if not (run_dir / "run.db").exists():
            raise ConfigError(f"--resume {run_dir}: no round was ever played there")
    elif options.rounds is not None:
        raise ConfigError(f"--rounds {options.rounds}: goes with --resume; a new run takes --set experiment.rounds=N")
    else:
        experiment, run_dir = _load(options), new_run_dir(_name(options), options.run_dir)
    console, back_to = plain_console(stderr=options.json), _back_to(options)
    title = f"{experiment.selection.policy} on {experiment.workload.dataset}"
    try:
        with JsonView() if options.json else make_view(console, title) as view:
            summary = run_experiment(experiment, run_dir, view, resume=bool(options.resume), back_to=back_to)
    except KeyboardInterrupt:
        how = f"go on with: {resume_command(run_dir)}" if (run_dir / "run.db").exists() else "no round was played"
        raise RunInterrupted(f"interrupted; {how}") from None
    except PauseflError as error:
        if not has_rounds(run_dir):
            raise
        raise with_way_on(error, resume_command(run_dir)) from error
    _print_summary(console, summary, run_dir)
    check_outcome(summary["outcome"], summary["stopped_because"], resume_command(run_dir))


def _print_summary(console: Console, summary: dict[str, Any], run_dir: Path) -> None:
    from pausefl.results.summary import summary_table

    console.print(summary_table(summary))
    report = run_dir / "report.html"
    console.print(f"report: {report if report.exists() else f'pausefl report {run_dir} writes it'}", soft_wrap=True)


def _compare(options: argparse.Namespace) -> None:
    from pausefl.campaigns.campaign import check_all_played, resume_campaign
    from pausefl.campaigns.compare import compare_policies, compare_runs, print_comparison, resume_comparison
    from pausefl.runtime.run_dir import new_run_dir

    console = plain_console()
    if sum(given is not None for given in (options.config, options.runs, options.resume)) != 1:
        raise ConfigError("pausefl compare: needs one of CONFIG with --policies, --runs, or --resume")
    if options.resume:
        refuse_beside(options, "--resume", "--jobs")
        folder = Path(options.resume)
        comparison = resume_comparison(folder, _player(options.jobs, console))
    elif options.runs:
        refuse_beside(options, "--runs", "--labels", "--run-dir")
        run_dirs = [Path(run_dir) for run_dir in options.runs]
        labels = _names(options.labels) if options.labels else [run_dir.absolute().name for run_dir in run_dirs]
        folder = new_run_dir("compare-runs", options.run_dir)
        comparison = compare_runs(run_dirs, labels, folder)
    else:
        if options.labels is not None:
            raise ConfigError(f"--labels {options.labels}: goes with --runs")
        policies, seeds = _policies(options), _at_least_1("--seeds", options.seeds)
        folder = new_run_dir(f"compare-{_name(options)}", options.run_dir)
        comparison = compare_policies(_load(options), policies, seeds, folder, _player(options.jobs, console))
    print_comparison(comparison, folder, console)
    if not options.runs:  # which were played before
        run_dirs = [run.path for runs in comparison.runs.values() for run in runs]
        check_all_played(run_dirs, resume_campaign("compare", folder))


def _sweep(options: argparse.Namespace) -> None:
    from pausefl.campaigns.campaign import check_all_played, resume_campaign
    from pausefl.campaigns.sweep import parse_grid, resume_sweep, run_sweep
    from pausefl.config.toml_source import resolved_source
    from pausefl.runtime.run_dir import new_run_dir

    console = plain_console()
    player = _player(options.jobs, console)
    if (options.config is None) == (options.resume is None):
        raise ConfigError("pausefl sweep: needs either CONFIG or --resume DIR")
    if options.resume:
        refuse_beside(options, "--resume", "--jobs")
        sweep = resume_sweep(Path(options.resume), player)
    else:
        grid, folder = parse_grid(options.grid), new_run_dir(f"sweep-{_name(options)}", options.run_dir)
        sweep = run_sweep(resolved_source(options.config), grid, _at_least_1("--seeds", options.seeds), folder, player)
    console.print(f"{len(sweep.rows)} runs: {sweep.folder / 'sweep.csv'}", highlight=False, soft_wrap=True)
    if (picture := sweep.folder / "sweep.png").exists():
        console.print(f"figure: {picture}", soft_wrap=True)
    check_all_played([sweep.folder / row["run_dir"] for row in sweep.rows], resume_campaign("sweep", sweep.folder))


def _reproduce(options: argparse.Namespace) -> None:
    from pausefl.campaigns.reproduction.command import run_reproduce

    console = plain_console()
    run_reproduce(options, _shower(console), console)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _policies(options: argparse.Namespace) -> list[str]:
    policies = _names(options.policies or "")
    if not policies:
        raise ConfigError("--policies: needs at least one name")
    return policies


def _at_least_1(option: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{option} {value}: must be at least 1")
    return value


def _player(jobs: int, console: Console) -> "Player":
    from pausefl.campaigns.campaign import OneByOne
    from pausefl.campaigns.side_by_side import SideBySide

    return OneByOne(_shower(console)) if jobs == 1 else SideBySide(jobs, partial(console.print, highlight=False))


def _shower(console: Console) -> "Show":
    from pausefl.runtime.terminal import make_view

    return lambda title: make_view(console, title)


@posted_output()
def _server(options: argparse.Namespace) -> None:
    from pausefl.observers import Observed, load_observers
    from pausefl.runtime.provenance import is_served, note_start, note_unserved
    from pausefl.runtime.run_dir import made_run_dir, new_run_dir, resume_command
    from pausefl.runtime.server.plan import server_plan
    from pausefl.runtime.server.process import serve_run
    from pausefl.runtime.terminal import printed_events
    from pausefl_process.resources import allow_many_files

    set_up_log()
    allow_many_files()
    experiment = _load(options)
    _refuse_whole_runs(experiment, "server")
    if options.resume and options.run_dir is None:
        raise ConfigError("--resume: needs --run-dir")
    run_dir = Path(options.run_dir) if options.resume else new_run_dir(_name(options), options.run_dir)
    observers, settings = load_observers(experiment.experiment.observers), experiment.model_dump(mode="json")
    with (
        made_run_dir(experiment, run_dir, resume=options.resume),
        printed_events(run_dir.name) as report,
        Observed(report, observers, run_dir, settings) as observed,
    ):
        was_served = is_served(run_dir)
        note_start(run_dir, served=True)
        try:
            result = serve_run(server_plan(experiment, run_dir.name), run_dir, observed.show, _back_to(options))
        except PauseflError:
            if not was_served:
                note_unserved(run_dir)
            raise
    check_outcome(result.outcome, result.stopped_because, resume_command(run_dir))


@posted_output()
def _evaluator(options: argparse.Namespace) -> None:
    from pausefl.evaluator.plan import evaluator_endpoint, evaluator_plan
    from pausefl.evaluator.process import serve_evaluator
    from pausefl.runtime.terminal import printed_events

    set_up_log()
    experiment = load_experiment(options.config, options.overrides)
    refuse_virtual(experiment, "evaluator")
    with printed_events(f"evaluator of {_name(options)}") as report:
        serve_evaluator(evaluator_plan(experiment), evaluator_endpoint(experiment), report)


@posted_output()
def _client(options: argparse.Namespace) -> None:
    from pausefl.runtime.client.plan import client_plan
    from pausefl.runtime.client.process import run_clients_over_grpc
    from pausefl.runtime.terminal import printed_events
    from pausefl_process.resources import allow_many_files, keep_freed_memory
    from pausefl_process.waits import run_telling_waits

    check_address("--server", options.server)
    experiment, ledgers = _experiment_of_client(options), Path(options.ledger_dir)
    _refuse_whole_runs(experiment, "client")
    allow_many_files()
    keep_freed_memory()
    set_up_log()
    with (
        _clients_to_be(experiment, options) as client_ids,
        printed_events(f"clients of {_name(options) if options.config else options.server}") as report,
        first_error(),
    ):

        def tell(address: str) -> None:
            report(MetricsServed(f"http://{address}/metrics"))

        run_telling_waits(
            run_clients_over_grpc(client_plan(experiment), client_ids, options.server, ledgers, on_metrics=tell)
        )


def _experiment_of_client(options: argparse.Namespace) -> Experiment:
    """From the file that was given, or else from the server, but for what is this client's own."""
    if options.config is not None:
        if options.own is not None:
            raise ConfigError("--own: goes without CONFIG, which is all the client's own")
        return load_experiment(options.config, options.overrides)
    if options.client_id is None:
        raise ConfigError("--slot: needs CONFIG, which names the clients of a slot")
    from pausefl.runtime.client.offer import fetch_experiment

    own = own_document(options.own, options.overrides)
    return fetch_experiment(options.server, options.client_id, own)


def _refuse_whole_runs(experiment: Experiment, command: str) -> None:
    """ConfigError for what only the process that plays a whole run can do."""
    refuse_virtual(experiment, command)
    if experiment.latency.injection == "netem":
        raise ConfigError(
            f'latency.injection = "netem": goes with pausefl run, which makes the namespaces; pausefl {command} takes'
            ' "link"'
        )


def _clients_to_be(experiment: Experiment, options: argparse.Namespace) -> AbstractContextManager[list[str]]:
    """The ids of the clients this process is, held against others where they go by slot."""
    from pausefl.runtime.client.slots import claimed_clients

    _at_least_1("--count", options.count)
    if options.slot is None:
        if options.count > 1:
            raise ConfigError("--count: goes with --slot")
        return nullcontext([options.client_id])
    if options.slot != "auto" and not options.slot.isdecimal():
        raise ConfigError(f"--slot {options.slot}: must be auto or a number from 0")
    slot = None if options.slot == "auto" else int(options.slot)
    return claimed_clients(experiment.client_ids, slot, options.count, Path(options.ledger_dir))


def _simulate(options: argparse.Namespace) -> None:
    from pausefl.campaigns import simulations
    from pausefl.runtime.run_dir import new_run_dir
    from pausefl.simulation import outputs

    _at_least_1("--rounds", options.rounds)
    folder = new_run_dir(f"simulate-{_name(options)}", options.run_dir)
    simulations.refuse_results_in(folder)
    console, experiment, seeds = plain_console(), _load(options), _at_least_1("--seeds", options.seeds)
    policies = [experiment.selection.policy] if options.policies is None else _policies(options)
    with console.status(Text(f"simulating {options.rounds:,} rounds of {', '.join(policies)}")):
        if options.policies is None and seeds == 1:
            lines = outputs.in_words(outputs.run_simulation(experiment, options.rounds, folder))
            figure = folder / "simulation.png"
        else:
            summary = simulations.run_simulations(experiment, policies, seeds, options.rounds, folder)
            lines, figure = simulations.in_words(summary), folder / "simulations.png"
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"figure: {figure}", soft_wrap=True)


def _bench(options: argparse.Namespace) -> None:
    from pausefl.bench import compare, run_all, run_benchmark

    sizes = {"clients": options.clients, "payload_bytes": options.payload_bytes}
    given = {name: size for name, size in sizes.items() if size is not None}
    if options.files and options.name != "diff":
        raise ConfigError(f"bench {options.name}: takes no files; only diff does")
    if given and options.name in ("all", "diff"):
        raise ConfigError(f"bench {options.name}: takes neither --clients nor --payload-bytes")
    if options.name == "diff":
        compare(options.files, as_json=options.json)
    elif options.name == "all":
        run_all(as_json=options.json)
    else:
        run_benchmark(options.name, given, as_json=options.json)


def _completion(options: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(parser(), options.shell))


def _validate(options: argparse.Namespace) -> None:
    if options.list:
        from pausefl.registries import listed

        print("\n".join(listed()))
        return
    if options.config is None:
        raise ConfigError("pausefl validate: needs CONFIG or --list")
    from pausefl.evaluator.preflight import try_out
    from pausefl.observers import load_observers
    from pausefl.reference.listing import listing

    experiment = _load(options)
    load_observers(experiment.experiment.observers)
    print(listing(experiment), end="", flush=True)
    try_out(experiment, lambda text: print(f"pausefl: {text}", file=sys.stderr))
