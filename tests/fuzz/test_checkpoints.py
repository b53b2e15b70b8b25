"""Checkpoints of every format, changed: each loads, or is refused with file and tensor or field.

They are loaded in a process of their own, which measures its memory and its time. A case fails with
a crash, a hang, an error that is not for people, or more memory than eight times the files.
"""

from __future__ import annotations

import json
import re
import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.cases import COUNTS, FULL, profile
from tests.fuzz.checkpoints import changes, seeds
from tests.fuzz.checkpoints.process import LoadingProcess
from tests.fuzz.mutation import mutate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fuzz.checkpoints.process import Outcome

#: Of each byte of the files; and what a load takes that is no number of theirs.
MOST_PER_BYTE, MOST_BYTES = 8, 64 * 2**20
#: Rotary angles, which are computed: PyTorch's, and the native executor's own.
TABLES = 2
#: Without a family transformers is asked, which takes seconds to load.
KEPT = frozenset({"architectures", "model_type"})
#: A tensor's name or a key's, as messages spell them; or what is said of a file as a whole.
NAMED = re.compile(r"'[^']*'|\b[a-z0-9]+[_.][a-z0-9_.]+|architecture|heads|layers")
WHOLE = ("damaged", "is not valid JSON", "is no GGUF file", "has version", "weight_map", "names it")


class Site:
    """Seeds, a folder for the changed one, and the process that loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = seeds.write_seeds(folder / "seeds")
        if FULL:
            made += seeds.write_compressed(folder / "seeds", made[0])
        self.stored = [*made, *seeds.recorded()]
        self.sharded = seeds.write_sharded(folder / "sharded")
        self.pickled = seeds.write_pickled(folder / "pickled", made[0])
        self.gguf = seeds.write_gguf(folder / "gguf", made[0])
        self.configs = [own for path in self.stored if (own := quantization_of(path)) is not None]
        self.process = LoadingProcess(folder / "cache")

    def copy(self, seed: Path) -> Path:
        """A copy of a seed, to be changed."""
        target = self.folder / "changed"
        shutil.rmtree(target, ignore_errors=True)
        others = shutil.ignore_patterns("oracle*", "token*")
        shutil.copytree(seed if seed.is_dir() else seed.parent, target, ignore=others)
        return target if seed.is_dir() else target / seed.name

    def load(self, kind: str, model: Path, random: Random) -> None:
        """Load the changed one, and judge how that went."""
        backend = random.choice(("torch", "auto"))
        dtype = random.choice(("auto", "auto", "float32", "bfloat16"))
        outcome = self.process.load(model, backend=backend, dtype=dtype)
        COUNTS[f"checkpoints: {kind}, {outcome.what}"] += 1
        assert outcome.what in ("loaded", "refused"), f"{outcome.message}\n{outcome.trace}"
        size = sum(each.stat().st_size for each in (self.folder / "changed").rglob("*.*"))
        most = MOST_PER_BYTE * size + MOST_BYTES + TABLES * outcome.table_bytes
        assert outcome.growth_bytes <= most, outcome
        if outcome.what == "refused":
            check_message(outcome, model)


def quantization_of(path: Path) -> object:
    raw = json.loads((path / "config.json").read_text())
    return raw.get("quantization_config")


def check_message(outcome: Outcome, model: Path) -> None:
    """It can be printed, and names a file, and what of it."""
    text = outcome.message
    assert text.encode()
    folder = model if model.is_dir() else model.parent
    files = {path.name for path in folder.iterdir()} | {"config.json"}
    named = [name for name in files if name in text]
    assert named, text
    rest = text.rpartition(max(named, key=len))[2] or text
    assert NAMED.search(rest) or any(each in text for each in WHOLE), text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    own = Site(tmp_path_factory.mktemp("checkpoints"))
    for path in own.stored[:2]:  # libraries are loaded once
        assert own.process.load(path, backend="auto").what == "loaded"
    yield own
    own.process.close()


def check(site: Site, kind: str, seed: int, change: Callable[[Random], Path]) -> None:
    random = Random(seed)
    model = change(random)
    site.load(kind, model, random)


SEEDS = st.integers(0, 2**64 - 1)


@profile(100, 4000)
@given(SEEDS)
def test_header(site: Site, seed: int) -> None:
    """Dtypes, shapes, names and numbers of tensors; bytes of the header; the file's length."""

    def change(random: Random) -> Path:
        folder = site.copy(random.choice(site.stored))
        changes.change_header(random, folder)
        return folder

    check(site, "safetensors", seed, change)


@profile(130, 6000)
@given(SEEDS)
def test_config(site: Site, seed: int) -> None:
    """Keys of the config and of what it says of few bits; other methods' values; patterns."""

    def change(random: Random) -> Path:
        folder = site.copy(random.choice(site.stored))
        changes.change_config(random, folder, site.configs, KEPT)
        return folder

    check(site, "config.json", seed, change)


@profile(100, 4000)
@given(SEEDS)
def test_gguf(site: Site, seed: int) -> None:
    """Counts, types, lengths, sizes and offsets of headers, of one file or of two."""

    def change(random: Random) -> Path:
        model = site.copy(random.choice(site.gguf))
        changes.change_gguf(random, random.choice(sorted(model.parent.iterdir())))
        return model

    check(site, "gguf", seed, change)


@profile(30, 1500)
@given(SEEDS)
def test_several_files(site: Site, seed: int) -> None:
    """The index of shards, and the shards that it names."""

    def change(random: Random) -> Path:
        folder = site.copy(site.sharded)
        changes.change_files(random, folder)
        return folder

    check(site, "index", seed, change)


@profile(30, 1500)
@given(SEEDS)
def test_pickled(site: Site, seed: int) -> None:
    """Bytes of PyTorch's own file, or fewer of them."""

    def change(random: Random) -> Path:
        folder = site.copy(site.pickled)
        path = folder / "pytorch_model.bin"
        data = path.read_bytes()
        is_cut = random.random() < 0.2
        path.write_bytes(data[: random.randrange(len(data))] if is_cut else mutate(random, data))
        return folder

    check(site, "pytorch_model.bin", seed, change)
