"""What the pydoc model reads: sentences made of docstrings, and which tokens its loss counts."""

from __future__ import annotations

from itertools import islice

import pytest

from models.pydoc.batches import IGNORED, SHORT, TOKENS_PER_STEP, Batches, stack
from models.pydoc.chat import ChatWriter
from models.pydoc.facts.corpus import all_facts
from models.pydoc.facts.entry import summarize
from models.pydoc.facts.fact import Fact
from models.pydoc.facts.grammar import indicative
from models.pydoc.tokenizer import train_tokenizer

pytestmark = pytest.mark.unit

FACT = Fact(questions=("What does f do?",), answer="f returns x.")


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("Return x.", "returns x."),
        ("Copy a file.", "copies a file."),
        ("Search for x.", None),
        ("Push x.", "pushes x."),
        ("Returns x.", "returns x."),
        ("A lock.", None),
    ],
)
def test_verbs_become_indicative(summary: str, expected: str | None) -> None:
    assert indicative(summary) == expected


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("Return x.\n\nMore of it.", "Return x."),
        ("f(a, b) -> int\n\nReturn x, e.g. A.", "Return x, e.g. A."),
        ("Return\n    x", "Return x."),
        (">>> f()", ""),
        (None, ""),
    ],
)
def test_a_docstring_is_summarized(doc: str | None, expected: str) -> None:
    assert summarize(doc) == expected


def test_no_question_has_two_answers() -> None:
    answers: dict[str, str] = {}
    for fact in all_facts(seed=0):
        for question in fact.questions:
            assert answers.setdefault(question, fact.answer) == fact.answer


def test_the_same_seed_gives_the_same_batches() -> None:
    tokenizer = train_tokenizer([FACT], ["def f(): ..."])
    first, second = (Batches(tokenizer, [FACT], ["def f(): ..."] * 9, seed=1) for _ in range(2))
    for (inputs, labels), (same_inputs, same_labels) in islice(zip(first, second, strict=True), 3):
        assert inputs.equal(same_inputs)
        assert labels.equal(same_labels)
        assert inputs.numel() == TOKENS_PER_STEP


def test_the_loss_counts_answers_and_the_mark_that_ends_them() -> None:
    tokenizer = train_tokenizer([FACT], [])
    messages = [("system", "Be brief."), ("user", FACT.questions[0]), ("assistant", FACT.answer)]
    row = ChatWriter(tokenizer).write(messages)
    _, labels = stack([row], SHORT)
    counted = labels[labels != IGNORED].tolist()
    assert tokenizer.decode(counted, skip_special_tokens=False) == "f returns x.<|im_end|>"
