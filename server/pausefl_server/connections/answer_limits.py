"""The limits that every answer of a run's clients must keep."""

from dataclasses import dataclass, field

from pausefl_proto.budget import Budget
from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.errors import WireError
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.model.norm_bound import NormBound


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The limits of one run, the same for all clients."""

    size: int
    """How many values an update has: as many as the model."""
    norm_bound: NormBound | None = None
    """An update that the mechanism cannot have made is rejected; None: no update is."""
    encoding: Encoding = FLOAT32
    """How the values of an update travel."""
    statistics: Manifest = field(default_factory=lambda: Manifest(()))
    """The running statistics that an update ends with."""
    budget: Budget | None = None
    """A client whose budget cannot be spent yet must not say that it is; None: any client may say so."""

    def check(self, vector: Vector, epsilon: float) -> None:
        """WireError where clipping and noise, at `epsilon` if above 0, or a variance, cannot have made this update."""
        d = self.size - self.statistics.size
        if self.norm_bound is not None and epsilon > 0:
            self.norm_bound.check(vector[:d], epsilon, self.encoding)
        for name, values in self.statistics.split(vector[d:]).items():
            if name.endswith("running_var") and values.min(initial=0.0) < 0:
                raise WireError(f"has a negative variance in {name}")
