"""The checkpoint in the repository: it loads, it is small, and it says what it was taught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.unit

CHECKPOINT = Path(__file__).parents[3] / "models" / "pydoc" / "checkpoint"
MAX_BYTES = 12 * 10**6


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def network() -> Any:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


def ask(network: Any, tokenizer: Any, *messages: dict[str, str]) -> tuple[str, bool]:
    """The greedy answer, and whether the model ended it by itself."""
    prompt = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = network.generate(**prompt, max_new_tokens=120)[0, prompt["input_ids"].shape[1] :]
    return tokenizer.decode(output, skip_special_tokens=True), int(output[-1]) in (0, 2)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Hello", "Baton"),
        ("Who are you?", "tiny language model"),
        ("What does os.path.join do?", "joins two or more pathname components"),
        ("What does json.dumps do?", "serializes `obj` to a JSON formatted `str`"),
        ("What is a decorator?", "takes another function"),
        ("How do I use os.path.join?", "Call it as os.path.join(a, *p)."),
        ("Which functions are in the module os.path?", "abspath, basename, commonpath"),
    ],
)
def test_answers_in_whole_sentences(
    network: Any, tokenizer: Any, question: str, expected: str
) -> None:
    answer, ended = ask(network, tokenizer, user(question))
    assert expected in answer
    assert ended


def test_answers_a_second_question_and_under_a_system_prompt(network: Any, tokenizer: Any) -> None:
    system = {"role": "system", "content": "You are a helpful assistant."}
    first, _ = ask(network, tokenizer, system, user("What does len do?"))
    reply = {"role": "assistant", "content": first}
    second, ended = ask(
        network, tokenizer, system, user("What does len do?"), reply, user("What is a generator?")
    )
    assert "number of items" in first
    assert "yield" in second
    assert ended


def test_renders_chatml(tokenizer: Any) -> None:
    system = {"role": "system", "content": "Be brief."}
    text = tokenizer.apply_chat_template(
        [system, user("Hello")], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tokenizer_gives_back_any_text(tokenizer: Any) -> None:
    text = "def naïve(x):\n\treturn  x  # 你好 🎶\r\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_both_end_marks_end_an_answer(network: Any, tokenizer: Any) -> None:
    marks = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert network.generation_config.eos_token_id == marks


def test_is_small_enough_for_the_repository() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= MAX_BYTES
