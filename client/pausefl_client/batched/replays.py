"""Records the GPU's calls of a training step once for tensors of given shapes, and replays them as one CUDA graph."""

import logging
from collections.abc import Callable

import torch

log = logging.getLogger("pausefl.client")

# There is one graph per pair of shapes. A round has few: full batches, last batches, and fewer clients near its end.
_MOST_GRAPHS = 16
# Messages of CUDA, cuBLAS and cuDNN. cuDNN's means that it finds no algorithm whose workspace fits in memory.
_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine to execute this computation")
# The number of calls before a recording, in which libraries choose kernels and allocate memory.
_WARM_UPS = 3

Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(inputs, targets) -> losses. All other tensors that it reads or writes must have the same addresses at every call."""

Step = Callable[[], None]
"""Called after a pass, under the same condition."""

Recorder = Callable[[Pass, torch.Tensor, torch.Tensor, Step], Callable[[], torch.Tensor]]
"""Records a pass and the step after it. The returned call repeats both on the arguments' then present values.

The recorder may call the pass while it records, but must not take the step: it would be taken twice.
"""

_Shapes = tuple[torch.Size, torch.Size]


class Replays:
    """Calls a pass and a step. At the second call with the same shapes they are recorded, if possible, and replayed."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder
        """None: nothing is recorded. Otherwise fewer different shapes are better."""
        self._seen: set[_Shapes] = set()
        self._recordings: dict[_Shapes, tuple[torch.Tensor, torch.Tensor, Callable[[], torch.Tensor]]] = {}
        """Each recorded pass: the tensors from which it reads its inputs and targets, and the call that repeats it."""

    def __len__(self) -> int:
        return len(self._recordings)

    def call(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step) -> torch.Tensor:
        """Do `one_pass`, then `step`, the same for the same shapes. Return the losses, valid until the next call."""
        shapes = inputs.shape, targets.shape
        if shapes in self._seen and shapes not in self._recordings:
            self._record(one_pass, inputs, targets, step)
        self._seen.add(shapes)
        if shapes not in self._recordings:
            losses = one_pass(inputs, targets)
            step()
            return losses
        own_inputs, own_targets, repeat = self._recordings[shapes]
        own_inputs.copy_(inputs)
        own_targets.copy_(targets)
        return repeat()

    def _record(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step) -> None:
        if self.recorder is None or len(self._recordings) >= _MOST_GRAPHS:
            return
        own = inputs.clone(), targets.clone()
        try:
            self._recordings[inputs.shape, targets.shape] = *own, self.recorder(one_pass, *own, step)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            cause = str(error.__context__ or error).partition("\n")[0]  # `error` only says that the capture ended
            log.warning("steps are not captured as CUDA graphs, which is slower: %s", cause)
            self.recorder = None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error of torch or of a library, or the error that led to it, says that device memory is exhausted."""
    told = error is not None and any(said in str(error) for said in _OUT_OF_MEMORY)
    return error is not None and (told or is_out_of_memory(error.__context__))


def recorder_for(device: torch.device) -> Recorder | None:
    """A new recorder of passes on a device. None on a CPU, where passes are not recorded."""
    return _CudaRecorder() if device.type == "cuda" else None


class _CudaRecorder:
    """Captures CUDA graphs, all on one stream and in one memory pool, since replays never run at the same time.

    Each stack has its own recorder: torch cannot capture into a pool whose graphs were all deleted.
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
            # This block restores the thread's stream, which a failed capture does not do.
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    one_pass(inputs, targets)
                # "thread_local": other clients' threads may use the device meanwhile.
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    losses = one_pass(inputs, targets)
                    step()
        finally:
            current.wait_stream(self._stream)

        def repeat() -> torch.Tensor:
            graph.replay()
            return losses

        return repeat
