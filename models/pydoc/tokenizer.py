"""The tokenizer: byte-level BPE over the training text, with the marks of ChatML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from models.pydoc.facts.fact import Fact

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
# The trainer numbers the special tokens first, in the order it is given them.
SPECIAL = (END_OF_TEXT, START, END)
END_OF_TEXT_ID = SPECIAL.index(END_OF_TEXT)
END_ID = SPECIAL.index(END)

# Plain ChatML. With no system message there is none: the model is trained both ways.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- endif %}"
)


def train_tokenizer(facts: list[Fact], documents: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The answers count for more than the sources: they are what the model says.
    answers = [text for fact in facts for text in (fact.answer, *fact.questions[:2])]
    tokenizer.train_from_iterator([*answers, *answers, *answers, *documents], trainer)
    return tokenizer
