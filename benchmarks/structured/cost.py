"""What a grammar costs: compiling it, a mask per token, and tokens per second of an engine."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from shared.engine.grammar.backends.registry import create_backend
from shared.engine.sampler.grammar_mask import allowed_tokens
from shared.engine.sequence.events import NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.request.grammar.spec import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.structured.conformance import Case
    from shared.engine.llm import LLM
    from shared.engine.settings.choices import BackendName
    from shared.text.token_table import TokenTable


_ENDLESS = GrammarSpec(
    kind=GrammarKind.JSON_SCHEMA,
    text='{"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}, '
    '"b": {"type": "string"}}, "required": ["a", "b"]}, "minItems": 1000}',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCost:
    """Of one backend on one vocabulary: medians, of all schemas and all of their steps."""

    load_ms: float
    compile_ms: float
    #: The largest of the schemas.
    compile_max_ms: float
    mask_us: float
    mask_p99_us: float
    accept_us: float
    #: Ruling the tokens out, once the mask is there.
    apply_us: float


def measure_backend(
    name: BackendName, table: TokenTable, cases: Sequence[Case], *, num_steps: int
) -> GrammarCost:
    """Walk through each case's grammar at random, `num_steps` tokens at most."""
    began_s = time.perf_counter()
    backend = create_backend(name, table)
    load_s = time.perf_counter() - began_s
    logits = torch.zeros(1, table.vocab_size)
    bits = torch.zeros(1, -(-table.vocab_size // 32), dtype=torch.int32)
    times: dict[str, list[float]] = {"compile": [], "mask": [], "accept": [], "apply": []}
    for case in cases:
        rng = random.Random(case.seed)
        assert case.sampling.grammar is not None
        with _timed(times["compile"]):
            compiled = backend.compile(case.sampling.grammar)
        grammar = compiled.start(table.eos_token_ids)
        for _ in range(num_steps):
            with _timed(times["mask"]):
                grammar.fill_mask(bits, 0)
            with _timed(times["apply"]):
                allowed = allowed_tokens(bits, table.vocab_size, logits.device)
                logits[0].masked_fill_(~allowed[0], float("-inf"))
            token_id = rng.choice(allowed[0].nonzero().flatten().tolist())
            with _timed(times["accept"]):
                grammar.accept(token_id)
            if grammar.is_terminated:
                break
    return GrammarCost(
        load_ms=load_s * 1e3,
        compile_ms=_quantile(times["compile"], 0.5) * 1e3,
        compile_max_ms=max(times["compile"]) * 1e3,
        mask_us=_quantile(times["mask"], 0.5) * 1e6,
        mask_p99_us=_quantile(times["mask"], 0.99) * 1e6,
        accept_us=_quantile(times["accept"], 0.5) * 1e6,
        apply_us=_quantile(times["apply"], 0.5) * 1e6,
    )


def tokens_per_s(llm: LLM, cases: Sequence[Case], *, constrained: bool, num_tokens: int) -> float:
    """Of a batch of all cases' prompts, each answered with `num_tokens`, by a grammar or freely.

    The grammar does not end before that, so that both kinds of batches stay as large as they are.
    """
    grammar = _ENDLESS if constrained else None
    changes: dict[str, Any] = {
        "max_tokens": num_tokens,
        "grammar": grammar,
        "ignore_eos": not constrained,
    }
    for case in cases:
        request = EngineRequest(
            request_id=f"{constrained}-{case.seed}",
            prompt_token_ids=case.prompt,
            sampling=replace(case.sampling, **changes),
        )
        llm.engine.add(llm.grammars.ready_now(request))
    began_s, num = time.perf_counter(), 0
    while llm.engine.has_work() or llm.engine.wait_for_news():
        for event in llm.engine.step():
            if isinstance(event, NewTokens):
                num += len(event.token_ids)
    return num / (time.perf_counter() - began_s)


class _timed:  # noqa: N801 read as a statement
    def __init__(self, into: list[float]) -> None:
        self._into = into
        self._began_s = 0.0

    def __enter__(self) -> None:
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._into.append(time.perf_counter() - self._began_s)


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
