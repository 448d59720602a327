"""How long training takes on the emulated devices, as a law for each client."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pausefl.config.delays.files import ClientPlace
from pausefl.config.delays.laws import LawReader
from pausefl.delays import Delay
from pausefl_proto.draws import generator


def plan_training_times(table: dict[str, Any], client_ids: Sequence[str], seed: int) -> dict[str, Delay]:
    """Each client's law of the seconds that training takes; empty for an empty table. ConfigError names the key."""
    if not table:
        return {}
    everyone = frozenset(client_ids)
    readers = {
        client_id: LawReader(
            ClientPlace(client_id, place, everyone), partial(generator, seed, "training-parameter", client_id)
        )
        for place, client_id in enumerate(client_ids)
    }
    return {c: reader.read(table, "workload.training_time") for c, reader in readers.items()}
