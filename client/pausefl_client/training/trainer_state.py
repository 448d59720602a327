"""Files of what a trainer remembers from round to round (such as Adam's moments). A restart then changes no update."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.training.trainer import Trainer
from pausefl_proto.errors import PauseflError

log = logging.getLogger("pausefl.client")

_SEAL_BYTES = xxhash.xxh3_128().digest_size
# Of how many runs a client keeps states. An interrupted run may go on after others.
_RUNS_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Saved:
    """A trainer's state after a round, the number of the file (slot) that holds it, and the digest of the examples."""

    round: int
    slot: int
    state: bytes
    examples: str = ""


class TrainerStates:
    """The states of one client's trainer after a run's last two trainings, in two files written in turn.

    Two are needed because a round may be played again, after a crash or after `--back-to`. It is then trained from the
    state before it. Each of the client's last runs has files of its own, as it may go on after another. Only the files'
    owner may read them: they are computed from the data, without noise.
    """

    def __init__(self, trainer: Trainer, path: Path) -> None:
        """The files lie in the folder PATH.states, which is made when the first non-empty state is saved."""
        self._trainer = trainer
        self._folder = path.with_name(f"{path.name}.states")
        self._older = [path.with_name(f"{path.name}.state-{slot}") for slot in (0, 1)]  # those of 0.1.0, with their run
        self._run_id: str | None = None
        self._paths: list[Path] = []
        self._now = _Saved(0, 1, b"")  # the state that the trainer has now; the next one goes to the other slot

    def recall(self, key: ReleaseKey) -> None:
        """Restore the trainer's state before `key`'s round: now, saved or fresh. PauseflError for other examples."""
        if self._run_id == key.run_id and self._now.round < key.round:
            return
        run = xxhash.xxh3_64_hexdigest(key.run_id.encode())
        paths = [self._folder / f"{run}.{slot}" for slot in (0, 1)]
        read = [_read(path, slot) for slot, path in enumerate(paths) if path.exists()]
        read += [None for path in self._older if path.exists() and key.run_id.encode() in path.read_bytes()]
        whole = [saved for saved in read if saved]
        if any(saved.examples != self._trainer.holding.examples for saved in whole):
            raise PauseflError("its examples are others than in earlier rounds of this run; bring those back")
        before = sorted((saved for saved in whole if saved.round < key.round), key=lambda saved: saved.round)
        if (None in read or any(saved.round > key.round for saved in whole)) and not before and key.round > 1:
            # A state from rounds taken back would not fit the server's state (SCAFFOLD: c_i would not fit c). One that
            # cannot be read is torn, or another version's.
            said = "round %d: the trainer's state before it is gone; it starts fresh"
            log.warning(said, key.round, extra={"round": key.round})
        for saved in whole:
            if saved.round >= key.round:  # the round is played again, so this state is out of date
                paths[saved.slot].unlink()
        found = before[-1] if before else _Saved(0, 1, b"")
        if found.state or self._now.round:
            self._trainer.restore(found.state)
        self._run_id, self._paths, self._now = key.run_id, paths, found

    def undo(self) -> None:
        """Put the trainer back into its state before a training that failed or was withdrawn."""
        saved = _read(self._paths[self._now.slot], self._now.slot)
        self._trainer.restore(saved.state if saved and saved.round == self._now.round else b"")

    def keep(self, key: ReleaseKey) -> None:
        """Save the state after the training for `key`, which was recalled. The state then survives the process's end.

        A crash of the machine may lose it: there is no fsync, which would cost time in every round. The client then
        uses the state before it. No release changes, since the ledger keeps those.
        """
        state, slot = self._trainer.state(), 1 - self._now.slot
        if state or any(path.exists() for path in self._paths):  # otherwise the next start would find an older state
            header = f"{key.round} {self._trainer.holding.examples}\n".encode()
            seal = xxhash.xxh3_128(header)
            seal.update(state)
            self._folder.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self._paths[slot], os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                # Written in place: a torn file does not match its digest, and the other slot holds the previous state.
                file.writelines((seal.digest(), header, state))
                file.truncate()
            if not self._now.round:
                self._forget_oldest()
        self._now = _Saved(key.round, slot, b"")

    def _forget_oldest(self) -> None:
        """Delete the states of all but the last runs."""
        files = sorted(self._folder.iterdir(), key=lambda file: -file.stat().st_mtime_ns)
        runs = list(dict.fromkeys([self._paths[0].stem, *(file.stem for file in files)]))
        for file in files:
            if file.stem in runs[_RUNS_KEPT:]:
                file.unlink()


def _read(path: Path, slot: int) -> _Saved | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    seal, content = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
    if xxhash.xxh3_128_digest(content) != seal:
        return None
    header, _, state = content.partition(b"\n")
    number, _, examples = header.decode().partition(" ")
    return _Saved(int(number), slot, state, examples)
