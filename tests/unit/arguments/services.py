"""The settings that the services of `baton up` would be started with."""

from __future__ import annotations

from typing import Any

import typer.main

from cli.__main__ import app
from cli.flags.options import Service
from cli.flags.service_flags import settings_of, sort_flags
from shared.arguments.translate import translate
from shared.config import flags_of, load_config

WIRED = {
    Service.ROUTER: (),
    Service.PREFILL: ("--directory", "h:1"),
    Service.DECODE: ("--directory", "h:1"),
}
OPTIONS_OF_UP = {
    name
    for parameter in typer.main.get_command(app).commands["up"].params  # type: ignore[attr-defined]
    for name in parameter.opts
}
FLAGS = OPTIONS_OF_UP.union(*(flags_of(settings_of(service)) for service in Service))


def parse(*words: str, model: str = "m") -> dict[Service, Any]:
    """Read the words as `baton up` does, for each service."""
    given = list(translate(words).words)
    own = [n for n, word in enumerate(given) if word in OPTIONS_OF_UP]
    for n in reversed(own):
        del given[n : n + 2]
    return {
        service: load_config(
            settings_of(service),
            ["--model", model, *WIRED[service], *flags],
            prog="test",
            environ={},
        )
        for service, flags in sort_flags(given).items()
    }
