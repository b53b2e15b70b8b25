"""Plain greedy clients of a P/D cluster get the same tokens beside neighbours of every kind.

`BATON_COMPANY=full` compares 1,000 answers per connector.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.oracle import expect
from tests.fakes.engine.company import PLAIN_TOKENS, num_answers, plain_prompts
from tests.fakes.engine.neighbours import NEIGHBOURS, Neighbour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

NUM_CLIENTS, NUM_PROMPTS, VOCAB = 8, 24, 300
OVER_HTTP = [row for row in NEIGHBOURS if row.body is not None]


@dataclass(slots=True)
class Asker:
    """One client after the other; says which answers are wrong."""

    cluster: Cluster
    client: httpx.Client
    expected: dict[tuple[int, ...], list[int]]

    def plain(self, prompt: tuple[int, ...]) -> list[str]:
        return self._wrong("plain", prompt, self._post(prompt, PLAIN_TOKENS))

    def neighbour(self, row: Neighbour, seed: int) -> list[str]:
        """One request of this kind. If it answers plainly, it asks a plain prompt."""
        rng = random.Random(seed)
        prompt = tuple(rng.randrange(3, VOCAB) for _ in range(row.prompt_len))
        if row.answers_plainly:
            prompt = rng.choice(list(self.expected))
        if row.cancelled_after is not None:
            self._cancel(prompt, row)
            return []
        answers = self._post(prompt, row.max_tokens, **(row.body or {}))
        return self._wrong(row.kind, prompt, answers) if row.answers_plainly else []

    def _body(self, prompt: tuple[int, ...], max_tokens: int, **fields: Any) -> dict[str, Any]:
        return {
            "model": self.cluster.model.name,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }

    def _post(self, prompt: tuple[int, ...], max_tokens: int, **fields: Any) -> list[list[int]]:
        """The tokens of all answers."""
        body = self._body(prompt, max_tokens, **fields)
        response = self.client.post(f"{self.cluster.url}/v1/completions", json=body)
        assert response.status_code == 200, (fields, response.text)
        return [choice["token_ids"] for choice in response.json()["choices"]]

    def _cancel(self, prompt: tuple[int, ...], row: Neighbour) -> None:
        body = self._body(prompt, row.max_tokens, stream=True, **(row.body or {}))
        url = f"{self.cluster.url}/v1/completions"
        with self.client.stream("POST", url, json=body) as response:
            lines = response.iter_lines()
            for _ in range(row.cancelled_after or 0):
                next(lines)

    def _wrong(self, kind: str, prompt: tuple[int, ...], answers: list[list[int]]) -> list[str]:
        want = self.expected[prompt]
        return [f"{kind}: {got} instead of {want}" for got in answers if got != want[: len(got)]]


@pytest.fixture
def asker(cluster: Cluster, oracle: LLM) -> Iterator[Asker]:
    prompts = plain_prompts(NUM_PROMPTS, vocab_size=VOCAB, seed=2)
    greedy = {"max_tokens": PLAIN_TOKENS, "temperature": 0.0}
    expected = {prompt: list(expect(oracle, prompt, **greedy)) for prompt in prompts}
    with httpx.Client(timeout=60) as client:
        yield Asker(cluster, client, expected)


def test_no_token_of_a_plain_answer_differs_in_company(asker: Asker, cluster: Cluster) -> None:
    num = num_answers(NUM_PROMPTS)
    prompts = list(asker.expected)
    rows = [OVER_HTTP[i % len(OVER_HTTP)] for i in range(max(num, len(OVER_HTTP)))]
    with ThreadPoolExecutor(NUM_CLIENTS) as clients, ThreadPoolExecutor(NUM_CLIENTS) as others:
        beside = [others.submit(asker.neighbour, row, seed) for seed, row in enumerate(rows)]
        plain = [clients.submit(asker.plain, prompts[i % len(prompts)]) for i in range(num)]
        differing = [wrong for future in [*plain, *beside] for wrong in future.result()]
    num_plain = sum(wrong.startswith("plain") for wrong in differing)
    assert not differing, f"{num_plain} of {num} plain answers, {len(differing)} with neighbours'"
    cluster.wait_idle()
