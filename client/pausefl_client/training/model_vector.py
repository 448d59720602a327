"""Which parts of a model are sent, as one vector, and which stay. All code for users' models relies on this module.

Each trained parameter is sent once, even if it is tied. The running statistics of batch normalisation are sent too if
the server averages them. Everything else in `state_dict` is a constant, equal at the server and all clients.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
import xxhash
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from pausefl_client.training.device_copies import off_device, on_device
from pausefl_client.training.trainer import StatisticsAt
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Manifest, TensorSpec, Vector

_STATISTICS = ("running_mean", "running_var")
_TRAINED = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
STORED = {
    **_TRAINED,
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
}
"""The dtypes that a model file can hold, with their names in safetensors."""


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, by name. A tied parameter has its first name only."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def running_statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """The running means and variances of the batch normalisation layers that are trained, by name."""
    if not (layers := [named for named in model.named_modules() if isinstance(named[1], _NormBase)]):
        return {}  # most models; putting every module into another mode takes time
    was_training = model.training
    model.train()  # if the model keeps a layer in evaluation mode (a frozen backbone), its statistics are constants
    found = {
        f"{name}.{key}".removeprefix("."): statistic
        for name, module in layers
        if module.training
        for key in _STATISTICS
        if (statistic := module._buffers.get(key)) is not None
    }
    model.train(was_training)
    return found


def constants(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of `state_dict` that are neither trained nor running statistics, by name."""
    others = {*map(id, trained_parameters(model).values()), *map(id, running_statistics(model).values())}
    return {name: tensor for name, tensor in _state(model) if id(tensor) not in others}


def tied(model: nn.Module) -> dict[str, str]:
    """Further names of tied parameters and statistics -> the first name of the same tensor."""
    named = {**trained_parameters(model), **running_statistics(model)}
    first = {id(tensor): name for name, tensor in named.items()}
    return {name: first[id(t)] for name, t in _state(model) if id(t) in first and name != first[id(t)]}


def check_carried(model: nn.Module, key: str) -> None:
    """Raise ConfigError if a run cannot send or store a tensor of the model. It begins with `key`, names the tensor."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(
                f"{key}: {name} has no shape yet; call model(torch.zeros(1, *input_shape)) in the factory"
            )
    places: dict[int, str] = {}
    for name, parameter in trained_parameters(model).items():
        if parameter.dtype not in _TRAINED or parameter.layout is not torch.strided or parameter.is_meta:
            raise ConfigError(
                f"{key}: the parameter {name} is {_form(parameter)}; must be real and dense, such as float32, or have"
                " requires_grad = False"
            )
        if parameter.numel() and (other := places.setdefault(parameter.data_ptr(), name)) != name:
            raise ConfigError(f"{key}: {other} and {name} share memory; let them be one parameter, or clone one")
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"{key}: {name}, of get_extra_state, is a {type(value).__name__}; must be a tensor, or not there"
            )
    for name, tensor in constants(model).items():
        if tensor.dtype not in STORED or tensor.layout is not torch.strided or tensor.is_meta:
            raise ConfigError(
                f"{key}: {name} is {_form(tensor)}, which no model file holds; register the buffer with"
                " persistent=False, or store another type"
            )


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's values in order, little endian."""
    copied = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # `numpy` would fix the tensor's size
    return bytes(copied.reshape(-1).view(torch.uint8).numpy())


def views(values: torch.Tensor, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Split (d,) values into views of these shapes."""
    parts = torch.split(values, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class ModelVector:
    """The part of one model that is sent, as (d,) float32. The model must stay on its device.

    It includes the running statistics, unless `statistics` is "local".
    """

    def __init__(self, model: nn.Module, statistics: StatisticsAt | None = None) -> None:
        self.parameters = trained_parameters(model)
        self.statistics = running_statistics(model)
        """All running statistics of the model, whether they are sent or not."""
        specs = tuple(TensorSpec(name, tuple(parameter.shape)) for name, parameter in self.parameters.items())
        self.manifest = Manifest(specs, _digest(constants(model)))
        """The meaning of the values: first the parameters, then the statistics if they are averaged."""
        self._tensors: list[torch.Tensor] = list(self.parameters.values())
        if statistics != "local":
            shapes = {name: tuple(statistic.shape) for name, statistic in self.statistics.items()}
            self.manifest = self.manifest.with_statistics(shapes)
            self._tensors += self.statistics.values()
        self._shapes = [tensor.shape for tensor in self._tensors]
        self.is_rounded = any(parameter.dtype.itemsize < 4 for parameter in self.parameters.values())
        """Whether some parameters have fewer than the vector's 32 bits, so that filling them rounds the values."""

    @torch.no_grad()
    def on_device(self) -> torch.Tensor:
        """A new tensor of the values, (d,) float32, on the model's device."""
        return torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in self._tensors])

    def values(self) -> Vector:
        """A new array of the values, (d,) float32."""
        (values,) = off_device(self.on_device())
        return values

    @torch.no_grad()
    def fill(self, theta: Vector) -> None:
        """Set the model's values to `theta`, (d,) float32. ValueError if the sizes differ."""
        if theta.shape != (self.manifest.size,):
            raise ValueError(f"theta has shape {theta.shape}, the model has {self.manifest.size} values")
        torch._foreach_copy_(self._tensors, views(on_device(theta, self._tensors[0].device), self._shapes))

    def check_parameters(self, model: nn.Module) -> None:
        """ConfigError if the model trains others than it did when it was made. It may freeze some for a while."""
        there, names = dict(model.named_parameters()), {**self.parameters, **trained_parameters(model)}
        if name := next((name for name in names if self.parameters.get(name) is not there.get(name)), ""):
            raise ConfigError(
                f"workload.model: {name} came, went, was exchanged or unfrozen in a training step; what trains must"
                " be there once the model is made"
            )


class ConstantBuffers:
    """A model's constant buffers. A forward pass may write to them, for example to a counter of steps."""

    def __init__(self, model: nn.Module) -> None:
        stay = constants(model)
        self._held = {
            name: (module, key, tensor, tensor.clone())
            for prefix, module in model.named_modules()
            for key, tensor in module._buffers.items()
            if (name := f"{prefix}.{key}".removeprefix(".")) in stay and tensor is not None
        }
        """Name -> the module and key that hold the buffer, the buffer, and its first value."""
        self._writes = {name: tensor._version for name, (_, _, tensor, _) in self._held.items()}
        """torch's count of writes to each buffer."""

    def put_back(self) -> None:
        """Restore the buffers' first values. ConfigError if training has changed a floating-point buffer."""
        for name, (module, key, tensor, value) in self._held.items():
            now = module._buffers[key]
            if now is tensor and now._version == self._writes[name]:
                continue
            if value.is_floating_point() and not (now is not None and torch.equal(now, value)):
                raise ConfigError(
                    f"workload.model: the buffer {name} ({_form(value)}) changes while the model trains; only"
                    " parameters and running statistics of batch normalisation may, or a buffer that evaluations do not"
                    " need, registered with persistent=False"
                )
            module._buffers[key] = tensor.copy_(value)
            self._writes[name] = tensor._version


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """xxh3_128 of the tensors' names, dtypes, shapes and values, in hexadecimal. Empty without tensors."""
    told = xxhash.xxh3_128()
    for name, tensor in tensors.items():
        told.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
        told.update(bytes_of(tensor))
    return told.hexdigest() if tensors else ""


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of `state_dict`, as the model holds them."""
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            yield name, value


def _form(tensor: torch.Tensor) -> str:
    """A tensor's dtype, and in words if it is sparse or has no values: files and vectors cannot hold such tensors."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_meta:
        return f"{dtype} without values (device meta)"
    return dtype if tensor.layout is torch.strided else f"sparse {dtype}"
