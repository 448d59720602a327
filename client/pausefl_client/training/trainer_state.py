"""Files of what a trainer remembers from round to round (such as Adam's moments). A restart then changes no update."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.training.trainer import Trainer

log = logging.getLogger("pausefl.client")

_SEAL_BYTES = xxhash.xxh3_128().digest_size


@dataclass(frozen=True, slots=True)
class _Saved:
    """A trainer's state after a round, and the number of the file (slot) that holds it."""

    run_id: str
    round: int
    slot: int
    state: bytes


class TrainerStates:
    """The states of one client's trainer after its last two trainings, in two files written in turn.

    Two are needed because a round may be played again, after a crash or after `--back-to`. It is then trained from the
    state before it. Only the files' owner may read them: they are computed from the data, without noise.
    """

    def __init__(self, trainer: Trainer, path: Path) -> None:
        """`path` is the files' path without suffix. The files are made when the first non-empty state is saved."""
        self._trainer = trainer
        self._paths = [path.with_name(f"{path.name}.state-{slot}") for slot in (0, 1)]
        self._now = _Saved("", 0, 1, b"")  # the state that the trainer has now; the next one goes to the other slot

    def recall(self, key: ReleaseKey) -> None:
        """Put the trainer into its state before the round of `key`: its present one, a saved one, or a fresh one."""
        if self._now.run_id == key.run_id and self._now.round < key.round:
            return
        read = [self._read(slot) for slot, path in enumerate(self._paths) if path.exists()]
        of_run = [saved for saved in read if saved and saved.run_id == key.run_id]
        before = sorted((saved for saved in of_run if saved.round < key.round), key=lambda saved: saved.round)
        if (None in read or any(saved.round > key.round for saved in of_run)) and not before and key.round > 1:
            # A state from rounds taken back would not fit the server's state (SCAFFOLD: c_i would not fit c). One that
            # cannot be read is torn, or another version's.
            said = "round %d: the trainer's state before it is gone; it starts fresh"
            log.warning(said, key.round, extra={"round": key.round})
        for saved in of_run:
            if saved.round >= key.round:  # the round is played again, so this state is out of date
                self._paths[saved.slot].unlink()
        found = before[-1] if before else _Saved(key.run_id, 0, 1, b"")
        if found.state or self._now.round:
            self._trainer.restore(found.state)
        self._now = found

    def undo(self) -> None:
        """Put the trainer back into its state before a training that failed or was withdrawn."""
        saved, now = self._read(self._now.slot), (self._now.run_id, self._now.round)
        self._trainer.restore(saved.state if saved and (saved.run_id, saved.round) == now else b"")

    def keep(self, key: ReleaseKey) -> None:
        """Save the state after the training for `key`. When this returns, the state survives the process's end.

        A crash of the machine may lose it: there is no fsync, which would cost time in every round. The client then
        uses the state before it. No release changes, since the ledger keeps those.
        """
        state, slot = self._trainer.state(), 1 - self._now.slot
        if state or any(path.exists() for path in self._paths):  # otherwise the next start would find an older state
            header = json.dumps({"run_id": key.run_id, "round": key.round}).encode() + b"\n"
            seal = xxhash.xxh3_128(header)
            seal.update(state)
            self._paths[slot].parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self._paths[slot], os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                # Written in place: a torn file does not match its digest, and the other slot holds the previous state.
                file.writelines((seal.digest(), header, state))
                file.truncate()
        self._now = _Saved(key.run_id, key.round, slot, b"")

    def _read(self, slot: int) -> _Saved | None:
        try:
            data = self._paths[slot].read_bytes()
        except FileNotFoundError:
            return None
        seal, content = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
        if xxhash.xxh3_128_digest(content) != seal:
            return None
        header, _, state = content.partition(b"\n")
        known = json.loads(header)
        return _Saved(known["run_id"], known["round"], slot, state)
