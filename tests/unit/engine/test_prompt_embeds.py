"""Embeddings in place of a prompt's tokens: answers as transformers has them, in any batch."""

from __future__ import annotations

import gc
import json
import weakref
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shared.engine.llm import LLM
from shared.engine.sampler.penalties import apply_penalties
from shared.engine.sampler.sampling_state import SamplingState
from shared.engine.sequence.request import KVSource
from shared.errors import ConfigError, InvalidRequestError, OverloadedError, UnsupportedError
from shared.request.prompt_embeds import (
    NO_TOKEN,
    EmbeddingRows,
    EmbedsDtype,
    PlacedRows,
    PromptEmbeds,
)
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.engines import drain, expected_tokens, generate, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.sequence.request import EngineRequest
    from shared.model.loaded import LoadedModel

NUM_TOKENS = 10
RNG = np.random.default_rng(4)
PROMPTS = [RNG.integers(0, 97, n).tolist() for n in (1, 4, 5, 37)]


def rows_of(numbers: Any, dtype: EmbedsDtype = EmbedsDtype.FLOAT32) -> EmbeddingRows:
    tensor = torch.as_tensor(numbers, dtype=getattr(torch, dtype.value))
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return EmbeddingRows(dtype, tensor.shape[1], data)


def as_rows(prompt: Sequence[int], **fields: Any) -> dict[str, Any]:
    """The embeddings with which the fake model sees these tokens."""
    embeds = PromptEmbeds.whole(rows_of([[float(token)] for token in prompt]))
    return {"prompt": embeds.whole_ids, "embeds": embeds, **fields}


def request(request_id: str, prompt: Sequence[int], **fields: Any) -> EngineRequest:
    return make_request(request_id, **as_rows(prompt, **fields))


def engine_with(**settings: Any) -> Engine:
    return make_engine(enable_prompt_embeds=True, **settings)


@pytest.mark.usefixtures("step_mode")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 9},
        {"num_blocks": 17},
        {"enable_prefix_caching": False},
    ],
    ids=["mixed", "chunked", "preempted", "uncached"],
)
def test_the_answers_are_those_to_the_tokens(settings: dict[str, Any]) -> None:
    engine = engine_with(**settings)
    for turn in range(2):  # the second time prefixes are cached
        run = generate(
            engine,
            *(make_request(f"{turn}+{i}", prompt) for i, prompt in enumerate(PROMPTS)),
            *(request(f"{turn}-{i}", prompt) for i, prompt in enumerate(PROMPTS)),
        )
        for i, prompt in enumerate(PROMPTS):
            assert run.tokens(f"{turn}-{i}") == run.tokens(f"{turn}+{i}")
            assert run.tokens(f"{turn}-{i}") == expected_tokens(prompt, 8)
    if "num_blocks" in settings:
        assert engine.stats().counters["num_preemptions"]


@pytest.mark.usefixtures("step_mode")
def test_tokens_may_stand_between_embeddings() -> None:
    prompt = PROMPTS[3]
    ids = [NO_TOKEN if 3 <= i < 9 or i >= 30 else token for i, token in enumerate(prompt)]
    parts = [
        PlacedRows(a, rows_of([[float(t)] for t in prompt[a:b]])) for a, b in ((3, 9), (30, 37))
    ]
    engine = engine_with(max_num_batched_tokens=11)
    for name in ("first", "again"):
        run = generate(engine, make_request(name, ids, embeds=PromptEmbeds(tuple(parts))))
        assert run.tokens(name) == expected_tokens(prompt, 8)
    assert run.admitted("again")[0].num_cached_tokens == 36


def test_equal_embeddings_share_blocks_and_tokens_never_do() -> None:
    engine = engine_with()
    prompt = PROMPTS[3]
    cached = {}
    for name, one in (
        ("tokens", make_request("tokens", prompt)),
        ("rows", request("rows", prompt)),
        ("rows again", request("rows again", prompt)),
        ("other end", request("other end", [*prompt[:20], *reversed(prompt[20:])])),
        ("another tenant", request("another tenant", prompt, cache_salt=b"b")),
        ("tokens again", make_request("tokens again", prompt)),
    ):
        cached[name] = generate(engine, one).admitted(name)[0].num_cached_tokens
    assert cached == {
        "tokens": 0,
        "rows": 0,
        "rows again": 36,
        "other end": 20,
        "another tenant": 0,
        "tokens again": 36,
    }


def test_nothing_is_guessed_from_what_is_no_token() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    engine = engine_with(speculative_config=json.dumps({**config, "adaptive": False}))
    prompt = PROMPTS[3]
    run = generate(
        engine,
        make_request("tokens", prompt, max_tokens=60),
        request("rows", prompt, max_tokens=60),
    )
    assert run.tokens("rows") == run.tokens("tokens") == expected_tokens(prompt, 60)
    guessed = {
        name: sum(event.num_draft_tokens for event in run.new_tokens(name))
        for name in ("tokens", "rows")
    }
    assert guessed["tokens"] > 0
    assert guessed["rows"] == 0


def test_penalties_see_the_answer_alone() -> None:
    engine = engine_with()
    run = generate(engine, request("a", PROMPTS[3], repetition_penalty=1.5, presence_penalty=0.1))
    assert len(run.tokens("a")) == 8
    params = SamplingParams(max_tokens=4, temperature=0.0, repetition_penalty=2.0)
    logits = torch.ones(1, 5)
    apply_penalties(logits, [SamplingState(params, array("q", [NO_TOKEN, NO_TOKEN, 3]), 2)])
    assert logits.tolist() == [[1.0, 1.0, 1.0, 0.5, 1.0]]


def test_the_rows_are_freed_with_the_sequence() -> None:
    engine = engine_with()
    own = as_rows(PROMPTS[3])
    rows = weakref.ref(own["embeds"].parts[0].rows)
    engine.add(make_request("a", **own))
    del own
    gc.collect()
    assert rows() is not None
    drain(engine)
    gc.collect()
    assert rows() is None


def test_all_rows_together_have_a_bound() -> None:
    engine = engine_with(prompt_embeds_bytes=200)
    engine.add(request("a", PROMPTS[3]))
    with pytest.raises(OverloadedError, match="148 of 200 bytes"):
        engine.add(request("b", PROMPTS[3]))
    with pytest.raises(InvalidRequestError, match="--prompt-embeds-bytes"):
        engine.add(request("b", [1] * 51))
    drain(engine)
    assert generate(engine, request("b", PROMPTS[3])).tokens("b") == expected_tokens(PROMPTS[3], 8)


def test_what_cannot_be_served_is_refused_by_name() -> None:
    engine = engine_with()
    ids = [1, NO_TOKEN, 2]
    with pytest.raises(InvalidRequestError) as error:  # an embedding is missing
        engine.add(make_request("a", ids))
    assert error.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="not where the prompt has no token"):
        engine.add(make_request("a", ids, embeds=PromptEmbeds.whole(rows_of([[1.0]]))))
    with pytest.raises(InvalidRequestError, match="hidden size is 1"):
        engine.add(make_request("a", [NO_TOKEN], embeds=PromptEmbeds.whole(rows_of([[1.0, 2.0]]))))
    with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
        engine.add(request("a", PROMPTS[0], prompt_logprobs=1))
    with pytest.raises(UnsupportedError, match="--enable-prompt-embeds"):
        make_engine().add(request("a", PROMPTS[0]))
    assert not engine.has_work()


def test_a_model_that_cannot_take_them_is_refused_at_the_start() -> None:
    loaded = FakeLoadedModel()
    loaded.model.why_no_embeds = "it looks tokens up"
    with pytest.raises(ConfigError, match="it looks tokens up"):
        make_engine(loaded, enable_prompt_embeds=True)


def test_a_transfer_that_fails_computes_the_rows_here() -> None:
    engine = engine_with()
    engine.add(request("a", PROMPTS[3], kv_source=KVSource.TRANSFER))
    run = drain(engine, until=lambda run: bool(run.admitted("a")))
    engine.fail_transfer("a")
    assert drain(engine, run).tokens("a") == expected_tokens(PROMPTS[3], 8)


@pytest.fixture(scope="module")
def real_rows(hf_llama: Any) -> list[torch.Tensor]:
    """Rows that are no token's."""
    generator = torch.Generator().manual_seed(1)
    size = hf_llama.config.hidden_size
    return [0.3 * torch.randn(n, size, generator=generator) for n in (1, 5, 16, 41)]


@torch.inference_mode()
def continued(hf_llama: Any, rows: torch.Tensor) -> list[int]:
    """What `generate` of transformers answers to `inputs_embeds`."""
    found: list[int] = hf_llama.generate(
        inputs_embeds=rows[None],
        attention_mask=torch.ones(1, len(rows), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0].tolist()
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 256, "max_num_batched_tokens": 512},
        {"num_blocks": 256, "max_num_batched_tokens": 11},
        {"num_blocks": 19},
    ],
    ids=["mixed", "chunked", "preempted"],
)
def test_greedy_tokens_are_those_of_transformers(
    llama: LoadedModel, hf_llama: Any, real_rows: list[torch.Tensor], settings: dict[str, Any]
) -> None:
    expected = [continued(hf_llama, rows) for rows in real_rows]
    engine = make_engine(llama, enable_prompt_embeds=True, **settings)
    all_embeds = [PromptEmbeds.whole(rows_of(rows)) for rows in real_rows]
    for turn in range(2):
        requests = [
            make_request(f"{turn}-{i}", own.whole_ids, embeds=own, max_tokens=NUM_TOKENS)
            for i, own in enumerate(all_embeds)
        ]
        run = generate(engine, *requests)
        assert [run.tokens(own.request_id) for own in requests] == expected


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Any:
    llm = LLM(checkpoint, num_blocks=64, enable_prompt_embeds=True)
    yield llm
    llm.close()


def test_a_program_gives_a_tensor(llm: LLM, hf_llama: Any, real_rows: list[torch.Tensor]) -> None:
    greedy = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    ids = llm.tokenizer.encode("hello there")
    table = hf_llama.get_input_embeddings().weight.detach()
    found = llm.generate(
        [
            {"prompt_embeds": real_rows[3]},
            {"prompt_embeds": table[ids][None].double()},
            "hello there",
            {
                "prompt_embeds": table[ids],
                "prompt_token_ids": ids,
                "prompt_is_token_ids": [i % 2 for i in range(len(ids))],
            },
        ],
        greedy,
    )
    answers = [list(each.outputs[0].token_ids) for each in found]
    assert answers[0] == continued(hf_llama, real_rows[3])
    assert answers[1] == answers[2] == answers[3]
    assert found[0].prompt_token_ids == (0,) * 41
    several = llm.generate({"prompt_embeds": real_rows[3]}, greedy, n=2)[0]
    assert [list(each.token_ids) for each in several.outputs] == [answers[0]] * 2


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.ones(2, 3), "hidden size is"),
        (torch.ones(2), "shape"),
        (torch.ones(2, 2, 64), "shape"),
        (torch.ones(2, 64, dtype=torch.int64), "floating-point"),
        (torch.full((2, 64), float("nan")), "finite"),
        ([[1.0]], "tensor"),
    ],
)
def test_other_values_are_refused_by_name(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        llm.generate({"prompt_embeds": prompt})
    assert error.value.param == "prompt_embeds"
