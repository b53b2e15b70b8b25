"""What the compile gate found is kept until a kernel or the compiler changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.gate_cache import GateCache, fingerprint

if TYPE_CHECKING:
    from pathlib import Path

FOUND = {(80, "silu_mul bf16"): "sm_80 silu_mul bf16   registers 29 ok", (90, "b"): "sm_90 b ok"}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    cache = GateCache(tmp_path / "new" / "key.txt")
    assert cache.read() == {}
    cache.write(FOUND)
    assert cache.read() == FOUND


def test_a_damaged_file_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "key.txt"
    path.write_bytes(b"80\tbroken\n\xff\nnothing\n")
    assert GateCache(path).read() == {}
    path.write_text("80\tbroken\nx\ty\tz\n80\tgood\tline\n")
    assert GateCache(path).read() == {(80, "good"): "line"}


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = GateCache(tmp_path / "file" / "key.txt")
    cache.write(FOUND)
    assert cache.read() == {}


def test_every_source_and_version_counts(tmp_path: Path) -> None:
    kernel = tmp_path / "silu" / "kernel.py"
    kernel.parent.mkdir()
    kernel.write_text("a = 1")
    keys = [fingerprint(tmp_path, "3.9")]
    keys.append(fingerprint(tmp_path, "3.10"))
    kernel.write_text("a = 2")
    keys.append(fingerprint(tmp_path, "3.9"))
    kernel.rename(kernel.with_name("other.py"))
    keys.append(fingerprint(tmp_path, "3.9"))
    assert len(set(keys)) == len(keys)


def test_old_states_are_forgotten(tmp_path: Path) -> None:
    for number in range(20):
        GateCache(tmp_path / f"{number}.txt").write(FOUND)
    assert len(list(tmp_path.iterdir())) == 11
