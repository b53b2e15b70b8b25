"""Turns a dataclass of settings into a typer command. Knows nothing about load."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class ManyValuesCommand(TyperCommand):
    """A command whose repeatable flags also take several values at once: `--goodput a:1 b:2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the flag before each of its values."""
        repeatable = {
            name
            for param in self.params
            if isinstance(param, TyperOption) and param.multiple
            for name in param.opts
        }
        return super().parse_args(ctx, list(_repeat_flags(args, repeatable)))


def takes_settings(cls: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Decorate `run(settings)`: the result takes every field of `cls` as a keyword argument.

    Fields of `cls` are groups, dataclasses themselves; seen from outside they are flat.
    """

    def decorate(run: Callable[[T], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            run(_build_all(cls, values))

        return _signed(command, run, _all_parameters(cls))

    return decorate


def takes_settings_and_words(
    cls: type[T],
) -> Callable[[Callable[[T, Sequence[str]], None]], Callable[..., None]]:
    """Do as `takes_settings` for `run(settings, words)`; `words` are what no flag has taken."""
    kind = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("context", kind, annotation=typer.Context)

    def decorate(run: Callable[[T, Sequence[str]], None]) -> Callable[..., None]:
        def command(context: typer.Context, **values: Any) -> None:
            run(_build_all(cls, values), context.args)

        return _signed(command, run, [context, *_all_parameters(cls)])

    return decorate


def _signed(
    command: Callable[..., None],
    run: Callable[..., None],
    parameters: Sequence[inspect.Parameter],
) -> Callable[..., None]:
    command.__name__ = run.__name__
    command.__doc__ = run.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    # typer reads flags from the signature, and a written one could only repeat the fields.
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


def _all_parameters(cls: type[DataclassInstance]) -> list[inspect.Parameter]:
    return [parameter for group in get_type_hints(cls).values() for parameter in _parameters(group)]


def _build_all(cls: type[T], values: dict[str, Any]) -> T:
    groups = get_type_hints(cls).items()
    return cls(**{name: _build(group, values) for name, group in groups})


def _parameters(group: type[DataclassInstance]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        made = field.default_factory
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default if made is dataclasses.MISSING else made(),
            annotation=hints[field.name],
        )


def _build(group: type[T], values: dict[str, Any]) -> T:
    return group(**{field.name: values[field.name] for field in dataclasses.fields(group)})


def _repeat_flags(args: list[str], repeatable: set[str]) -> Iterator[str]:
    current = ""
    awaits_value = False
    for arg in args:
        if arg.startswith("-"):
            name, has_value, _ = arg.partition("=")
            current = name if name in repeatable else ""
            awaits_value = not has_value
        elif current and not awaits_value:
            yield current
        else:
            awaits_value = False
        yield arg
