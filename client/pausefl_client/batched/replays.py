"""Calls that a GPU repeats by itself: recorded once for tensors of given shapes, then replayed as one CUDA graph."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

log = logging.getLogger("pausefl.client")

# A graph for each pair of shapes. A round has few: whole batches, last ones, and fewer clients towards its end.
_MOST_GRAPHS = 16
# Calls before a recording: libraries choose their kernels and make room for them.
_WARM_UPS = 3

Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Inputs and targets to losses. It reads and writes other tensors only where these lie at every call."""


class Recorder(Protocol):
    """Makes of a pass and its arguments a call that repeats the pass on what the arguments then hold."""

    def __call__(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor) -> Callable[[], torch.Tensor]: ...


@dataclass(frozen=True, eq=False)
class _Recording:
    """A recorded pass, and the tensors from which it reads and into which it writes."""

    inputs: torch.Tensor
    targets: torch.Tensor
    repeat: Callable[[], torch.Tensor]


class Replays:
    """A pass, replayed for shapes that have been seen before; where it cannot be recorded, called as it is."""

    def __init__(self, recorder: Recorder | None) -> None:
        """None: nothing is recorded."""
        self._recorder = recorder
        self._recordings: dict[tuple[torch.Size, torch.Size], _Recording] = {}

    def call(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What `one_pass` returns, valid until the next call. It must be the same pass for the same shapes."""
        shapes = inputs.shape, targets.shape
        if shapes not in self._recordings and not self._record(one_pass, inputs, targets):
            return one_pass(inputs, targets)
        recording = self._recordings[shapes]
        recording.inputs.copy_(inputs)
        recording.targets.copy_(targets)
        return recording.repeat()

    def _record(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor) -> bool:
        if self._recorder is None or len(self._recordings) >= _MOST_GRAPHS:
            return False
        own = inputs.clone(), targets.clone()
        try:
            self._recordings[inputs.shape, targets.shape] = _Recording(*own, self._recorder(one_pass, *own))
        except RuntimeError as error:
            log.warning("steps are not captured as CUDA graphs, which is slower: %s", str(error).partition("\n")[0])
            self._recorder = None
            return False
        return True


def recorder_for(device: torch.device) -> Recorder | None:
    """How passes are recorded on a device; None: they are not, as on a processor."""
    return record_on_cuda if device.type == "cuda" else None


def record_on_cuda(one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A recorder that captures a CUDA graph; RuntimeError where the pass does what cannot be captured."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch states no types
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            one_pass(inputs, targets)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # "thread_local": other clients' threads may go on to use the device.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        losses = one_pass(inputs, targets)

    def repeat() -> torch.Tensor:
        graph.replay()
        return losses

    return repeat
