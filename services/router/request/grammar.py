"""Structured output as both front ends ask for it: one constraint, checked before any work is done.

Code that constrains an answer for its own reason (a tool that must be called, for example) makes a
spec with `json_schema_grammar` or `structural_tag_grammar` and puts it into
`GenerationParams.grammar`; the pipeline checks it, and it reaches the workers that sample.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shared.request.grammar.checks import check_spec
from shared.request.grammar.spec import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    from services.router.admission.tenant import Tenant
    from shared.request.sampling_params import SamplingParams

_NUM_REMEMBERED = 256
#: Looking at one of this length takes some milliseconds.
MAX_CHECKED_CHARS = 8 * 1024
_OWNER = b"baton.grammar.owner.v1\0"


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
    """Return the grammar of an answer that is one of `choices`.

    param: the request's field that errors name.
    """
    text = json.dumps(choices, ensure_ascii=False)
    return GrammarSpec(kind=GrammarKind.CHOICE, text=text, param=param)


def check_grammar(spec: GrammarSpec | None) -> None:
    """Refuse what workers would refuse, as far as that can be seen at once.

    A long grammar is left to the workers, which look at it in a process of its own: the router
    would serve no other request meanwhile.

    Raises:
        InvalidRequestError: it is wrong; the message says where.
        UnsupportedError: it asks for what is not offered.
    """
    if spec is not None and len(spec.text) <= MAX_CHECKED_CHARS:
        _check_once(spec)


def owned_by(tenant: Tenant, sampling: SamplingParams) -> SamplingParams:
    """The parameters with the tenant as the owner of their grammar, if they have one."""
    if sampling.grammar is None:
        return sampling
    owner = b""
    if tenant.name:
        owner = hashlib.sha256(_OWNER + tenant.name.encode("utf-8", "surrogatepass")).digest()[:16]
    return replace(sampling, grammar=replace(sampling.grammar, owner=owner))


@lru_cache(maxsize=_NUM_REMEMBERED)
def _check_once(spec: GrammarSpec) -> None:
    """The same schema comes with every request of an application. Errors are not remembered."""
    check_spec(spec)
