"""Structured output as both front ends ask for it: one constraint, checked before any work is done.

Whoever wants to constrain an answer for a reason of its own (a tool that must be called, say) makes
a spec with `json_schema_grammar` or `structural_tag_grammar` and puts it into
`GenerationParams.grammar`; the pipeline checks it, and it reaches the workers that sample.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from shared.engine.grammar.checks import check_spec
from shared.engine.grammar.spec import GrammarKind, GrammarSpec

_NUM_REMEMBERED = 256


def json_schema_grammar(
    schema: Any, *, strict: bool = True, any_whitespace: bool = True, param: str
) -> GrammarSpec:
    """The answer is JSON that fits `schema`, a parsed JSON Schema.

    `strict`: nothing may be in it that the schema does not name. `param` is the client's field,
    for error messages. Raises nothing: `check_grammar` does.
    """
    return GrammarSpec(
        kind=GrammarKind.JSON_SCHEMA,
        text=json.dumps(schema, ensure_ascii=False),
        strict=strict,
        any_whitespace=any_whitespace,
        param=param,
    )


def structural_tag_grammar(tag: Any, *, param: str) -> GrammarSpec:
    """The answer fits a structural tag of xgrammar, a parsed JSON object."""
    text = json.dumps(tag, ensure_ascii=False)
    return GrammarSpec(kind=GrammarKind.STRUCTURAL_TAG, text=text, param=param)


def choice_grammar(choices: list[str], *, param: str) -> GrammarSpec:
    """The answer is one of these strings."""
    text = json.dumps(choices, ensure_ascii=False)
    return GrammarSpec(kind=GrammarKind.CHOICE, text=text, param=param)


def check_grammar(spec: GrammarSpec | None) -> None:
    """Refuse what workers would refuse, as far as that can be seen without compiling it.

    Raises:
        InvalidRequestError: it is wrong; the message says where.
        UnsupportedError: it asks for what is not offered.
    """
    if spec is not None:
        _check_once(spec)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _check_once(spec: GrammarSpec) -> None:
    """The same schema comes with every request of an application. Errors are not remembered."""
    check_spec(spec)
