"""Answers with adapters are PEFT's, for prompts of several adapters in one batch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.adapters.reading import read_adapter
from shared.adapters.targets import BaseModules
from shared.model.loader import load_model
from tests.fakes.checkpoints.adapters import adapted, save_adapter
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.model.loaded import LoadedModel

MAX_RANK = 64
NUM_TOKENS = 3
CHUNK = 13
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
#: By name: what a config of PEFT says. All of them are in one batch.
CONFIGS: dict[str, dict[str, Any]] = {
    "queries and values": {"r": 4, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"]},
    "all, stabilised": {"r": 5, "lora_alpha": 3, "target_modules": LINEARS, "use_rslora": True},
    "all-linear": {"r": 3, "lora_alpha": 2, "target_modules": "all-linear"},
    "patterns": {
        "r": 8,
        "lora_alpha": 4,
        "target_modules": LINEARS,
        "rank_pattern": {"down_proj": 2, r"layers\.1\.self_attn\.[qk]_proj": 17},
        "alpha_pattern": {r".*\.0\.mlp\.gate_proj": 9, "o_proj": 1},
    },
    "an expression": {"r": 6, "target_modules": r".*\.(1|3)\.(self_attn\.[ko]|mlp\.up)_proj"},
    "one layer": {"r": 2, "target_modules": LINEARS, "layers_to_transform": 1},
    "layers by a pattern": {
        "r": 2,
        "target_modules": ["down_proj", "v_proj"],
        "layers_to_transform": [0],
        "layers_pattern": "layers",
        "exclude_modules": ["model.layers.0.mlp.down_proj"],
    },
}
#: Families with what Llama has not: fused and grouped projections, other names, columns for rows,
#: experts beside, latent rows, states, layers that read another one's keys, inputs of layers.
FAMILIES = (
    "phi3",
    "gpt2",
    "gptj",
    "gpt_neox",
    "falcon-40b",
    "glm4",
    "mixtral",
    "qwen2_moe",
    "deepseek_v3",
    "minicpm3",
    "gemma4-shared",
    "cohere",
    "lfm2",
    "qwen3_next-dense",
    "qwen3_5",
    "bamba",
    "falcon_h1",
    "mamba2",
    "nemotron_h-experts",
)


#: PEFT itself refuses their last product: transformers' kernels read its weight directly.
NO_OUT_PROJ = ("falcon_h1", "mamba2", "nemotron_h")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def load(checkpoint: Path, executor: str, **options: Any) -> LoadedModel:
    if executor == "transformers":
        return load_model(checkpoint, model_impl="transformers", **options)
    return load_model(checkpoint, attention_backend=executor, **options)


class Made:
    """A random base, and adapters that PEFT made for it."""

    def __init__(self, folder: Path, model_type: str, **settings: Any) -> None:
        self.base = random_model(model_type, **settings)
        self.checkpoint = save(self.base, folder / "base")
        self.folders: list[Path] = []
        self.models: list[Any] = []
        self._folder = folder
        self._wanted: dict[Any, torch.Tensor] = {}

    def add(self, **config: Any) -> Path:
        number = len(self.models)
        self.models.append(adapted(self.base, seed=number + 1, **config))
        self.folders.append(save_adapter(self.models[-1], self._folder / f"adapter{number}"))
        return self.folders[-1]

    @functools.cached_property
    def prompts(self) -> list[list[int]]:
        """Two for each adapter and two for the base, whose lengths are around a chunk's."""
        lengths = [CHUNK - 3 + n for n in range(2 * len(self.models) + 2)]
        return [random_prompt(n, vocab_size=self.base.config.vocab_size, seed=n) for n in lengths]

    @property
    def slots(self) -> list[int | None]:
        """By prompt. Neither sorted nor in the slots' order, with the base between them."""
        each: list[int | None] = [None, *reversed(range(len(self.models)))]
        return each + each

    def wanted(self, slot: int | None, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Once for all executors, whose answers are the same."""
        key = slot, tuple(prompt), tuple(answer)
        if key not in self._wanted:
            model = self.base if slot is None else self.models[slot]
            self._wanted[key] = logits_after(model, prompt, answer)
        return self._wanted[key]

    def check(self, loaded: LoadedModel) -> None:
        """Compare each logit in a mixed batch."""
        for slot, folder in enumerate(self.folders):
            adapter = read_adapter(folder, loaded.model, max_rank=MAX_RANK)
            loaded.model.set_adapter(slot, adapter.weights)
        driver = PagedDriver(loaded.model, block_size=8, chunk=CHUNK)
        answers, found = driver.generate(
            self.prompts, NUM_TOKENS, wants_last=True, slots=self.slots
        )
        for slot, prompt, answer, logits in zip(
            self.slots, self.prompts, answers, found, strict=True
        ):
            wanted = self.wanted(slot, prompt, answer)
            scale = float(wanted.abs().max())
            torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4 * scale)
            assert answer == wanted.argmax(dim=-1).tolist()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("llama"), "llama")
    for config in CONFIGS.values():
        made.add(**config)
    return made


@pytest.mark.parametrize("executor", ["torch", "native", "transformers"])
def test_a_batch_of_all_configs_and_the_base_answers_like_peft(executor: str, llama: Made) -> None:
    llama.check(load(llama.checkpoint, executor))


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @functools.cache
    def make(case: str) -> Made:
        model_type, settings = CASES[case]
        made = Made(tmp_path_factory.mktemp(case), model_type, **settings)
        modules = {name for name, _ in made.base.named_modules()}
        loaded = load(made.checkpoint, "torch")
        base = BaseModules(loaded.model)
        taking = [name for name, each in base.by_name.items() if each.why_not is None]
        assert modules.issuperset(taking)
        if model_type in NO_OUT_PROJ:
            taking = [name for name in taking if not name.endswith(".out_proj")]
        if loaded.spec.has_experts:
            assert ("shared_expert" in str(taking)) == ("shared_expert" in str(modules))
        assert taking
        with pytest.MonkeyPatch.context() as patch:
            conversion = pytest.importorskip("peft.utils.transformers_weight_conversion")
            # PEFT would take the ends of shared experts' names for those of experts.
            patch.setattr(conversion, "_MOE_TARGET_MODULE_MAPPING", {})
            for rank in (3, 8):
                made.add(r=rank, target_modules=taking, fan_in_fan_out=model_type == "gpt2")
        return made

    return make


@pytest.mark.parametrize("executor", ["torch", "native"])
@pytest.mark.parametrize("case", FAMILIES)
def test_families_answer_like_peft_with_all_that_takes_adapters(
    case: str, executor: str, family: Callable[[str], Made]
) -> None:
    made = family(case)
    made.check(load(made.checkpoint, executor))
