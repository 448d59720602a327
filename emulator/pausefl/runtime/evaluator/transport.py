"""Both ends of the connection between server and evaluator. Calls are independent, so that either end may restart."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from pausefl.runtime.evaluator.plan import DTYPE_BYTES, Evaluated, EvaluatorPlan, InitialModel, ModelRest, StoredTensor
from pausefl_process.plugins import for_future
from pausefl_proto.endpoint import failure, listen, make_server, open_channel
from pausefl_proto.errors import ConfigError, EvaluatorLost, EvaluatorStuck, PauseflError, WireError
from pausefl_proto.foreign_text import shown
from pausefl_proto.tls import is_no_servers
from pausefl_proto.v1 import evaluation_pb2 as pb
from pausefl_proto.v1 import federation_pb2 as federation
from pausefl_proto.wire import PROTOCOL_VERSION, Assembler, Manifest, Vector, check_probe, cut, digest, pack, unpack
from pausefl_server.records import SPLITS, Evaluation, Split

# Limits on calls at a time, in all and per connection: each holds a model. A server makes one, and may give some up.
_MOST_CALLS, _MOST_OF_A_CONNECTION = 16, 4
# The names of a deep model's tensors, and its running statistics, are beyond what a client's message may hold.
_OF_ANY_LENGTH = (("grpc.max_receive_message_length", -1),)
# How long a patient server waits before it asks again.
_ASK_AGAIN_S = 0.5

Answer = TypeVar("Answer")
_Sent = TypeVar("_Sent", bound=Message)
_Ask = Callable[["grpc.aio.Channel"], Awaitable[Answer]]

_SERVICE = pb.DESCRIPTOR.services_by_name["Evaluator"].full_name


class SplitEvaluator(Protocol):
    """Makes θ_0 and evaluates models on splits (`pausefl.runtime.evaluator.model.Evaluator`, which needs torch)."""

    initial: InitialModel

    def evaluate(self, theta: Vector, splits: Sequence[Split], *, subset: bool) -> Evaluated:
        """Accuracy and loss of θ on each split."""


class EvaluatorServer:
    """The evaluator's end: evaluates one model at a time, on a thread of its own."""

    def __init__(self, evaluator: SplitEvaluator, plan: EvaluatorPlan) -> None:
        self._evaluator = evaluator
        self._plan = plan
        self._thread = ThreadPoolExecutor(1, "evaluate")
        self._calls = asyncio.Semaphore(_MOST_CALLS)
        self._turn = asyncio.Lock()
        self._server = make_server(plan.dead_after_s, (("grpc.max_concurrent_streams", _MOST_OF_A_CONNECTION),))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Initial": grpc.unary_stream_rpc_method_handler(self._initial),
            "Evaluate": grpc.stream_unary_rpc_method_handler(self._evaluate_model),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port (port 0: any free one).

        ConfigError if the port is taken, or a file for TLS is wrong.
        """
        bound = listen(self._server, "evaluation", host, port, self._plan.tls)
        await self._server.start()
        return bound

    async def stop(self) -> None:
        """Cancel the calls under way and stop listening."""
        await self._server.stop(None)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _initial(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
        async with self._room(context):
            self._agree(_open(request, pb.Subject)[0])
            initial = self._evaluator.initial
            rest, values = _rest_to_message(initial.rest)
            header = pb.Initial(manifest=initial.manifest.to_message(), rest=rest)
            for part in await asyncio.to_thread(_take_apart, header, initial.theta_0):
                yield part
            for index, frame in enumerate(values):
                yield pack(pb.ModelPart(frame=federation.Frame(index=index)), frame)

    async def _evaluate_model(
        self, parts: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> bytes:
        async with self._room(context):
            header, payload = _open(await anext(parts, b""), pb.ModelPart)
            self._agree(header.evaluate.subject)
            check_probe(self._evaluator.initial.manifest.probe, header.evaluate.probe, "evaluator")
            theta = await _put_together(header.evaluate.theta, payload, parts, self._evaluator.initial.manifest.size)
            splits = [_split(name) for name in header.evaluate.splits]
            await self._turn.acquire()  # a call that is given up while it waits here frees its model
            work = self._thread.submit(for_future, self._evaluate, theta, splits, header.evaluate.subset)
            work.add_done_callback(partial(self._end_turn, asyncio.get_running_loop()))
            return await asyncio.shield(asyncio.wrap_future(work))

    def _end_turn(self, loop: asyncio.AbstractEventLoop, _: "Future[bytes]") -> None:
        """Let the next call evaluate its model: the thread has finished with one, even if its call was given up."""
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._turn.release)

    @asynccontextmanager
    async def _room(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> AsyncIterator[None]:
        """Count one call for the block. Abort it after a WireError, if there are too many, or if a client calls."""
        if any(is_no_servers(pem) for pem in context.auth_context().get("x509_pem_cert", ())):
            said = "serves servers, and the certificate that it was shown is a client's"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, said)
        if self._calls.locked():
            said = f"has {_MOST_CALLS} of {_MOST_CALLS} models to evaluate already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, said)
        async with self._calls:
            try:
                yield
            except WireError as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    def _evaluate(self, theta: Vector, splits: Sequence[Split], subset: bool) -> bytes:
        evaluations, statistics = self._evaluator.evaluate(theta, splits, subset=subset)
        reply = pb.Evaluations(statistics=b"" if statistics is None else statistics.astype("<f4").tobytes())
        for e in evaluations:
            reply.evaluations.add(**asdict(e))
        return reply.SerializeToString()

    def _agree(self, subject: pb.Subject) -> None:
        """WireError unless this evaluator can evaluate the run's models."""
        if subject.protocol_version != PROTOCOL_VERSION:
            raise WireError(f"speaks protocol version {PROTOCOL_VERSION}, not {subject.protocol_version}")
        if subject.workload != self._plan.subject:
            raise WireError(f"evaluates {self._plan.subject}, this run is about {subject.workload}")


class RemoteEvaluator:
    """The server's end. It connects at the first call, and reconnects when it must."""

    def __init__(self, plan: EvaluatorPlan, say: Callable[[str], None]) -> None:
        """`address` may be set later and change. `say` receives a message about a wait for the evaluator there."""
        self._plan = plan
        self.address = plan.evaluation.address
        self._answer_s = plan.evaluation.answer_timeout_s
        self._subject = pb.Subject(protocol_version=PROTOCOL_VERSION, workload=plan.subject)
        self._say = say
        self._channel: grpc.aio.Channel | None = None
        self._probe: tuple[float, ...] = ()

    async def aclose(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def initial(self) -> InitialModel:
        """The model that a run begins with.

        EvaluatorLost if no evaluator answers in time; ConfigError if it evaluates another workload, or a file for TLS
        is wrong.
        """
        try:
            return await self._patiently(self._ask_initial, OSError)
        except OSError as error:
            where = f'evaluation.address = "{self.address}"'
            raise EvaluatorLost(f"{where}: the evaluator there does not answer ({error})") from error

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> Evaluated:
        """θ's evaluations on held-out training data and on the test set. EvaluatorLost if no evaluator answers."""
        # A wrong file for TLS may be one that is being replaced: a patient call reads the files again.
        ask = partial(self._ask_evaluation, theta, subset)
        try:
            return await (self._patiently(ask, OSError, ConfigError) if patient else self._asked(ask))
        except EvaluatorLost:
            raise
        except (OSError, PauseflError) as error:
            raise EvaluatorLost(f"the evaluator at {self.address} does not answer ({error})") from error

    async def _patiently(self, ask: _Ask[Answer], *passing: type[Exception]) -> Answer:
        """Ask, and ask again after `passing` errors, for `evaluation.connect_timeout_s` at most."""
        patience_s, until_s = self._plan.evaluation.connect_timeout_s, math.inf
        while True:
            try:
                return await self._asked(ask)
            except passing as error:
                if time.monotonic() > until_s:
                    raise
                if until_s == math.inf:
                    self._say(f"waiting up to {patience_s:g} s for the evaluator at {self.address}: {error}")
                    until_s = time.monotonic() + patience_s
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _asked(self, ask: _Ask[Answer]) -> Answer:
        """Ask. If an earlier call's channel fails, ask once more over a new one, which reads the files for TLS anew."""
        is_new = self._channel is None
        if self._channel is None:
            self._channel = open_channel(self.address, self._plan.tls, self._plan.dead_after_s, _OF_ANY_LENGTH)
        try:
            return await ask(self._channel)
        except (OSError, ConfigError):
            await self.aclose()
            if is_new:
                raise
        return await self._asked(ask)

    async def _ask_initial(self, channel: "grpc.aio.Channel") -> InitialModel:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{_SERVICE}/Initial")
        call = method(self._subject.SerializeToString(), timeout=self._answer_s)
        try:
            parts = aiter(call)
            header, payload = _open(await anext(parts, b""), pb.ModelPart)
            manifest = Manifest.from_message(header.initial.manifest)
            self._probe = manifest.probe
            theta_0 = await _put_together(header.initial.theta, payload, parts, manifest.size)
            return InitialModel(manifest, theta_0, await _rest_from_message(header.initial.rest, parts))
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    async def _ask_evaluation(self, theta: Vector, subset: bool, channel: "grpc.aio.Channel") -> Evaluated:
        header = pb.Evaluate(subject=self._subject, splits=SPLITS, subset=subset, probe=self._probe)
        parts = await asyncio.to_thread(_take_apart, header, theta)
        method: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"/{_SERVICE}/Evaluate")
        try:
            reply, _ = _open(await method(iter(parts), timeout=self._answer_s), pb.Evaluations)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        evaluations, n = tuple(_checked(e, subset) for e in reply.evaluations), len(reply.statistics) // 4
        return Evaluated(evaluations, np.frombuffer(reply.statistics, "<f4", n) if n else None)

    def _failure(self, error: "grpc.aio.AioRpcError") -> Exception:
        said = shown(error.details() or "")
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return OSError(f"it {said}")
        if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED):
            return ConfigError(f'evaluation.address = "{self.address}": the evaluator there {said}')
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return EvaluatorStuck(f"evaluation.answer_timeout_s = {self._answer_s:g}: the evaluator took longer")
        return failure(error, self.address, self._plan.tls)


def _take_apart(header: pb.Initial | pb.Evaluate, theta: Vector) -> list[bytes]:
    """The messages in which θ travels; `header` is part of the first."""
    vector, frames = cut(theta, digest(theta))
    header.theta.CopyFrom(vector)
    first = pb.ModelPart(initial=header) if isinstance(header, pb.Initial) else pb.ModelPart(evaluate=header)
    rest = (pb.ModelPart(frame=federation.Frame(index=index)) for index in range(1, len(frames)))
    return [pack(part, frame) for part, frame in zip((first, *rest), frames, strict=True)]


async def _put_together(header: federation.Vector, first: memoryview, rest: AsyncIterator[bytes], size: int) -> Vector:
    """The model, (size,) float32. WireError if it does not arrive as announced."""
    frames = Assembler(header, size)
    frames.add(0, first)
    while not frames.complete:
        part, payload = _open(await anext(rest, b""), pb.ModelPart)
        frames.add(part.frame.index, payload)
    return await asyncio.to_thread(frames.finish, check_finite=False)


def _rest_to_message(rest: ModelRest) -> tuple[pb.Rest, list[memoryview]]:
    """The message for `rest`, and the constants' bytes in frames; no frames if there are no constants."""
    values = np.frombuffer(b"".join(constant.data for constant in rest.constants), np.uint8)
    header, frames = cut(values, digest(values))
    constants = [federation.Tensor(name=c.name, shape=c.shape, dtype=c.dtype) for c in rest.constants]
    told = pb.Rest(constants=federation.Manifest(tensors=constants), tied=rest.tied, local=rest.local.to_message())
    told.values.CopyFrom(header)
    return told, frames if values.size else []


async def _rest_from_message(told: pb.Rest, parts: AsyncIterator[bytes]) -> ModelRest:
    """The `ModelRest` of a message and its frames. WireError if the bytes are not those announced."""
    data = bytearray()
    while len(data) < told.values.size_bytes and (part := await anext(parts, b"")):
        data += _open(part, pb.ModelPart)[1]
    if digest(np.frombuffer(data, np.uint8)) != told.values.digest:
        raise WireError("sent other constants of the model than it announced")
    constants, end = [], 0
    for tensor in told.constants.tensors:
        start, end = end, end + math.prod(tensor.shape) * DTYPE_BYTES.get(tensor.dtype, 0)
        constants.append(StoredTensor(tensor.name, tensor.dtype, tuple(tensor.shape), bytes(data[start:end])))
    return ModelRest(tuple(constants), dict(told.tied), Manifest.from_message(told.local))


def _checked(e: pb.Evaluation, subset: bool) -> Evaluation:
    """The evaluation of an answer. WireError if it is of other data, or has numbers that no evaluation has."""
    if e.subset != subset or e.n_examples >= 1 << 63 or not 0 <= e.accuracy <= 1 or math.isnan(e.loss):
        raise WireError(f"finds {e.accuracy} with a loss of {e.loss} on {e.n_examples} examples (subset: {e.subset})")
    return Evaluation(_split(e.split), subset, e.n_examples, e.accuracy, e.loss, shown(e.metric))


def _open(data: bytes, kind: type[_Sent]) -> tuple[_Sent, memoryview]:
    header, payload = unpack(data)
    try:
        return kind.FromString(header), payload
    except DecodeError:
        raise WireError("sent bytes that are no message") from None


def _split(name: str) -> Split:
    if not (found := [split for split in SPLITS if split == name]):
        raise WireError(f"knows no split {shown(name)!r}")
    return found[0]
