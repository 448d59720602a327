"""Calls that a GPU repeats by itself: recorded once for tensors of given shapes, then replayed as one CUDA graph."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

log = logging.getLogger("pausefl.client")

# A graph for each pair of shapes. A round has few: whole batches, last ones, and fewer clients towards its end.
_MOST_GRAPHS = 16
# What CUDA, cuBLAS and cuDNN say; the last finds no algorithm whose workspace there is room for.
_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine to execute this computation")
# Calls before a recording: libraries choose their kernels and make room for them.
_WARM_UPS = 3

Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Inputs and targets to losses. It reads and writes other tensors only where these lie at every call."""

Step = Callable[[], None]
"""Follows a pass, under the same condition."""


class Recorder(Protocol):
    """Makes of a pass, its arguments and what follows it a call that repeats both on what the arguments then hold.

    The pass may be called while it is recorded, the step may not: it is not to be taken twice.
    """

    def __call__(
        self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step
    ) -> Callable[[], torch.Tensor]: ...


_Shapes = tuple[torch.Size, torch.Size]


@dataclass(frozen=True, eq=False)
class _Recording:
    """A recorded pass, and the tensors from which it reads and into which it writes."""

    inputs: torch.Tensor
    targets: torch.Tensor
    repeat: Callable[[], torch.Tensor]


class Replays:
    """A pass and a step, recorded at the second sight of their shapes; where they cannot be, called as they are."""

    def __init__(self, recorder: Recorder | None) -> None:
        """None: nothing is recorded."""
        self._recorder = recorder
        self._seen: set[_Shapes] = set()
        self._recordings: dict[_Shapes, _Recording] = {}

    def __len__(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    @property
    def are_recorded(self) -> bool:
        """Whether fewer shapes are better."""
        return self._recorder is not None

    def call(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step) -> torch.Tensor:
        """The result of `one_pass`, valid until the next call; `step` has been taken after it.

        Both must be the same for the same shapes.
        """
        shapes = inputs.shape, targets.shape
        is_first = shapes not in self._seen
        if is_first or not (shapes in self._recordings or self._record(one_pass, inputs, targets, step)):
            self._seen.add(shapes)
            losses = one_pass(inputs, targets)
            step()
            return losses
        recording = self._recordings[shapes]
        recording.inputs.copy_(inputs)
        recording.targets.copy_(targets)
        return recording.repeat()

    def _record(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step) -> bool:
        if self._recorder is None or len(self._recordings) >= _MOST_GRAPHS:
            return False
        own = inputs.clone(), targets.clone()
        try:
            self._recordings[inputs.shape, targets.shape] = _Recording(*own, self._recorder(one_pass, *own, step))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            cause = str(error.__context__ or error).partition("\n")[0]  # the error itself is only the capture's end
            log.warning("steps are not captured as CUDA graphs, which is slower: %s", cause)
            self._recorder = None
            return False
        return True


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a device's memory was not enough: torch's error, a library's, or one that followed from such a one."""
    told = error is not None and any(said in str(error) for said in _OUT_OF_MEMORY)
    return error is not None and (told or is_out_of_memory(error.__context__))


def recorder_for(device: torch.device) -> Recorder | None:
    """A new recorder of passes on a device; None: they are not recorded, as on a processor."""
    return _CudaRecorder() if device.type == "cuda" else None


class _CudaRecorder:
    """Captures CUDA graphs, all on one stream and in one pool of memory: replays are never side by side.

    It is of one stack alone: torch captures nothing into a pool whose graphs are all gone.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch states no types
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(
        self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step
    ) -> Callable[[], torch.Tensor]:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            # This block gives the thread its stream back, which a capture that fails does not.
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    one_pass(inputs, targets)
                # "thread_local": other clients' threads may go on to use the device.
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    losses = one_pass(inputs, targets)
                    step()
        finally:
            current.wait_stream(self._stream)

        def repeat() -> torch.Tensor:
            graph.replay()
            return losses

        return repeat
