"""Grammars reach the workers as they were asked for, from both front ends."""

from __future__ import annotations

import pytest

from baton.v1 import common_pb2, router_pb2
from baton_client.errors import InvalidRequestError as ClientInvalidRequestError
from baton_client.options import generate_request
from services.router.admission.tenant import ANONYMOUS, Tenant
from services.router.grpc.wire import params_from_wire
from services.router.request.owner import owned_by
from shared.errors import InvalidRequestError
from shared.generation.grammar import (
    MAX_CHECKED_CHARS,
    check_grammar,
    json_schema_grammar,
)
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.grammar.wire import grammar_from_wire, grammar_to_wire
from shared.request.sampling_params import SamplingParams


@pytest.mark.parametrize("kind", GrammarKind)
@pytest.mark.parametrize("flag", [False, True])
def test_specs_survive_the_wire(kind: GrammarKind, flag: bool) -> None:
    owner = b"\xff" if flag else b""
    spec = GrammarSpec(
        kind=kind, text="ü", strict=flag, any_whitespace=not flag, param="p", owner=owner
    )
    raw = grammar_to_wire(spec).SerializeToString()
    back = grammar_from_wire(common_pb2.Grammar.FromString(raw))
    assert back == spec
    assert back.param == "p"


def test_tenants_own_their_grammars_whatever_the_client_says() -> None:
    spec = GrammarSpec(kind=GrammarKind.REGEX, text="a", owner=b"somebody else")
    sampling = SamplingParams(max_tokens=1, grammar=spec)
    owners = [
        owned_by(tenant, sampling).grammar.owner  # type: ignore[union-attr]  # it has one
        for tenant in (ANONYMOUS, Tenant(name="a"), Tenant(name="b"), Tenant(name="a"))
    ]
    assert owners[0] == b""
    assert owners[1] == owners[3] != owners[2]
    assert b"somebody" not in b"".join(owners)
    plain = SamplingParams(max_tokens=1)
    assert owned_by(Tenant(name="a"), plain) is plain


def test_the_router_leaves_long_grammars_to_the_workers() -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}, "title": ""}
    with pytest.raises(InvalidRequestError, match="strin"):
        check_grammar(json_schema_grammar(wrong, param="p"))
    check_grammar(json_schema_grammar(wrong | {"title": "x" * MAX_CHECKED_CHARS}, param="p"))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="older than its caller"):
        grammar_from_wire(common_pb2.Grammar(text="a"))


@pytest.mark.parametrize(
    ("option", "kind", "text"),
    [
        ({"json": {"type": "null"}}, GrammarKind.JSON_SCHEMA, '{"type": "null"}'),
        ({"json_object": True}, GrammarKind.JSON_OBJECT, ""),
        ({"regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"choice": ["a", "ü"]}, GrammarKind.CHOICE, '["a", "ü"]'),
        ({"grammar": 'root ::= "a"'}, GrammarKind.EBNF, 'root ::= "a"'),
        ({"structural_tag": {"x": 1}}, GrammarKind.STRUCTURAL_TAG, '{"x": 1}'),
    ],
)
def test_the_sdks_option_becomes_the_same_spec(
    option: dict[str, object], kind: GrammarKind, text: str
) -> None:
    request = generate_request("hi", {"structured_outputs": option})
    message = router_pb2.GenerateRequest.FromString(request.SerializeToString())
    spec = params_from_wire(message.params).grammar
    assert spec == GrammarSpec(kind=kind, text=text)
    assert spec.param == f"structured_outputs.{next(iter(option))}"


@pytest.mark.parametrize("option", [{}, {"regex": "a", "choice": ["b"]}, {"xml": "a"}])
def test_the_sdk_refuses_what_is_no_option(option: dict[str, object]) -> None:
    with pytest.raises(ClientInvalidRequestError, match="structured_outputs"):
        generate_request("hi", {"structured_outputs": option})
