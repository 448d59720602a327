"""Rounds for a log, each told from the others."""

import numpy as np

from pausefl_server.records import Evaluation, LogEvent, Observation, RoundRecord, Timing
from pausefl_server.storage.store import Store

ROUNDS = 10


def record(t: int) -> RoundRecord:
    observations = tuple(
        Observation(c, Timing(0.5 + t, train_s=0.25), 0.5 + t, 100, t, 1 / t, float(t), statistics={"drift": t / 7})
        for c in "abc"
    )
    events = LogEvent("joined", "d", n_examples=4), LogEvent("reconciled", "d", "late", released=t, epsilon_spent=t / 3)
    return RoundRecord(t, 1, ("a", "b", "c"), None, observations, events, 0.5, float(t), 1e-4, f"digest {t}")


def commit(store: Store, rounds: int = ROUNDS) -> None:
    for t in range(1, rounds + 1):
        store.commit_round(record(t), optimizer_state=np.full(50, t, np.float32))
        store.save_evaluations(t, [Evaluation("test", True, 100, t / 100, 1.0)])
    store.save_late_events(rounds + 1, [LogEvent("left", "a", "gone")])
