"""Writes docs/fields.md: what every field of a request does at every endpoint.

python -m scripts.fields_page
"""

from __future__ import annotations

from pathlib import Path

from scripts.api_table import APIS

PAGE = Path(__file__).parent.parent / "docs" / "fields.md"
_HEAD = """# Fields and endpoints

What each field does here, beside vLLM 0.32. Written by `python -m scripts.fields_page` from the
schemas that requests are checked against; a test compares. [The HTTP API](api.md) says what a field
takes; each field that does something has a case in `tests/integration/router/field_cases.py` that
shows its effect, and a test fails without one.

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
    urls = list(_NAMES)
    head = "| field | " + " | ".join(_NAMES.values()) + " | |"
    rows = [head, "|---" * (len(urls) + 2) + "|"]
    for name in names():
        cells = [_cell(url, name) for url in urls]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {_note(name)} |")
    return _HEAD + "\n".join(rows) + "\n"


def names() -> list[str]:
    """Return every known field, in the order of the alphabet."""
    known: set[str] = set()
    for api in APIS.values():
        known |= {*api.schema.model_fields, *api.refused, *api.ignored}
    return sorted(known)


def _cell(url: str, name: str) -> str:
    api = APIS[url]
    # A schema may have fields that are only there to be ignored.
    if name in api.ignored:
        return "ignored"
    if name in api.schema.model_fields:
        return "**other**" if name in OTHER else "same"
    return "refused" if name in api.refused else ""


def _note(name: str) -> str:
    if name in OTHER:
        return OTHER[name]
    reasons = [
        reasons[name]
        for api in APIS.values()
        for reasons in (api.refused, api.ignored)
        if name in reasons and (name in api.ignored or name not in api.schema.model_fields)
    ]
    return "; ".join(dict.fromkeys(reasons))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
