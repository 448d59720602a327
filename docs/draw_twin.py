"""Draws virtual-clock.png from docs/results/twin.jsonl, which `python -m benchmarks.own twin --json` writes."""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from pausefl.results.report.style import RC, SERIES

HERE = Path(__file__).parent


def draw_twin(cases: list[dict[str, list[float]]]) -> Figure:
    """A figure: each exchange's real round trip over its virtual one, and the distribution of the residuals."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for case, colour, marker in zip(cases, SERIES, "osv", strict=False):
        real_s, virtual_s = case["real_s"], case["virtual_s"]
        left.plot(virtual_s, real_s, marker, color=colour.light, mfc="none", ms=3, label=str(case["case"]))
        residuals_ms = [1e3 * (a - b) for a, b in zip(real_s, virtual_s, strict=True)]
        right.ecdf(residuals_ms, color=colour.light)
    left.axline((0.0, 0.0), slope=1, color="grey", lw=0.8)
    left.set(xlabel="virtual round trip (s)", ylabel="real round trip (s)")
    left.legend()
    right.set(xlabel="real minus virtual (ms)", ylabel="share of exchanges", ylim=(0, 1))
    return figure


def main() -> None:
    """Write the figure beside this file."""
    cases = [json.loads(line) for line in (HERE / "results/twin.jsonl").read_text("utf-8").splitlines()]
    cases = [case for case in cases if "real_s" in case]
    with mpl.rc_context(RC):
        draw_twin(cases).savefig(HERE / "virtual-clock.png", dpi=110)


if __name__ == "__main__":
    main()
