"""A command whose unknown flags are arguments of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from benchmarks.load.options import ManyValuesCommand, takes_settings_and_words
from cli.places import SHIPPED_MODEL
from shared.errors import BatonError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import DataclassInstance

    from benchmarks.offline.settings import EngineSettings

T = TypeVar("T", bound="DataclassInstance")


def command(
    app: typer.Typer, settings: type[T]
) -> Callable[[Callable[[T, Sequence[str]], None]], None]:
    """Make `run(settings, words)` the command of `app`; `words` are the flags it does not know.

    Exit codes: 1 the engine failed, 2 the flags make no sense.
    """

    def decorate(run: Callable[[T, Sequence[str]], None]) -> None:
        def complaining(known: T, words: Sequence[str]) -> None:
            try:
                run(known, words)
            except BatonError as error:
                Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)))
                raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error

        complaining.__name__, complaining.__doc__ = run.__name__, run.__doc__
        app.command(
            cls=ManyValuesCommand,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(takes_settings_and_words(settings)(complaining))

    return decorate


def model_of(settings: EngineSettings) -> str:
    """Return the model that was asked for, or the shipped one."""
    return settings.model or str(SHIPPED_MODEL)
