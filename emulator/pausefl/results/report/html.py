"""Writes the report of a run as one self-contained HTML page."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from pausefl.results import in_words
from pausefl.results.figures import Figures
from pausefl.results.reading import RunData, latency_unit
from pausefl.results.report.style import capitalised, css_variables, for_page
from pausefl_proto.arrays import IntArray
from pausefl_proto.privacy_unit import vector_epsilon

# At most this many ranges of rounds are listed per client. Otherwise the page could be as long as the log.
_MOST_RANGES = 60
DISCLOSURES = {
    "n_examples": "|D_k|, how many examples the client has: the average by data size needs it",
    "device_times": "device times: how long the client queued, trained and privatised",
    "host_load": "host load: event-loop lag, timer overshoot, stolen processor time and share of compute",
    "answers": "when it answers, that a job failed (in a private run not why), and how many releases its ledger counts",
    "labels": "how many examples of each label it has",
    "loss": "the training loss of each chosen round",
    "statistics": "the running means and variances of its batch normalisation, averaged without noise",
    "host_metrics": "metrics of client hosts: training, queue, noise and delay times, event-loop lag and ε spent, to"
    " any reader that can reach them (metrics.client_host)",
}


def render(template: str, **values: object) -> str:
    """The HTML of one of this package's templates, filled with `values`. Values not marked as safe are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    schemes = {scheme: Markup(css_variables(scheme)) for scheme in ("light", "dark")}
    return environment.get_template(template).render(in_words=in_words, **schemes, **values)


def embed(drawn: Mapping[str, bytes | None], metric: str, figures: Figures) -> Mapping[str, Markup]:
    """The SVG figures as page elements by name. The label is the name, but for "accuracy" it is the metric's name."""

    def element(name: str, svg: bytes) -> Markup:
        return Markup(for_page(svg, metric if name == "accuracy" else name))

    return figures.compute_all({name: partial(element, name, svg) for name, svg in drawn.items() if svg is not None})


def run_page(run: RunData, drawn: Mapping[str, bytes | None], figures: Figures | None = None) -> str:
    """The HTML of a run's report.html. Figures that failed are listed with their reasons, from `figures.missing`."""
    figures = figures or Figures()
    pictures = embed(drawn, run.metric, figures)
    headline = figures.compute("headline", lambda: list(_headline(run)))
    timing = figures.compute("timing", lambda: _timing_sentences(run))
    swamped = figures.compute("noise", lambda: _swamped(run))
    is_private = run.privacy is not None
    rows = figures.compute("table of clients", lambda: list(_clients(run)) if is_private else [])
    schedule = figures.compute("schedule of releases", lambda: _schedule(run) if is_private else [])
    return render(
        "report.html",
        run=run,
        s=run.summary,
        metric=capitalised(run.metric),
        figures=pictures,
        headline=headline or (),
        timing=timing or {},
        missing={**run.summary["missing_figures"], **figures.missing},
        swamped=swamped,
        idle=dict(zip(run.clients["client_id"], run.clients["idle_share"], strict=True)),
        disclosed=[DISCLOSURES.get(item, item) for item in run.summary["disclosed"]],
        vector_factor=vector_epsilon(run.privacy.unit, 1, run.summary["model_size"]) if run.privacy else None,
        n_begun=sum(map(bool, run.clients["spent_before"].tolist())),
        retired=int((run.clients["retired_before"] > 0).sum()),
        clients=rows or (),
        schedule=schedule or (),
        config=re.sub(r"^(pausefl_cell_\w+ = ).*", r"\1…", run.config, flags=re.MULTILINE),
    )


def _headline(run: RunData) -> Iterator[in_words.Fact]:
    """The facts at the top of the page. Three accuracies are given with notes, as they are easily confused."""
    yield from in_words.accuracies(run.summary)
    n_examples, curve = run.curve("test", "n_examples")
    if curve.size:
        note = f"chosen with hindsight: no result; {n_examples[-1]:,} test examples"
        yield "peak of the curve", in_words.percent(float(curve.max())), note
    yield from in_words.costs(run.summary)
    if penalty_s := float(run.round_latency["cluster_penalty_s"].sum()):
        yield "cluster penalty", f"{penalty_s:,.1f} {latency_unit([run.summary])}", "eq. (22), not in the total latency"


def _swamped(run: RunData) -> str:
    """A warning if the noise was much greater than the clipped updates; empty otherwise."""
    if not (told := in_words.noise(run.summary)):
        return ""
    rounds, scores = run.curve("test", "round")
    if not scores.size or scores[-1] == scores.max():
        return f"Noise was {told}."
    best, turn = int(scores.argmax()), in_words.turn(run.summary)
    fell = f"fell from {scores[best]:.1%} after {turn} {rounds[best]} to {scores[-1]:.1%}"
    return f"Noise was {told}. Test {run.metric} {fell}."


def _clients(run: RunData) -> Iterator[Mapping[str, Any]]:
    """The rows of `RunData.clients`, each with the rounds ("1–7, 9") whose releases the server received in time."""
    ids = run.clients["client_id"]
    of_release = np.searchsorted(ids, run.leakage["client_id"])
    rounds = run.leakage["round"][np.argsort(of_release, kind="stable")]
    counts = np.bincount(of_release, minlength=len(ids))
    columns = zip(*(column.tolist() for column in run.clients.values()), strict=True)
    for values, end, n in zip(columns, counts.cumsum().tolist(), counts.tolist(), strict=True):
        yield dict(zip(run.clients, values, strict=True)) | {"rounds": in_ranges(rounds[end - n : end])}


def in_ranges(rounds: IntArray) -> str:
    """Ascending rounds as text: "1–7, 9, 11–20". Only the first ranges are listed, then how many rounds are missing."""
    ranges = np.split(rounds, np.flatnonzero(np.diff(rounds) > 1) + 1) if rounds.size else []
    shown, more = ranges[:_MOST_RANGES], sum(len(part) for part in ranges[_MOST_RANGES:])
    words = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in shown)
    return f"{words} and {more:,} more (view leakage of run.db)" if more else words or "none"


def _schedule(run: RunData) -> Sequence[tuple[int, float]]:
    """The pairs (i, ε_i) for each release number i that occurs in the run."""
    participations, first = np.unique(run.leakage["participation"], return_index=True)
    return list(zip(participations.tolist(), run.leakage["epsilon"][first].tolist(), strict=True))


def _timing_sentences(run: RunData) -> Mapping[str, str]:
    round_trip_s, propagation = run.breakdown["round_trip_s"], "nothing was measured"
    took_time = round_trip_s > 0  # on the virtual clock, an exchange may take no time
    if took_time.any():
        share = np.median(run.breakdown["propagation_s"][took_time] / round_trip_s[took_time])
        propagation = f"{share:.1%} of the round trip, in the median, is explained by no measured part."
    timing_error = in_words.timing_error(run.summary) or "not known: nothing was measured"
    return {"timing error": timing_error, "propagation": propagation}
