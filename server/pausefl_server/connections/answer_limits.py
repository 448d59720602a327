"""What every answer of a run's clients must keep to."""

from dataclasses import dataclass

from pausefl_proto.budget import Budget
from pausefl_proto.encoding import FLOAT32, Encoding
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
    budget: Budget | None = None
    """A client whose budget cannot be spent yet must not say that it is; None: any client may say so."""
