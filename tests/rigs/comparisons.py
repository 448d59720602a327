"""Run directories of two policies, written by hand: four rounds each, optionally with groups of clients."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pausefl_server.records import Evaluation, LogEvent, Observation, RoundRecord, Timing
from pausefl_server.storage.store import Store
from rigs.log import changing_log
from rigs.reports import summary

ACCURACIES = {"pause": (0.2, 0.6, 0.8, 0.7), "random": (0.1, 0.3, 0.6, 0.75)}


def write_run(
    path: Path, policy: str, seed: int, unit: str | None = "coordinate", tested: bool = True, **changes: object
) -> Path:
    """Write four rounds of one client. Rounds are `seed` times as long as with seed 1. `changes` alter the summary."""
    path.mkdir(parents=True)
    log, latency_s = Store(path / "run.db"), {"pause": 1.0, "random": 2.0}[policy] * seed
    for number, accuracy in enumerate(ACCURACIES[policy], start=1):
        seen = Observation("<a>", Timing(latency_s), latency_s, 10, number, 0.5, 0.5 * number)
        events = (LogEvent("joined", "<a>"),) if number == 1 else ()
        record = RoundRecord(number, 1, ("<a>",), None, (seen,), events, latency_s, 0.0, number, 1e-4, "digest")
        log.commit_round(record)
        if tested:
            log.save_evaluations(number, [Evaluation("test", True, 100, accuracy, 1.0)])
    log.close()
    told = summary(
        policy=policy,
        seed=seed,
        rounds=4,
        clients=1,
        m=1,
        model_size=10,
        wall_clock_s=4.0,
        final_accuracy=ACCURACIES[policy][-1],
        best_accuracy=max(ACCURACIES[policy]),
        total_latency_s=4 * latency_s,
        privacy_unit=unit,
        max_epsilon_spent=2.0,
        vector_epsilon_max=20.0,
        measured_latency_s=4 * latency_s,
        suspect_rounds=0,
    )
    (path / "summary.json").write_text(json.dumps(told | changes))
    (path / "config.toml").write_text("")
    return path


def rewrite_summary(run_dir: Path, **changes: object) -> None:
    path = run_dir / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")


def cut_short(run_dir: Path, rounds: int) -> None:
    rewrite_summary(run_dir, rounds=rounds)
    with changing_log(run_dir) as database:
        for table in ("observations", "rounds", "events", "evaluations"):
            database.execute(f"DELETE FROM {table} WHERE round > {rounds}")


def write_runs(folder: Path, seeds: Sequence[int] = (1, 2, 3)) -> Mapping[str, Sequence[Path]]:
    return {policy: [write_run(folder / f"{policy}-{s}", policy, s) for s in seeds] for policy in ACCURACIES}


GROUPS = {"original": ("original-000",), "relevant": ("relevant-000", "relevant-001"), "poisoned": ("poisoned-000",)}


def write_grouped_run(path: Path, policy: str, seed: int) -> Path:
    """Write a run with groups, two joining before round 2. `pause` chooses only relevant-000 in rounds 2 and 3."""
    write_run(path, policy, seed)
    (path / "run.db").unlink()
    with closing(Store(path / "run.db")) as log:
        for number in range(1, 5):
            joins = {1: ["original"], 2: ["relevant", "poisoned"]}.get(number, [])
            events = tuple(LogEvent("joined", client_id) for group in joins for client_id in GROUPS[group])
            log.save_evaluations(number, [Evaluation("test", True, 100, ACCURACIES[policy][number - 1], 1.0)])
            chosen: tuple[str, ...] = ("original-000",) if number == 1 else ("relevant-000",)
            if number == 4 or (policy == "random" and number > 1):
                chosen = ("relevant-000", "poisoned-000")
            log.commit_round(RoundRecord(number, 1, chosen, None, (), events, 1.0, 0.0, number, 1e-4, "digest"))
    roles = {"original": "", "relevant": 'role = "relevant"\n', "poisoned": 'role = "irrelevant"\n'}
    tables = (f"[clients.groups.{name}]\ncount = {len(ids)}\n{roles[name]}" for name, ids in GROUPS.items())
    (path / "config.toml").write_text("".join(tables))
    return path


def grouped_runs(folder: Path) -> Mapping[str, Sequence[Path]]:
    return {policy: [write_grouped_run(folder / f"{policy}-{s}", policy, s) for s in (1, 2)] for policy in ACCURACIES}
