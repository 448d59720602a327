"""Where the time goes: round trips, their parts, who is slow, and whether the clocks can be trusted."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from pieces import (
    BYTES_PER_S,
    NO_HOSTS,
    NONE,
    SECONDS,
    SHARE,
    WIDTH,
    About,
    Column,
    Query,
    board,
    heat,
    lines,
    link_to,
    rows,
)

# Nothing is divided by nothing, where Grafana's lines would end: if rounds take longer than rates reach back, lines go
# from one to the next.
_EXCHANGES = '(sum(rate(pausefl_round_trip_seconds_count{run="$run"}[$__rate_interval])) > 0)'


def _quantile(q: float, histogram: str) -> Query:
    buckets = f'sum by (le) (rate({histogram}_bucket{{run="$run"}}[$__rate_interval]))'
    return Query(f"histogram_quantile({q}, {buckets}) >= 0", f"p{100 * q:g}")


def _mean(legend: str, histogram: str) -> Query:
    total, count = (f'sum(rate({histogram}_{what}{{run="$run"}}[$__rate_interval]))' for what in ("sum", "count"))
    return Query(f"{total} / ({count} > 0)", legend)


def _per_client(metric: str) -> str:
    return f'max by (client) ({metric}{{run="$run",client=~"$client"}})'


def latency() -> Dashboard:
    """Latency."""
    made = board("latency", "Latency", "Where a run's time goes, who is slow, and whether the clocks can be trusted.")
    half, third = WIDTH // 2, WIDTH // 3
    panels = (
        heat(
            About("Round trips", "How many exchanges took how long, on the server's clock.", SECONDS, half, 10),
            Query('sum by (le) (increase(pausefl_round_trip_seconds_bucket{run="$run"}[$__rate_interval]))', "{{le}}"),
        ),
        lines(
            About(
                "Where a round trip goes",
                "Mean of the parts of an exchange, each measured where it happens; together they are the round trip."
                " Propagation is what is left.",
                SECONDS,
                half,
                10,
            ),
            Query(
                'sum by (part) (rate(pausefl_exchange_part_seconds_sum{run="$run",part!~"framing|server_wait"}'
                f"[$__rate_interval])) / on () group_left () {_EXCHANGES}",
                "{{part}}",
            ),
            stacked=True,
        ),
        lines(
            About("Round latency", "The slowest chosen client's latency, over rounds.", SECONDS, third),
            *(_quantile(q, "pausefl_round_latency_seconds") for q in (0.5, 0.9, 0.99)),
        ),
        lines(
            About(
                "Latency over clients",
                "Quantiles over all clients of the last latency that the policy saw of each; true at any number.",
                SECONDS,
                third,
            ),
            Query('pausefl_clients_latency_seconds{run="$run"}', "{{quantile}}"),
        ),
        lines(
            About(
                "Drawn against measured",
                "Mean injected delay of an exchange: as drawn for the link, and as the client's clock measured it."
                " No policy sees either.",
                SECONDS,
                third,
            ),
            Query(
                'sum by (direction) (rate(pausefl_drawn_delay_seconds_sum{run="$run"}[$__rate_interval]))'
                f" / on () group_left () {_EXCHANGES}",
                "drawn {{direction}}",
            ),
            Query(
                'sum by (part) (rate(pausefl_exchange_part_seconds_sum{run="$run",part=~"injected_.*"}'
                f"[$__rate_interval])) / on () group_left () {_EXCHANGES}",
                "{{part}}",
            ),
        ),
        rows(
            About(
                "Clients",
                "The last values of each client chosen above, the slowest first. Of many clients, only those with the"
                " greatest latency or ε have rows (metrics.client_series_max).",
                NONE,
                WIDTH,
                10,
            ),
            "client",
            [
                Column("latency", _per_client("pausefl_client_latency_seconds"), SECONDS),
                Column("round trip", _per_client("pausefl_client_round_trip_seconds"), SECONDS),
                Column("idle ping", _per_client("pausefl_client_ping_seconds"), SECONDS),
                Column("times chosen", _per_client("pausefl_client_selections_total"), NONE),
                Column("received", _per_client("pausefl_client_down_bytes_total"), "decbytes"),
                Column("sent", _per_client("pausefl_client_up_bytes_total"), "decbytes"),
            ],
            sort="latency",
            link=link_to("privacy", client="${__value.text}"),
        ),
        lines(
            About(
                "Timing error",
                "How far the injected delays were from the drawn ones, without sign.",
                SECONDS,
                third,
            ),
            *(_quantile(q, "pausefl_timing_error_seconds") for q in (0.5, 0.99)),
        ),
        lines(
            About(
                "Lateness of hosts",
                "Event-loop lag and timer overshoot in the last round, the worst: of the server's host and of the"
                " clients chosen. Beyond the limits of [host], a round is suspect.",
                SECONDS,
                third,
            ),
            Query('pausefl_host_loop_lag_seconds{run="$run"}', "{{host}} loop lag"),
            Query('pausefl_host_timer_overshoot_seconds{run="$run"}', "{{host}} timer overshoot"),
            Query('max(pausefl_host_event_loop_lag_seconds{run="$run"})', "loop lag, as client hosts tell"),
        ),
        lines(
            About(
                "Work of hosts",
                "Share of the last round spent computing, and of processor time stolen by other machines.",
                SHARE,
                third,
            ),
            Query('pausefl_host_compute_ratio{run="$run"}', "{{host}} computing"),
            Query('pausefl_host_steal_ratio{run="$run"}', "{{host}} stolen"),
        ),
        lines(
            About("Work of clients", "Mean times, as the client hosts' own metrics tell.", SECONDS, third, 8, NO_HOSTS),
            _mean("queue", "pausefl_host_queue_seconds"),
            _mean("train", "pausefl_host_train_seconds"),
            _mean("clip and noise", "pausefl_host_privatise_seconds"),
        ),
        lines(
            About("Selection", "Time the policy took to choose.", SECONDS, third),
            *(_quantile(q, "pausefl_selection_seconds") for q in (0.5, 0.99)),
        ),
        lines(
            About(
                "Traffic",
                "Models sent and updates received, of updates that came in time, over the clients that have series.",
                BYTES_PER_S,
                third,
            ),
            Query('sum(rate(pausefl_client_down_bytes_total{run="$run"}[$__rate_interval]))', "sent to clients"),
            Query('sum(rate(pausefl_client_up_bytes_total{run="$run"}[$__rate_interval]))', "received"),
        ),
    )
    for panel in panels:
        made.with_panel(panel)
    return made
