"""Reads a service's settings: flags over environment over a TOML file over defaults.

A service's settings are one frozen dataclass. Field `max_num_seqs` is the flag `--max-num-seqs`,
the variable `BATON_MAX_NUM_SEQS` and the key `max_num_seqs` (or `max-num-seqs`) of the file. A
setting may have one more variable, of another program's name. Flags
may also be vLLM's (`shared.arguments`), and numbers have its forms: `1k` is 1,000, `1K` is 1,024.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import json
import os
import sys
import tomllib
import typing
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import pydantic

from shared.address import begins_with_ipv6
from shared.arguments.numbers import read_number
from shared.arguments.translate import translate
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")
P = ParamSpec("P")

ENV_PREFIX = "BATON_"


def setting(default: Any = dataclasses.MISSING, *, help: str, variable: str | None = None) -> Any:
    """Declare a field of a settings dataclass with the text that `--help` shows.

    `variable`: one more variable, with less weight than ours. It holds one value, also of a list.
    """
    return dataclasses.field(default=default, metadata={"help": help, "variable": variable})


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """One setting: a field that is not itself a group of settings."""

    name: str
    hint: Any
    field: dataclasses.Field[Any]

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value, and `--no-…` turns it off."""
        return self.hint is bool or set(typing.get_args(self.hint)) == {bool, NoneType}

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        missing = dataclasses.MISSING
        return self.field.default is missing and self.field.default_factory is missing


def load_config(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    environ: Mapping[str, str] | None = None,
) -> T:
    """Read `cls` from the command line, the environment and the file named by `--config`.

    Fields that are dataclasses are groups: their own fields are settings beside the others.

    Raises:
        ConfigError: an unknown key, or a value that does not fit; the message names it.
    """
    environ = os.environ if environ is None else environ
    translation = translate(argv)
    for note in translation.notes:
        sys.stderr.write(f"{prog}: {note}\n")
    leaves = {leaf.name: leaf for leaf in _leaves(cls)}
    flags = _parse_flags(cls, translation.words, prog)
    path = flags.pop("config", None) or environ.get(f"{ENV_PREFIX}CONFIG")
    values: dict[str, tuple[Any, str]] = {}
    values |= _read_file(leaves, Path(path)) if path else {}
    values |= _read_environ(leaves, environ)
    values |= {name: (value, flag_name(name)) for name, value in flags.items()}
    return typing.cast(T, _build(cls, values))


def with_values(settings: T, values: Mapping[str, Any], *, origin: str) -> T:
    """Return the settings with other values, of their groups as well.

    A text is read as from the command line. `origin` says in errors where the values are.

    Raises:
        ConfigError: a value does not fit.
    """
    record: Any = settings
    hints = _hints(type(settings))
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        before = getattr(settings, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            changed[field.name] = with_values(before, values, origin=origin)
        elif field.name in values:
            where = f"{field.name!r} in {origin}"
            changed[field.name] = _convert(hints[field.name], values[field.name], where)
    return typing.cast(T, dataclasses.replace(record, **changed))


def flag_name(field: str) -> str:
    """The command-line flag of a field."""
    return "--" + field.replace("_", "-")


def flags_of(cls: type[Any]) -> frozenset[str]:
    """Every flag that the command line of these settings takes."""
    flags = {"--config"}
    for leaf in _leaves(cls):
        flags.add(flag_name(leaf.name))
        if leaf.is_switch:
            flags.add(flag_name(f"no_{leaf.name}"))
    return frozenset(flags)


def unknown_flag(flag: str, known: Iterable[str], *, listed_by: str) -> ConfigError:
    """There is no such flag; the message names one that is spelled much like it."""
    near = difflib.get_close_matches(flag.partition("=")[0], known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"unknown setting {flag}{meant} (`{listed_by}` lists them)")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _kept(make: Callable[P, T]) -> Callable[P, T]:
    """`functools.cache` for classes, which mypy does not take for hashable."""
    return typing.cast("Callable[P, T]", functools.cache(make))


@_kept
def _hints(cls: type[Any]) -> Mapping[str, Any]:
    """To evaluate them takes milliseconds."""
    return typing.get_type_hints(cls)


@_kept
def _adapter(hint: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(hint)


@_kept
def _leaves(cls: type[Any]) -> tuple[_Leaf, ...]:
    hints = _hints(cls)
    leaves: list[_Leaf] = []
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            leaves += _leaves(hints[field.name])
        else:
            leaves.append(_Leaf(field.name, hints[field.name], field))
    return tuple(leaves)


@_kept
def _parser(cls: type[Any], prog: str) -> _Parser:
    parser = _Parser(
        prog=prog,
        description=(cls.__doc__ or "").strip().splitlines()[0],
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same settings")
    for leaf in _leaves(cls):
        text = leaf.field.metadata.get("help", "")
        if leaf.field.default is not dataclasses.MISSING:
            text += f" (default: {leaf.field.default})"
        if leaf.is_switch:
            parser.add_argument(
                flag_name(leaf.name), help=text, action=argparse.BooleanOptionalAction
            )
        else:
            many = "+" if typing.get_origin(leaf.hint) is tuple else None
            parser.add_argument(flag_name(leaf.name), help=text, metavar="VALUE", nargs=many)
    return parser


def _parse_flags(cls: type[Any], argv: Sequence[str], prog: str) -> dict[str, Any]:
    known, unknown = _parser(cls, prog).parse_known_args(list(argv))
    if unknown:
        flags = [flag_name(leaf.name) for leaf in _leaves(cls)]
        raise unknown_flag(unknown[0], flags, listed_by=f"{prog} --help")
    # A list is one word with commas, or several words.
    return {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in vars(known).items()
    }


def _read_environ(
    leaves: Mapping[str, _Leaf], environ: Mapping[str, str]
) -> dict[str, tuple[Any, str]]:
    """Variables of settings that this service has; other services share the prefix.

    An empty one says nothing where a setting may be left out: Compose cannot leave a variable out.
    """
    found: dict[str, tuple[Any, str]] = {}
    for name, leaf in leaves.items():
        variable = ENV_PREFIX + name.upper()
        says_nothing = environ.get(variable) == "" and leaf.field.default is None
        if variable in environ and not says_nothing:
            found[name] = (environ[variable], f"environment variable {variable}")
        elif word := environ.get(leaf.field.metadata.get("variable") or ""):
            value = (word,) if typing.get_origin(leaf.hint) is tuple else word
            found[name] = (value, f"environment variable {leaf.field.metadata['variable']}")
    return found


def _read_file(leaves: Mapping[str, _Leaf], path: Path) -> dict[str, tuple[Any, str]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    values = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in leaves:
            raise ConfigError(f"unknown setting {key!r} in {path}; known: {sorted(leaves)}")
        values[name] = (value, f"{key!r} in {path}")
    return values


def _build(cls: type[Any], values: Mapping[str, tuple[Any, str]]) -> Any:
    hints = _hints(cls)
    checked: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            checked[field.name] = _build(typing.cast("type[Any]", hint), values)
        elif field.name in values:
            value, origin = values[field.name]
            checked[field.name] = _convert(hint, value, origin)
        elif _Leaf(field.name, hint, field).required:
            help_text = field.metadata.get("help", "it has no default")
            raise ConfigError(f"{flag_name(field.name)} is required: {help_text}")
    return cls(**checked)


def _parts(value: str, origin: str) -> Any:
    """A list in JSON, as vLLM takes lists, or its parts with commas between them."""
    if not value.lstrip().startswith("[") or begins_with_ipv6(value):
        return [part.strip() for part in value.split(",") if part.strip()]
    try:
        return json.loads(value)
    except ValueError as error:
        raise ConfigError(f"{origin} is not a list in JSON: {error}") from error


def _read(hint: Any, word: str, origin: str) -> Any:
    """Read the forms of a word that vLLM's parser knows: lists, `None`, `4k`."""
    if typing.get_origin(hint) is tuple:
        return _parts(word, origin)
    kinds = typing.get_args(hint) or (hint,)
    if word == "None" and NoneType in kinds:
        return None
    return read_number(word, origin) if int in kinds else word


def _convert(hint: Any, value: Any, origin: str) -> Any:
    """Turn a string or TOML value into what the field's annotation says."""
    if isinstance(value, str):
        value = _read(hint, value, origin)
    try:
        return _adapter(hint).validate_python(value)
    except pydantic.ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"{origin} has a bad value {value!r}: {reason}") from error
