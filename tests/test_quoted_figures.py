"""A sentence that quotes a figure quotes the one that is stored or computed, so that a new one changes both."""

import json
import re
import statistics
from pathlib import Path

import pytest

from pausefl.config.loading import load_experiment
from pausefl.simulation.engine import printed_delta
from pausefl.simulation.outputs import setting_of

DOCS = Path(__file__).parents[1] / "docs"


def speed(benchmark: str, case: str, figure: str) -> float:
    """The median of a figure of `pausefl bench all`, as the tables of speed.md have it."""
    run = json.loads((DOCS / "results/speed.json").read_text("utf-8"))
    figures = {(each["benchmark"], each["case"], each["figure"]): each["values"] for each in run["figures"]}
    return float(statistics.median(figures[benchmark, case, figure]))


def scale(clients: int, figure: str) -> float:
    """A figure of `pausefl bench scale_curve` without training."""
    lines = (DOCS / "results/scale.jsonl").read_text("utf-8").splitlines()
    return next(float(case[figure]) for case in map(json.loads, lines) if case["clients"] == clients)


SMALL = 1 / speed("training", "small_mnist: 5 clients together, 4 steps, 10 rounds", "ratio")
LARGE = 1 / speed("training", "large_mnist: 15 clients together, 9 steps, 4 rounds", "ratio")
LONE_MS = 1e3 * speed("training", "small_mnist: mlp, 4 steps, 10 rounds", "train_s")
ROUND_MS = 1e3 * speed("rounds", "10 clients, 10000000 bytes", "median_s")
SEARCH_MS = 1e3 * speed("selection", "R1 exact, 100,000 / 1,000", "median_s")
FEW_MB, MANY_MB, MOST_MB = (scale(clients, "server_rss_bytes") / 1e6 for clients in (1_000, 10_000, 30_000))
ANSWER_MS = [1e3 * scale(clients, "server_cpu_per_round_s") / 50 for clients in (100, 30_000)]
LEAST_GAP_S = printed_delta(setting_of(load_experiment("small_cifar")))

QUOTES = (
    ("speed.md", f"it is {SMALL:.1f} times as fast as one by one for small and {LARGE:.1f} times for large MNIST"),
    ("peers.md", f"the same four steps take [{LONE_MS:.1f} ms](speed.md"),
    ("kubernetes.md", f"and {ROUND_MS:.0f} ms for [a round](speed.md"),
    (
        "kubernetes.md",
        f"{FEW_MB:.0f} MB with 1,000 clients, {MANY_MB:.0f} MB with 10,000 and {MOST_MB:,.0f} MB with 30,000",
    ),
    ("kubernetes.md", f"measured: {SEARCH_MS:.1f} ms for the search among 100,000"),
    ("kubernetes.md", "measured: {:.1f} to {:.1f} ms of the server's processor for each answer".format(*ANSWER_MS)),
    ("regret.md", f"Here δ, the least gap of the means, is {LEAST_GAP_S:.4f} s"),
)


@pytest.mark.parametrize(("document", "quote"), QUOTES)
def test_a_quoted_figure_is_the_stored_one(document: str, quote: str) -> None:
    assert quote in re.sub(r"\s+", " ", (DOCS / document).read_text("utf-8"))
