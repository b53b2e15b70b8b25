"""What computes a model type: found by a small random model of it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shared.errors import ModelLoadError
from shared.model.checkpoint.config import has_family, read_config
from shared.model.families.registry import ARCHITECTURES
from shared.model.generic.description import load_config
from tests.fakes.model.transformers_models import ODD_SIZES, random_model
from tests.parity.answers import outcomes
from tests.parity.cells import EQUAL, REFUSED, Cell
from tests.parity.decoders.sizes import settings_of
from tests.parity.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Mapping

FAMILY, MODULE, UNTRIED = "family", "module", "not tried: "
#: By model type: the class of the module.
MODULES: Mapping[str, str] = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
#: More than any small model has; some settings do not reach what is large.
_MOST_NUMBERS = 60_000_000


def result_of(model_type: str) -> str:
    """Return `FAMILY` or `MODULE`, if its answers are those of transformers; else why not."""
    if model_type in ARCHITECTURES:
        return FAMILY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        why_large = _why_not_small(model_type)
        if why_large is not None:
            return _by_config(model_type, folder, why_large)
        model = random_model(model_type, **settings_of(model_type))
        oracle = Oracle(model, folder / "model")
        by = FAMILY if has_family(read_config(oracle.checkpoint)) else MODULE
        found = outcomes(Cell(model_type, "auto", "float32"), oracle, folder)
        wrong = [each for each in found if each != EQUAL]
        return by if not wrong else _shortened(wrong[0])


def _why_not_small(model_type: str) -> str | None:
    """Return why there is no small model that computes something; None: there is one."""
    given = {**ODD_SIZES, **settings_of(model_type)}
    own: dict[str, Any] = {key: value for key, value in given.items() if value is not ...}
    try:
        config = transformers.AutoConfig.for_model(model_type, **own)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        size = sum(weight.numel() for weight in model.parameters())
        if size > _MOST_NUMBERS:
            return f"{size // 1_000_000} million numbers"
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.inference_mode(), tempfile.TemporaryDirectory() as name:
            model(torch.arange(5)[None], use_cache=False)
            model.save_pretrained(name)
    except Exception as error:  # noqa: BLE001 -- others' code
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def _by_config(model_type: str, folder: Path, why: str) -> str:
    """What its own default config says."""
    try:
        config = transformers.AutoConfig.for_model(model_type)
        config.architectures = [MODULES[model_type]]
        config.save_pretrained(folder)
        if has_family(read_config(folder)):
            return FAMILY
        load_config(folder, trust_remote_code=False)
    except ModelLoadError as error:
        return REFUSED + _shortened(str(error).replace(str(folder), "the model"))
    except Exception as error:  # noqa: BLE001 -- others' code
        why = f"{why}; {error}".splitlines()[0]
    return UNTRIED + why


def _shortened(said: str) -> str:
    """Without what differs from one class to another, and without further advice."""
    said = said.replace("the model/config.json: ", "").split(";")[0]
    said = re.sub(r"\w+ (?=is not a decoder of text)", "it ", said)
    return re.sub(r"transformers' \w+", "the module", said)
