"""Reads a service's settings: flags over environment over a TOML file over defaults.

A service's settings are one frozen dataclass. Field `max_num_seqs` is the flag `--max-num-seqs`,
the variable `BATON_MAX_NUM_SEQS` and the key `max_num_seqs` (or `max-num-seqs`) of the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tomllib
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

ENV_PREFIX = "BATON_"


def setting(default: Any = dataclasses.MISSING, *, help: str) -> Any:
    """Declare a field of a settings dataclass with the text that `--help` shows."""
    return dataclasses.field(default=default, metadata={"help": help})


def load_config(
    cls: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    environ: Mapping[str, str] | None = None,
) -> T:
    """Read `cls` from the command line, the environment and the file named by `--config`.

    Raises:
        ConfigError: an unknown key, or a value that does not fit; the message names it.
    """
    environ = os.environ if environ is None else environ
    flags = _parse_flags(cls, argv, prog)
    path = flags.pop("config", None) or environ.get(f"{ENV_PREFIX}CONFIG")
    values: dict[str, tuple[Any, str]] = {}
    values |= _read_file(cls, Path(path)) if path else {}
    values |= _read_environ(cls, environ)
    values |= {name: (value, flag_name(name)) for name, value in flags.items()}
    return _build(cls, values)


def flag_name(field: str) -> str:
    """The command-line flag of a field."""
    return "--" + field.replace("_", "-")


def _parse_flags(cls: type[T], argv: Sequence[str], prog: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=(cls.__doc__ or "").strip().splitlines()[0],
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same settings")
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        text = field.metadata.get("help", "")
        if field.default is not dataclasses.MISSING:
            text += f" (default: {field.default})"
        if _is_bool(hints[field.name]):
            parser.add_argument(
                flag_name(field.name), help=text, action=argparse.BooleanOptionalAction
            )
        else:
            parser.add_argument(flag_name(field.name), help=text, metavar="VALUE")
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]}; `{prog} --help` lists them")
    return vars(known)


def _read_environ(cls: type[T], environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Variables of fields that this service has; other services share the prefix."""
    found = {}
    for field in dataclasses.fields(cls):
        name = ENV_PREFIX + field.name.upper()
        if name in environ:
            found[field.name] = (environ[name], f"environment variable {name}")
    return found


def _read_file(cls: type[T], path: Path) -> dict[str, tuple[Any, str]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    fields = {field.name for field in dataclasses.fields(cls)}
    values = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ConfigError(f"unknown setting {key!r} in {path}; known: {sorted(fields)}")
        values[name] = (value, f"{key!r} in {path}")
    return values


def _build(cls: type[T], values: Mapping[str, tuple[Any, str]]) -> T:
    hints = typing.get_type_hints(cls)
    checked: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            value, origin = values[field.name]
            checked[field.name] = _convert(hints[field.name], value, origin)
        elif field.default is dataclasses.MISSING:
            raise ConfigError(f"{flag_name(field.name)} is required: {field.metadata['help']}")
    return cls(**checked)


def _convert(hint: Any, value: Any, origin: str) -> Any:
    """Turn a string or TOML value into what the field's annotation says."""
    if isinstance(value, str) and typing.get_origin(hint) is tuple:
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return pydantic.TypeAdapter(hint).validate_python(value)
    except pydantic.ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"{origin} has a bad value {value!r}: {reason}") from error


def _is_bool(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(arg is bool for arg in typing.get_args(hint))
    return hint is bool
