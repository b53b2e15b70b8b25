"""Whether answers are valid: many schemas, a model of random weights, temperature 1.

A model that knows nothing is the hardest case: whatever a grammar lets slip, it will do.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import jsonschema

from benchmarks.structured.schemas import generate_schema
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.text.tokenizer import Tokenizer

#: What random weights are given so that they come to an end: added to the logits of tokens that
#: close something. What is allowed stays for the grammar to say.
CLOSING = ('"', "}", "]", ",")
BIAS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One answer to ask for."""

    seed: int
    schema: dict[str, Any]
    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one case."""

    token_ids: tuple[int, ...]
    #: Ended by an end token, not by its length.
    has_finished: bool


class Asks(Protocol):
    """Where answers come from: an engine in this process, or a cluster."""

    def __call__(self, cases: Sequence[Case]) -> Iterable[Outcome]:
        """One outcome per case, in order."""
        ...


@dataclass(slots=True)
class Conformance:
    """Results of all cases."""

    num_cases: int = 0
    num_finished: int = 0
    num_valid: int = 0
    num_tokens: int = 0
    #: Seed, schema, text and what is wrong with it.
    faults: list[tuple[int, Any, str, str]] = field(default_factory=list)
    #: Of the finished ones: how often each keyword of JSON Schema was among their schemas.
    keywords: Counter[str] = field(default_factory=Counter)


def make_cases(seeds: Iterable[int], tokenizer: Tokenizer, *, max_tokens: int = 400) -> list[Case]:
    """Cases of these seeds; every third may be laid out in any way."""
    bias = {i: BIAS for text in CLOSING for i in tokenizer.encode(text, add_special_tokens=False)}
    cases = []
    for seed in seeds:
        schema = generate_schema(seed)
        grammar = GrammarSpec(
            kind=GrammarKind.JSON_SCHEMA,
            text=json.dumps(schema, ensure_ascii=False),
            any_whitespace=seed % 3 == 0,
            strict=seed % 5 != 0,
        )
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0,
            seed=seed,
            logit_bias=bias,
            eos_token_ids=tokenizer.eos_token_ids,
            grammar=grammar,
        )
        # No prefix in common: each prompt is computed by a prefill worker, if there is one.
        prompt = tuple(tokenizer.encode(f"{seed:06d}: answer in JSON, please: "))
        cases.append(Case(seed=seed, schema=schema, prompt=prompt, sampling=sampling))
    return cases


def run(cases: Sequence[Case], ask: Asks, tokenizer: Tokenizer) -> Conformance:
    """Ask for all of them, and check every answer that finished."""
    result = Conformance()
    for case, outcome in zip(cases, ask(cases), strict=True):
        result.num_cases += 1
        result.num_tokens += len(outcome.token_ids)
        if not outcome.has_finished:
            continue
        result.num_finished += 1
        text = b"".join(map(tokenizer.token_bytes, outcome.token_ids[:-1])).decode(
            "utf-8", "replace"
        )
        fault = find_fault(text, case.schema)
        if fault is None:
            result.num_valid += 1
        else:
            result.faults.append((case.seed, case.schema, text, fault))
        result.keywords.update(set(_keywords(case.schema)))
    return result


def find_fault(text: str, schema: Any) -> str | None:
    """What is wrong with an answer, by another library than those that made it."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if fault is None else f"{fault.json_path}: {fault.message}"


def _keywords(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "format":
                yield f"format {inner}"
            elif key in ("properties", "$defs"):
                yield key
                for one in inner.values():
                    yield from _keywords(one)
            else:
                yield key
                if key not in ("enum", "const"):
                    yield from _keywords(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keywords(inner)
