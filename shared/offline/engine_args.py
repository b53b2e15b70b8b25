"""vLLM's engine arguments as arguments in Python."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path  # noqa: TC003 read at run time by the settings loader
from typing import TYPE_CHECKING, Any, Self

import structlog

from shared.arguments.base import Kind
from shared.arguments.spelling import read_flags
from shared.arguments.table import ARGUMENTS, SHORT
from shared.arguments.translate import translate
from shared.config import flags_of, load_config, setting, unknown_flag
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.model import (
    ModelSettings,  # noqa: TC001 read at run time by the settings loader
)
from shared.engine.settings.ranks import RankSettings
from shared.errors import ConfigError
from shared.offline.argument_parser import Container, add_engine_arguments
from shared.pooling.runner import RunnerSettings
from shared.request.logprobs_mode import LogprobsMode
from shared.text.reasoning_settings import ReasoningSettings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """An engine in this process."""

    model: ModelSettings
    engine: EngineConfig = field(default_factory=EngineConfig)
    pooling: RunnerSettings = field(default_factory=RunnerSettings)
    ranks: RankSettings = field(default_factory=RankSettings)
    num_threads: int | None = setting(None, help="threads for computing, which ranks divide")
    cpu_threads_bind: str | None = setting(None, help="cores of the threads")
    skip_tokenizer_init: bool = setting(
        False, help="whether to do without a tokenizer: prompts and answers are token ids alone"
    )
    reasoning: ReasoningSettings = field(default_factory=ReasoningSettings)
    max_logprobs: int = setting(20, help="alternatives per token; -1: as many as there are tokens")
    logprobs_mode: LogprobsMode = setting(
        LogprobsMode.RAW_LOGPROBS, help="what log probabilities in answers are"
    )
    profiler_dir: Path | None = setting(None, help="directory for the files of profiles")
    generation_config: str = setting("auto", help="where default values of sampling come from")
    override_generation_config: str | None = setting(None, help="values that replace those")


#: Numbers of a server's processes, by our flags.
_COUNTS = {"--decode": "data_parallel_size", "--routers": "api_process_count"}


class EngineArgs:
    """Every argument of vLLM's `EngineArgs`, by its name, and the settings that Baton adds.

    `docs/arguments.md` says what each means here. Values have vLLM's types: `None` says nothing,
    mappings and lists may be given as such.
    """

    def __init__(self, model: str | Path, **arguments: Any) -> None:
        """Take the arguments and check their names.

        Raises:
            ConfigError: there is no such argument.
        """
        known = flags_of(EngineSettings) | ARGUMENTS.keys()
        for name in arguments:
            if _flag(name) not in known:
                near = difflib.get_close_matches(_flag(name), known, n=1)
                meant = f": did you mean {near[0][2:].replace('-', '_')}?" if near else ""
                raise ConfigError(
                    f"{name} is no argument of an engine{meant} (docs/arguments.md lists them)"
                )
        self.model = str(model)
        self._arguments = arguments
        self._line: tuple[str, ...] = ()

    @staticmethod
    def add_cli_args(parser: Container) -> Container:
        """Add every argument to a program's parser, or a group of it, and return that."""
        # A switch of ours is no flag of its own: `--no-…` belongs to it.
        ours = {flag for flag in flags_of(EngineSettings) if not flag.startswith("--no-")}
        return add_engine_arguments(parser, ours)

    @classmethod
    def from_cli_args(cls, args: Namespace) -> Self:
        """Take the arguments out of a parser's result, and leave the program's own.

        Raises:
            ConfigError: no model is named.
        """
        known = flags_of(EngineSettings) | ARGUMENTS.keys()
        values = {name: value for name, value in vars(args).items() if _flag(name) in known}
        model = values.pop("model", None)
        if model is None:
            raise ConfigError("no model is named: --model")
        return cls(model, **values)

    @classmethod
    def from_words(cls, model: str | Path, words: Sequence[str]) -> Self:
        """Take the arguments as the words of a command line.

        Raises:
            ConfigError: there is no such argument.
        """
        front, flags = read_flags(words, SHORT)
        if front:
            raise ConfigError(f"{front[0]} is no argument: flags begin with --")
        known = flags_of(EngineSettings) | ARGUMENTS.keys()
        for flag in flags:
            if not known & {flag.name, flag.name.replace("--no-", "--", 1)}:
                raise unknown_flag(flag.name, known, listed_by="docs/arguments.md")
        made = cls(model)
        made._line = tuple(words)
        return made

    def __getattr__(self, name: str) -> Any:
        """Return an argument as it was given, or vLLM's default as a word."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._arguments:
            return self._arguments[name]
        argument = ARGUMENTS.get(_flag(name))
        if argument is None:
            raise AttributeError(f"{type(self).__name__} has no argument {name}")
        return argument.default

    def settings(self) -> EngineSettings:
        """Return what the arguments say in settings of ours. The log names those without effect.

        Raises:
            ConfigError: an argument is refused, or its value is wrong.
        """
        translation = translate([*_words("model", self.model), *self._all_words()])
        for note in translation.notes:
            log.warning("argument_without_effect", note=note)
        words = _without_server(translation.words)
        return load_config(EngineSettings, words, prog="EngineArgs", environ={})

    def _all_words(self) -> Iterator[str]:
        for name, value in self._arguments.items():
            yield from _words(name, value)
        yield from self._line


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM`."""


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield the words of a command line for one argument.

    Raises:
        ConfigError: it is a function.
    """
    flag = _flag(name)
    argument = ARGUMENTS.get(flag)
    if value is None:
        return
    if callable(value):
        raise ConfigError(f"{name} cannot be a function: give its values")
    if isinstance(value, bool) and (argument is None or argument.kind is Kind.SWITCH):
        yield flag if value else flag.replace("--", "--no-", 1)
    elif isinstance(value, dict) or (argument is not None and argument.kind is Kind.OBJECT):
        yield f"{flag}={value if isinstance(value, str) else json.dumps(_plain(value))}"
    elif isinstance(value, list | tuple | set | frozenset):
        words = [_word(each) for each in value]
        if words:
            yield f"{flag}={words[0]}"
            yield from words[1:]
    else:
        yield f"{flag}={_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value.value if isinstance(value, Enum) else value)


def _plain(value: Any) -> Any:
    """Return what JSON can say of a mapping, or of an object with such attributes."""
    return value if isinstance(value, dict | list | str) else vars(value)


def _without_server(words: tuple[str, ...]) -> list[str]:
    """Return the words without settings that only a server has.

    Raises:
        ConfigError: several engines are asked for.
    """
    own = flags_of(EngineSettings)
    kept: list[str] = []
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word.partition("=")[0]
        if flag in own:
            kept.append(word)
        elif flag in _COUNTS and word not in {flag, "1", f"{flag}=1"}:
            raise ConfigError(f"{_COUNTS[flag]} must be 1: a program has one engine")
    return kept
