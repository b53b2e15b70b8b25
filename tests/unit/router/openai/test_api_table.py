"""docs/api.md says what the schemas say; they know all that official clients can send."""

from __future__ import annotations

import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from scripts.api_table import APIS, PAGE, written


def test_the_page_is_what_the_schemas_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run `python -m scripts.api_table`"
    for path in APIS:
        assert page.count(f"<!-- fields of {path} -->") == 1


#: Of chat's, one of which only one value is taken, and one that is named in x-baton-ignored.
SPECIAL = {"modalities", "verbosity"}


@pytest.mark.parametrize(
    ("path", "official"),
    [("/v1/chat/completions", ChatParams), ("/v1/completions", CompletionParams)],
)
def test_every_field_of_chat_and_completions_is_known(path: str, official: type) -> None:
    api = APIS[path]
    known = set(api.schema.model_fields) | set(api.refused) | set(api.ignored)
    assert set(official.__annotations__) - known <= SPECIAL


@pytest.mark.parametrize(
    ("path", "official"),
    [("/v1/responses", ResponseCreateParamsBase), ("/v1/messages", MessageCreateParamsBase)],
)
def test_every_field_of_the_official_client_is_known(path: str, official: type) -> None:
    api = APIS[path]
    read = set(api.schema.model_fields)
    assert not read & (set(api.refused) | set(api.ignored))
    assert set(official.__annotations__) <= read | set(api.refused) | set(api.ignored)
