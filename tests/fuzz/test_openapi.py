"""The OpenAPI document against the application: what it promises holds for what it generates."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fakes.router.openai_api import OpenAIApi
from tests.fuzz.cases import COUNTS, FULL, profile

#: Loaded when the test begins: every worker imports this module, and one of them needs it.
SCHEMA = schemathesis.pytest.from_fixture("schema")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> Any:
    """Of the application."""
    # Where schemathesis looks for it; pytest 9.2 has it elsewhere.
    request.node._nodeid = request.node.nodeid
    loaded = schemathesis.openapi.from_asgi("/openapi.json", OpenAIApi().app)
    # Thousands of cases that walk through each constraint of each operation.
    loaded.config.phases.coverage.enabled = FULL
    return loaded


@pytest.mark.timeout(300)
@profile(5, 300)
@SCHEMA.parametrize()
def test_operations(case: schemathesis.Case) -> None:
    """Each operation is a subtest."""
    case.call_and_validate(checks=CHECKS)
    COUNTS["http: openapi"] += 1
