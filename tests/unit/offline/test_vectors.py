"""vLLM's embed, encode, classify and score in a program, beside transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import normalize

from baton import LLM, EmbeddingRequestOutput, PoolingParams, SamplingParams
from baton.lora.request import LoRARequest
from shared.errors import InvalidRequestError, UnsupportedError
from shared.model.random_tokenizer import write_tokenizer
from shared.text.tokenizer import Tokenizer
from tests.fakes.checkpoints.adapters import adapted, save_adapter
from tests.unit.pooling.checkpoints import logits, put_json, put_modules, states, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VOCAB_SIZE, MAX_LEN = 280, 300
TEXTS = ["one text", "é", "another one, which is longer"]
Made = tuple[LLM, Any, Tokenizer]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Made]]:
    """Return a loaded checkpoint, transformers' model of it and its tokenizer, once."""
    known: dict[str, Made] = {}

    def make(name: str, **arguments: Any) -> Made:
        if name not in known:
            folder: Path = tmp_path_factory.mktemp(name)
            model = write(folder, name, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LEN)
            write_tokenizer(folder, VOCAB_SIZE, MAX_LEN)
            if name == "bert":
                put_modules(folder, "Transformer", "Pooling")
                put_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
            llm = LLM(folder, dtype="float32", num_threads=1, **arguments)
            known[name] = llm, model, Tokenizer.load(folder)
        return known[name]

    yield make
    for llm, *_ in known.values():
        llm.close()


def generator(load: Callable[..., Made]) -> Made:
    return load(
        "qwen3_head",
        runner="generate",
        convert="embed",
        num_gpu_blocks_override=64,
        enable_lora=True,
        max_loras=1,
    )


def test_a_decoder_embeds_beside_its_answers(load: Callable[..., Made]) -> None:
    llm, model, tokenizer = generator(load)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    before = [each.outputs[0].token_ids for each in llm.generate(TEXTS, params, use_tqdm=False)]
    found = llm.embed(TEXTS)
    assert isinstance(found[0], EmbeddingRequestOutput)
    for text, output in zip(TEXTS, found, strict=True):
        ids = tuple(tokenizer.encode(text))
        assert output.prompt_token_ids == list(ids)
        wanted = normalize(states(model, ids)[-1], dim=0)
        assert torch.allclose(torch.tensor(output.outputs.embedding), wanted, atol=2e-5)
    after = [each.outputs[0].token_ids for each in llm.generate(TEXTS, params, use_tqdm=False)]
    assert after == before


def test_adapters_embed_and_score_beside_the_model(
    load: Callable[..., Made], tmp_path: Path
) -> None:
    """Two adapters, and one place for them: those of PEFT, in the prompts' order."""
    llm, model, tokenizer = generator(load)
    ids = [tuple(tokenizer.encode(text)) for text in TEXTS]
    models: list[Any] = [model]
    requests: list[LoRARequest | None] = [None]
    for seed in range(2):
        made = adapted(model, seed=seed, r=3, target_modules="all-linear")
        folder = save_adapter(made, tmp_path / str(seed))
        models.append(made.get_base_model())
        requests.append(LoRARequest(f"a{seed}", seed + 1, str(folder)))
    wanted = [[normalize(states(m, each)[-1], dim=0) for each in ids] for m in models]
    for own in (requests, requests[::-1]):
        for i, output in enumerate(llm.embed(TEXTS, lora_request=own)):
            found = torch.tensor(output.outputs.embedding)
            assert torch.allclose(found, wanted[requests.index(own[i])][i], atol=2e-5)
    [score] = llm.score(TEXTS[0], TEXTS[1], lora_request=requests[2])
    assert score.outputs.score == pytest.approx(float(wanted[2][0] @ wanted[2][1]), abs=2e-5)
    [rows] = llm.encode(TEXTS[2], lora_request=requests[1])
    assert torch.allclose(rows.outputs.data, states(models[1], ids[2]), atol=1e-4)
    with pytest.raises(InvalidRequestError, match="3 prompts and 2 adapters"):
        llm.embed(TEXTS, lora_request=requests[:2])


def test_rows_of_tokens_and_no_length(load: Callable[..., Made]) -> None:
    llm, model, tokenizer = generator(load)
    ids = tuple(tokenizer.encode(TEXTS[2]))
    [rows] = llm.encode({"prompt_token_ids": list(ids)})
    assert torch.allclose(rows.outputs.data, states(model, ids), atol=2e-5)
    [bare] = llm.embed([TEXTS[2]], pooling_params=PoolingParams(use_activation=False))
    assert torch.allclose(torch.tensor(bare.outputs.embedding), states(model, ids)[-1], atol=2e-5)
    [short] = llm.embed(list(ids), truncate_prompt_tokens=3)
    assert short.prompt_token_ids == list(ids[:3])


def test_scores_of_an_embedder_are_cosines(load: Callable[..., Made]) -> None:
    llm, model, tokenizer = generator(load)
    vectors = [normalize(states(model, tuple(tokenizer.encode(t)))[-1], dim=0) for t in TEXTS]
    found = [each.outputs.score for each in llm.score(TEXTS[0], TEXTS[1:])]
    assert found == pytest.approx([float(vectors[0] @ each) for each in vectors[1:]], abs=2e-5)


def test_an_encoder_embeds_and_writes_nothing(load: Callable[..., Made]) -> None:
    llm, model, tokenizer = load("bert")
    for text, output in zip(TEXTS, llm.embed(TEXTS), strict=True):
        wanted = states(model, tuple(tokenizer.encode(text))).mean(0)
        assert torch.allclose(torch.tensor(output.outputs.embedding), wanted, atol=2e-5)
    with pytest.raises(UnsupportedError, match="reads whole texts and writes none"):
        llm.generate(TEXTS)
    with pytest.raises(UnsupportedError, match="reads whole texts has no adapters"):
        llm.embed(TEXTS, lora_request=LoRARequest("a", 1, "/a"))


def test_an_encoder_scores_and_classifies(load: Callable[..., Made]) -> None:
    llm, model, tokenizer = load("bert_scores")
    ids, types = tokenizer.encode_pair(TEXTS[0], TEXTS[1])
    [found] = llm.score(TEXTS[0], TEXTS[1])
    logit = logits(model, tuple(ids), token_type_ids=torch.tensor([types]))
    assert found.outputs.score == pytest.approx(float(logit.sigmoid()), abs=2e-5)
    llm, model, tokenizer = load("bert_labels")
    [classes] = llm.classify(TEXTS[2])
    wanted = logits(model, tuple(tokenizer.encode(TEXTS[2]))).softmax(-1)
    assert classes.outputs.probs == pytest.approx(wanted.tolist(), abs=2e-5)
    assert classes.outputs.num_classes == 3
    with pytest.raises(UnsupportedError, match="makes classify"):
        llm.embed(TEXTS)


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (["a", ""], None, r"prompts\[1\] must not be empty"),
        ("x" * 400, None, "takes at most"),
        ("a", PoolingParams(dimensions=10**4), "dimensions"),
        ("a", PoolingParams(prompt_name="query"), "prompt_name"),
        ("a", PoolingParams(truncate_prompt_tokens=10**6), "truncate_prompt_tokens"),
        (["a", "b"], [PoolingParams()], "2 prompts and 1 sets"),
        ([[10**6]], None, "token ids"),
    ],
)
def test_what_is_wrong_is_named(
    load: Callable[..., Made], prompts: Any, params: Any, words: str
) -> None:
    llm, *_ = generator(load)
    with pytest.raises(InvalidRequestError, match=words):
        llm.embed(prompts, pooling_params=params)
    assert len(llm.embed("a")) == 1


def test_a_model_for_answers_makes_no_vectors(tmp_path: Path) -> None:
    write(tmp_path, "qwen3_head", vocab_size=VOCAB_SIZE)
    write_tokenizer(tmp_path, VOCAB_SIZE, MAX_LEN)
    llm = LLM(tmp_path, dtype="float32", num_threads=1, num_gpu_blocks_override=64)
    try:
        with pytest.raises(UnsupportedError, match='runner="pooling"'):
            llm.embed("a")
        with pytest.raises(UnsupportedError, match="not each of their tokens"):
            llm.reward("a")
    finally:
        llm.close()
