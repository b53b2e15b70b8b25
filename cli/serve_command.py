"""`baton serve`: one service, or a model behind one aggregated server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.main import get_command

from cli.errors import EXIT_USAGE, CommandError
from cli.extras import Extra
from cli.flags.engine_arguments import TakesArguments, translated
from cli.flags.node_words import node_words
from cli.flags.options import Service
from cli.flags.passthrough import become
from cli.up_command import up
from shared.arguments.page import help_text

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_SERVER = ("--prefill", "0")


def serve(context: typer.Context) -> None:
    """Serve a model with one aggregated server, as `vllm serve` does; or run one service.

    `baton serve MODEL` takes the flags of `baton up`; --prefill 1 makes a server of two workers.
    `baton serve router|prefill|decode` runs that service in the foreground, with its own flags.
    With --node-rank over 0 it has ranks of the server whose worker is on --master-addr.
    """
    first, *others = context.args or [""]
    if first in list(Service):
        extra = Extra.ROUTER if first == Service.ROUTER else Extra.WORKER
        become(f"services.{first}", others, extra)
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command(
        cls=TakesArguments,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        help=serve.__doc__,
        epilog=help_text(),
    )(up)
    words = with_model_flag(context.args)
    of_node = node_words(
        words, [name for each in get_command(command).params for name in each.opts]
    )
    if of_node:
        become(f"services.{Service.DECODE}", of_node, Extra.WORKER)
    command(args=[*ONE_SERVER, *words], prog_name="baton serve")


def with_model_flag(arguments: Sequence[str]) -> list[str]:
    """Return the words with `--model` before a model that stands alone, in front.

    Raises:
        CommandError: several words stand there, or a name that nothing has.
    """
    words = translated(arguments)
    alone: list[str] = []
    while words and not words[0].startswith("-"):
        alone.append(words.pop(0))
    if len(alone) > 1:
        raise CommandError(
            f"{' '.join(alone)}: there must be one model, or one of {', '.join(Service)}",
            exit_code=EXIT_USAGE,
        )
    for model in alone:
        if "/" not in model and not Path(model).exists():
            raise CommandError(
                f"{model} is no folder, no GGUF file and none of {', '.join(Service)}",
                advice="a model on the hub has a name with a slash, such as Qwen/Qwen3-0.6B",
                exit_code=EXIT_USAGE,
            )
    return [*(["--model", *alone] if alone else []), *words]
