"""The size gate: no function grows past what a reader can hold. It names long files and full rooms.

Limits and exceptions, each with its reason, stand in pyproject.toml under [tool.size].
"""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SKIPPED_PARTS = {"build", "dist", "node_modules"}
GENERATED_SUFFIXES = ("_pb2.py", "_pb2_grpc.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What [tool.size] says."""

    file_lines: int
    room_files: int
    function_lines: int
    function_exempt: Sequence[str]
    exceptions: Mapping[str, str]


def read_limits(pyproject: Path) -> Limits:
    """Read the table; every key must be there."""
    table = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["size"]
    return Limits(**table)


def sources(root: Path) -> Iterator[Path]:
    """Python files that people wrote, folder by folder."""
    for folder, folders, files in os.walk(root):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(each for each in folders if _is_ours(each))
        for name in sorted(files):
            if name.endswith(".py") and _is_ours(name) and not name.endswith(GENERATED_SUFFIXES):
                yield Path(folder, name)


def _is_ours(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED_PARTS


def long_files(root: Path, limits: Limits) -> list[str]:
    """Return one line per file that is long: a warning, because a noun may need its lines."""
    counted = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(root)}
    return [
        f"{path.relative_to(root).as_posix()}: {num_lines} lines (over {limits.file_lines})"
        for path, num_lines in counted.items()
        if num_lines > limits.file_lines
    ]


def full_rooms(root: Path, limits: Limits) -> list[str]:
    """Return one line per folder with many files, `__init__.py` not among them: a warning, too."""
    counted = Counter(path.parent for path in sources(root) if path.name != "__init__.py")
    return [
        f"{room.relative_to(root).as_posix()}: {num_files} files (over {limits.room_files})"
        for room, num_files in counted.items()
        if num_files > limits.room_files
    ]


def violations(root: Path, limits: Limits) -> list[str]:
    """Return one line per function that is too long, and per exception that nothing needs."""
    found: dict[str, str] = {}
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        if not any(Path(name).match(pattern) for pattern in limits.function_exempt):
            text = path.read_text(encoding="utf-8")
            if len(text.splitlines()) > limits.function_lines:
                found |= _long_functions(name, ast.parse(text), limits.function_lines)
    stale = [
        f"pyproject.toml: exception {key!r} is not needed any more"
        for key in limits.exceptions
        if key not in found
    ]
    return [text for key, text in found.items() if key not in limits.exceptions] + stale


def _long_functions(name: str, tree: ast.Module, limit: int) -> dict[str, str]:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > limit:
                key = f"{name}::{node.name}"
                found[key] = f"{name}:{node.lineno} {node.name}: {num_lines} lines (limit {limit})"
    return found


def main() -> int:
    """Print lines per folder, then what is long."""
    root = Path(__file__).resolve().parent.parent
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sources(root):
        parts = path.relative_to(root).parts
        folder = "/".join(parts[: min(2, len(parts) - 1)]) or "."
        lines[folder] += len(path.read_text(encoding="utf-8").splitlines())
        files[folder] += 1
    for folder in sorted(lines):
        print(f"{lines[folder]:7d} lines {files[folder]:4d} files  {folder}")
    limits = read_limits(root / "pyproject.toml")
    for text in [*long_files(root, limits), *full_rooms(root, limits)]:
        print(f"warning: {text}", file=sys.stderr)
    problems = violations(root, limits)
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
