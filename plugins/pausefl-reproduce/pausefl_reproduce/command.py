"""The command `pausefl reproduce`: its list of figures, and its messages before and after the runs."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from rich import box
from rich.table import Table

from pausefl.cli.arguments import add_jobs, add_set, add_virtual, folder
from pausefl.cli.option_values import player_of
from pausefl.results.statistics import FEWEST_SEEDS
from pausefl.studies.campaign import plan_of
from pausefl.studies.time_left import in_words
from pausefl.terminal_table import plain_console
from pausefl_proto.errors import ConfigError
from pausefl_reproduce import playing
from pausefl_reproduce.estimate import estimated_s
from pausefl_reproduce.published import Reproduction, find_reproduction, reproductions
from pausefl_reproduce.request import ReproductionScale, Request, left_out


def reproduce_arguments(sub: ArgumentParser) -> None:
    """Add the arguments of `pausefl reproduce`."""
    sub.add_argument("name", metavar="NAME", nargs="?", help="the figure or table (--list)")
    sub.add_argument("--list", action="store_true", help="every figure and table: what runs, and about how long here")
    sub.add_argument("--seeds", type=int, metavar="N", help="runs per series, from seed 1 on (default: the figure's)")
    sub.add_argument("--series", metavar="A,B,C", help="only these of the figure's series")
    sub.add_argument("--each-seed", action="store_true", help="draw each seed as a thin line, too")
    scale = "quick (default): within some 10 minutes on two cores, and it says what it leaves out; full: as published"
    sub.add_argument("--scale", choices=["quick", "full"], help=scale)
    sub.add_argument("--resume", action="store_true", help="go on with the reproduction in --out; finished runs stay")
    sub.add_argument("--out", type=folder, metavar="DIR", help="where the results go (default: runs/reproduce-NAME)")
    add_jobs(sub)
    add_virtual(sub)
    add_set(sub)


def reproduce(options: Namespace) -> None:
    """List the figures, or reproduce one. ConfigError for invalid options."""
    console = plain_console()
    player = player_of(options, console)
    if options.list:
        console.print(listed())
        return
    if options.name is None:
        raise ConfigError("needs the NAME of a figure, or --list")
    request = requested(options)
    for line in _before(request):
        console.print(line, highlight=False, soft_wrap=True)
    summary = playing.reproduce(request, player, resume=options.resume)
    for line in _after(request, summary["series"]):
        console.print(line, highlight=False, soft_wrap=True)


def requested(options: Namespace) -> Request:
    """The request that the options describe. For a resumed reproduction, missing options keep their first values."""
    reproduction = find_reproduction(options.name)
    folder = Path(options.out or f"runs/reproduce-{reproduction.name}")
    plan = plan_of(folder) if options.resume else None
    begun = plan.arguments if plan is not None and plan.command == "reproduce" else {}
    scale: ReproductionScale = options.scale or begun.get("scale") or "quick"
    seeds = options.seeds if options.seeds is not None else begun.get("seeds") or _seeds_of(reproduction, scale)
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: must be at least 1")
    series = _series_of(reproduction, options.series or begun.get("series"), scale)
    overrides = options.overrides or begun.get("overrides", ())
    return Request(
        reproduction, series, seeds, scale, tuple(overrides), folder, options.each_seed or begun.get("each_seed", False)
    )


def listed() -> Table:
    """A table of all reproductions: names, title, runs, and about how long each scale takes."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.caption, table.caption_justify = (
        "estimates from rounds, expected latencies and training on this machine's cores; a busy machine takes longer",
        "left",
    )
    table.add_column("name", no_wrap=True)  # users type the name, so it stays in one piece
    table.add_column("what", max_width=16)
    for column in ("runs in full", "full", "quick"):
        table.add_column(column, overflow="fold")
    for each in reproductions():
        full, quick = (
            Request(each, _series_of(each, None, scale), _seeds_of(each, scale), scale, (), Path())
            for scale in get_args(ReproductionScale)
        )
        runs = f"{full.seeds} seeds: {', '.join(full.series)}"
        durations = (in_words(estimated_s(request)) for request in (full, quick))
        table.add_row(" ".join(dict.fromkeys((each.name, *each.figures))), each.title, runs, *durations)
    return table


def _seeds_of(reproduction: Reproduction, scale: ReproductionScale) -> int:
    return reproduction.seeds if scale == "full" else reproduction.quick.seeds


def _series_of(reproduction: Reproduction, asked: str | None, scale: ReproductionScale) -> tuple[str, ...]:
    """The series in `asked`, separated by commas; None: those of the scale. ConfigError for an unknown series."""
    if asked is None:
        return (reproduction.quick.series if scale == "quick" else ()) or tuple(reproduction.series)
    names = tuple(name.strip() for name in asked.split(","))
    if unknown := [name for name in names if name not in reproduction.series]:
        shown = ", ".join(reproduction.series)
        raise ConfigError(f'--series "{unknown[0]}": is not shown by {reproduction.name}, which shows {shown}')
    return names


def _before(request: Request) -> Iterator[str]:
    seeds = "one seed" if request.seeds == 1 else f"{request.seeds} seeds"
    yield f"{request.reproduction.title}: {', '.join(request.series)}; {seeds} each; {request.scale} scale"
    if omitted := left_out(request):
        yield f"left out: {'; '.join(omitted)}"
    if request.seeds < FEWEST_SEEDS:
        yield f"no intervals: --seeds {request.seeds}, an interval needs at least {FEWEST_SEEDS}"
    yield f"results: {request.folder}"
    done, of = playing.n_finished(request)
    if left := of - done:
        yield f"left: {left} of {of} runs, about {in_words(estimated_s(request) * left / of)} one after the other"


def _after(request: Request, series: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for name, found in series.items():
        total, best = found["total_latency_s"], found["best_accuracy"]
        because = {
            "the model diverged": found["diverged_after"],
            "privacy budgets ended a run early": found["budgets_spent_after"],
        }
        ended = ", ".join(what for what, after in because.items() if after) or "a run ended early"
        time = "elapsed" if request.reproduction.drawing == "elapsed" else "total latency"
        latency = ended if total is None else f"{time} {total['mean']:.1f} s"
        yield f"{name}: {latency}, best test accuracy {100 * best['mean']:.1f} %"
    yield f"figure: {request.folder / f'{request.reproduction.name}.png'}"
    yield f"summary: {request.folder / 'reproduction.json'}"
