"""Commands whose flags belong to another program."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from cli.errors import EXIT_USAGE, CommandError
from cli.extras import require
from cli.huge_pages import service_environ
from cli.places import ROOT, module_name, python_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.extras import Extra

#: Typer settings of a command that passes on every word after its first, `--help` included.
#: `--help` of the command itself precedes the name of the program.
BEHIND_A_NAME = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}
#: The same for a command without such a name: its `--help` is passed on, too.
EVERYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def become(module: str, flags: Sequence[str], extra: Extra) -> NoReturn:
    """Replace this process by `python -m module flags`, with that program's signals and exit code.

    `module` is a module of the repository.

    Raises:
        CommandError: there is no such module, or not what it needs.
    """
    if not _exists(module):
        package = module.rpartition(".")[0]
        raise CommandError(
            f"there is no {module} here",
            advice=f"there is: {', '.join(_runnable(package)) or 'nothing yet'}",
            exit_code=EXIT_USAGE,
        )
    require(extra)
    command = [*python_command(module), *flags]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, service_environ(module))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module_name(module)) is not None
    except ModuleNotFoundError:
        return False


def _runnable(package: str) -> list[str]:
    folder = ROOT.joinpath(*package.split("."))
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    return sorted(modules | {path.parent.name for path in folder.glob("*/__main__.py")})
