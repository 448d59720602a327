"""The privacy dashboard: each client's leakage, remaining budget and how long it lasts. ε is in the unit `unit`."""

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
    Column,
    Query,
    bars,
    board,
    fill,
    lines,
    link_to,
    number,
    of_newest,
    rows,
)

_OF = 'run="$run",unit="$unit"'
_CLIENTS = f'{_OF},client=~"$client"'


def _per_client(metric: str) -> str:
    return f"max by (client) {of_newest(f'{metric}{{{_CLIENTS}}}')}"


def privacy() -> Dashboard:
    """Returns the privacy dashboard."""
    made = board(
        "privacy", "Privacy", "What clients have leaked, what they have left, and how long it lasts.", of_several=False
    )
    sixth, half, third = WIDTH // 6, WIDTH // 2, WIDTH // 3
    panels = (
        number(
            About("Budget", "Privacy budget of each client, in the unit chosen above.", EPSILON, sixth, 4, NOT_PRIVATE),
            Query(f"pausefl_epsilon_budget{{{_OF}}}", "budget"),
        ),
        number(
            About("Greatest ε", "Spent by the most exposed client.", EPSILON, sixth, 4, NOT_PRIVATE),
            Query(f"pausefl_epsilon_spent_max{{{_OF}}}", "greatest"),
        ),
        number(
            About("Greatest share", "Of its budget, the most exposed client.", SHARE, sixth, 4, NOT_PRIVATE),
            Query(f"pausefl_epsilon_spent_max{{{_OF}}} / pausefl_epsilon_budget{{{_OF}}}", "spent"),
            share=True,
        ),
        number(
            About("Retired clients", "They release nothing more.", NONE, sixth, 4),
            Query('pausefl_retired_clients{run="$run"}', "retired"),
        ),
        number(
            About(
                "Rounds until budgets end",
                "Rounds left before fewer than m clients have budget left, as things go.",
                NONE,
                sixth,
                4,
                no_data="Never, as things go: no floor ends the budgets (privacy.epsilon_floor)",
            ),
            Query('(pausefl_budgets_end_round{run="$run"} < Inf) - pausefl_round', "rounds"),
        ),
        number(
            About(
                "Time until budgets end",
                "The same in time, at the pace of the last minutes.",
                SECONDS,
                sixth,
                4,
                no_data="Never, as things go, or the run is over",
            ),
            Query(
                '((pausefl_budgets_end_round{run="$run"} < Inf) - pausefl_round)'
                ' / (deriv(pausefl_round{run="$run"}[5m]) > 0)',
                "time",
            ),
        ),
        lines(
            About(
                "Spent per client",
                "The axis ends at the budget. Of many clients, only those with the greatest latency or ε have lines"
                " (metrics.client_series_max).",
                EPSILON,
                half,
                10,
                NOT_PRIVATE,
            ),
            Query(_per_client("pausefl_client_epsilon_spent"), "{{client}}"),
            limit=BUDGET,
        ),
        bars(
            About("Spent of the budget", "Each bar ends at the budget.", EPSILON, half, 10, NOT_PRIVATE),
            Query(f"sort_desc({_per_client('pausefl_client_epsilon_spent')})", "{{client}}"),
            limit=BUDGET,
        ),
        rows(
            About(
                "Clients",
                "What each client has spent and has left, and ε_i, what its next release would spend; 0 when it may"
                " release nothing more.",
                EPSILON,
                WIDTH,
                10,
                NOT_PRIVATE,
            ),
            "client",
            [
                Column("spent", _per_client("pausefl_client_epsilon_spent"), EPSILON),
                Column(
                    "share of the budget",
                    f"{_per_client('pausefl_client_epsilon_spent')} / on () group_left () {BUDGET.expr}",
                    SHARE,
                    is_share=True,
                ),
                Column("remaining", _per_client("pausefl_client_epsilon_remaining"), EPSILON),
                Column("next ε_i", _per_client("pausefl_client_epsilon_next"), EPSILON),
                Column(
                    "times chosen",
                    "max by (client) " + of_newest('pausefl_client_selections_total{run="$run",client=~"$client"}'),
                    NONE,
                ),
            ],
            sort="spent",
            link=link_to("latency", client="${__value.text}"),
        ),
        lines(
            About(
                "Spent over clients",
                "Quantiles over all clients of what they have spent; true at any number of clients.",
                EPSILON,
                third,
                8,
                NOT_PRIVATE,
            ),
            Query(f"pausefl_clients_epsilon_spent{{{_OF}}}", "{{quantile}}"),
            limit=BUDGET,
        ),
        lines(
            About(
                "Forecast",
                "Rounds committed, rounds planned, and the round after which fewer than m clients have budget left, as"
                " things go. Where that lies below the plan, the run would end early.",
                NONE,
                third,
                8,
            ),
            Query('pausefl_round{run="$run"}', "round"),
            Query('pausefl_rounds{run="$run"}', "planned"),
            Query('pausefl_budgets_end_round{run="$run"} < Inf', "budgets end"),
        ),
        lines(
            About("Retirements", "Clients that release nothing more, and those connected.", NONE, third),
            Query('pausefl_retired_clients{run="$run"}', "retired"),
            Query('pausefl_connected_clients{run="$run"}', "connected"),
        ),
        number(
            About(
                "Private",
                "Whether updates are noised from entropy. Else they are not, or the noise can be drawn again, and"
                " nothing here protects anybody.",
                NONE,
                third,
                4,
            ),
            Query('pausefl_private{run="$run"}', "private"),
            yes_no=True,
        ),
        number(
            About(
                "Ledgers apart",
                "Greatest difference between a client's own ledger, which counts, and the server's copy of it, that"
                " lasted for a minute. A release under way makes one for a moment. Not told of many clients"
                " (metrics.client_series_max).",
                EPSILON,
                third,
                4,
                NO_HOSTS,
            ),
            Query(
                f"max(min_over_time(abs(max by (client) (pausefl_host_epsilon_spent{{{_OF}}})"
                f" - max by (client) (pausefl_client_epsilon_spent{{{_OF}}}))[1m:1s]))",
                "apart",
            ),
            is_of_now=True,
        ),
        number(
            About(
                "Told by clients", "Greatest ε spent as the clients' own ledgers have it.", EPSILON, third, 4, NO_HOSTS
            ),
            Query(f"max(pausefl_host_epsilon_spent{{{_OF}}} or pausefl_host_epsilon_spent_max{{{_OF}}})", "greatest"),
            of_all=True,
        ),
    )
    fill(made, panels, {0: "At a glance", 6: "Clients", 9: "How long budgets last", 12: "Whether it is private"})
    return made
