"""The limits that every answer of a run's clients must keep."""

from dataclasses import dataclass, field

from pausefl_proto.budget import Budget
from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.errors import WireError
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The limits of one run, the same for all clients."""

    size: int
    """How many values an update must have: the size of the model."""
    norm_bound: NormBound | None = None
    """Rejects updates that the mechanism cannot have made; None: none is rejected."""
    encoding: Encoding = FLOAT32
    """How the values of an update are encoded on the wire."""
    statistics: Manifest = field(default_factory=lambda: Manifest(()))
    """The running statistics that an update ends with."""
    budget: Budget | None = None
    """Tells when a client may say that its budget is spent; None: it may always say so."""

    def check(self, vector: Vector, epsilon: float) -> None:
        """Raise WireError if clipping and noise at `epsilon` > 0 cannot have made this update, or a variance is < 0."""
        d = self.size - self.statistics.size
        if self.norm_bound is not None and epsilon > 0:
            self.norm_bound.check(vector[:d], epsilon, self.encoding)
        for name, values in self.statistics.split(vector[d:]).items():
            if name.endswith("running_var") and values.min(initial=0.0) < 0:
                raise WireError(f"has a negative variance in {name}")


def limits_of(settings: ServerSettings) -> AnswerLimits:
    """The limits of a run with these settings."""
    bound = settings.privacy.norm_bound if settings.privacy else None
    size, statistics = settings.manifest.size, settings.manifest.statistics
    return AnswerLimits(size, bound, settings.encoding.beside(statistics.size), statistics, settings.budget)
