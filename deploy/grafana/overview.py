"""The first dashboard to look at: how far the run is, how good its model, what it cost in latency and in leakage."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from pieces import (
    BUDGET,
    EPSILON,
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
    labels,
    lines,
    number,
)


def overview() -> Dashboard:
    """Overview."""
    made = board("overview", "Overview", "A run at a glance: progress, accuracy, latency, leakage, clients.")
    sixth, quarter, third, half = WIDTH // 6, WIDTH // 4, WIDTH // 3, WIDTH // 2
    panels = (
        number(
            About("Round", "Rounds committed so far, and how many the run is to have.", NONE, sixth, 4),
            Query('pausefl_round{run="$run"}', "round"),
            Query('pausefl_rounds{run="$run"}', "of"),
        ),
        number(
            About(
                "Test accuracy",
                "Share of test examples that the last model evaluated gets right.",
                SHARE,
                sixth,
                4,
                no_data="No model was evaluated yet (evaluation.every), or the run is not being scraped",
            ),
            Query('pausefl_accuracy_ratio{run="$run",split="test"}', "accuracy"),
        ),
        number(
            About("Total latency", "Sum over rounds of the slowest chosen client's latency.", SECONDS, sixth, 4),
            Query('pausefl_total_latency_seconds{run="$run"}', "latency"),
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
            Query('max(pausefl_epsilon_spent_max{run="$run"} / pausefl_epsilon_budget)', "spent"),
            share=True,
        ),
        number(
            About("Clients", "Clients whose stream is open, and how many should be connected.", NONE, sixth, 4),
            Query('pausefl_connected_clients{run="$run"}', "connected"),
            Query('pausefl_expected_clients{run="$run"}', "of"),
        ),
        number(
            About(
                "Suspect rounds",
                "Rounds so far whose measurements are in doubt, by the most frequent reason: at least so many.",
                NONE,
                sixth,
                4,
            ),
            Query('max(pausefl_suspect_rounds_total{run="$run"}) or vector(0)', "suspect"),
        ),
        curve(
            About(
                "Accuracy against cumulative latency",
                "What policies are compared by. Models are evaluated beside the rounds: a point's latency may be that"
                " of a few rounds later.",
                SHARE,
                half,
                10,
            ),
            Query('pausefl_total_latency_seconds{run="$run"}', "total latency (s)"),
            Query('pausefl_accuracy_ratio{run="$run",split="test"}', "test"),
            Query('pausefl_accuracy_ratio{run="$run",split="validation"}', "validation"),
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
            Query('pausefl_epsilon_spent_max{run="$run",unit="$unit"}', "greatest"),
            Query('pausefl_epsilon_spent_median{run="$run",unit="$unit"}', "median"),
            limit=BUDGET,
        ),
        lines(
            About("Clients connected", "Clients that should be there, and those that are.", NONE, third),
            Query('pausefl_connected_clients{run="$run"}', "connected"),
            Query('pausefl_expected_clients{run="$run"}', "expected"),
            Query('pausefl_retired_clients{run="$run"}', "of them retired"),
        ),
        lines(
            About("Rounds and rejections", "Per minute: rounds committed, messages and updates refused.", NONE, third),
            Query('60 * sum(rate(pausefl_round_latency_seconds_count{run="$run"}[$__rate_interval]))', "rounds"),
            Query('60 * sum(rate(pausefl_rejected_updates_total{run="$run"}[$__rate_interval]))', "rejected"),
        ),
        lines(
            About(
                "Suspect rounds by reason",
                "Rounds in doubt so far: whose lateness, the server's host's or that of a client that was chosen.",
                NONE,
                third,
                no_data="None",
            ),
            Query('sum by (reason) (pausefl_suspect_rounds_total{run="$run"}) > 0 or on () vector(0)', "{{reason}}"),
        ),
        lines(
            About(
                "Jobs without an update",
                "Per minute: chosen clients that gave no update, as they were late, lost, or said no, or as it was"
                " rejected.",
                NONE,
                quarter,
            ),
            Query('60 * sum by (kind) (rate(pausefl_missed_jobs_total{run="$run"}[$__rate_interval]))', "{{kind}}"),
        ),
        lines(
            About("Jobs answered", "Per minute, by what client hosts say they answered.", NONE, quarter, 8, NO_HOSTS),
            Query(
                '60 * sum by (status) (rate(pausefl_host_exchanges_total{run="$run"}[$__rate_interval]))',
                "{{status}}",
            ),
        ),
        lines(
            About(
                "Waits for clients that missed",
                "Total latency, and what it is without these waits. In a censored round a miss decided the latency.",
                SECONDS,
                quarter,
            ),
            Query('pausefl_total_latency_seconds{run="$run"}', "total"),
            Query('pausefl_measured_latency_seconds{run="$run"}', "measured"),
        ),
        lines(
            About(
                "Doubtful latencies and reconnects",
                "Per minute: rounds that a miss decided, latencies below τ_min, streams that opened and that ended.",
                NONE,
                quarter,
            ),
            Query('60 * sum(rate(pausefl_censored_rounds_total{run="$run"}[$__rate_interval]))', "censored rounds"),
            Query('60 * sum(rate(pausefl_clamped_latencies_total{run="$run"}[$__rate_interval]))', "clamped latencies"),
            Query('60 * sum(rate(pausefl_client_arrivals_total{run="$run"}[$__rate_interval]))', "streams opened"),
            Query('60 * sum(rate(pausefl_client_departures_total{run="$run"}[$__rate_interval]))', "streams ended"),
        ),
        labels(
            About(
                "What is run",
                "The run's own name, the policy, and what is trained on what. Runs that follow each other in the same"
                " containers share the run chosen above. Without a row here, no run is scraped.",
                NONE,
                WIDTH,
                4,
            ),
            Query('pausefl_run_info{run="$run"}'),
            ["run", "run_name", "policy", "dataset", "model", "unit", "instance"],
        ),
    )
    for panel in panels:
        made.with_panel(panel)
    return made
