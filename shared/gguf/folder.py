"""A folder as Hugging Face has it, made of a GGUF file, so that no other reader knows the format.

It has the small files, written once, and a link to the file with the tensors. Its name is made of
the file's place, size and times, so another file gets another folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError
from shared.gguf.config import make_config
from shared.gguf.header import read_headers
from shared.gguf.tokenizer import make_tokenizer
from shared.gguf.values import Values
from shared.gguf.vocabulary import Vocabulary
from shared.made_folder import cache_dir, make_folder

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".gguf"
#: Change it with what is written.
_VERSION = 2
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST_SHARDS = 1000
_TEMPLATE = "tokenizer.chat_template"


def model_folder(model: Path) -> Path:
    """Return the folder to read a model from: of a GGUF file, a made one; of others, their own.

    Raises:
        ConfigError: the file is damaged or not supported, a part of it is missing, or no folder can
            be written.
    """
    if model.suffix != SUFFIX or model.is_dir():
        return model
    shards = find_shards(model)
    folder = cache_dir() / "gguf" / _name(shards)
    make_folder(folder, lambda made: _write(made, shards))
    return folder


def made_of(folder: Path) -> Path | None:
    """Return the GGUF file that a folder was made of, the first of several; None: of none."""
    if folder.parent != cache_dir() / "gguf":
        return None
    links = sorted(folder.glob(f"model*{SUFFIX}"))
    return links[0].resolve() if links else None


def model_name(model: Path) -> str:
    """Return a model's name: that of its folder, or of its file without what splitting added."""
    name = model.resolve().name
    split = _SPLIT.fullmatch(name)
    return split[1] if split is not None else name.removesuffix(SUFFIX)


def find_shards(first: Path) -> list[Path]:
    """Return all files of a model, of which one is given.

    Raises:
        ConfigError: one is missing.
    """
    match = _SPLIT.fullmatch(first.name)
    names = [first.name]
    if match is not None:
        count = int(match[3])
        if not 1 <= count <= _MOST_SHARDS:
            raise ConfigError(f"{first} is one of {count} files; at most {_MOST_SHARDS} are read")
        names = [f"{match[1]}-{n + 1:05d}-of-{match[3]}{SUFFIX}" for n in range(count)]
    shards = [first.with_name(name) for name in names]
    missing = [path for path in shards if not path.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]} is missing ({len(missing)} of {len(shards)} files are)")
    return shards


def _name(shards: list[Path]) -> str:
    parts = [str(_VERSION)]
    for path in shards:
        status = path.stat()
        numbers = (status.st_dev, status.st_ino, status.st_size)
        times = (status.st_mtime_ns, status.st_ctime_ns)
        parts.append(f"{path.resolve()}:{numbers}:{times}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _write(folder: Path, shards: list[Path]) -> None:
    for name, content in _files(shards).items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    for number, path in enumerate(shards):
        (folder / _link(number, len(shards))).symlink_to(path.resolve())


def _link(number: int, count: int) -> str:
    return f"model{SUFFIX}" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}{SUFFIX}"


def _files(shards: list[Path]) -> dict[str, Any]:
    values = Values(read_headers(shards))
    count = values.find_id("split.count") or 1
    if count != len(shards):
        raise ConfigError(
            f"{shards[0]}: split.count is {count}, and its name says {len(shards)} files"
        )
    config = make_config(values)
    files = {"config.json": config}
    if "tokenizer.ggml.model" not in values.header.values:
        return files
    vocabulary = Vocabulary.of(values)
    files["tokenizer.json"] = make_tokenizer(values, vocabulary)
    files["tokenizer_config.json"] = {**vocabulary.named(), **_templates(values)}
    if ends := vocabulary.ends():
        files["generation_config.json"] = {"eos_token_id": ends}
        config["eos_token_id"] = ends
    return files


def _templates(values: Values) -> dict[str, Any]:
    """The chat templates: one, or one and others with names."""
    if _TEMPLATE not in values.header.values:
        return {}
    first = values.text(_TEMPLATE)
    names = [name for name in values.texts(f"{_TEMPLATE}s") if name != "default"]
    if not names:
        return {"chat_template": first}
    named = [{"name": name, "template": values.text(f"{_TEMPLATE}.{name}")} for name in names]
    return {"chat_template": [{"name": "default", "template": first}, *named]}
