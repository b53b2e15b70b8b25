"""Moves a module's imports below the one package that is installed.

`from shared.kv import pool` becomes `from baton.shared.kv import pool`. Only import statements
change, each within its line, so that line numbers in tracebacks stay those of the repository. A
name in a string is none of this module's business: such names are relative to their package.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from scripts.wheel.layout import MOVED, PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator


class ImportFormError(Exception):
    """An import that cannot be moved, with its file and line."""


def moved_imports(source: str, path: str) -> str:
    """Return the module's source with its imports of ours below `PACKAGE`.

    Raises:
        ImportFormError: an import binds the top-level name, as `import shared.errors` does.
    """
    lines = source.splitlines(keepends=True)
    for node in _statements(ast.parse(source, path)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_moved(node.module):
            _move(lines, node.lineno, "from ", node.module, node.col_offset)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_moved(alias.name):
                    _require_other_name(alias, path)
                    _move(lines, alias.lineno, "", alias.name, alias.col_offset)
    return "".join(lines)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node; what is below an expression is none, and is most."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


def _is_moved(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in MOVED


def _require_other_name(alias: ast.alias, path: str) -> None:
    if alias.asname is None:
        raise ImportFormError(
            f"{path}:{alias.lineno}: `import {alias.name}` binds a name that the wheel lacks; "
            f"write `from … import …`, or `import {alias.name} as …`"
        )


def _move(lines: list[str], lineno: int, keyword: str, module: str | None, column: int) -> None:
    """Put the package in front of a module's name. Columns count bytes of UTF-8."""
    line = lines[lineno - 1].encode()
    before, rest = line[:column], line[column:].decode()
    old = f"{keyword}{module}"
    assert rest.startswith(old), rest
    lines[lineno - 1] = f"{before.decode()}{keyword}{PACKAGE}.{module}{rest[len(old) :]}"
