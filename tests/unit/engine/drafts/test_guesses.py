"""What heads guess in an engine: compared with their definition, token by token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.engine.engines import generate, make_request
from tests.fakes.model.draft_reference import Eagle3Reference, EagleReference, medusa_logits
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache
from tests.fakes.model.transformers_models import random_prompt
from tests.unit.engine.drafts.conftest import Drafts, engine_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.engine import Engine
    from shared.engine.sequence.draft import Draft
    from shared.engine.speculation.base import DraftWish

VOCAB = 300


class Recorder:
    """Notes what a proposer was asked and what it said."""

    def __init__(self, engine: Engine) -> None:
        speculator = engine._steps._speculator
        assert speculator is not None
        self._proposer: Any = speculator._proposer
        self.records: list[tuple[str, list[int], list[int]]] = []
        speculator._proposer = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proposer, name)

    def propose(self, wishes: Sequence[DraftWish]) -> Sequence[Draft]:
        drafts: Sequence[Draft] = self._proposer.propose(wishes)
        for wish, draft in zip(wishes, drafts, strict=True):
            seq = wish.seq
            self.records.append((seq.request_id, list(seq.token_ids), list(draft.token_ids)))
        return drafts


def states_of(drafts: Drafts, token_ids: list[int], layers: tuple[int, ...]) -> torch.Tensor:
    """The target's hidden states of all tokens, computed at once."""
    spec, length = drafts.target.spec, len(token_ids)
    table = list(range(1, 2 + length // 16))
    cache = poisoned_cache(1 + len(table), spec.num_layers, spec.attention.num_kv_heads, 16, 16)
    metadata = make_metadata([length], [length], [table], 16)
    model = drafts.target.model
    final = model.forward(torch.tensor(token_ids), torch.arange(length), (cache,), metadata)
    captured = model.captured()
    return torch.cat([captured[n] for n in layers], dim=-1) if layers else final.clone()


def expected_draft(
    drafts: Drafts, method: str, token_ids: list[int], num: int, first: int
) -> list[int]:
    """From the definition: everything from position `first` on is read again for every token."""
    path = drafts.folder / method
    tensors = load_file(path / "model.safetensors")
    raw = json.loads((path / "config.json").read_text())
    hidden = states_of(drafts, token_ids[:-1], (2, 2, 1) if method == "eagle3" else ())
    if method == "medusa":
        return [int(medusa_logits(tensors, hidden[-1:], i, 1).argmax()) for i in range(num)]
    if "embed_tokens.weight" not in tensors:
        target = load_file(drafts.directory / "model.safetensors")
        tensors["embed_tokens.weight"] = target["model.embed_tokens.weight"]
    reference: Any = (Eagle3Reference if method == "eagle3" else EagleReference)(tensors, raw)
    features, ids, guesses = reference.features(hidden[first:]), token_ids[first + 1 :], []
    for _ in range(num):
        guessed = reference.guess(torch.tensor(ids), features, first)[-1:]
        if method == "eagle3":
            token = int(reference.most_likely(guessed))
        else:
            token = int(drafts.target.model.compute_logits(guessed).argmax())
        guesses.append(token)
        ids, features = [*ids, token], torch.cat((features, guessed))
    return guesses


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_guesses_are_those_of_the_definition(method: str, drafts: Drafts) -> None:
    """With prompts in chunks, batches that change, and a prompt from the prefix cache."""
    engine = engine_with(drafts, drafts.settings(method))
    recorder = Recorder(engine)
    prompt = random_prompt(70, vocab_size=VOCAB, seed=1)
    first = make_request("first", prompt, max_tokens=12, ignore_eos=True)
    other = make_request("other", prompt[40:], max_tokens=5, ignore_eos=True)
    again = make_request("again", prompt, max_tokens=6, ignore_eos=True)
    generate(engine, first, other)
    generate(engine, again)
    assert {name for name, _, guesses in recorder.records if guesses} == {"first", "other", "again"}
    for name, token_ids, guesses in recorder.records:
        begin = 64 if name == "again" and method != "medusa" else 0
        assert guesses == expected_draft(drafts, method, token_ids, len(guesses), begin)
