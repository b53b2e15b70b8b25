"""Checks of a model's folder, without loading it: with the services' own readers."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from cli.doctor.finding import fail, ok, warn
from shared.errors import ConfigError, ModelLoadError
from shared.gguf.folder import model_folder
from shared.model.checkpoint.config import load_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.doctor.finding import Finding
    from shared.model.spec.decoder import DecoderSpec

SUBJECT = "model"
REMEDY = "download the checkpoint again, or make a small one: baton make-model --help"


def check_model(folder: Path) -> Iterator[Finding]:
    """Check configuration and weights as a worker, tokenizer and template as a router.

    folder: or a GGUF file.
    """
    try:
        own = model_folder(folder)
    except ConfigError as error:
        yield fail(SUBJECT, str(error), REMEDY)
        return
    yield _check_weights(own)
    yield from _check_text(own)


def _check_weights(folder: Path) -> Finding:
    try:
        # The router's image cannot read weights.
        if importlib.util.find_spec("safetensors") is None:
            spec, weights = load_spec(folder), "weights are read by workers only"
        else:
            spec, weights = _read_headers(folder)
    except (ConfigError, ModelLoadError) as error:
        return fail(SUBJECT, str(error), REMEDY)
    return ok(SUBJECT, f"{folder}: {spec.architecture}, {spec.dtype}, {weights}")


def _read_headers(folder: Path) -> tuple[DecoderSpec, str]:
    from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
    from shared.model.checks import check_model as check

    spec = check(folder)
    shards = find_checkpoint_files(folder).shards
    size_mib = sum(path.stat().st_size for path in shards) / 2**20
    return spec, f"weights of {size_mib:.1f} MiB in {len(shards)} files"


def _check_text(folder: Path) -> Iterator[Finding]:
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.load(folder)
    except ConfigError as error:
        yield fail("tokenizer", str(error), REMEDY)
        return
    yield ok("tokenizer", f"{tokenizer.vocab_size} tokens")
    try:
        template = ChatTemplate.load(folder, tokenizer.special_tokens)
    except ConfigError as error:
        yield fail("chat template", str(error), REMEDY)
        return
    if template.exists:
        yield ok("chat template", "there")
    else:
        yield warn(
            "chat template", "none: chat requests will be refused", "use completions instead"
        )
