"""Checks of a model's folder, without loading it."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from cli.doctor.finding import fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.doctor.finding import Finding

SUBJECT = "model"
INDEX = "model.safetensors.index.json"
HEADER_LENGTH_BYTES = 8
REMEDY = "download the checkpoint again, or make a small one: baton make-model --help"


def check_model(folder: Path) -> Iterator[Finding]:
    """Configuration, tokenizer, chat template, weights."""
    config = _read(folder / "config.json")
    if isinstance(config, str):
        yield fail(SUBJECT, config, REMEDY)
        return
    architectures = config.get("architectures") or ["?"]
    dtype = config.get("dtype") or config.get("torch_dtype") or "?"
    yield ok(SUBJECT, f"{folder}: {architectures[0]}, {dtype}")
    yield from _check_text(folder)
    yield from _check_weights(folder)


def _check_text(folder: Path) -> Iterator[Finding]:
    tokenizer = _read(folder / "tokenizer.json")
    if isinstance(tokenizer, str):
        yield fail("tokenizer", tokenizer, REMEDY)
    else:
        yield ok("tokenizer", f"{len(tokenizer.get('model', {}).get('vocab', ()))} tokens")
    settings = _read(folder / "tokenizer_config.json")
    inline = isinstance(settings, dict) and "chat_template" in settings
    if inline or (folder / "chat_template.jinja").is_file():
        yield ok("chat template", "there")
    else:
        yield warn(
            "chat template", "none: chat requests will be refused", "use completions instead"
        )


def _check_weights(folder: Path) -> Iterator[Finding]:
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        index = _read(folder / INDEX)
        if isinstance(index, str):
            yield fail("weights", index, REMEDY)
            return
        names = sorted(set(index.get("weight_map", {}).values()))
    if not names:
        yield fail("weights", f"no *.safetensors in {folder}", REMEDY)
        return
    problems = [problem for name in names if (problem := _broken(folder / name))]
    for problem in problems:
        yield fail("weights", problem, REMEDY)
    if not problems:
        size_bytes = sum((folder / name).stat().st_size for name in names)
        yield ok("weights", f"{len(names)} files, {size_bytes / 2**20:.1f} MiB")


def _broken(path: Path) -> str:
    """Why a file of weights cannot be used; empty if it can. Reads its header only."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            [header_bytes] = struct.unpack("<Q", file.read(HEADER_LENGTH_BYTES))
            if header_bytes > size_bytes:
                return f"{path.name} is not a safetensors file"
            header = json.loads(file.read(header_bytes))
    except FileNotFoundError:
        return f"{path.name} is missing"
    except (OSError, ValueError, struct.error) as error:
        return f"{path.name} cannot be read: {error}"
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected_bytes = HEADER_LENGTH_BYTES + header_bytes + max(ends, default=0)
    if size_bytes != expected_bytes:
        return f"{path.name} has {size_bytes} bytes and should have {expected_bytes}: cut off?"
    return ""


def _read(path: Path) -> dict[str, Any] | str:
    """A JSON object, or why there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}"
    return content if isinstance(content, dict) else f"{path} does not hold an object"
