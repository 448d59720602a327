"""Preparation of a round's job: choosing the clients and framing the model."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pausefl_process.plugins import for_future
from pausefl_proto.wire import MAX_FRAME_BYTES, Vector, pack_job
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.rounds.choosing import FreePlaces, choose, context_of
from pausefl_server.rounds.messages import Dispatch
from pausefl_server.selection.base import Oracle, Selection
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState

Result = TypeVar("Result")

# Work shorter than this is done on the event loop: handing it to a thread and back costs 0.1 ms.
_QUICK_S = 0.001


@dataclass
class Preparer:
    """Chooses clients by the run's policy and frames the model for them."""

    settings: ServerSettings
    state: RunState
    oracle: Oracle | None
    clock: Callable[[], float]
    selection_s: float = math.inf
    """How long the last selection took."""

    async def prepare(
        self, round: int, attempt: int, model: GlobalModel, free: FreePlaces | None = None
    ) -> tuple[Selection, float, Dispatch]:
        """The selection, how many seconds it took, and its job.

        It runs in a thread unless the last selection was quick and the model is small.
        """

        def prepared() -> tuple[Selection, float, Dispatch]:
            began_s = self.clock()
            context = context_of(self.settings, self.state, self.oracle, round, attempt, self.clock, free)
            selection = choose(context, self.state, free)
            return selection, self.clock() - began_s, self.frame(round, attempt, model.theta, model.digest)

        quick = self.selection_s < _QUICK_S and model.theta.nbytes <= MAX_FRAME_BYTES
        found = await off_loop(quick, prepared)
        self.selection_s = found[1]
        return found

    def frame(self, round: int, attempt: int, theta: Vector, model_digest: str) -> Dispatch:
        """The job of this round and attempt with this model, framed into messages."""
        schedule = self.settings.privacy.schedule if self.settings.privacy else ""
        began_s = self.clock()
        messages = pack_job(round, attempt, theta, model_digest, schedule)
        ready_s = self.clock()
        mixed = theta if self.settings.mixes_models else None
        return Dispatch(round, attempt, messages, ready_s - began_s, ready_s, theta=mixed)


async def off_loop(quick: bool, function: Callable[..., Result], *arguments: Any) -> Result:
    """Run `function` in a thread, so that the event loop stays free; if `quick`, run it here, which takes less time."""
    return for_future(function, *arguments) if quick else await asyncio.to_thread(for_future, function, *arguments)
