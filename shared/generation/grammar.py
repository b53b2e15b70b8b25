"""Structured output for both front ends: one constraint, checked before any work is done.

Code that constrains an answer for its own purpose (a required tool call, for example) makes a spec
with `json_schema_grammar` or `structural_tag_grammar` and sets `GenerationParams.grammar`. The
pipeline checks the spec and sends it to the decode workers.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from shared.request.grammar.checks import check_spec
from shared.request.grammar.spec import GrammarKind, GrammarSpec

_NUM_REMEMBERED = 256
#: A check of a grammar of this length takes some milliseconds.
MAX_CHECKED_CHARS = 8 * 1024


def json_schema_grammar(
    schema: Any, *, strict: bool = True, any_whitespace: bool = True, param: str
) -> GrammarSpec:
    """Return the grammar of JSON that fits `schema`, a parsed JSON Schema.

    `strict`: no properties other than the schema's. `param` is the client's field, for error
    messages. `check_grammar` raises the errors of the schema.
    """
    return GrammarSpec(
        kind=GrammarKind.JSON_SCHEMA,
        text=json.dumps(schema, ensure_ascii=False),
        strict=strict,
        any_whitespace=any_whitespace,
        param=param,
    )


def structural_tag_grammar(tag: Any, *, param: str) -> GrammarSpec:
    """Return the grammar of a structural tag of xgrammar, a parsed JSON object."""
    text = json.dumps(tag, ensure_ascii=False)
    return GrammarSpec(kind=GrammarKind.STRUCTURAL_TAG, text=text, param=param)


def choice_grammar(choices: list[str], *, param: str) -> GrammarSpec:
    """Return the grammar of an answer that is one of `choices`.

    param: the request's field that errors name.
    """
    text = json.dumps(choices, ensure_ascii=False)
    return GrammarSpec(kind=GrammarKind.CHOICE, text=text, param=param)


def check_grammar(spec: GrammarSpec | None) -> None:
    """Refuse a grammar that workers would refuse, as far as a quick check shows it.

    Long grammars are left to the workers, which check them in a separate process: the router would
    serve no other request meanwhile.

    Raises:
        InvalidRequestError: it is wrong; the message names the place.
        UnsupportedError: it asks for what is not offered.
    """
    if spec is not None and len(spec.text) <= MAX_CHECKED_CHARS:
        _check_once(spec)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _check_once(spec: GrammarSpec) -> None:
    """Check a grammar. Results are cached, errors are not: an application repeats its schema."""
    check_spec(spec)
