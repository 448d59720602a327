"""The look of all figures, and their two outputs: files, and inline SVG in the colours of an HTML page."""

import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from pausefl.results.figures import Figures
from pausefl.results.statistics import three_digits
from pausefl_process.files import write_durably
from pausefl_proto.arrays import FloatArray

Series = TypeVar("Series")


@dataclass(frozen=True)
class Colour:
    """One colour of the figures. Figures are drawn with `light`; a dark page replaces it with `dark`."""

    name: str
    light: str
    dark: str


class Look(NamedTuple):
    """The colour and dash of a line, the same in every panel. The colour is a hex string, as matplotlib takes it."""

    colour: str
    dash: Any


INK = Colour("ink", "#1c2228", "#e8ebee")
MUTED = Colour("muted", "#5f6973", "#a3adb7")
GRID = Colour("grid", "#dde2e7", "#343b43")
SURFACE = Colour("surface", "#fefefe", "#181c20")
LIMIT = Colour("limit", "#b3261e", "#ff8f86")

# The palette of Okabe and Ito, safe for colour-blind readers. The dark values have a contrast of 4.5 on `SURFACE.dark`.
SERIES = (
    Colour("series-1", "#0072b2", "#4aa8e8"),
    Colour("series-2", "#d55e00", "#ff8a3d"),
    Colour("series-3", "#009e73", "#2fc79b"),
    Colour("series-4", "#cc79a7", "#e39cc4"),
    Colour("series-5", "#e69f00", "#f2b632"),
    Colour("series-6", "#56b4e9", "#8fd0f7"),
    Colour("series-7", "#4b4f58", "#b9c0c9"),
)
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
"""Line styles that tell series apart besides colour, for print in grey."""


def looks_of(series: Iterable[Series]) -> Mapping[Series, Look]:
    """The look of each series. Colours repeat after some series, and the dash then shifts, so pairs stay distinct."""
    n = len(SERIES)
    return {name: Look(SERIES[i % n].light, DASHES[(i + i // n) % len(DASHES)]) for i, name in enumerate(series)}


# The parts of an exchange's time, in the order of the exchange: blue for the way down, warm colours for the device,
# green for the way up, grey for the unexplained rest, and darker greys for what the server adds at both ends.
PARTS = {
    "framing_s": ("framing", Colour("part-0", "#3f4750", "#c9cfd6")),
    "reconnect_s": ("reconnect", Colour("part-10", "#8c6bb1", "#b79fd6")),
    "download_s": ("download", Colour("part-1", "#9ecae8", "#9ecdf0")),
    "injected_down_s": ("injected down", Colour("part-2", "#2b7bba", "#3b8fd4")),
    "queue_s": ("queue", Colour("part-3", "#f7dc8c", "#fbe6a2")),
    "train_s": ("train", Colour("part-4", "#e8912d", "#f09a3a")),
    "privatise_s": ("privatise", Colour("part-5", "#a63d1a", "#d1592f")),
    "injected_up_s": ("injected up", Colour("part-6", "#17825f", "#23a77c")),
    "upload_s": ("upload", Colour("part-7", "#8fd3b9", "#9ae0c5")),
    "propagation_s": ("propagation", Colour("part-8", "#a9b0b8", "#8b949d")),
    "server_wait_s": ("server's wait", Colour("part-9", "#6b747e", "#5d666f")),
}

MOST_NAMED = 60
"""With more clients than this, an axis numbers them instead of naming each."""
_LONGEST_NAME = 28  # characters of a name at an axis: longer names would leave too little room for the drawing

COLOURS = (INK, MUTED, GRID, SURFACE, LIMIT, *SERIES, *(colour for _, colour in PARTS.values()))

RC: dict[Any, Any] = {
    "figure.facecolor": SURFACE.light,
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED.light,
    "axes.labelcolor": INK.light,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlecolor": INK.light,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": INK.light,
    "text.color": INK.light,
    "text.parse_math": False,  # a client may be called "$1$"
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "pausefl",  # the same data give the same file
}


KINDS: Mapping[str, Mapping[str, None] | None] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "png": None,
    "pdf": {"CreationDate": None},
}
"""The formats of pictures, each with the metadata that is left out of it."""


def capitalised(text: str) -> str:
    """The text with a capital first letter. Other letters stay as they are: a title may begin with "MAE"."""
    return text[:1].upper() + text[1:]


def rendered(figure: Figure, kind: str) -> bytes:
    """The bytes of the figure as a file of one of `KINDS`, in light colours. The same data give the same bytes."""
    for axes in figure.axes:
        locator = axes.xaxis.get_major_locator()
        if axes.get_xlabel() in ("round", "step") and isinstance(locator, MaxNLocator):
            locator.set_params(integer=True)  # rounds are whole numbers
    buffer = io.BytesIO()
    with mpl.rc_context(RC):
        if (layout := figure.get_layout_engine()) is not None:  # faster: savefig would draw the figure to lay it out
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(buffer, format=kind, dpi=160 if kind == "png" else "figure", metadata=KINDS[kind])
    return buffer.getvalue()


def write_picture(
    path: Path, draw: Callable[[], Figure | None], figures: Figures | None = None, kinds: Sequence[str] = ("png", "pdf")
) -> bytes | None:
    """Draw a figure, write it to PATH.KIND for each kind and return the bytes of the first kind.

    None if `draw` returns None or fails. Older files of other kinds are deleted, and all of them if nothing is drawn.
    A file that cannot be written, as on a full disk, stays as it was.
    """
    figures = figures or Figures()

    def drawn() -> list[bytes]:
        with mpl.rc_context(RC):
            figure = draw()
        return [] if figure is None else [rendered(figure, kind) for kind in kinds]

    found = dict(zip(kinds, figures.compute(path.name, drawn) or (), strict=False))
    for kind in KINDS.keys() - found.keys():
        path.with_name(f"{path.name}.{kind}").unlink(missing_ok=True)
    for kind, picture in found.items():
        figures.compute(path.name, partial(write_durably, path.with_name(f"{path.name}.{kind}"), picture))
    return found.get(kinds[0])


def for_page(picture: bytes, label: str) -> str:
    """An SVG picture as an element for HTML. Its colours become variables of the page (see `css_variables`)."""
    svg = picture.decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    width_pt = re.search(r'width="([\d.]+)pt"', opening)
    svg = re.sub(r'\s(xmlns(:\w+)?|width|height)="[^"]*"', "", opening) + ">" + rest
    for colour in COLOURS:
        svg = svg.replace(colour.light, f"var(--{colour.name})")
    said, natural_px = html.escape(label), 105 / 72 * float(width_pt[1]) if width_pt else 0
    return svg.replace("<svg", f'<svg role="img" aria-label="{said}" style="max-width: {natural_px:.0f}px"', 1)


def css_variables(scheme: str) -> str:
    """The figures' colours as CSS declarations, for the "light" or the "dark" scheme."""
    return " ".join(f"--{colour.name}: {getattr(colour, scheme)};" for colour in COLOURS)


def new_figure(title: str, x: str, y: str, height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure of one panel with its labels. The width is fixed; `height` is in inches."""
    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def make_room(axes: Axes, lines: int) -> None:
    """Lift the title to make room for `lines` lines of small text between it and the axes."""
    axes.set_title(axes.get_title(loc="left"), loc="left", pad=6 + 12 * lines)


def percent_axis(axes: Axes) -> None:
    """Show the fractions on the y axis as percentages."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def powers_of_ten(axis: Axis) -> None:
    """Label a logarithmic axis only at a few powers of ten, so that labels do not overlap."""

    def power(value: float, _: object) -> str:
        exponent = round(math.log10(value))
        return f"{value:,g}" if -3 <= exponent <= 4 else "10" + str(exponent).translate(_SUPERSCRIPTS)

    axis.set_major_locator(LogLocator(numticks=7))
    axis.set_major_formatter(power)
    axis.set_minor_formatter(NullFormatter())


def name_places(axis: Axis, ids: Sequence[str] | NDArray[Any], most: int = MOST_NAMED, **look: Any) -> None:
    """Label positions 0, 1, ... of an axis with client ids, at most `most`. Long ids lose their middle."""
    if len(ids) <= most:
        names = [shortened(name) for name in ids]
        axis.set_ticks(range(len(ids)), names, **look)
        # The layout measures few labels, as digits are equally wide: to measure all takes a fifth of a report's time.
        measured = {0, *{re.sub("[0-9]", "0", name): i for i, name in enumerate(names)}.values()}
        for i, label in enumerate(axis.get_ticklabels()):
            label.set_in_layout(i in measured)


def shortened(name: str) -> str:
    """The name as it stands at an axis: a long one loses its middle."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"


def name_clients(axes: Axes, ids: Sequence[str] | NDArray[Any]) -> None:
    """Label the x axis with client ids, or with numbers if there are many clients."""
    name_places(axes.xaxis, ids, rotation=90, fontsize=7)
    if len(ids) > MOST_NAMED:
        axes.locator_params(axis="x", integer=True)
    axes.set_xlim(-0.8, len(ids) - 0.2)


def draw_bars(fill: Callable[..., Any], bottom: FloatArray, top: FloatArray, colour: str, label: str = "") -> None:
    """Draw bars at 0, 1, ... by `Axes.fill_between` or `fill_betweenx`: many without gaps, very many as pixels."""
    corners = np.array([-0.38, 0.38, np.nan] if len(top) <= MOST_NAMED else [-0.5, 0.5])  # NaN makes a gap
    edges = (np.arange(len(top))[:, None] + corners).ravel()
    bottom, top = bottom.repeat(len(corners)), top.repeat(len(corners))
    fill(edges, bottom, top, color=colour, label=label, linewidth=0, rasterized=len(edges) > 20_000)


def draw_times_chosen(axes: Axes, ids: Sequence[str] | NDArray[Any], times: NDArray[np.int64]) -> None:
    """Draw a bar per client of how often it was chosen, and a line at the mean of a uniform choice."""
    draw_bars(axes.fill_between, np.zeros(len(ids)), times.astype(np.float64), SERIES[0].light)
    mean = times.mean()
    axes.axhline(mean, color=INK.light, linewidth=1.2, linestyle="--", label=f"uniform: {three_digits(mean)}")
    axes.set(xlabel="client", ylabel="times chosen", ylim=(0, 1.2 * max(times.max(), 1)))
    axes.locator_params(axis="y", integer=True)
    axes.legend(loc="upper right")
    name_clients(axes, ids)
