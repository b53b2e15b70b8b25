"""Every byte of the weights counts, whatever is remembered, and whatever happens to the files."""

from __future__ import annotations

import json
import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from shared.errors import ModelLoadError
from shared.model.checkpoint import origin
from shared.model.checkpoint.files.file_stamp import keeps_change_times
from shared.model.checkpoint.hashes import shard_hashes
from shared.model.checkpoint.hashes.hash_cache import HashCache
from shared.model.checkpoint.hashes.shard_hashes import ShardHashes
from shared.model.checkpoint.loading.weights import load_weights
from shared.model.loader import load_model
from tests.unit.model.checkpoints import write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shared.model.checkpoint.files.checkpoint_files import CheckpointFiles
    from shared.model.decoder.causal_lm import CausalLM

NUM_SHARDS = 4
#: Of shards that are hashed in threads, and of some that are not.
SHARD_BYTES = {"large": 3 << 20, "small": 16 << 10}
LARGE_SHARD_BYTES = 50 << 20
#: So long after a change that its stamp can be believed.
LATER_NS = 10_000_000_000


def later() -> int:
    return time.time_ns() + LATER_NS


def write_shards(folder: Path, num_bytes: int) -> list[Path]:
    """Nearly all of them zeros that take no room on the disk."""
    paths = [folder / f"model-0000{number}-of-00004.safetensors" for number in range(NUM_SHARDS)]
    for number, path in enumerate(paths):
        with path.open("wb") as file:
            file.write(bytes([number]) * 4096)
            file.truncate(num_bytes)
    return paths


@pytest.fixture(params=SHARD_BYTES)
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    return write_shards(tmp_path, SHARD_BYTES[request.param])


@pytest.fixture
def cache(tmp_path: Path) -> HashCache:
    if not keeps_change_times(tmp_path):
        pytest.skip("the temporary folder is not on a local file system")
    return HashCache(tmp_path / "cache", now_ns=later)


def digests(paths: Sequence[Path], cache: HashCache) -> tuple[tuple[str, bytes], ...]:
    with ShardHashes(paths, cache=cache) as hashes:
        return tuple(hashes.digests())


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def entries(cache_folder: Path) -> list[Path]:
    return sorted(cache_folder.glob("*.json")) if cache_folder.exists() else []


@pytest.mark.parametrize(("is_cached", "num_flips"), [(False, 2), (True, 6)])
def test_a_flipped_byte_anywhere_in_200_mb_gives_other_digests(
    is_cached: bool, num_flips: int, cache: HashCache, tmp_path: Path
) -> None:
    paths = write_shards(tmp_path, LARGE_SHARD_BYTES)
    # A cache that never believes a stamp keeps nothing.
    used = cache if is_cached else HashCache(tmp_path / "cache", now_ns=lambda: 0)
    drawn = random.Random(13)
    seen = {digests(paths, used)}
    for _ in range(num_flips):
        flip(drawn.choice(paths), drawn.randrange(LARGE_SHARD_BYTES))
        found = digests(paths, used)
        assert found not in seen
        seen.add(found)
    assert len(entries(tmp_path / "cache")) == (NUM_SHARDS if is_cached else 0)


def test_digests_are_those_of_the_whole_files(shards: list[Path], cache: HashCache) -> None:
    expected = tuple((path.name, blake3(path.read_bytes()).digest()) for path in shards)
    assert digests(shards, cache) == expected
    assert digests(shards, cache) == expected


def test_what_is_remembered_is_not_read_again(
    shards: list[Path], cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(shards, cache)
    hashed: list[int] = []

    def counted() -> blake3:
        hashed.append(1)
        return blake3()

    monkeypatch.setattr(shard_hashes, "blake3", counted)
    assert digests(shards, cache) == before
    assert not hashed
    flip(shards[1], 5000)
    assert digests(shards, cache) != before
    assert len(hashed) == 1


@pytest.mark.parametrize("damage", ["", "{", '"digest"', "null", "flipped", "other file's"])
def test_a_damaged_entry_costs_only_the_hashing(
    damage: str, shards: list[Path], cache: HashCache, tmp_path: Path
) -> None:
    before = digests(shards, cache)
    first, second, *_ = entries(tmp_path / "cache")
    if damage == "flipped":
        entry = json.loads(first.read_text())
        entry["digest"] = "00" * 32
        first.write_text(json.dumps(entry))
    else:
        first.write_bytes(second.read_bytes() if damage.startswith("other") else damage.encode())
    assert digests(shards, cache) == before


def test_a_folder_that_cannot_be_written_costs_only_the_hashing(
    shards: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = HashCache(tmp_path / "file" / "cache", now_ns=later)
    assert digests(shards, cache) == digests(shards, cache)


def test_nothing_is_kept_of_a_file_that_was_changed_a_moment_ago(
    shards: list[Path], tmp_path: Path
) -> None:
    """A second change within the same tick would leave its stamp as it is."""
    digests(shards, HashCache(tmp_path / "cache"))
    assert not entries(tmp_path / "cache")


def test_a_file_that_keeps_size_and_mtime_is_read_again(
    shards: list[Path], cache: HashCache
) -> None:
    before = digests(shards, cache)
    status = shards[0].stat()
    flip(shards[0], status.st_size - 1)
    os.utime(shards[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shards[0].stat().st_mtime_ns == status.st_mtime_ns
    assert digests(shards, cache) != before


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def written(path: Path) -> None:
    flip(path, 100)


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [replaced, written, removed])
@pytest.mark.parametrize("is_cached", [False, True])
def test_what_changes_while_it_is_loaded_is_refused(
    change: Callable[[Path], None], is_cached: bool, shards: list[Path], cache: HashCache
) -> None:
    if is_cached:
        digests(shards, cache)
    with ShardHashes(shards, cache=cache) as hashes:
        change(shards[2])
        with pytest.raises(ModelLoadError, match=r"00002-of-00004.* (was changed|cannot)"):
            hashes.digests()


def test_a_checkpoint_that_is_replaced_while_it_is_loaded_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model") / "model.safetensors"

    def load_and_replace(model: CausalLM, files: CheckpointFiles) -> None:
        load_weights(model, files)
        replaced(path)

    monkeypatch.setattr(origin, "load_weights", load_and_replace)
    with pytest.raises(ModelLoadError, match="was changed while it was loaded"):
        load_model(tmp_path / "model")
