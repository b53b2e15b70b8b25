"""What the end-to-end script of traces accepts, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.e2e.phoenix import StoredSpan, stored_span
from scripts.e2e_trace import (
    ATTRIBUTES,
    NAME,
    NUM_TOKENS,
    PARENTS,
    STAGES,
    Asked,
    between,
    check,
    explained,
)

ROOT_ATTRIBUTES = {
    **dict.fromkeys(ATTRIBUTES, "x"),
    "gen_ai.usage.output_tokens": NUM_TOKENS,
    "gen_ai.request.model": "pydoc",
}


def trace() -> list[StoredSpan]:
    """Every span where it belongs; each of the stages takes a tenth of a second."""
    return [
        StoredSpan(
            span_id=name,
            parent_id=parent or "the client's",
            name=name,
            began_s=10.0,
            ended_s=10.1 if name in STAGES else 11.0,
            attributes=ROOT_ATTRIBUTES if name == NAME else {},
            events=("first_token",) if name == NAME else (),
        )
        for name, parent in PARENTS.items()
    ]


def test_a_complete_trace_passes() -> None:
    check(trace())
    assert explained(trace(), Asked("t", 10.0, 0.6)) == pytest.approx(1.0)
    assert explained(trace(), Asked("t", 10.0, 1.2)) == pytest.approx(0.5)


@pytest.mark.parametrize("name", PARENTS)
def test_a_span_that_is_missing_twice_there_or_misplaced_does_not(name: str) -> None:
    spans = {span.name: span for span in trace()}
    misplaced = {**spans, name: replace(spans[name], parent_id="prefill.compute")}
    without = [span for span in spans.values() if span.name != name]
    for broken in (without, [*spans.values(), spans[name]], list(misplaced.values())):
        with pytest.raises(AssertionError):
            check(broken)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_root_without_an_attribute_does_not(attribute: str) -> None:
    root, *others = trace()
    attributes = {name: value for name, value in root.attributes.items() if name != attribute}
    with pytest.raises(AssertionError, match=attribute):
        check([replace(root, attributes=attributes), *others])


def test_a_span_is_read_from_otlp_s_json() -> None:
    span = stored_span(
        {
            "span_id": "a",
            "parent_span_id": None,
            "name": "decode",
            "start_time_unix_nano": "1500000000",
            "end_time_unix_nano": 1750000000,
            "attributes": [
                {"key": "n", "value": {"int_value": "7", "string_value": None}},
                {"key": "r", "value": {"array_value": {"values": [{"string_value": "stop"}]}}},
            ],
            "events": [{"name": "first_token"}],
        }
    )
    assert (span.parent_id, span.began_s, span.duration_s) == ("", 1.5, 0.25)
    assert span.attributes == {"n": 7, "r": ["stop"]}
    assert span.events == ("first_token",)


def test_stages_and_what_is_between_them_are_all_that_the_client_waited() -> None:
    spans, now_s = [], 10.2
    for span in trace():
        if span.name in STAGES:
            spans.append(replace(span, began_s=now_s, ended_s=now_s + 0.1))
            now_s += 0.15
    asked = Asked("t", 10.0, 2.0)
    rest = between(spans, asked)
    assert rest["client to router"] == pytest.approx(0.1)
    assert sum(rest.values()) + explained(spans, asked) == pytest.approx(1.0)
