"""How well the model answers: `python -m models.pydoc.evaluate`.

Its loss on phrasings it never saw, how many answers come out word for word, and some in full.
"""

from __future__ import annotations

import argparse
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from models.pydoc.batches import SHORT, stack
from models.pydoc.chat import ChatWriter
from models.pydoc.facts.corpus import SEED, all_facts
from models.pydoc.network import loss_of
from models.pydoc.tokenizer import END, END_ID, END_OF_TEXT_ID

if TYPE_CHECKING:
    from models.pydoc.facts.fact import Fact

NUM_ASKED = 256
ROWS_PER_BATCH = 32
MAX_NEW_TOKENS = 120
SAMPLES = (
    "Hello",
    "Who are you?",
    "What does os.path.join do?",
    "What does json.dumps do?",
    "What is a decorator?",
    "How do I use shutil.copytree?",
    "Which functions are in the module os.path?",
    "What is the purpose of itertools.chain?",
)

logger = logging.getLogger(__name__)


def ask(network: LlamaForCausalLM, tokenizer: Tokenizer, question: str) -> str:
    """The greedy answer, with the mark that ended it."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    output = cast(Any, network).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=[END_ID, END_OF_TEXT_ID],
        pad_token_id=END_OF_TEXT_ID,
    )
    return str(tokenizer.decode(output[0, ids.shape[1] :].tolist(), skip_special_tokens=False))


@torch.inference_mode()
def answer_loss(
    network: LlamaForCausalLM, tokenizer: Tokenizer, pairs: list[tuple[str, str]]
) -> float:
    """The mean loss over the tokens of the answers."""
    writer = ChatWriter(tokenizer)
    rows = [writer.write([("user", question), ("assistant", answer)]) for question, answer in pairs]
    rows = sorted((r for r in rows if len(r.tokens) <= SHORT), key=lambda r: len(r.tokens))
    losses = []
    for start in range(0, len(rows), ROWS_PER_BATCH):
        batch = rows[start : start + ROWS_PER_BATCH]
        losses.append(loss_of(network, *stack(batch, len(batch[-1].tokens)))[1])
    return float(torch.cat(losses).mean())


def sample_pairs(facts: list[Fact], held_out: bool) -> list[tuple[str, str]]:
    """The same facts either way, so that the two losses compare."""
    rng = random.Random(0)
    asked = rng.sample([fact for fact in facts if fact.held_out], NUM_ASKED)
    return [(rng.choice(f.held_out if held_out else f.questions), f.answer) for f in asked]


def report(network: LlamaForCausalLM, tokenizer: Tokenizer, facts: list[Fact]) -> None:
    network.train(mode=False)
    for held_out in (False, True):
        loss = answer_loss(network, tokenizer, sample_pairs(facts, held_out))
        logger.info("answer loss, %s phrasings: %.3f", "held-out" if held_out else "seen", loss)
    for question in SAMPLES:
        logger.info("%s -> %s", question, ask(network, tokenizer, question))
    network.train()


def share_word_for_word(
    network: LlamaForCausalLM, tokenizer: Tokenizer, pairs: list[tuple[str, str]]
) -> float:
    right = sum(ask(network, tokenizer, question) == answer + END for question, answer in pairs)
    return right / len(pairs)


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=here / "checkpoint")
    folder = parser.parse_args().checkpoint
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    network = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    facts = all_facts(SEED)
    report(network, tokenizer, facts)
    for held_out in (False, True):
        share = share_word_for_word(network, tokenizer, sample_pairs(facts, held_out))
        kind = "held-out" if held_out else "seen"
        logger.info("word for word, %s phrasings: %.1f %%", kind, 100 * share)


if __name__ == "__main__":
    main()
