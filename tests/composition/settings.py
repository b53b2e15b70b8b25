"""What a row sets: the model's files, the flags of its workers, the same for one engine."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from shared.engine.llm import LLM
from shared.engine.settings.choices import BackendName
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.model.random_tokenizer import write_tokenizer
from tests.composition.adapters import PeftModels, modules_flag
from tests.composition.axes import (
    ADAPTERS,
    BY_TRANSFORMERS,
    FAMILIES,
    GRAMMARS,
    SPECULATIONS,
    STORED_SCALES,
)
from tests.composition.vectors import FLAGS as VECTOR_FLAGS
from tests.composition.weights import WEIGHTS
from tests.fakes.checkpoints.kv_scales import add_kv_scales, write_kv_scales
from tests.fakes.model.transformers_models import random_model, save
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from pathlib import Path

    from shared.request.adapter_ref import AdapterRef
    from tests.composition.axes import Row

BLOCK_SIZE = 16
#: Few enough that some prompts push others out. Of a model with windows only, a worker keeps less.
NUM_BLOCKS, NUM_WINDOW_BLOCKS = 96, 32
WINDOWS_ONLY = ("mistral, window",)
#: Of few layers: llama.cpp's converter takes every sixth to see all tokens.
WINDOWS_ONLY_IN_GGUF = ("gemma3, two groups",)
#: Refused as draft models: those with states, and with heads that differ.
NO_DRAFTS = ("gemma4, shared KV", "qwen3_5, states")
ENGINE: dict[str, Any] = {
    "block_size": BLOCK_SIZE,
    "num_blocks": NUM_BLOCKS,
    "max_num_batched_tokens": 64,
}
OFFLOADS: dict[str, dict[str, float]] = {
    "none": {},
    "host": {"host": 0.02},
    # So little host memory that most blocks go on to the disk.
    "disk": {"host": 0.001, "disk": 0.05},
}


class Models:
    """Random checkpoints, drafts and engines, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: dict[tuple[str, ...], LLM] = {}
        self._stored: dict[tuple[str, ...], Path] = {}
        self._peft: dict[str, PeftModels] = {}

    def checkpoint(self, family: str, weights: str, kv_format: str = "auto") -> Path:
        """What a worker loads."""
        store = WEIGHTS[weights].store
        has_scales = kv_format == STORED_SCALES and weights != "GGUF"
        if store is None:
            return self._scaled(family) if has_scales else self._plain(family)
        key = (family, weights, str(has_scales))
        if key not in self._stored:
            name = f"{family}-{weights}{'-scales' * has_scales}".replace(", ", "-")
            target = self._folder / name.replace(" ", "-")
            shutil.rmtree(target, ignore_errors=True)
            self._stored[key] = store(self._plain(family), target)
            if has_scales:
                add_kv_scales(self._scaled(family), target)
        return self._stored[key]

    def _scaled(self, family: str) -> Path:
        """The plain weights, and scales for keys and values."""
        plain = self._plain(family)
        path = plain.with_name(f"{plain.name}-scales")
        return path if path.exists() else write_kv_scales(plain, path, "fp8")

    def _plain(self, family: str) -> Path:
        """Odd sizes on purpose: 6 heads over 2 KV heads of 80."""
        path = self._folder / family.replace(", ", "-")
        if not path.exists() and family == BY_TRANSFORMERS:
            sizes = {"max_position_embeddings": 2048}
            save(random_model(**FAMILIES[family], seed=7, std=0.1, **sizes), path)
            write_tokenizer(path, 321, 2048)
        elif not path.exists():
            spec: dict[str, Any] = {
                "num_layers": 2,
                "hidden_size": 96,
                "num_heads": 6,
                "num_kv_heads": 2,
                "head_dim": 80,
                "intermediate_size": 160,
                "vocab_size": 321,
                "seed": 7,
                **FAMILIES[family],
            }
            write_random_checkpoint(path, CheckpointSpec(**spec))
        return path

    def draft(self, family: str, weights: str, method: str) -> Path:
        """What guesses: the target itself, or a head on it; another family's where it has none."""
        has_none = family == BY_TRANSFORMERS
        if has_none or (method == "draft_model" and family in NO_DRAFTS):
            family = "llama"
        if method == "draft_model":
            return self.checkpoint(family, weights)
        target = self._plain(family)
        path = self._folder / f"{target.name}-{method}"
        if not path.exists():
            write_random_head(path, target, HeadSpec(method=method))
            if method == "eagle3":
                # Of two layers there are no low, middle and high ones.
                edit_json(path / "config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
        return path

    def peft(self, family: str) -> PeftModels:
        """The family's adapters, of its plain weights."""
        if family not in self._peft:
            plain = self._plain(family)
            folder = plain.with_name(f"{plain.name}-adapters")
            self._peft[family] = PeftModels(family, plain, folder)
        return self._peft[family]

    def adapters(self, row: Row) -> dict[str, AdapterRef]:
        """Those of a row's engine, by name."""
        store = self.engine(row).home.adapters
        return {} if store is None else {known.ref.name: known.ref for known in store.names()}

    def engine(self, row: Row) -> LLM:
        """One engine that does it all, with no more than what decides on tokens."""
        grammar = GRAMMARS[row["grammar"]]
        backend = grammar[0] if grammar else "auto"
        has_adapters = row["adapter"] != "none"
        settings = (row["family"], row["weights"], row["KV format"], row["executor"])
        key = (*settings, backend, str(has_adapters))
        if key not in self._engines:
            self._engines[key] = LLM(
                self.checkpoint(row["family"], row["weights"], row["KV format"]),
                model_impl=row["executor"],
                kv_cache_dtype=row["KV format"],
                structured_outputs_backend=BackendName(backend),
                num_threads=1,
                enable_lora=has_adapters,
                **weight_options(row),
                **ENGINE,
            )
            if (store := self._engines[key].home.adapters) is not None:
                for name, folder in self.peft(row["family"]).folders.items():
                    store.load(name, str(folder))
        return self._engines[key]

    def close(self) -> None:
        """Give the engines' memory back."""
        for engine in self._engines.values():
            engine.close()


def weight_options(row: Row) -> dict[str, Any]:
    """The flags of a row's weights as arguments."""
    flags = iter(WEIGHTS[row["weights"]].flags)
    return {flag.removeprefix("--"): value for flag, value in zip(flags, flags, strict=True)}


def has_windows_only(row: Row) -> bool:
    """Whether no layer of a row's model sees all tokens."""
    family = row["family"]
    return family in WINDOWS_ONLY or (row["weights"] == "GGUF" and family in WINDOWS_ONLY_IN_GGUF)


def worker_flags(row: Row, models: Models, folder: Path) -> list[str]:
    """What every worker of a row is started with; `folder` is the worker's own."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    if has_windows_only(row):
        flags.append(f"--num-blocks={NUM_WINDOW_BLOCKS}")
    flags += WEIGHTS[row["weights"]].flags
    flags += ["--kv-cache-dtype", row["KV format"], "--model-impl", row["executor"]]
    # What is of bfloat16 is packed wherever it can be: by zmq, and on disk.
    flags += ["--connectors", row["connector"], "--transfer-packing", "on"]
    # Whole blocks by shm, and slices of layers by the others that can.
    flags += ["--transfer-by-layers", "off" if row["connector"] == "shm" else "on"]
    if grammar := GRAMMARS[row["grammar"]]:
        flags += ["--structured-outputs-backend", grammar[0]]
    if names := set(filter(None, ADAPTERS[row["adapter"]])):
        folders = models.peft(row["family"]).folders
        own = {name: folder for name, folder in folders.items() if name in names}
        flags += ["--enable-lora", "--max-loras", "2", "--lora-modules", modules_flag(own)]
    if row["task"] == "embed":
        flags += VECTOR_FLAGS
    flags += _offload_flags(row, folder)
    speculation = SPECULATIONS[row["speculation"]]
    if speculation is not None:
        settings = {"num_speculative_tokens": 3, "adaptive": False, **speculation}
        if settings["method"] not in ("ngram", "suffix", "mtp"):
            settings["model"] = str(models.draft(row["family"], row["weights"], settings["method"]))
        flags += ["--speculative-config", json.dumps(settings)]
    return flags


def _offload_flags(row: Row, folder: Path) -> list[str]:
    sizes = OFFLOADS[row["offload"]]
    flags = [f"--kv-offload-{tier}-gib={size}" for tier, size in sizes.items()]
    if sizes:
        flags.append("--kv-offload-always-load")
    if "disk" in sizes:
        flags += [f"--kv-offload-disk-dir={folder}", "--kv-offload-disk-packing"]
    return flags
