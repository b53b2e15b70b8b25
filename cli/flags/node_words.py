"""The words of one server's command line that matter to another host of its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.flags.options import Service
from cli.flags.service_flags import settings_of
from shared.arguments.spelling import read_flags
from shared.config import flags_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_NODE = "--node-rank"


def node_words(words: Sequence[str], others: Collection[str]) -> list[str]:
    """Return the words for a decode worker's host; empty: they are those of node 0.

    words: in our spelling, of a command that starts a router, too. Flags of the router, and
    `others`, are the command's own, and are left out.
    """
    _, flags = read_flags(words, {})
    numbers = [flag.words[0] for flag in flags if flag.name == _NODE and flag.words]
    if not numbers or numbers[-1] == "0":
        return []
    ours = flags_of(settings_of(Service.DECODE))
    others = {*others, *flags_of(settings_of(Service.ROUTER))}
    found: list[str] = []
    for flag in flags:
        service = flag.name.removeprefix("--")
        if flag.key and service in list(Service):
            if service == Service.DECODE:
                found += [f"--{flag.key.replace('_', '-')}", *flag.words]
        elif flag.name in ours or flag.name not in others:
            found += flag.written()
    return found
