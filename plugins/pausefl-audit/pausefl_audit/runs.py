"""Plays the privacy part of two equal runs: client processes forked as in a run, their ledgers and their releases.

Both runs have the same experiment, clients, rounds and attempts. So noise that is computed from these, instead of drawn
anew, is the same in both. Each client process is ended once and started again.
"""

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from pausefl.runtime.client.plan import ClientPlan
from pausefl.runtime.client.privacy import open_privacies
from pausefl.runtime.client.process import make_trainers
from pausefl.runtime.forks import forked_client, spawned
from pausefl.runtime.processes.lifetime import die_with_parent, ignore_interrupts, in_children, start
from pausefl_audit.canaries import Claim, Scores, attack, canary, clear_noise
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.privacy.mechanism import LaplaceSource
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_process.ending import asking_to_end, signals_to
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import BudgetError, PauseflError
from pausefl_proto.wire import Vector

_RUNS, _CLIENTS, _LIVES = 2, 2, 2
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 9
"""The fewest and the most rounds of each life of a client. Small models get more rounds."""
_RUN_ID = "audit"


@dataclass(frozen=True)
class _Effort:
    """How much each client process draws: less with OpenDP's sampler, which is a thousand times slower than numpy's."""

    release_draws: int
    attack_draws: int
    sources: int


_EFFORT = {"laplace": _Effort(500_000, 50_000_000, 12_000), "opendp": _Effort(50_000, 200_000, 2_000)}


@dataclass(frozen=True, eq=False)
class NoiseSample:
    """The noise of one release, (d,), in units of the charged scale, and its origin."""

    run: int
    client_id: str
    life: int
    """The number of the client's process, from 1. A restarted client has the next number."""
    round: int
    attempt: int
    noise: FloatArray
    toward: FloatArray
    """The sign of the clipped update, (d,)."""


@dataclass(frozen=True, eq=False)
class Witness:
    """The measurements from one client process."""

    releases: list[NoiseSample]
    sources: FloatArray
    """The first draws of fresh noise sources, (n,)."""
    clear_reach: float
    """The greatest noise, in scales, of uploads with almost no noise, over `clear_draws` draws."""
    clear_draws: int
    scores: dict[float, Scores]
    """The scores of attacks, by ε."""
    seed_bits: int
    """How many bits of the operating system's entropy influence the noise."""


@dataclass(frozen=True)
class _Task:
    plan: ClientPlan
    client_id: str
    folder: Path
    run: int
    life: int
    epsilons: tuple[float, ...]
    scores: int


def witnesses(plan: ClientPlan, epsilons: tuple[float, ...], scores: int) -> list[Witness]:
    """The measurements from all client processes of both runs. PauseflError with the first error of a process.

    `scores` is the number of attempts of each attack at each ε, over all processes.
    """
    # The data holders' own ledgers are not used: an audit must not spend their budgets.
    assert plan.privacy is not None
    audited = replace(plan, privacy=replace(plan.privacy, ledger_dir=None))
    clients = plan.training.client_ids[:_CLIENTS]
    each = -(-scores // (_RUNS * _LIVES * len(clients)))
    with tempfile.TemporaryDirectory(prefix="pausefl-audit-") as folder:
        lives = [
            [_Task(audited, client_id, Path(folder) / f"{run}", run, life, epsilons, each) for client_id in clients]
            for life in range(1, _LIVES + 1)
            for run in range(_RUNS)
        ]
        # A child process for each run, which plays the run's lives one after the other.
        played = in_children(partial(spawned, "pausefl-audit"), _RUNS, _life, lives)
        return [witness for of_life in played for witness in of_life]


def _life(tasks: Sequence[_Task]) -> list[Witness]:
    """Fork the clients of a run's next life and wait for their end; returns what they measured."""
    ignore_interrupts()
    told = [_told(*started) for started in [_start(task) for task in tasks]]
    if failed := next((each for each in told if isinstance(each, str)), None):
        raise PauseflError(failed)
    return told


def _told(process: BaseProcess, results: "Connection[Any, Any]") -> Any:
    """The `Witness` of a client process after its end, or a text that says why it has none."""
    try:
        return results.recv()
    except EOFError:  # the client was killed, so it could not report an error
        process.join()
        return f"{process.name}, a process of the audit, ended early (exit code {process.exitcode})"
    finally:
        process.join()


def _start(task: _Task) -> tuple[BaseProcess, "Connection[Any, Any]"]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    needs_torch = task.plan.training.workload.model != "synthetic"
    process = forked_client(task.client_id, _client, task, theirs, needs_torch=needs_torch)
    with terminated_later():
        start(process)
    theirs.close()
    return process, ours


@contextmanager
def terminated_later() -> Iterator[None]:
    """Delay SIGTERM until the end of the block: a fork server that receives half a request prints a traceback."""
    heard: list[int] = []
    try:
        with signals_to(lambda number, _: heard.append(number), *asking_to_end()):
            yield
    finally:
        if heard:
            os.kill(os.getpid(), heard[0])


def _client(task: _Task, results: "Connection[Any, Any]") -> None:
    die_with_parent()
    ignore_interrupts()
    with suppress(BrokenPipeError):  # an error of the other run has ended the audit
        results.send(_measured(task))


def _measured(task: _Task) -> Witness | str:
    """The measurements of one client process, or a text that says why there are none."""
    try:
        return _witness(task)
    except PauseflError as error:
        return str(error)
    except OWN_CODE_ERRORS as error:
        return with_place(error, [task.plan.training.workload.model])


def _witness(task: _Task) -> Witness:
    plan = task.plan.privacy
    assert plan is not None
    effort, trainers = _EFFORT[plan.noise], make_trainers(task.plan.training, [task.client_id])
    manifest = trainers[task.client_id].manifest.charged
    claim = Claim(plan.mechanism.unit, plan.mechanism.clip)
    with ExitStack() as closing:
        privacy = open_privacies(task.plan, trainers, task.folder, closing)[task.client_id]
        assert privacy is not None
        releases = list(_releases(task, claim, privacy, manifest.size, effort.release_draws))
    # Both runs and all lives use the same keys.
    keys = (ReleaseKey(_RUN_ID, round_, 1, "") for round_ in count(1))

    def privatise(update: Vector, epsilon: float) -> Vector:
        return privacy.mechanism.privatise(update, epsilon, privacy.noise_for(next(keys)))

    def source() -> LaplaceSource:
        return privacy.noise_for(next(keys))

    rng = np.random.default_rng()
    clear = list(clear_noise(privatise, claim, manifest, rng))
    scores = {
        e: attack(privatise, claim, e, manifest, task.scores, rng, draws_max=effort.attack_draws) for e in task.epsilons
    }
    sources = np.array([first_draw(source) for _ in range(effort.sources)])
    return Witness(releases, sources, max(clear), len(clear) * manifest.size, scores, seed_bits(source))


def _releases(task: _Task, claim: Claim, privacy: ReleasePrivacy, size: int, draws: int) -> Iterator[NoiseSample]:
    """Yields releases of canaries, charged to the client's ledger, until its budget ends. Round 1 has two attempts."""
    releaser = Releaser(privacy)
    rounds = min(max(draws // size, _LEAST_ROUNDS), _MOST_ROUNDS)
    for round_, attempt in ((1, 1), *((round_, 1) for round_ in range(2, rounds + 1)), (1, 2)):
        update = canary(size, generator(0, "audit", round_))
        try:
            released = releaser.release(update, ReleaseKey(_RUN_ID, round_, attempt, f"life {task.life}"))
        except BudgetError:
            return
        assert released.charge is not None
        noise = claim.noise(update, released.vector, released.charge.epsilon)
        toward = np.sign(claim.clipped(update))
        yield NoiseSample(task.run, task.client_id, task.life, round_, attempt, noise, toward)


def first_draw(source: Callable[[], LaplaceSource]) -> float:
    """The first draw of a fresh noise source, at scale 1."""
    return float(source().laplace(np.zeros(1), 1.0)[0])


def seed_bits(source: Callable[[], LaplaceSource]) -> int:
    """How many of the bits that a fresh noise source reads from `os.urandom` change its first draw, each by itself."""
    asked: list[int] = []

    def draw(entropy: int) -> float:
        def urandom(size: int) -> bytes:
            asked.append(size)
            return (entropy >> 8 * sum(asked[:-1]) & ((1 << 8 * size) - 1)).to_bytes(size)

        asked.clear()
        of_system, os.urandom = os.urandom, urandom
        try:
            return first_draw(source)
        finally:
            os.urandom = of_system

    drawn = {draw(0)}
    bits = 8 * sum(asked)
    return len(drawn | {draw(1 << bit) for bit in range(bits)}) - 1
