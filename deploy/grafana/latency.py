"""The latency dashboard: round trips, their parts, slow clients, and whether the clocks can be trusted."""

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
    fill,
    heat,
    lines,
    link_to,
    of_newest,
    rows,
)

# "> 0" drops the times without exchanges, at which 0 / 0 would end Grafana's lines. So if rounds take longer than the
# interval of the rates, lines still connect them.
_EXCHANGES = '(sum by (run) (rate(pausefl_round_trip_seconds_count{run=~"$run"}[$__rate_interval])) > 0)'


def _quantile(q: float, histogram: str) -> Query:
    buckets = f'sum by (run, le) (rate({histogram}_bucket{{run=~"$run"}}[$__rate_interval]))'
    return Query(f"histogram_quantile({q}, {buckets}) >= 0", f"{{{{run}}}} p{100 * q:g}")


def _mean(legend: str, histogram: str) -> Query:
    total, count = (
        f'sum by (run) (rate({histogram}_{what}{{run=~"$run"}}[$__rate_interval]))' for what in ("sum", "count")
    )
    return Query(f"{total} / ({count} > 0)", f"{{{{run}}}} {legend}")


def _per_client(metric: str) -> str:
    return "max by (client) " + of_newest(f'{metric}{{run=~"$run",client=~"$client"}}')


# The share of the elapsed time in which a client had no job. Of several runs, the one in which it was least idle.
_IDLE = "clamp_min(1 - max by (client) {}, 0)".format(
    of_newest(
        'pausefl_client_at_work_seconds_total{run=~"$run",client=~"$client"}'
        ' / on (instance, run) group_left () (pausefl_elapsed_seconds{run=~"$run"} > 0)'
    )
)


def latency() -> Dashboard:
    """Returns the latency dashboard."""
    made = board("latency", "Latency", "Where a run's time goes, who is slow, and whether the clocks can be trusted.")
    half, third = WIDTH // 2, WIDTH // 3
    panels = (
        heat(
            About("Round trips", "How many exchanges took how long, on the server's clock.", SECONDS, half, 10),
            Query('sum by (le) (increase(pausefl_round_trip_seconds_bucket{run=~"$run"}[$__rate_interval]))', "{{le}}"),
        ),
        lines(
            About(
                "Where a round trip goes",
                "Mean of the parts of an exchange, each measured where it happens; together they are the"
                " round trip, if one run is chosen."
                " Propagation is what is left.",
                SECONDS,
                half,
                10,
            ),
            Query(
                'sum by (run, part) (rate(pausefl_exchange_part_seconds_sum{run=~"$run",part!~"framing|server_wait"}'
                f"[$__rate_interval])) / on (run) group_left () {_EXCHANGES}",
                "{{run}} {{part}}",
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
            Query('pausefl_clients_latency_seconds{run=~"$run"}', "{{run}} {{quantile}}"),
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
                'sum by (run, direction) (rate(pausefl_drawn_delay_seconds_sum{run=~"$run"}[$__rate_interval]))'
                f" / on (run) group_left () {_EXCHANGES}",
                "{{run}} drawn {{direction}}",
            ),
            Query(
                'sum by (run, part) (rate(pausefl_exchange_part_seconds_sum{run=~"$run",part=~"injected_.*"}'
                f"[$__rate_interval])) / on (run) group_left () {_EXCHANGES}",
                "{{run}} {{part}}",
            ),
        ),
        rows(
            About(
                "Clients",
                "The last values of each client chosen above, the greatest of several runs, the slowest first. Of many"
                " clients, only those with the"
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
                Column("idle", _IDLE, SHARE),
                Column("received", _per_client("pausefl_client_down_bytes_total"), "decbytes"),
                Column("sent", _per_client("pausefl_client_up_bytes_total"), "decbytes"),
            ],
            sort="latency",
            link=link_to("privacy", client="${__value.text}"),
        ),
        lines(
            About(
                "Timing error",
                "Measured less drawn time, without sign, in real seconds: what network, software and hosts add.",
                SECONDS,
                third,
            ),
            _mean("mean", "pausefl_timing_error_seconds"),
            _quantile(0.99, "pausefl_timing_error_seconds"),
        ),
        lines(
            About(
                "Lateness of hosts",
                "Event-loop lag and timer overshoot in the last round, the worst: of the server's host and of the"
                " clients chosen. Beyond the limits of [host], a round is suspect.",
                SECONDS,
                third,
            ),
            Query('pausefl_host_loop_lag_seconds{run=~"$run"}', "{{run}} {{host}} loop lag"),
            Query('pausefl_host_timer_overshoot_seconds{run=~"$run"}', "{{run}} {{host}} timer overshoot"),
            Query(
                'max by (run) (pausefl_host_event_loop_lag_seconds{run=~"$run"})',
                "{{run}} loop lag, told by clients",
            ),
            Query('max by (of) (pausefl_host_limit{run=~"$run",of=~".*_s"})', "limit of {{of}}"),
        ),
        lines(
            About(
                "Work of hosts",
                "Share of the last round spent computing, and of processor time stolen by other machines.",
                SHARE,
                third,
            ),
            Query('pausefl_host_compute_ratio{run=~"$run"}', "{{run}} {{host}} computing"),
            Query('pausefl_host_steal_ratio{run=~"$run"}', "{{run}} {{host}} stolen"),
            Query('max by (of) (pausefl_host_limit{run=~"$run",of=~".*_share"})', "limit of {{of}}"),
        ),
        lines(
            About("Work of clients", "Mean times, as the client hosts' own metrics tell.", SECONDS, third, 8, NO_HOSTS),
            _mean("queue", "pausefl_host_queue_seconds"),
            _mean("train", "pausefl_host_train_seconds"),
            _mean("clip and noise", "pausefl_host_privatise_seconds"),
        ),
        lines(
            About("Selection", "Mean time the policy took to choose.", SECONDS, third),
            _mean("mean", "pausefl_selection_seconds"),
        ),
        lines(
            About(
                "Traffic",
                "Models sent and updates received, of updates that came in time, over all clients.",
                BYTES_PER_S,
                third,
            ),
            Query('sum by (run) (rate(pausefl_down_bytes_total{run=~"$run"}[$__rate_interval]))', "{{run}} sent"),
            Query('sum by (run) (rate(pausefl_up_bytes_total{run=~"$run"}[$__rate_interval]))', "{{run}} received"),
        ),
        lines(
            About(
                "Memory of processes",
                "Resident memory of the server, and of the greatest client process.",
                "bytes",
                half,
            ),
            Query('max by (run, job) (process_resident_memory_bytes{run=~"$run"})', "{{run}} {{job}}"),
        ),
        lines(
            About("Processors of processes", "Processors that processes keep busy, by job, summed.", NONE, half),
            Query(
                'sum by (run, job) (rate(process_cpu_seconds_total{run=~"$run"}[$__rate_interval]))', "{{run}} {{job}}"
            ),
        ),
    )
    fill(
        made,
        panels,
        {
            0: "Where the time goes",
            5: "Clients",
            6: "Trust in clocks and hosts",
            9: "Work, traffic, processes",
        },
    )
    return made
