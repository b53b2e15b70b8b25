"""Writes docs/fields.md: what every field of a request does at every endpoint.

python -m scripts.fields_page
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.api_table import APIS, VECTOR_APIS, Api

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = Path(__file__).parent.parent / "docs" / "fields.md"
_HEAD = """# Fields and endpoints

What each field does here, beside vLLM 0.32. Written by `python -m scripts.fields_page` from the
schemas that requests are checked against; a test compares. [The HTTP API](api.md) says what a field
takes; each field that does something has a case in `tests/integration/router/fields/cases.py` that
shows its effect (of vectors: `vectors/test_fields.py`), and a test fails without one.

* **same**: it does what it does in the API that the endpoint belongs to, otherwise in vLLM.
* **other**: it differs, as the last column says.
* refused: 400 with the reason. ignored: accepted, and changes nothing.
* nothing: the endpoint does not know it. It is named in the header `x-baton-ignored`.

"""
_NAMES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/inference/v1/generate": "generate",
}
_VECTOR_NAMES = {
    "/v1/embeddings": "embeddings",
    "/v1/classify": "classify",
    "/pooling": "pooling",
    "/v1/rerank": "rerank",
    "/v1/score": "score",
}
_VECTORS = """## Vectors

Embeddings, classify and pooling take texts (`input`), or a conversation (`messages`) with the
fields of its prompt. [Vectors](vectors.md) says which models make them.
"""
#: How a field of these differs.
VECTORS = {
    "cache_salt": "divides the prefixes of the caller's tenant",
    "chat_template": "needs `--trust-request-chat-template`; it runs in a sandbox",
    "instruction": "Baton's own: what relevance means, for models that take it",
    "normalize": "vLLM's older name of `use_activation`",
    "priority": "of texts that wait in the router, and on a worker",
    "prompt_name": "Baton's own: which of the checkpoint's prompts stands in front of each text",
    "return_documents": "Cohere's: whether results have their texts",
    "task": "`plugin` is unknown",
    "truncate_prompt_tokens": "special tokens at a text's ends stay; of a pair, the document",
}
#: How a field differs, by its name.
OTHER = {
    "best_of": "the answers are chosen by their mean log probability; not with `stream`",
    "cache_salt": "divides the prefixes of the caller's tenant",
    "chat_template": "needs `--trust-request-chat-template`; it runs in a sandbox",
    "guided_json": "vLLM's older form of `structured_outputs`",
    "guided_regex": "vLLM's older form of `structured_outputs`",
    "guided_choice": "vLLM's older form of `structured_outputs`",
    "guided_grammar": "vLLM's older form of `structured_outputs`",
    "include": "`message.output_text.logprobs`: tokens of reasoning and calls are left out",
    "logprob_token_ids": "not with `echo`",
    "logprobs": "over 20, or -1, if `--max-logprobs` allows it",
    "max_itl_ms": "Baton's own: refuse a request that would be slower",
    "max_ttft_ms": "Baton's own: refuse a request that would wait longer",
    "num_speculative_tokens": "Baton's own: most draft tokens per step",
    "priority": "of requests that wait in the router, and on a worker",
    "prompt_embeds": "needs `--enable-prompt-embeds`; not with `echo`, `prompt_logprobs` or beams",
    "prompt_logprobs": "not with `stream`; over 20, or -1, if `--max-logprobs` allows it",
    "repetition_detection": "patterns of at most 1,024 tokens",
    "return_hidden_states": "Baton's own: needs `--enable-return-hidden-states`; not with beams",
    "stream_interval": "tokens that came together stay together: a piece may be longer",
    "thinking": "`budget_tokens` ends the reasoning of models whose reasoning is parsed",
    "thinking_token_budget": "needs marks of reasoning of one token each (`--reasoning-parser`)",
    "top_logprobs": "over 20, or -1, if `--max-logprobs` allows it",
    "truncation": "only `disabled`: nothing is left out of a conversation",
    "use_beam_search": "not with `stream`, nor with what changes logits",
}


def page() -> str:
    """Return the whole page."""
    rows = [*_table(_NAMES, APIS, OTHER), "", _VECTORS]
    rows += _table(_VECTOR_NAMES, VECTOR_APIS, VECTORS)
    return _HEAD + "\n".join(rows) + "\n"


def names(apis: Mapping[str, Api]) -> list[str]:
    """Return every known field of some endpoints, in the order of the alphabet."""
    known: set[str] = set()
    for api in apis.values():
        known |= {*api.fields, *api.refused, *api.ignored}
    return sorted(known)


def _table(
    shown: Mapping[str, str], apis: Mapping[str, Api], other: Mapping[str, str]
) -> Iterator[str]:
    """Yield the rows of a table. `shown`: names of columns, by endpoint."""
    yield "| field | " + " | ".join(shown.values()) + " | |"
    yield "|---" * (len(shown) + 2) + "|"
    for name in names(apis):
        cells = [_cell(apis[url], name, other) for url in shown]
        yield f"| `{name}` | {' | '.join(cells)} | {_note(name, apis, other)} |"


def _cell(api: Api, name: str, other: Mapping[str, str]) -> str:
    # A schema may have fields that are only there to be ignored.
    if name in api.ignored:
        return "ignored"
    if name in api.fields:
        return "**other**" if name in other else "same"
    return "refused" if name in api.refused else ""


def _note(name: str, apis: Mapping[str, Api], other: Mapping[str, str]) -> str:
    if name in other:
        return other[name]
    reasons = [
        reasons[name]
        for api in apis.values()
        for reasons in (api.refused, api.ignored)
        if name in reasons and (name in api.ignored or name not in api.schema.model_fields)
    ]
    return "; ".join(dict.fromkeys(reasons))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
