"""The rooms of the C++ sources: a folder of `src` each, and includes go down only."""

from __future__ import annotations

import re
from pathlib import Path

from kernels.native.build import SOURCES

#: From the top down; rooms of one line do not know each other.
LAYERS = (
    ("api.cpp",),
    ("decoder",),
    ("adapters", "attention", "encoder", "transfer"),
    ("kv", "products"),
    ("matrix", "ranks"),
    ("threads", "vectors"),
)
MOST_FILES = 15


def includes() -> list[tuple[Path, Path]]:
    """Every source and a file that it includes, both as paths below `src`."""
    return [
        (path.relative_to(SOURCES), Path(name))
        for path in SOURCES.rglob("*.*")
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
    ]


def test_includes_go_down_only() -> None:
    layer_of = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    found = includes()
    assert len(found) > 150
    assert [
        f"{path} includes {name}"
        for path, name in found
        if path.parts[0] != name.parts[0] and layer_of[path.parts[0]] >= layer_of[name.parts[0]]
    ] == []


def test_rooms_are_listed_and_small() -> None:
    rooms = {path.name: len(list(path.glob("*.*"))) for path in SOURCES.iterdir()}
    assert sorted(rooms) == sorted(room for layer in LAYERS for room in layer)
    assert max(rooms.values()) <= MOST_FILES
