"""A program's model in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import ConfigError
from shared.offline.llm import LLM
from shared.offline.records.sampling_params import SamplingParams
from tests.fakes.families.cases import CASES
from tests.fakes.model.transformers_models import random_model, save

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "attention_backend": "torch",
    "num_blocks": 64,
    "skip_tokenizer_init": True,
}
PROMPT = {"prompt_token_ids": [5, 6, 7, 8, 9, 10]}
TEN = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)


def answer(model: Path, **ranks: Any) -> list[int]:
    llm = LLM(str(model), **SETTINGS, **ranks)
    [output] = llm.generate(PROMPT, TEN)
    llm.close()
    return list(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, settings = CASES["qwen3_moe"]
    return save(random_model(name, **settings), tmp_path_factory.mktemp("experts"))


def test_a_program_may_have_ranks(model: Path) -> None:
    """Of which each has some of the experts."""
    assert answer(model, tensor_parallel_size=2, enable_expert_parallel=True) == answer(model)


def test_a_program_may_have_stages(model: Path) -> None:
    assert answer(model, pipeline_parallel_size=2) == answer(model)


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ({"tensor_parallel_size": 0}, "must be 1 to 64"),
        ({"tensor_parallel_size": 9, "pipeline_parallel_size": 9}, "must be 1 to 64, not 81"),
        ({"enable_expert_parallel": True}, "needs a tensor_parallel_size over 1"),
        ({"tensor_parallel_size": 2, "distributed_timeout_seconds": 0}, "must be over 0"),
        ({"tensor_parallel_size": 2, "device": "cuda:1"}, "from cuda:0 on"),
        ({"tensor_parallel_size": 64, "device": "cuda"}, "takes cuda:0 to cuda:63: device is"),
        ({"pipeline_parallel_size": 2, "device": "cuda"}, "stages compute on CPUs alone"),
        (
            {"tensor_parallel_size": 2, "device": "cuda", "kv_offload_host_gib": 0.1},
            "tiers below the blocks",
        ),
        (
            {
                "tensor_parallel_size": 2,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
            },
            "needs the whole model on one rank; take ngram or suffix",
        ),
    ],
)
def test_what_ranks_do_not_do_is_refused(model: Path, ranks: dict[str, Any], reason: str) -> None:
    """Before any process starts."""
    with pytest.raises(ConfigError, match=reason):
        LLM(str(model), **SETTINGS, **ranks)
