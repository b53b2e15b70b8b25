"""Prints what pyproject.toml says the project needs, one requirement per line.

In the repository Baton runs from its folder, so pip is given its requirements without the project.
`-` in place of an extra's name means the base dependencies. Standard library only: it runs before
anything is installed.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, groups: list[str]) -> list[str]:
    """The requirements of `groups`, each once, in the file's order.

    Raises:
        KeyError: pyproject.toml has no such extra.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = {"-": project["dependencies"], **project["optional-dependencies"]}
    wanted: list[str] = []
    for group in groups:
        wanted += [item for item in extras[group] if item not in wanted]
    return wanted


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Print the requirements of groups of extras.")
    parser.add_argument("groups", nargs="+", help="names of extras, or - for the base")
    parser.add_argument("--pyproject", type=Path, default=Path("pyproject.toml"))
    options = parser.parse_args()
    try:
        lines = requirements(options.pyproject, options.groups)
    except KeyError as error:
        print(f"{options.pyproject} has no extra {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
