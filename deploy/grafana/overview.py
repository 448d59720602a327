"""The overview dashboard, to look at first: a run's progress, the model's accuracy, latency, and privacy leakage."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from pieces import (
    BUDGET,
    EPSILON,
    IN_ROUNDS,
    NO_HOSTS,
    NONE,
    NOT_PRIVATE,
    SECONDS,
    SHARE,
    WIDTH,
    About,
    Query,
    board,
    curve,
    fill,
    labels,
    lines,
    number,
    of_newest,
    per_minute,
)

_AT_WORK = (
    'sum by (run) (increase(pausefl_at_work_seconds_total{run=~"$run"}[$__rate_interval]))'
    ' / (max by (run) (delta(pausefl_elapsed_seconds{run=~"$run"}[$__rate_interval])) > 0)'
)


def overview() -> Dashboard:
    """Returns the overview dashboard."""
    made = board("overview", "Overview", "A run at a glance: progress, accuracy, latency, leakage, clients.")
    sixth, quarter, third, half = WIDTH // 6, WIDTH // 4, WIDTH // 3, WIDTH // 2
    panels = (
        number(
            About("Round", "Rounds committed so far, and how many the run is to have.", NONE, sixth, 4),
            Query('pausefl_round{run=~"$run"}', "{{run}}: round"),
            Query('pausefl_rounds{run=~"$run"}', "{{run}}: of"),
        ),
        number(
            About(
                "Test accuracy",
                "Share of test examples that the last model evaluated gets right, or the score of its task.",
                SHARE,
                sixth,
                4,
                no_data="No model was evaluated yet (evaluation.every), or the run is not being scraped",
            ),
            Query('pausefl_accuracy_ratio{run=~"$run",split="test"}', "{{run}}"),
        ),
        number(
            About("Total latency", "Sum over rounds of the slowest chosen client's latency.", SECONDS, sixth, 4),
            Query('pausefl_total_latency_seconds{run=~"$run"}', "{{run}}"),
        ),
        number(
            About(
                "Budget spent",
                "Share of its privacy budget that the most exposed client has spent.",
                SHARE,
                sixth,
                4,
                NOT_PRIVATE,
            ),
            Query('pausefl_epsilon_spent_max{run=~"$run"} / pausefl_epsilon_budget{run=~"$run"}', "{{run}}"),
            share=True,
        ),
        number(
            About("Clients", "Clients whose stream is open, and how many should be connected.", NONE, sixth, 4),
            Query('pausefl_connected_clients{run=~"$run"}', "{{run}}: connected"),
            Query('pausefl_expected_clients{run=~"$run"} > 0', "{{run}}: of"),
        ),
        number(
            About(
                "Suspect rounds",
                "Rounds so far whose measurements are in doubt, by the most frequent reason: at least so many.",
                NONE,
                sixth,
                4,
            ),
            Query('pausefl_suspect_rounds_total{run=~"$run"}', "{{run}}"),
        ),
        number(
            About("Elapsed time", "From the first job to the last commit, at the emulated scale.", SECONDS, sixth, 4),
            Query('pausefl_elapsed_seconds{run=~"$run"}', "{{run}}"),
        ),
        number(
            About(
                "Idle places",
                "Share of the elapsed time for which places for clients at work were empty, over the whole run.",
                SHARE,
                sixth,
                4,
            ),
            Query(
                'clamp_min(1 - pausefl_at_work_seconds_total{run=~"$run"}'
                ' / (pausefl_elapsed_seconds{run=~"$run"} * pausefl_places{run=~"$run"} > 0), 0)',
                "{{run}}",
            ),
        ),
        number(
            About(
                "Staleness",
                "Steps between the model that an update was made from and the step that it entered, on average.",
                NONE,
                sixth,
                4,
                IN_ROUNDS,
            ),
            Query(
                'pausefl_staleness_steps_total{run=~"$run"} / (pausefl_round_trip_seconds_count{run=~"$run"} > 0)',
                "{{run}}",
            ),
        ),
        number(
            About(
                "Evaluator answers",
                "Whether the evaluator did what it was asked last.",
                NONE,
                sixth,
                4,
                no_data="This run evaluates nothing, or is not being scraped",
            ),
            Query('pausefl_evaluator_connected{run=~"$run"}', "{{run}}"),
            yes_no=True,
        ),
        number(
            About(
                "Certificates end in",
                "The first of them, of server, clients and evaluator.",
                SECONDS,
                sixth,
                4,
                no_data="No TLS",
            ),
            Query('min by (run, job) (pausefl_certificate_remaining_seconds{run=~"$run|"})', "{{run}} {{job}}"),
            of_all=True,
        ),
        number(
            About("Disk left", "Where run.db lies.", "bytes", sixth, 4),
            Query('pausefl_disk_free_bytes{run=~"$run"}', "{{run}}"),
        ),
        curve(
            About(
                "Accuracy against total latency",
                "What policies are compared by. Models are evaluated beside the rounds: a point's latency may be that"
                " of a few rounds later.",
                SHARE,
                half,
                10,
            ),
            Query('max by (run) (pausefl_total_latency_seconds{run=~"$run"})', "total latency (s)"),
            Query('max by (run) (pausefl_accuracy_ratio{run=~"$run",split="test"})', "test accuracy"),
        ),
        curve(
            About(
                "Accuracy against elapsed time",
                "What rounds and asynchronous steps are compared by: time since the first job, at the emulated scale.",
                SHARE,
                half,
                10,
            ),
            Query('max by (run) (pausefl_elapsed_seconds{run=~"$run"})', "elapsed time (s)"),
            Query('max by (run) (pausefl_accuracy_ratio{run=~"$run",split="test"})', "test accuracy"),
        ),
        lines(
            About(
                "Round latency",
                "Mean latency of a round, on the signal that policies see, at the emulated scale.",
                SECONDS,
                half,
                10,
            ),
            Query(
                'sum by (run) (rate(pausefl_round_latency_seconds_sum{run=~"$run"}[$__rate_interval]))'
                ' / (sum by (run) (rate(pausefl_round_latency_seconds_count{run=~"$run"}[$__rate_interval])) > 0)',
                "{{run}}",
            ),
        ),
        lines(
            About(
                "Privacy budget spent",
                "The most exposed client and the median one. The axis ends at the budget.",
                EPSILON,
                half,
                10,
                NOT_PRIVATE,
            ),
            Query('pausefl_epsilon_spent_max{run=~"$run",unit="$unit"}', "{{run}} greatest"),
            Query('pausefl_epsilon_spent_median{run=~"$run",unit="$unit"}', "{{run}} median"),
            limit=BUDGET,
        ),
        lines(
            About("Clients at work", "Clients that have a job, and places for them.", NONE, third),
            Query(_AT_WORK, "{{run}} at work"),
            Query('max by (run) (pausefl_places{run=~"$run"})', "{{run}} places"),
        ),
        lines(
            About("Idle places over time", "Share of the places for clients at work that are empty.", SHARE, third),
            Query(f'clamp_min(1 - {_AT_WORK} / max by (run) (pausefl_places{{run=~"$run"}}), 0)', "{{run}}"),
        ),
        lines(
            About("Staleness over time", "Steps an update is behind, on average.", NONE, third, no_data=IN_ROUNDS),
            Query(
                'sum by (run) (rate(pausefl_staleness_steps_total{run=~"$run"}[$__rate_interval]))'
                ' / (sum by (run) (rate(pausefl_round_trip_seconds_count{run=~"$run"}[$__rate_interval])) > 0)',
                "{{run}}",
            ),
        ),
        lines(
            About("Clients connected", "Clients that should be there, and those that are.", NONE, third),
            Query('pausefl_connected_clients{run=~"$run"}', "{{run}} connected"),
            Query('pausefl_expected_clients{run=~"$run"}', "{{run}} expected"),
            Query('pausefl_retired_clients{run=~"$run"}', "{{run}} retired"),
        ),
        lines(
            About("Rounds and rejections", "Per minute: rounds committed, messages and updates refused.", NONE, third),
            per_minute("pausefl_round_latency_seconds_count", "rounds"),
            per_minute("pausefl_rejected_updates_total", "rejected"),
        ),
        lines(
            About(
                "Suspect rounds by reason",
                "Rounds in doubt so far: whose lateness, the server's host's or that of a client that was chosen.",
                NONE,
                third,
                no_data="None",
            ),
            Query('sum by (run, reason) (pausefl_suspect_rounds_total{run=~"$run"}) > 0', "{{run}} {{reason}}"),
        ),
        lines(
            About(
                "Jobs without an update",
                "Per minute: chosen clients that gave no update, as they were late, lost, or said no, as it was"
                " rejected, or as enough others had answered (unneeded).",
                NONE,
                quarter,
            ),
            per_minute("pausefl_missed_jobs_total", "{{kind}}", by="kind"),
        ),
        lines(
            About("Jobs answered", "Per minute, by what client hosts say they answered.", NONE, quarter, 8, NO_HOSTS),
            per_minute("pausefl_host_exchanges_total", "{{status}}", by="status"),
        ),
        lines(
            About(
                "Waits for clients that missed",
                "Total latency, and what it is without these waits. In a censored round a miss decided the latency.",
                SECONDS,
                quarter,
            ),
            Query('pausefl_total_latency_seconds{run=~"$run"}', "{{run}} total"),
            Query('pausefl_measured_latency_seconds{run=~"$run"}', "{{run}} measured"),
        ),
        lines(
            About(
                "Doubtful latencies and reconnects",
                "Per minute: rounds that a miss decided, latencies below τ_min, streams that opened and that ended.",
                NONE,
                quarter,
            ),
            per_minute("pausefl_censored_rounds_total", "censored rounds"),
            per_minute("pausefl_clamped_latencies_total", "clamped latencies"),
            per_minute("pausefl_client_arrivals_total", "streams opened"),
            per_minute("pausefl_client_departures_total", "streams ended"),
        ),
        labels(
            About(
                "What is run",
                "The policy, and what is trained on what; instance leads to the live page while the run goes on.",
                NONE,
                WIDTH,
                4,
            ),
            Query(of_newest('pausefl_run_info{run=~"$run"}')),
            ["run", "policy", "dataset", "model", "unit", "instance"],
            page="instance",
        ),
        labels(
            About(
                "Alerts",
                "What fired in this range; alerts.yml says of each what to do.",
                NONE,
                WIDTH,
                4,
                no_data="None",
            ),
            Query('ALERTS{alertstate="firing",run=~"$run|"}'),
            ["alertname", "run", "severity"],
        ),
    )
    fill(
        made,
        panels,
        {
            0: "At a glance",
            12: "Runs against each other",
            16: "Progress and clients",
            26: "Runs and alerts",
        },
    )
    return made
