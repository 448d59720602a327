"""Admission: which client ids may take part, how a client proves its id, and what its hello must say.

The files that say which clients may join are read again during a run, so that a client can be locked out of it.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from pausefl_process.tokens import read_ids, read_token_digests
from pausefl_proto.errors import ConfigError, TryLaterError, WireError
from pausefl_proto.excerpts import excerpt, excerpts
from pausefl_proto.foreign_text import shown
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, Manifest, check_probe
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent
from pausefl_server.release_checks import check_ledger
from pausefl_server.settings import ServerSettings

# Sums of this many examples over any number of clients stay exact in int64 and float64.
_MOST_EXAMPLES = 10**9
_LONGEST_ID = 128
# How many differences between two experiments an error names.
_MOST_NAMED = 4
# How many characters of a client's schedule an error quotes: more than any schedule has.
_LONGEST_SCHEDULE = 300
_LOOKS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Admission:
    """The ids that may join, and how clients prove them. Without certificates and tokens, any client may use any id."""

    ids: frozenset[str] | str | None = None
    """The ids that may join, or one pattern for them with * and ?; None: any id."""
    listed: frozenset[str] | None = None
    """Ids and patterns, one of which the id must match too; None: any id."""
    by_certificate: bool = False
    """A certificate proves the ids that match one of its subject alternative names, which may be patterns."""
    tokens: Mapping[str, bytes] = field(default_factory=dict)
    """The SHA-256 digest of each id's token, by id. Tokens are 256 random bits, so plain digests do not reveal them."""
    tokens_file: str = ""
    """The file of `tokens`; empty if there is none."""
    clients_file: str = ""
    """The file of `listed`; empty if there is none."""

    def read(self) -> "Admission":
        """The admission with the current content of its files; ConfigError names a file that cannot be used."""
        tokens = read_token_digests(self.tokens_file) if self.tokens_file else self.tokens
        return replace(self, tokens=tokens, listed=read_ids(self.clients_file) if self.clients_file else self.listed)

    def files_state(self) -> list[tuple[int, int, int]]:
        """A value that changes when a file changes."""
        found = []
        for path in filter(None, (self.tokens_file, self.clients_file)):
            with suppress(OSError):  # it is being replaced
                status = Path(path).stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found

    @property
    def is_open(self) -> bool:
        """Whether clients need not prove their ids."""
        return not (self.by_certificate or self.tokens)

    def check_known(self, names: Sequence[str], token: str) -> None:
        """Raise WireError if a client's certificate and token, seen before its hello, prove no id at all."""
        is_known = (self.by_certificate and bool(names)) or _digest(token) in self.tokens.values()
        if not (self.is_open or is_known):
            raise WireError("neither certificate nor token shows that this client is one of the run's")

    def check(self, client_id: str, names: Sequence[str], token: str) -> bool:
        """Return whether the client has proven its id; WireError if it may not use that id.

        `names` are its certificate's subject alternative names.
        """
        if not (1 <= len(client_id) <= _LONGEST_ID and client_id.isprintable()):
            raise WireError(f"a client id has 1 to {_LONGEST_ID} printable characters")
        if not self._has(client_id):
            raise WireError(f"client id {client_id!r} is none of this run's: see admission.clients")
        if self.is_open:
            return False
        is_named = self.by_certificate and any(fnmatchcase(client_id, name) for name in names)
        if not is_named and not hmac.compare_digest(_digest(token), self.tokens.get(client_id, b"")):
            raise WireError(f"neither certificate nor token shows that this client is {client_id!r}")
        return True

    def _has(self, client_id: str) -> bool:
        is_listed = self.listed is None or (client_id in self.listed and "[" not in client_id)  # by itself
        if not is_listed and not any(fnmatchcase(client_id, pattern) for pattern in self.listed or ()):
            return False
        if self.ids is None:
            return True
        return fnmatchcase(client_id, self.ids) if isinstance(self.ids, str) else client_id in self.ids


async def follow(admission: Admission, readmit: Callable[[Admission], None], say: Callable[[str], None]) -> None:
    """Pass the new admission to `readmit` whenever its files change, until cancelled. `say` reports unusable files.

    A file that still changes from one look to the next is being written: only part of its clients may stand in it.
    """
    seen, used = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    while admission.tokens_file or admission.clients_file:
        before, seen = seen, await asyncio.to_thread(admission.files_state)
        if before == seen != used:
            used = seen
            try:
                changed = await asyncio.to_thread(admission.read)
                if await asyncio.to_thread(admission.files_state) == seen:
                    readmit(changed)
                else:
                    used = []
            except ConfigError as error:
                say(f"{error}; what it said before holds")
        await asyncio.sleep(_LOOKS_EVERY_S)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def check_hello(hello: pb.Hello, settings: ServerSettings, table: ClientTable, connected: Container[str]) -> None:
    """Raise WireError, which says what the client should change, if it cannot take part."""
    if hello.protocol_version != PROTOCOL_VERSION:
        raise WireError(f"protocol version {hello.protocol_version}, this server speaks {PROTOCOL_VERSION}")
    if not 1 <= hello.n_examples <= _MOST_EXAMPLES:
        raise WireError(f"has {hello.n_examples} examples, must be 1 to {_MOST_EXAMPLES}")
    run = hello.agreement if settings.agreement is None else settings.agreement
    if differences := "; ".join(islice(_differences(hello.agreement, run), _MOST_NAMED)):
        raise WireError(f"the experiments differ: {differences}")
    del hello.manifest.tensors[len(settings.manifest.tensors) + 1 :]  # to read thousands would take long
    if (theirs := Manifest.from_message(hello.manifest)) != (ours := settings.manifest):
        is_rest = theirs.tensors == ours.tensors
        differ = "frozen parameters or buffers differ" if is_rest else "tensors differ in name, shape or order"
        raise WireError(f"the client's model is not this run's: its {differ}")
    check_probe(theirs.probe, ours.probe, "client")
    schedule = settings.privacy.schedule if settings.privacy else ""
    if hello.ledger.schedule != schedule:
        agreed = shown(hello.ledger.schedule, _LONGEST_SCHEDULE)
        raise WireError(f"privacy differs: the client agreed to {agreed!r}, the run has {schedule!r}")
    if hello.client_id in connected:
        # It may be the same client, which came back before the server noticed that its old stream is dead.
        raise TryLaterError(f"client id {hello.client_id!r} is connected already")
    proven, _ = table.known_releases(hello.client_id)
    check_ledger(hello.ledger.released, hello.ledger.epsilon_spent, settings.budget, proven)


def _differences(client: Mapping[str, str], run: Mapping[str, str]) -> Iterator[str]:
    """Yields the keys of the experiment whose values differ between the client and the run, with both values."""
    for key in sorted(client.keys() | run.keys()):
        if client.get(key) != run.get(key):
            theirs, ours = excerpts(client.get(key, "not stated"), run.get(key, "not stated"))
            yield f"{shown(excerpt(key))} is {shown(theirs)} at the client, {ours} in the run"


def differing_modules(theirs: str, ours: str) -> set[str]:
    """The modules of which a client and the run both state a digest of the source, but not the same one."""
    client, run = set(theirs.split("; ")), set(ours.split("; "))
    return {each.partition(" ")[0] for each in client - run} & {each.partition(" ")[0] for each in run - client}


def joined(hello: pb.Hello, is_owner: bool, host: str) -> list[LogEvent]:
    """The events of a client that joins. If it has proven its id, its ledger is proof of its releases."""
    spent, released = hello.ledger.epsilon_spent, hello.ledger.released
    event = LogEvent("joined", hello.client_id, host, hello.n_examples, spent, released)
    if not (is_owner and event.released):
        return [event]
    return [event, replace(event, kind="reconciled", detail="its owner's ledger at hello", n_examples=0)]
