"""Plain greedy answers are the same beside neighbours of every kind.

`BATON_COMPANY=full` compares 1,000 answers per engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.llm import LLM
from shared.engine.settings.choices import SchedulingPolicy
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.mtp import DELTA_SIZES
from tests.fakes.engine.company import Company, is_full, num_answers, plain_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PER_ROUND, VOCAB = 6, 321


@dataclass(frozen=True, slots=True)
class Setting:
    """How an engine is set, and the counter that shows that it did what it is set to do."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    counter: str = "generation_tokens"


def drafts(method: str, **fields: Any) -> Setting:
    return Setting(
        {"speculative_config": {"method": method, "adaptive": False, **fields}},
        "spec_decode_num_draft_tokens",
    )


ENGINES = {
    "usual": Setting(),
    "overlapped": Setting({"async_scheduling": True}),
    "short of blocks": Setting({"num_blocks": 52, "block_size": 4}, "num_preemptions"),
    "without prefix cache": Setting({"enable_prefix_caching": False}),
    "KV in 8 bits": Setting({"kv_cache_dtype": "int8"}),
    "ngram": drafts("ngram", num_speculative_tokens=3),
    "eagle": drafts("eagle", num_speculative_tokens=3),
    "eagle3": drafts("eagle3", num_speculative_tokens=3),
    "mtp": drafts("mtp", num_speculative_tokens=3),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and random heads for it by method."""
    folder = tmp_path_factory.mktemp("models")
    write_random_checkpoint(folder / "target", CheckpointSpec(num_layers=4, vocab_size=VOCAB))
    for method in ("eagle", "eagle3"):
        write_random_head(folder / method, folder / "target", HeadSpec(method=method))
    # Its head is in its own files.
    own = CheckpointSpec(
        architecture="qwen3_5_text",
        num_layers=4,
        vocab_size=VOCAB,
        has_further=True,
        extra=DELTA_SIZES,
    )
    write_random_checkpoint(folder / "mtp", own)
    return folder


def cases() -> list[Any]:
    """Every setting on the native executor; PyTorch, which is slower, with a few unless asked.

    Heads of EAGLE-3 and of MTP read the target's rows as those of EAGLE do.
    """
    few = ENGINES if is_full() else ("usual", "eagle3")
    usual = [name for name in ENGINES if is_full() or name != "eagle"]
    names = [("native", name) for name in usual] + [("torch", name) for name in few]
    return [
        pytest.param(executor, ENGINES[name], id=f"{executor} {name}") for executor, name in names
    ]


@pytest.fixture
def company(executor: str, setting: Setting, models: Path) -> Iterator[Company]:
    fields = {
        "num_blocks": 512,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 64,
        "enable_prompt_embeds": True,
        "enable_return_hidden_states": True,
        "scheduling_policy": SchedulingPolicy.PRIORITY,
        "logits_processors": ("tests.fakes.engine.logits_processors:NoRepeat",),
        # How long a busy machine takes is no subject here.
        "structured_outputs_timeout_s": 600.0,
        **setting.fields,
    }
    speculative, target = fields.get("speculative_config"), models / "target"
    if speculative and speculative["method"] == "mtp":
        target = models / "mtp"
    elif speculative and speculative["method"] != "ngram":
        fields["speculative_config"] = speculative | {"model": str(models / speculative["method"])}
    llm = LLM(target, attention_backend=executor, **fields)
    yield Company(llm)
    llm.close()


@pytest.mark.parametrize(("executor", "setting"), cases())
def test_no_token_of_a_plain_answer_differs_in_company(company: Company, setting: Setting) -> None:
    num = num_answers(PER_ROUND)
    prompts = plain_prompts(num, vocab_size=VOCAB, seed=1)
    differing: list[str] = []
    for start in range(0, num, PER_ROUND):
        differing += company.differing(prompts[start : start + PER_ROUND], seed=start)
    num_plain = sum(wrong.startswith("plain") for wrong in differing)
    assert not differing, f"{num_plain} of {num} plain answers, {len(differing)} with neighbours'"
    assert company.llm.engine.stats().counters[setting.counter] > 0
