"""The building blocks of dashboards. Every panel has a title, a description, a unit, and a text to show without data.

Numbers and tables show the last value in the chosen time range, so that finished runs can be read. Unknown values are
not shown as 0.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as shapes
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.xychart import SeriesMapping, XYShowMode

NONE, SECONDS, SHARE, BYTES_PER_S, EPSILON = "none", "s", "percentunit", "Bps", "prefix:ε "
NO_DATA = "No data in this range: was a run scraped then?"
NOT_PRIVATE = "No ε: this run has no privacy, or is not being scraped"
IN_ROUNDS = "In rounds no update is stale"
NO_HOSTS = "Client hosts are not being scraped (metrics.client_port), or the run is over"

WIDTH = 24
"""The width of a dashboard, in the units of `span`."""

_SOURCE = shapes.DataSourceRef(type_val="prometheus", uid="${source}")
# The shares of the maximum at which a colour changes.
_WARN, _ALARM = 0.7, 0.9
# Grafana computes rates over four steps of the query, so with this step, rounds of ten seconds leave no gaps. A panel's
# own step does not matter for this.
_RATE_STEP = "5s"
_LEGEND = common.VizLegendOptions().show_legend(True).placement(models.LegendPlacement.BOTTOM)

AnyPanel = TypeVar("AnyPanel", timeseries.Panel, stat.Panel, bargauge.Panel, table.Panel, heatmap.Panel, xychart.Panel)


@dataclass(frozen=True)
class About:
    """The texts, unit and size that every panel has."""

    title: str
    description: str
    unit: str
    span: int
    height: int = 8
    no_data: str = NO_DATA


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of its series."""

    expr: str
    legend: str = ""
    ref: str = ""
    """The name by which transformations refer to it. Empty: a letter by its position."""


def per_minute(metric: str, legend: str, by: str = "") -> Query:
    """The increase per minute of each run's counter, by run and by the further labels in `by`."""
    labels = f"run, {by}" if by else "run"
    rate = f'rate({metric}{{run=~"$run"}}[$__rate_interval])'
    return Query(f"60 * sum by ({labels}) ({rate})", f"{{{{run}}}} {legend}")


_NEWEST = (
    'pausefl_last_round_timestamp_seconds{run=~"$run"} == on (run) group_left ()'
    ' max by (run) (pausefl_last_round_timestamp_seconds{run=~"$run"})'
)


def of_newest(expr: str) -> str:
    """The series of each run's newest server: a run that was resumed may have had others, at other addresses."""
    return f"(({expr}) and on (instance, run) ({_NEWEST}))"


BUDGET = Query('max(pausefl_epsilon_budget{run=~"$run",unit="$unit"})', "budget", ref="budget")


def lines(about: About, *queries: Query, stacked: bool = False, limit: Query | None = None) -> timeseries.Panel:
    """A panel of values over time. With `limit` the axis ends there, and dashed lines mark 70 % and 90 % of it."""
    panel = _describe(timeseries.Panel(), about)
    panel.span_nulls(True).show_points(models.VisibilityMode.NEVER).fill_opacity(30 if stacked else 0)
    panel.legend(_LEGEND).tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI))
    if stacked:
        panel.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL).group("A"))
    for target in _targets(queries, PromQueryFormat.TIME_SERIES):
        panel.with_target(target.range())
    if limit is not None:
        style = common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED)
        _limit(panel, limit).thresholds_style(style)
    return panel


def number(
    about: About,
    *queries: Query,
    share: bool = False,
    yes_no: bool = False,
    is_of_now: bool = False,
    of_all: bool = False,
) -> stat.Panel:
    """A panel of large numbers: the last value of each run. A `share` changes colour near 1; of `yes_no`, 0 is red.

    Queries are of a run's newest server, or `of_all` its processes, and then say themselves how they are grouped. A
    query that compares series at one moment can only be asked for the present (`is_of_now`).
    """
    panel = _describe(stat.Panel(), about).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if not is_of_now:
        each = ((q, q.expr if of_all else f"max by (run) {of_newest(q.expr)}") for q in queries)
        queries = tuple(Query(last(expr), q.legend, q.ref) for q, expr in each)
    for target in _targets(queries, PromQueryFormat.TIME_SERIES):
        panel.with_target(target.instant())
    if yes_no:
        said = {"0": ("no", "red"), "1": ("yes", "green")}
        options = {value: shapes.ValueMappingResult(text=text, color=color) for value, (text, color) in said.items()}
        panel.mappings([shapes.ValueMap(options=options)])
    steps = [(None, "green"), (_WARN, "orange"), (_ALARM, "red")] if share else [(None, "text")]
    return panel.thresholds(_thresholds(shapes.ThresholdsMode.ABSOLUTE, steps))


def bars(about: About, query: Query, limit: Query) -> bargauge.Panel:
    """A panel with the last value of each series as a bar, on a scale that ends at a limit."""
    panel = _describe(bargauge.Panel(), about).orientation(models.VizOrientation.HORIZONTAL)
    panel.display_mode(models.BarGaugeDisplayMode.BASIC)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    query = Query(last(query.expr), query.legend, query.ref)
    for target in _targets([query], PromQueryFormat.TIME_SERIES):
        panel.with_target(target.instant())
    return _limit(panel, limit)


def heat(about: About, query: Query) -> heatmap.Panel:
    """A panel of histogram buckets over time."""
    panel = _describe(heatmap.Panel(), about).calculate(False)
    panel.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
    panel.y_axis(heatmap.YAxisConfig().unit(about.unit)).cell_values(heatmap.CellValues().unit(NONE))
    for target in _targets([query], PromQueryFormat.HEATMAP):
        panel.with_target(target.range())
    return panel


def curve(about: About, x: Query, y: Query) -> xychart.Panel:
    """A panel of one value over another, with a line for each run. Both queries' series have only the label run."""
    panel = _describe(xychart.Panel(), about).show(XYShowMode.POINTS_AND_LINES).axis_label(x.legend)
    panel.point_size(xychart.XychartFieldConfigPointSize().fixed(4)).legend(_LEGEND)
    for target in _targets([x, y], PromQueryFormat.TABLE):
        panel.with_target(target.range())
    panel.with_transformation(_transformation("merge"))
    panel.with_transformation(_transformation("partitionByValues", fields=["run"], keepFields=False))
    series = (
        xychart.XYSeriesConfig()
        .x(xychart.XychartXYSeriesConfigX().matcher(_matcher("byName", "Value #A")))
        .y(xychart.XychartXYSeriesConfigY().matcher(_matcher("byName", "Value #B")))
    )
    return panel.mapping(SeriesMapping.AUTO).series([series])


@dataclass(frozen=True)
class Column:
    """One column of a table: a query with a single label, and the unit and style of its values."""

    title: str
    expr: str
    unit: str
    is_share: bool = False


def rows(about: About, key: str, columns: Sequence[Column], *, sort: str, link: str) -> table.Panel:
    """A table with a row per value of label `key`, which links to `link`. The greatest in column `sort` is first."""
    panel = _describe(table.Panel(), about)
    for target in _targets([Query(last(c.expr)) for c in columns], PromQueryFormat.TABLE):
        panel.with_target(target.instant())
    # Grafana calls the values of query A "Value #A".
    values = {f"Value #{_ref(i)}": column.title for i, column in enumerate(columns)}
    panel.with_transformation(_transformation("joinByField", byField=key, mode="outer"))
    panel.with_transformation(_transformation("filterFieldsByName", include={"pattern": f"^({key}|Value.*)$"}))
    panel.with_transformation(_transformation("organize", renameByName=values, excludeByName={}, indexByName={}))
    panel.override_by_name(key, [_property("links", [{"title": f"This {key} alone", "url": link}])])
    for column in columns:
        panel.override_by_name(column.title, _column_style(column))
    return panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])


def labels(about: About, query: Query, names: Sequence[str], *, page: str = "") -> table.Panel:
    """A table of the labels of a query's series in the time range. The label `page` is an address, shown as a link."""
    panel = _describe(table.Panel(), about)
    if page:
        panel.override_by_name(page, [_property("links", [{"title": "Live page", "url": "http://${__value.text}/"}])])
    for target in _targets([Query(last(query.expr))], PromQueryFormat.TABLE):
        panel.with_target(target.instant())
    order = {name: place for place, name in enumerate(names)}
    panel.with_transformation(_transformation("filterFieldsByName", include={"names": list(names)}))
    return panel.with_transformation(_transformation("organize", indexByName=order, renameByName={}, excludeByName={}))


def last(expr: str) -> str:
    """The expression with each plain selector replaced by its last sample in the chosen time range."""
    return re.sub(r"\b(pausefl_\w+|ALERTS)(\{[^{}]*\})?(?![\w\[{])", r"last_over_time(\g<0>[$__range])", expr)


def board(name: str, title: str, description: str, *, of_several: bool = True) -> dashboard.Dashboard:
    """A dashboard without panels. Its variables are the data source, the run or runs, the client and the unit of ε."""
    made = dashboard.Dashboard(f"pausefl · {title}").uid(f"pausefl-{name}").description(description).tags(["pausefl"])
    made.refresh("5s").time("now-15m", "now").timezone("browser").tooltip(shapes.DashboardCursorSync.CROSSHAIR)
    made.with_variable(dashboard.DatasourceVariable("source").label("Data source").type("prometheus"))
    made.with_variable(_choice("run", "Runs" if of_several else "Run", "pausefl_run_info").multi(of_several))
    clients = _choice("client", "Client", 'pausefl_client_selections_total{run=~"$run"}')
    made.with_variable(clients.multi(True).include_all(True).all_value(".*").current(_ALL))
    made.with_variable(_choice("unit", "ε protects a", 'pausefl_epsilon_budget{run=~"$run"}'))
    others = dashboard.DashboardLink("pausefl").type(shapes.DashboardLinkType.DASHBOARDS).tags(["pausefl"])
    return made.link(others.include_vars(True).keep_time(True))


_ALL = shapes.VariableOption(text="All", value="$__all", selected=True)


def link_to(name: str, **variables: str) -> str:
    """The address of another dashboard, for the same run and time range and with these variables."""
    chosen = "".join(f"&var-{variable}={value}" for variable, value in variables.items())
    return f"/d/pausefl-{name}?${{run:queryparam}}&${{__url_time_range}}{chosen}"


def _choice(label: str, title: str, series: str) -> dashboard.QueryVariable:
    variable = dashboard.QueryVariable(label).label(title).datasource(_SOURCE)
    variable.query({"query": f"label_values({series}, {label})", "refId": label})
    return variable.refresh(shapes.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(shapes.VariableSort.NATURAL_ASC)


def fill(made: dashboard.Dashboard, panels: Sequence[Builder[shapes.Panel]], rows: Mapping[int, str]) -> None:
    """Add panels to a dashboard. `rows` has the title of each row, by the index of the row's first panel."""
    for place, panel in enumerate(panels):
        if place in rows:
            made.with_row(dashboard.Row(rows[place]))
        made.with_panel(panel)


def _describe(panel: AnyPanel, about: About) -> AnyPanel:
    panel.title(about.title).description(about.description).unit(about.unit).no_value(about.no_data)
    return panel.span(about.span).height(about.height).datasource(_SOURCE)


def _targets(queries: Sequence[Query], format: PromQueryFormat) -> list[prometheus.Dataquery]:
    return [_target(query, format, query.ref or _ref(place)) for place, query in enumerate(queries)]


def _target(query: Query, format: PromQueryFormat, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().datasource(_SOURCE).expr(query.expr).legend_format(query.legend)
    if "$__rate_interval" in query.expr:
        target.interval(_RATE_STEP)
    return target.format(format).ref_id(ref)


def _ref(place: int) -> str:
    return chr(ord("A") + place)


LimitedPanel = TypeVar("LimitedPanel", timeseries.Panel, bargauge.Panel)


def _limit(panel: LimitedPanel, limit: Query) -> LimitedPanel:
    """Let the panel's range end at a query's value. Grafana reads thresholds as percentages of that range."""
    for target in _targets([limit], PromQueryFormat.TIME_SERIES):
        panel.with_target(target.range())
    mapping = {"fieldName": limit.legend, "handlerKey": "max", "reducerId": "lastNotNull"}
    panel.with_transformation(_transformation("configFromData", configRefId=limit.ref, mappings=[mapping]))
    steps = [(None, "green"), (100 * _WARN, "orange"), (100 * _ALARM, "red")]
    return panel.min(0).thresholds(_thresholds(shapes.ThresholdsMode.PERCENTAGE, steps))


def _thresholds(mode: shapes.ThresholdsMode, steps: Sequence[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    made = [shapes.Threshold(value, color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(mode).steps(made)


def _column_style(column: Column) -> list[shapes.DynamicConfigValue]:
    style = [_property("unit", column.unit)]
    if column.is_share:
        steps = [(None, "green"), (_WARN, "orange"), (_ALARM, "red")]
        thresholds = _thresholds(shapes.ThresholdsMode.ABSOLUTE, steps).build()
        style += [_property("thresholds", thresholds), _property("min", 0), _property("max", 1)]
        style.append(_property("custom.cellOptions", {"type": "gauge", "mode": "basic"}))
    return style


def _property(name: str, value: object) -> shapes.DynamicConfigValue:
    return shapes.DynamicConfigValue(name, value)


def _matcher(kind: str, options: object) -> xychart.MatcherConfig:
    return xychart.MatcherConfig().id(kind).options(options)


def _transformation(name: str, **options: object) -> shapes.DataTransformerConfig:
    return shapes.DataTransformerConfig(id_val=name, options=options)
