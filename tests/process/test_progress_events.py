"""Progress events: one JSON form, there and back, and a document that describes every kind and field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

# JSON has no infinity and no NaN; the producers write null instead.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
EVENTS = st.one_of(*(st.builds(record) for record in EVENT_TYPES.values()))


@given(EVENTS)
def test_every_event_comes_back_from_its_line(event: ProgressEvent) -> None:
    line = to_line(event)
    assert "\n" not in line
    assert from_line(line) == event
    assert json.loads(line)["kind"] == event.kind
    assert json.loads(line)["level"] in {"info", "warning", "error"}


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
