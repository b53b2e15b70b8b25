"""Settings of a worker, or of an engine in a process, that makes vectors. Names as in vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shared.config import setting
from shared.errors import ConfigError
from shared.pooling.facts import PoolingKind, ScoreActivation
from shared.pooling.settings import Conversion, PoolingSettings


class Runner(StrEnum):
    """What a model is run for."""

    #: Vectors if the checkpoint says so, otherwise answers.
    AUTO = "auto"
    #: Answers.
    GENERATE = "generate"
    #: Vectors alone.
    POOLING = "pooling"


class Convert(StrEnum):
    """What is made of a model that was trained to generate."""

    #: What the checkpoint says; with the runner `pooling` an embedder, if it says nothing.
    AUTO = "auto"
    NONE = "none"
    EMBED = "embed"
    CLASSIFY = "classify"


#: vLLM's names of poolings of a sequence.
_KINDS = {"LAST": PoolingKind.LAST, "MEAN": PoolingKind.MEAN, "CLS": PoolingKind.CLS}
_KIND_KEYS = ("pooling_type", "seq_pooling_type")
_FLAG_KEYS = ("normalize", "use_activation")
_KEYS = (*_KIND_KEYS, *_FLAG_KEYS)
_CONVERSIONS = {Convert.EMBED: Conversion.EMBED, Convert.CLASSIFY: Conversion.CLASSIFY}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Whether vectors are made, and how."""

    runner: Runner = setting(
        Runner.AUTO,
        help="auto, generate or pooling: pooling makes vectors and no answers; auto does so if the "
        "checkpoint has a sentence-transformers configuration or a classifier",
    )
    convert: Convert = setting(
        Convert.AUTO,
        help="auto, none, embed or classify: what a model that was trained to generate makes; with "
        "--runner generate, embed adds vectors to its answers",
    )
    pooler_config: str = setting(
        "",
        help="JSON object in place of what the checkpoint says: pooling_type (LAST, MEAN or CLS), "
        "normalize or use_activation",
    )

    def __post_init__(self) -> None:
        if self.runner is Runner.POOLING and self.convert is Convert.NONE:
            message = "--convert none makes no vectors, which --runner pooling asks for"
            raise ConfigError(message)
        _ = self.head

    @property
    def head(self) -> PoolingSettings:
        """What they say in place of the checkpoint.

        Raises:
            ConfigError: --pooler-config cannot be used; names the part.
        """
        return read_pooler_config(
            self.pooler_config, _CONVERSIONS.get(self.convert, Conversion.AUTO)
        )


def read_pooler_config(text: str, conversion: Conversion = Conversion.AUTO) -> PoolingSettings:
    """Return what vLLM's PoolerConfig, as JSON, says in place of a checkpoint.

    Raises:
        ConfigError: it is no JSON object, or a value cannot be used; names the key.
    """
    if not text:
        return PoolingSettings(conversion=conversion)
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--pooler-config is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError("--pooler-config must be a JSON object")
    said = {key: value for key, value in given.items() if value is not None}
    if unknown := sorted(said.keys() - set(_KEYS)):
        known = ", ".join(_KEYS)
        raise ConfigError(f"--pooler-config: {unknown[0]} is not known; there are {known}")
    activates = _one_of(said, _FLAG_KEYS, _flag)
    return PoolingSettings(
        conversion=conversion,
        kind=_one_of(said, _KIND_KEYS, _kind),
        normalizes=activates,
        activation=ScoreActivation.NONE if activates is False else None,
    )


def _one_of(said: dict[str, Any], keys: tuple[str, ...], read: Any) -> Any:
    found = {read(key, said[key]) for key in keys if key in said}
    if len(found) > 1:
        raise ConfigError(f"--pooler-config: {' and '.join(keys)} differ")
    return next(iter(found), None)


def _kind(key: str, value: Any) -> PoolingKind:
    found = _KINDS.get(value) if isinstance(value, str) else None
    if found is None:
        message = f"--pooler-config: {key} must be {', '.join(_KINDS)}, not {value!r}"
        raise ConfigError(message)
    return found


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"--pooler-config: {key} must be true or false, not {value!r}")
    return value
