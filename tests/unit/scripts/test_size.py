"""The size gate reports what is too long, and exceptions that nobody needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.size import Limits, full_rooms, long_files, violations

if TYPE_CHECKING:
    from pathlib import Path

LONG_FUNCTION = "def f():\n" + "    pass\n" * 6


def limits(**exceptions: str) -> Limits:
    return Limits(
        file_lines=10,
        room_files=2,
        function_lines=5,
        function_exempt=["kernels/*/kernel.py"],
        exceptions=exceptions,
    )


def test_a_long_file_is_named_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n" * 11)
    (tmp_path / "b.py").write_text("x = 1\n" * 10)
    assert long_files(tmp_path, limits()) == ["a.py: 11 lines (over 10)"]
    assert violations(tmp_path, limits()) == []


def test_a_full_room_is_named_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    for name in ("__init__.py", "a.py", "b.py", "c_pb2.py"):
        (tmp_path / "room" / name).touch()
    assert full_rooms(tmp_path, limits()) == []
    (tmp_path / "room" / "c.py").touch()
    assert full_rooms(tmp_path, limits()) == ["room: 3 files (over 2)"]
    assert violations(tmp_path, limits()) == []


def test_a_long_function_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(LONG_FUNCTION)
    assert violations(tmp_path, limits()) == ["a.py:1 f: 7 lines (limit 5)"]


def test_kernel_bodies_are_exempt(tmp_path: Path) -> None:
    (tmp_path / "kernels" / "rope").mkdir(parents=True)
    (tmp_path / "kernels" / "rope" / "kernel.py").write_text(LONG_FUNCTION)
    assert violations(tmp_path, limits()) == []


def test_an_exception_is_accepted_until_it_is_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(LONG_FUNCTION)
    excused = limits(**{"a.py::f": "one table"})
    assert violations(tmp_path, excused) == []
    path.write_text("x = 1\n")
    assert violations(tmp_path, excused) == [
        "pyproject.toml: exception 'a.py::f' is not needed any more"
    ]


def test_generated_and_hidden_files_and_environments_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    for name in ("a_pb2.py", ".hidden.py", "env/b.py"):
        (tmp_path / name).write_text("x = 1\n" * 11 + LONG_FUNCTION)
    assert violations(tmp_path, limits()) == []
    assert long_files(tmp_path, limits()) == []
