"""All families. A new family needs a file and a line here."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.model.families.base import Family
from shared.model.families.classic.cohere import COHERE, COHERE2
from shared.model.families.classic.falcon import FALCON
from shared.model.families.classic.gpt2 import GPT2
from shared.model.families.classic.gpt_neox import GPT_NEOX
from shared.model.families.classic.gptj import GPTJ
from shared.model.families.classic.opt import OPT
from shared.model.families.classic.phi import PHI
from shared.model.families.classic.stablelm import STABLELM
from shared.model.families.classic.starcoder2 import STARCODER2
from shared.model.families.dense.exaone4 import EXAONE4
from shared.model.families.dense.gemma import GEMMA, GEMMA2, GEMMA3
from shared.model.families.dense.gemma4 import GEMMA4
from shared.model.families.dense.glm import GLM, GLM4
from shared.model.families.dense.granite import GRANITE
from shared.model.families.dense.kin import ARCEE, ERNIE4_5, HELIUM, SEED_OSS
from shared.model.families.dense.llama import LLAMA
from shared.model.families.dense.minicpm3 import MINICPM3
from shared.model.families.dense.mistral import MISTRAL
from shared.model.families.dense.olmo import OLMO, OLMO2, OLMO3
from shared.model.families.dense.phi3 import PHI3
from shared.model.families.dense.qwen2 import QWEN2
from shared.model.families.dense.qwen3 import QWEN3
from shared.model.families.dense.smollm3 import SMOLLM3
from shared.model.families.experts.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from shared.model.families.experts.ernie_moe import ERNIE4_5_MOE
from shared.model.families.experts.glm_moe import DOTS1, GLM4_MOE
from shared.model.families.experts.gpt_oss import GPT_OSS
from shared.model.families.experts.granite_moe import GRANITE_MOE, GRANITE_MOE_SHARED
from shared.model.families.experts.llama4 import LLAMA4
from shared.model.families.experts.minimax import MINIMAX_M2
from shared.model.families.experts.mixtral import MIXTRAL
from shared.model.families.experts.olmoe import FLEX_OLMO, OLMOE
from shared.model.families.experts.qwen_moe import QWEN2_MOE, QWEN3_MOE
from shared.model.families.recurrent.falcon_h1 import FALCON_H1
from shared.model.families.recurrent.lfm2 import LFM2, LFM2_MOE
from shared.model.families.recurrent.lfm3 import LFM3
from shared.model.families.recurrent.mamba2 import MAMBA2, NEMOTRON_H
from shared.model.families.recurrent.mamba_hybrid import BAMBA, GRANITE_HYBRID
from shared.model.families.recurrent.qwen_delta import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT

if TYPE_CHECKING:
    from shared.model.spec.decoder import DecoderSpec
    from shared.model.weight_map import WeightMap

_ALL = (
    COHERE,
    COHERE2,
    FALCON,
    GPT2,
    GPT_NEOX,
    GPTJ,
    OPT,
    PHI,
    STABLELM,
    STARCODER2,
    EXAONE4,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    GLM,
    GLM4,
    GRANITE,
    SEED_OSS,
    ERNIE4_5,
    ARCEE,
    HELIUM,
    LLAMA,
    MINICPM3,
    MISTRAL,
    OLMO,
    OLMO2,
    OLMO3,
    PHI3,
    QWEN2,
    QWEN3,
    SMOLLM3,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DOTS1,
    ERNIE4_5_MOE,
    FLEX_OLMO,
    GLM4_MOE,
    GLM4_MOE_LITE,
    GPT_OSS,
    GRANITE_MOE,
    GRANITE_MOE_SHARED,
    LLAMA4,
    MINIMAX_M2,
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
    BAMBA,
    FALCON_H1,
    GRANITE_HYBRID,
    LFM2,
    LFM2_MOE,
    LFM3,
    MAMBA2,
    NEMOTRON_H,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_NEXT,
)
#: By architecture, as a config names it.
FAMILIES: dict[str, Family] = {}
#: By model type: the architecture.
ARCHITECTURES: dict[str, str] = {}
#: Installed packages name families of their own under it.
ENTRY_POINTS = "baton.models"


def register(family: Family) -> None:
    """Add a family, in place of one with its architecture."""
    FAMILIES[family.architecture] = family
    ARCHITECTURES[family.model_type] = family.architecture


def register_named(path: str) -> None:
    """Add the family that `path` names, as in `package.module:NAME`.

    Raises:
        ConfigError: there is no such family.
    """
    module, _, name = path.partition(":")
    try:
        family = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"model class {path!r}: {error}; it is like package.module:NAME"
        raise ConfigError(message) from error
    if not isinstance(family, Family):
        raise ConfigError(f"model class {path!r} is a {type(family).__name__}, not a Family")
    register(family)


def stored_names(spec: DecoderSpec) -> WeightMap:
    """Return the tensors of a checkpoint of this decoder, by name."""
    return FAMILIES[spec.architecture].names(spec)


for _family in _ALL:
    register(_family)
for _point in entry_points(group=ENTRY_POINTS):
    register_named(_point.value)
