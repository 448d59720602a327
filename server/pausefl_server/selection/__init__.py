"""Selection: what a policy is, what it may see, how its choice is checked, and the policies by name.

May live here: what several policies share, as pure functions of the context they are handed.
"""

import difflib
from inspect import isabstract

from pausefl_process.plugins import imported
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.base import Context, Inspection, Oracle, Policy, Selection
from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.brute import PauseBrute
from pausefl_server.selection.policies.chr import Chr
from pausefl_server.selection.policies.clustered import Clustered
from pausefl_server.selection.policies.everyone import All
from pausefl_server.selection.policies.fastest import Fastest
from pausefl_server.selection.policies.fed_ts import DriftUcb, FedTs
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.oort import Oort
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.policies.pow_d import PowD
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_server.selection.policies.ucb import Ucb
from pausefl_server.selection.policies.uniform import Random
from pausefl_server.selection.validation import checked

__all__ = [
    "POLICIES",
    "Context",
    "Inspection",
    "Oracle",
    "Policy",
    "PolicyObservation",
    "PolicyRound",
    "Selection",
    "checked",
    "policy_class",
]

POLICIES: dict[str, type[Policy]] = {
    "pause": Pause,
    "pause-brute": PauseBrute,
    "sa-pause": SaPause,
    "genie": Genie,
    "random": Random,
    "all": All,
    "fastest": Fastest,
    "clustered": Clustered,
    "ucb": Ucb,
    "oort": Oort,
    "pow-d": PowD,
    "fed-ts": FedTs,
    "drift-ucb": DriftUcb,
    "chr": Chr,
}


def policy_class(name: str) -> type[Policy]:
    """The policy of this name, or the class that "package.module:Class" names; ConfigError if there is none."""
    if name in POLICIES:
        return POLICIES[name]
    if ":" in name:
        return _imported(name)
    close = difflib.get_close_matches(name, POLICIES, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"must be one of {', '.join(sorted(POLICIES))}"
    raise ConfigError(f'selection.policy = "{name}": {hint}, or "package.module:Class"')


def _imported(name: str) -> type[Policy]:
    try:
        found = imported(name)
    except ValueError as error:
        raise ConfigError(f'selection.policy = "{name}": {error}') from error
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(f'selection.policy = "{name}": must be a subclass of pausefl_server.selection.Policy')
    if isabstract(found):
        raise ConfigError(f'selection.policy = "{name}": does not say how it selects (no method `select`)')
    return found
