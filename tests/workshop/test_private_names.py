"""Private names of libraries that the product leans on: each is there, as CONTRIBUTING lists it."""

import pkgutil
from dataclasses import make_dataclass

import pytest

from rigs.places import ROOT

PRIVATE = {
    "multiprocessing.forkserver._forkserver": "multiprocessing.forkserver:_forkserver",
    "PollerCompletionQueue._handle_events": "grpc._cython.cygrpc:PollerCompletionQueue._handle_events",
    "torch.nn.modules.dropout._DropoutNd": "torch.nn.modules.dropout:_DropoutNd",
    "torch._foreach_copy_": "torch:_foreach_copy_",
    "torch._foreach_zero_": "torch:_foreach_zero_",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_there(name: str) -> None:
    assert pkgutil.resolve_name(PRIVATE[name]) is not None
    assert f"`{name}`" in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.mark.parametrize("attribute", ["alive_fd", "pid", "address"])
def test_a_fork_server_can_be_given_up(attribute: str) -> None:
    assert hasattr(pkgutil.resolve_name(PRIVATE["multiprocessing.forkserver._forkserver"]), f"_forkserver_{attribute}")


def test_a_dataclass_makes_its_init_of_a_text() -> None:
    made = vars(make_dataclass("Made", ["field"]))["__init__"]
    assert made.__code__.co_filename == "<string>"
