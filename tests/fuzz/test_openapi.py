"""The OpenAPI document against the application: what it promises holds for what it generates."""

from __future__ import annotations

import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fakes.openai_api import OpenAIApi
from tests.fuzz.cases import COUNTS, profile

SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", OpenAIApi().app)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@SCHEMA.parametrize()
@profile(15, 300)
def test_operations(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)
    COUNTS["http: openapi"] += 1
