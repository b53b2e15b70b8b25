"""Vectors of texts that a row asks for while answers are written, and what they must be."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import httpx
import torch
from torch.nn.functional import normalize

from shared.engine.prompt_rows import PromptRows
from shared.engine.sequence.events import Failed, PromptStates
from shared.engine.sequence.request import EngineRequest
from shared.request.sampling_params import SamplingParams
from tests.e2e.asking import prompt_of
from tests.e2e.stream import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.llm import LLM
    from shared.request.adapter_ref import AdapterRef
    from tests.composition.adapters import PeftModels
    from tests.e2e.processes import Cluster

#: What a worker that makes vectors beside answers is started with.
FLAGS = ("--runner", "generate", "--convert", "embed")
#: Times that they are asked for: the first time beside prompts, later beside answers and events.
NUM_TURNS = 3
#: By how much numbers of vectors of the length 1 may differ.
BOUND = 2e-5
#: The least cosine of vectors that are not so exact: see `rules.INEXACT` and `ROUNDED_KV`.
NEAR = 0.99


class AskedVectors:
    """Vectors of several texts, under way in a thread."""

    def __init__(
        self, prompt: list[int], engine: LLM, adapters: Sequence[AdapterRef | None]
    ) -> None:
        """Of the prompt, of one that begins like it, and of others; with each of `adapters`."""
        self._texts = [prompt, [*prompt[:40], 9], *(prompt_of(n, seed=20 + n) for n in (1, 90))]
        self._engine = engine
        self._adapters = tuple(adapters)
        self._found: list[tuple[AdapterRef | None, list[list[float]]]] = []
        self._errors: list[str] = []
        self._thread: Thread | None = None

    def start(self, cluster: Cluster) -> None:
        """Ask."""
        self._thread = Thread(target=self._run, args=[cluster])
        self._thread.start()

    def _run(self, cluster: Cluster) -> None:
        for _ in range(NUM_TURNS):
            for adapter in self._adapters:
                model = adapter.name if adapter else cluster.model.name
                try:
                    reply = ask_vectors(cluster, model, self._texts).raise_for_status()
                except httpx.HTTPError as error:
                    self._errors.append(repr(error))
                    return
                found = [item["embedding"] for item in reply.json()["data"]]
                self._found.append((adapter, found))

    def join(self) -> None:
        """Wait for all of them; fail if one was refused."""
        assert self._thread is not None
        self._thread.join(WAIT_S)
        assert not self._errors, self._errors
        assert len(self._found) == NUM_TURNS * len(self._adapters)

    def check(self, *, is_exact: bool) -> None:
        """Fail unless all are those that one engine makes, which has nothing else to do."""
        for adapter, found in self._found:
            wanted = vectors_of(self._engine, self._texts, adapter)
            for got, want in zip(map(torch.tensor, found), wanted, strict=True):
                if is_exact:
                    torch.testing.assert_close(got, want, atol=BOUND, rtol=0)
                else:
                    assert float(got @ want) > NEAR

    def check_by_peft(self, models: PeftModels) -> None:
        """Fail unless all are transformers' states of the last token, with the length 1."""
        for adapter, found in self._found:
            name = adapter.name if adapter else ""
            for text, got in zip(self._texts, map(torch.tensor, found), strict=True):
                want = normalize(models.state(name, text), dim=0)
                torch.testing.assert_close(got, want, atol=BOUND, rtol=0)


def ask_vectors(cluster: Cluster, model: str, texts: list[list[int]]) -> httpx.Response:
    """The router's reply."""
    body = {"model": model, "input": texts}
    return httpx.post(f"{cluster.url}/v1/embeddings", json=body, timeout=WAIT_S)


def vectors_of(
    engine: LLM, texts: list[list[int]], adapter: AdapterRef | None
) -> list[torch.Tensor]:
    """What one engine makes of texts, one by one: float32 [size] each, of the length 1."""
    return [normalize(_state(engine, text, adapter), dim=0) for text in texts]


def _state(engine: LLM, text: list[int], adapter: AdapterRef | None) -> torch.Tensor:
    """The state of the last token: float32 [size]."""
    request = EngineRequest(
        request_id="state",
        prompt_token_ids=tuple(text),
        sampling=SamplingParams(max_tokens=1, temperature=0.0, seed=0),
        adapter=adapter,
        rows=PromptRows.LAST,
    )
    engine.engine.add(request)
    states: list[torch.Tensor] = []
    while engine.engine.has_work() or engine.engine.wait_for_news():
        for event in engine.engine.step():
            assert not isinstance(event, Failed), event.error
            if isinstance(event, PromptStates):
                states += event.parts
    (state,) = states
    return state[0]
