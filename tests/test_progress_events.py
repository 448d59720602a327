"""Progress events: one JSON form, there and back, and a document that describes every kind and field."""

import ast
import inspect
import json
import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_process import events
from pausefl_process.events import (
    EVENT_TYPES,
    Finished,
    ModelEvaluated,
    ProgressEvent,
    Ready,
    from_json,
    from_line,
    to_json,
    to_line,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "events.md"
# JSON has no infinity and no NaN; the producers write null instead.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
EVENTS = st.one_of(*(st.builds(record) for record in EVENT_TYPES.values()))


@given(EVENTS)
def test_every_event_comes_back_from_its_line(event: ProgressEvent) -> None:
    line = to_line(event)
    assert "\n" not in line
    assert from_line(line) == event
    assert json.loads(line)["kind"] == event.kind


def test_the_json_form_is_the_kind_and_the_fields() -> None:
    assert to_json(Ready(8765)) == {"kind": "ready", "port": 8765}
    assert to_json(ModelEvaluated(3, "test", 0.5, None)) == {
        "kind": "evaluation",
        "round": 3,
        "split": "test",
        "accuracy": 0.5,
        "loss": None,
        "metric": "accuracy",
        "subset": False,
    }
    assert from_json({"kind": "finished", "reason": "all rounds done"}) == Finished("all rounds done")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"kind": "something new"}, "kind = 'something new': must be one of ready, "),
        ({"port": 1}, "kind = None"),
        ({"kind": "ready"}, "ready: .*port"),
        ({"kind": "ready", "port": 1, "colour": "red"}, "ready: .*colour"),
    ],
)
def test_what_is_no_event_is_refused_by_name(value: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_json(value)


def test_a_line_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        from_line("[1]")


def test_all_events_are_distinct_kinds_and_the_document_lists_them_in_order() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert re.findall(r"^## `(.+)`$", text, re.MULTILINE) == list(EVENT_TYPES)
    assert len(set(EVENT_TYPES.values())) == len(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_document_describes_every_field_in_the_records_own_words(kind: str) -> None:
    record = EVENT_TYPES[kind]
    section = re.split(r"^## ", DOCUMENT.read_text("utf-8").split(f"## `{kind}`\n", 1)[1], flags=re.MULTILINE)[0]
    assert inspect.getdoc(record) in section
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", section, re.MULTILINE))
    assert rows == _sentences(record.__name__)
    assert list(rows) == [f.name for f in fields(record)]


def _sentences(record: str) -> dict[str, str]:
    """Field -> the docstring under it."""
    tree = ast.parse(inspect.getsource(events))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == record]
    return {
        named.target.id: said.value.value
        for named, said in pairwise(body)
        if isinstance(named, ast.AnnAssign) and isinstance(named.target, ast.Name)
        and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str)
    }  # fmt: skip
