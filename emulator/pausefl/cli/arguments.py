"""The arguments of the `pausefl` command: subcommands, options and their help."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pausefl.outcomes import EPILOG
from pausefl_process.ending import BAD_INPUT
from pausefl_process.version import __version__

AddArguments = Callable[[argparse.ArgumentParser], None]
"""Adds arguments to the parser of a subcommand."""
_AddCommand = Callable[[str, str], argparse.ArgumentParser]
"""Adds a subcommand: its name and its help."""
CONFIG_HELP = "a TOML file, or the name of a preset (pausefl validate --list)"
_LISTEN_INSECURELY = "listen where other machines can reach it although anyone there may join and read along"
_FOLDERS = ("--out", "--output", "--folder", "--run-dir", "--dir")


class _Parser(argparse.ArgumentParser):
    """An argument parser that suggests a command in place of an unknown one."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line, as for any bad input."""
        if match := re.search(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = [name.strip("' ") for name in match[2].split(",")]
            close = difflib.get_close_matches(match[1], known, 1)
            hint = f"did you mean {close[0]}?" if close else f"must be one of {', '.join(known)}"
            message = f"{match[1]}: no such command; {hint}"
        self.exit(BAD_INPUT, f"pausefl: {message}; see {self.prog} --help\n")


def folder(text: str) -> str:
    """A folder's path that ends with its name, by which runs are called, and begins with no dash: commands name it. An
    empty one means an unset shell variable."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a folder")
    path = Path(text)
    return text if path.name not in ("", "..") and str(path)[0] != "-" else str(path.resolve())


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed arguments; those of the process if `arguments` is None. SystemExit with one line if they are wrong.

    In the result, `typed` has the full names of the long options that the user typed; the others are at their defaults.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options, unknown = parser.parse_known_args(arguments)
    sub: argparse.ArgumentParser = options.parser
    known = list(dict.fromkeys(re.findall(r"--[a-z-]+", sub.format_help())))
    words = [word.partition("=")[0] for word in arguments if len(word) > 2 and word.startswith("--")]
    # Options may be abbreviated.
    options.typed = [word if word in known else next((k for k in known if k.startswith(word)), word) for word in words]
    if unknown:
        folders = [each for each in ("--run-dir", "--out") if each in known and unknown[0] in _FOLDERS]
        close = folders or difflib.get_close_matches(unknown[0], known, 1)
        by_key = "--set" in known and unknown[0].startswith("--")
        hint = f"; did you mean {close[0]}?" if close else "; --set KEY=VALUE changes the experiment" if by_key else ""
        sub.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options


def make_parser(
    functions: Mapping[str, Callable[[argparse.Namespace], None]], of_plugins: Mapping[str, tuple[str, AddArguments]]
) -> argparse.ArgumentParser:
    """The parser of all subcommands. In its result, `command` is the subcommand's function from `functions`.

    `of_plugins`: the help of a plug-in's subcommand, and what adds its arguments. `parser` in the result is the
    subcommand's own parser.
    """
    whole = _Parser("pausefl", description="Client selection in federated learning, on a real network.", epilog=EPILOG)
    whole.add_argument("--version", action="version", version=f"pausefl {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=functions[name], parser=sub)
        return sub

    _add_experiments(command)
    _add_ends(command)
    _add_simulations(command)
    _add_tools(command)
    for name, (text, add_arguments) in of_plugins.items():
        add_arguments(command(name, text))
    return whole


def _add_experiments(command: _AddCommand) -> None:
    sub = command("new", "begin a project: a commented experiment, policy, model, data set and test that run")
    sub.add_argument("folder", type=folder, metavar="DIR", help="where the files go")
    sub.add_argument("--policy", metavar="NAME", help="the policy that it runs (default: the one in its own.py)")
    fleet = "a file of your devices' latencies, read as by fit-latency: its clients are these devices"
    sub.add_argument("--fleet", metavar="FILE", help=fleet)
    add_reading(sub)

    sub = command("run", "one server and N client processes here; live progress; a summary at the end")
    add_config(sub, nargs="?")
    add_run_dir(sub, "runs/<name>-<time>")
    _add_resume(sub, type=folder, metavar="RUN_DIR", help="go on with an interrupted run")
    more = "with --resume: play on to round N, beyond what it began with"
    sub.add_argument("--rounds", type=int, metavar="N", help=more)
    netem = "links made by the kernel: a network namespace per client, shaped by tc netem and tbf (needs root)"
    _add_setting(sub, "--netem", "latency.injection=netem", netem)
    add_virtual(sub)
    _add_fleet(sub)
    add_set(sub)
    sub.add_argument("--json", action="store_true", help="print progress events to stdout, the summary to stderr")
    add_log(sub)

    sub = command("compare", "the same experiment under several policies; table and figures")
    add_config(sub, nargs="?")
    add_virtual(sub)
    add_set(sub)
    sub.add_argument("--policies", metavar="A,B,C", help="names, separated by commas")
    sub.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per policy, from the seed on (default 1)")
    add_run_dir(sub, "runs/compare-<name>-<time>")
    sub.add_argument("--runs", nargs="+", metavar="RUN_DIR", help="compare these finished runs instead of running any")
    sub.add_argument("--labels", metavar="A,B,C", help="names for --runs; runs of one name are its seeds")
    sub.add_argument("--resume", type=folder, metavar="DIR", help="go on with an interrupted comparison")
    _add_fleet(sub)
    add_jobs(sub)

    sub = command("sweep", "an experiment on a grid of settings; one CSV over all runs, and a picture")
    add_config(sub, nargs="?")
    add_virtual(sub, dest="grid")
    grid = "a key and its values, e.g. selection.pause.alpha=1,10,100; one value holds for every run; repeatable"
    sub.add_argument("--set", action="append", default=[], metavar="KEY=A,B,C", dest="grid", help=grid)
    sub.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per setting, from the seed on (default 1)")
    add_run_dir(sub, "runs/sweep-<name>-<time>")
    sub.add_argument("--resume", type=folder, metavar="DIR", help="go on with an interrupted sweep")
    _add_fleet(sub)
    add_jobs(sub)


def _add_ends(command: _AddCommand) -> None:
    """Add the commands that run one process of an experiment, as containers do."""
    sub = command("server", "the server alone")
    add_config(sub)
    add_set(sub)
    add_run_dir(sub, "runs/<name>-<time>")
    _add_resume(sub, action="store_true", help="go on with the run in --run-dir, where there is one")
    _add_setting(sub, "--insecure", "server.insecure=true", _LISTEN_INSECURELY)
    add_log(sub)

    sub = command("client", "a client alone, or the clients of a slot; without CONFIG the server tells the experiment")
    add_config(sub, nargs="?")
    own = "without CONFIG: a TOML file of what this client decides itself: privacy, tls, admission, its device or data"
    sub.add_argument("--own", metavar="FILE", help=own)
    add_set(sub)
    sub.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server listens")
    who = sub.add_mutually_exclusive_group(required=True)
    who.add_argument("--client-id", metavar="ID", help="who this is (client-000, client-001, ...)")
    slot = "clients number N*C to N*C+C-1; auto: the first N that no other process holds in --ledger-dir"
    who.add_argument("--slot", metavar="auto|N", help=slot)
    sub.add_argument("--count", type=int, default=1, metavar="C", help="clients a slot has (default 1)")
    ledgers = "where trainers' states lie, and ledgers where privacy.ledger_dir is not set (default: ledgers)"
    sub.add_argument("--ledger-dir", type=folder, default="ledgers", metavar="DIR", help=ledgers)
    text = "after a run wait for the next one at the same address, for as long as it takes"
    sub.add_argument("--stay", action="store_true", help=text)
    text = "with --stay: what a client may spend in all of its runs, whoever serves them (default: no bound)"
    sub.add_argument("--epsilon-lifetime", type=float, metavar="E", help=text)
    text = "show its token without TLS although others on the network may read it"
    _add_setting(sub, "--insecure", "server.insecure=true", text)
    add_log(sub)

    sub = command("evaluator", "the evaluator alone, for servers whose evaluation.address names it")
    add_config(sub)
    add_set(sub)
    _add_setting(sub, "--insecure", "evaluation.insecure=true", _LISTEN_INSECURELY)
    add_log(sub)


def _add_simulations(command: _AddCommand) -> None:
    sub = command("simulate", "policy and drawn latencies or drifts only: regret, no network, no training")
    add_config(sub)
    add_set(sub)
    sub.add_argument("--rounds", type=int, metavar="N", help="how many rounds to simulate (default: experiment.rounds)")
    sub.add_argument("--policies", metavar="A,B,C", help="names, separated by commas: drawn side by side")
    seeds = "simulations per policy, from the seed on, drawn as a band (default 1)"
    sub.add_argument("--seeds", type=int, default=1, metavar="N", help=seeds)
    jobs = "how many simulations to play at a time (default: one per core, but one below 400,000 rounds in all)"
    sub.add_argument("--jobs", type=int, metavar="N", help=jobs)
    add_run_dir(sub, "runs/simulate-<name>-<time>")


def add_reading(sub: argparse.ArgumentParser) -> None:
    """Add the options that say how a file of latencies is written."""
    named = "csv (default), ping, ripe-atlas, iperf3, prometheus, k6, locust, ndt, wondernetwork or fedscale"
    sub.add_argument("--format", default="csv", metavar="NAME", help=f"how the file is written: {named}")
    sub.add_argument("--column", metavar="NAME", help="the column of the latencies (default: seconds)")
    sub.add_argument("--unit", choices=("s", "ms", "us"), help="of the latencies (default: s)")
    sub.add_argument("--client-column", metavar="NAME", help="the column that says whose it is (default: client)")
    sub.add_argument("--time-column", metavar="NAME", help="numbers or ISO 8601 dates (default: time, if there is one)")
    rows = "rows that count; repeatable"
    sub.add_argument("--filter", action="append", default=[], metavar="COLUMN=VALUE", help=rows)
    lost = "what stands in place of the latency of a lost probe, which counts as longer than --timeout-s; repeatable"
    sub.add_argument("--lost", action="append", default=[], metavar="TEXT", help=lost)
    sub.add_argument("--timeout-s", type=float, metavar="S", help="how long lost probes were waited for")


def _add_tools(command: _AddCommand) -> None:
    sub = command("report", "write the figures and the report of finished runs again, also of a comparison or a sweep")
    sub.add_argument("run_dirs", nargs="+", metavar="DIR", help="a run, or the folder of a comparison or a sweep")
    sub.add_argument("--csv", action="store_true", help="also export every view of run.db to RUN_DIR/csv")
    sub.add_argument("--formats", default="", metavar="A,B", help="pictures also as files of these: svg, png, pdf")

    sub = command("bench", "measure this machine; JSON lines with --json")
    sub.add_argument("name", metavar="NAME", help="rounds, fidelity, scale, steps or selection")
    sub.add_argument("--json", action="store_true", help="one JSON object a line per case")
    sub.add_argument("--clients", type=int, metavar="N", help="how many clients, where the benchmark has clients")
    sub.add_argument("--payload-bytes", type=int, metavar="B", help="size of a model, where one is sent")

    sub = command("data", "check that a data set is there, or download it")
    sub.add_argument("name", metavar="NAME", help="the data set, as workload.dataset names it")

    sub = command("certs", "certificates and tokens by which servers and clients know each other")
    sub.add_argument("folder", metavar="DIR", help="where they go; what is there is kept, and its authority used")
    sub.add_argument("hosts", nargs="+", metavar="HOST", help="names and addresses of the server and evaluator")
    text = "how many (client-000, client-001, ...), or ids separated by commas (default: none)"
    sub.add_argument("--clients", default="", metavar="N|A,B,C", help=text)

    sub = command("completion", "print a script that completes this command in a shell")
    sub.add_argument("shell", metavar="SHELL", choices=["bash", "zsh", "tcsh"], help="bash, zsh or tcsh")

    text = "print every key with its value and meaning; try data, partition and model without running them"
    sub = command("validate", text)
    add_config(sub, nargs="?")
    sub.add_argument("--list", action="store_true", help="list presets, and all that experiments can name")
    sub.add_argument("--run-dir", metavar="DIR", help="also check that the run there, if any, can go on with CONFIG")
    add_set(sub)


def add_config(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the positional argument CONFIG."""
    parser.add_argument("config", metavar="CONFIG", nargs=nargs, help=CONFIG_HELP)


def add_run_dir(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --run-dir. `default` is the folder without it."""
    text = f"where the results go (default: {default})"
    parser.add_argument("--run-dir", type=folder, metavar="DIR", help=text)


def _add_resume(parser: argparse.ArgumentParser, **kind: Any) -> None:
    parser.add_argument("--resume", **kind)
    text = "with --resume: first take back the rounds after this one, which are played again; their epsilon stays spent"
    parser.add_argument("--back-to", type=int, metavar="ROUND", help=text)


def _add_setting(
    parser: argparse.ArgumentParser, option: str, setting: str, text: str, dest: str = "overrides"
) -> None:
    """Add an option that is short for `--set` with `setting`, KEY=VALUE. Like `--set`, it adds to `dest`."""
    parser.add_argument(option, action="append_const", const=setting, dest=dest, default=[], help=text)


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add --log-json, --quiet and --verbose."""
    parser.add_argument("--log-json", action="store_true", help="write logs as JSON, one object a line")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="no progress: warnings, errors and results only")
    group.add_argument("-v", "--verbose", action="store_true", help="also log each exchange of each client")


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    text = "listen there for clients from outside, which stay (pausefl client --stay), instead of starting some"
    parser.add_argument("--fleet", metavar="HOST:PORT", help=text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add --jobs, --on and --on-option: where the runs of a campaign are played."""
    text = "how many runs to play here at a time, on the virtual clock alone (default 1)"
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help=text)
    on = "where runs are played: local (default), slurm, or dask=ADDRESS of its scheduler"
    parser.add_argument("--on", default="local", metavar="PLACE", help=on)
    option = "an option of sbatch or of Dask's submit, e.g. partition=short; repeatable"
    parser.add_argument("--on-option", action="append", default=[], metavar="KEY=VALUE", dest="on_options", help=option)


def add_virtual(parser: argparse.ArgumentParser, dest: str = "overrides") -> None:
    """Add --virtual, which adds to `dest` as --set does."""
    text = "play on the virtual clock: the same actors and links, and waiting costs nothing (experiment.clock)"
    _add_setting(parser, "--virtual", "experiment.clock=virtual", text, dest)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add --set, whose values go to `overrides`."""
    text = "override a key, e.g. experiment.rounds=60; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help=text)
