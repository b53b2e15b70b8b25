"""The guard sees what it is for, and nothing else."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks.guard.compare import compare, load_allowed
from benchmarks.guard.counting import count_bytecodes
from benchmarks.guard.trees import count_in
from benchmarks.guard.workloads import WORKLOADS
from cli.places import ROOT
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SLOW = """
_fast = hash_blocks


def hash_blocks(root, token_ids, block_size):
    for _ in token_ids[::16]:
        len(token_ids)
    return _fast(root, token_ids, block_size)
"""


def copied(folder: Path) -> Path:
    """A copy of what the workload runs on."""
    copy = folder / "tree"
    shutil.copytree(ROOT / "shared", copy / "shared")
    (copy / "models").symlink_to(ROOT / "models")
    return copy


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Counts of the code as it is."""
    folder = tmp_path_factory.mktemp("unchanged")
    return count(copied(folder), folder / "scratch")


def count(tree: Path, scratch: Path) -> dict[str, dict[str, int]]:
    scratch.mkdir()
    return count_in(tree, scratch, ["block_hash", "detokenize"])


def test_a_planted_slowdown_is_found_and_nothing_else(
    unchanged: dict[str, dict[str, int]], tmp_path: Path
) -> None:
    """What runs on the same code has the same count in another process."""
    tree = copied(tmp_path)
    source = tree / "shared" / "kv" / "block_hash.py"
    source.write_text(source.read_text(encoding="utf-8") + SLOW, encoding="utf-8")
    after = count(tree, tmp_path / "after")
    finding, same = compare(unchanged, after, {})
    assert finding.ratio is not None
    assert finding.ratio > 1.1
    assert not finding.passes
    assert same.passes
    assert after["detokenize"] == unchanged["detokenize"]
    assert min(count["bytecodes"] for count in unchanged.values()) > 1000
    allowed, _ = compare(unchanged, after, {"block_hash": 3.0})
    assert allowed.passes


def test_a_workload_that_the_base_lacks_is_new() -> None:
    (finding,) = compare({"engine": {"error": "x"}}, {"engine": {"bytecodes": 5}}, {})
    assert finding.passes
    assert finding.ratio is None


def test_a_workload_that_does_not_run_here_fails() -> None:
    (finding,) = compare({"engine": {"bytecodes": 5}}, {"engine": {"error": "ImportError: x"}}, {})
    assert not finding.passes
    assert finding.note == "ImportError: x"


def test_fewer_instructions_pass() -> None:
    (finding,) = compare({"engine": {"bytecodes": 50}}, {"engine": {"bytecodes": 5}}, {})
    assert finding.passes
    assert finding.ratio == pytest.approx(0.1)


def test_growth_is_allowed_with_a_reason_only(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    assert load_allowed(path) == {}
    path.write_text('[engine]\nratio = 1.5\nreason = "deadlines"\n', encoding="utf-8")
    assert load_allowed(path) == {"engine": 1.5}
    path.write_text("[engine]\nratio = 1.5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="reason"):
        load_allowed(path)


def test_calls_are_counted_with_what_they_call() -> None:
    def inner() -> int:
        return sum(number for number in range(10))

    assert count_bytecodes(inner) > count_bytecodes(lambda: None)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_runs(name: str) -> None:
    prepare, _ = WORKLOADS[name]
    work = prepare()
    work()
    first, second = count_bytecodes(work), count_bytecodes(work)
    if name == "engine":  # which learns from the time of its steps, of one in four
        assert second == pytest.approx(first, rel=0.03)
    else:
        assert second == first
