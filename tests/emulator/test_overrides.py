"""The dotted keys of overrides: their parts may be quoted, as a name with dots in it must be."""

from typing import Any

import pytest

import pausefl
from pausefl.experiment.loading import parse_experiment
from pausefl_proto.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "policy"),
    [
        ("selection.pause.alpha", "pause"),
        ("selection.mine:Policy.alpha", "mine:Policy"),
        ('selection."mine:Policy".alpha', "mine:Policy"),
        ('selection."package.mine:Policy".alpha', "package.mine:Policy"),
        ("selection.'package.mine:Policy'.\"alpha\"", "package.mine:Policy"),
    ],
)
def test_a_part_of_a_key_may_be_quoted(key: str, policy: str) -> None:
    of_texts, of_values = parse_experiment("", [f"{key}=2"]), parse_experiment("", {key: 2})
    assert of_texts.selection.parameters(policy) == of_values.selection.parameters(policy) == {"alpha": 2}


@pytest.mark.parametrize("key", ["selection", "selection.", 'selection."pause', '"selection.m"', 'selection."a"b.c'])
def test_a_key_that_names_no_key_of_a_table_is_refused(key: str) -> None:
    both: list[Any] = [[f"{key}=2"], {key: 2}]
    for overrides in both:
        with pytest.raises(ConfigError):
            parse_experiment("", overrides)


def test_the_name_of_a_policy_that_lacks_its_quotes_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"^selection\.package: must be one of .*; a name with dots must be quoted$"):
        pausefl.load("demo", ["selection.package.mine:Policy.alpha=2"])
