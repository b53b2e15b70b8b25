"""PyTorch's own files are read as PyTorch reads them, and their pickles are never run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from cli.doctor.checkpoint import check_model as diagnose
from cli.doctor.finding import Level
from shared.errors import ModelLoadError
from shared.model.checkpoint.files.checkpoint_files import BIN_INDEX_NAME, BIN_NAME, SINGLE_NAME
from shared.model.checkpoint.files.tensor_files import open_tensors, read_headers
from shared.model.checks import check_model
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.integers import Gptq

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in safetensors."""
    torch.set_num_threads(1)
    return save(random_model("qwen2", seed=3), tmp_path_factory.mktemp("safe"))


def as_bin(source: Path, target: Path, *, num_shards: int = 1) -> Path:
    """The same tensors in PyTorch's files."""
    target.mkdir()
    for path in source.glob("*.json"):
        shutil.copy(path, target)
    tensors = sorted(load_file(source / SINGLE_NAME).items())
    if num_shards == 1:
        torch.save(dict(tensors), target / BIN_NAME)
        return target
    weight_map = {}
    for number in range(num_shards):
        name = f"pytorch_model-{number + 1:05d}-of-{num_shards:05d}.bin"
        own = dict(tensors[number::num_shards])
        torch.save(own, target / name)
        weight_map |= dict.fromkeys(own, name)
    (target / BIN_INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return target


def every_kind() -> dict[str, Tensor]:
    whole = torch.arange(60, dtype=torch.float32).view(6, 10)
    eights = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)
    plain = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    words = (torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool)
    return {
        "whole": whole,
        "turned": whole.T,
        "rows": whole[2:4],
        "columns": whole[:, 3::2],
        "scalar": torch.tensor(2.5),
        "nothing": torch.empty(0, 4),
        "parameter": nn.Parameter(torch.ones(3)),
        **{str(dtype): torch.arange(3).to(dtype) for dtype in (*plain, *words)},
        **{str(dtype): torch.ones(4).to(dtype) for dtype in eights},
    }


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_are_those_of_pytorch(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    torch.save(every_kind(), path, pickle_protocol=protocol)
    # Its own reader does not know the later protocol.
    expected = torch.load(path, weights_only=True) if protocol == 2 else every_kind()
    headers = read_headers(path)
    assert headers.keys() == expected.keys()
    with open_tensors(path) as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no dict
    for name, tensor in expected.items():
        assert headers[name].shape == tuple(tensor.shape)
        assert found[name].dtype == tensor.dtype
        assert torch.equal(*(raw(each) for each in (found[name], tensor)))


def raw(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def test_the_state_of_a_module_is_read(tmp_path: Path) -> None:
    """With the versions of its parts, as attributes of the dictionary."""
    torch.save(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).state_dict(), tmp_path / "a.bin")
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert read_headers(tmp_path / "a.bin").keys() == names


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("impl", ["torch", "transformers"])
def test_a_model_is_the_one_of_safetensors(
    num_shards: int, impl: str, safe: Path, tmp_path: Path
) -> None:
    path = as_bin(safe, tmp_path / "bin", num_shards=num_shards)
    one, other = (load_model(each, model_impl=impl) for each in (safe, path))
    ours, theirs = (weights_of(each.model) for each in (one, other))
    assert len(ours) == len(theirs)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    assert one.fingerprint != other.fingerprint
    assert load_model(path, model_impl=impl).fingerprint == other.fingerprint
    assert next(diagnose(path)).level is Level.OK


def weights_of(model: Any) -> list[Tensor]:
    return list((model if isinstance(model, CausalLM) else model._module).parameters())


def test_quantised_tensors_may_be_in_them(safe: Path, tmp_path: Path) -> None:
    dense = quantise_checkpoint(safe, tmp_path / "safe", Gptq(), lambda name: "proj.w" in name)
    path = as_bin(tmp_path / "safe", tmp_path / "bin", num_shards=2)
    model = load_model(path, attention_backend="torch").model
    assert isinstance(model, CausalLM)
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(model.get_submodule("layers.1.mlp.down").weight, dense[name])


def test_safetensors_are_preferred(safe: Path, tmp_path: Path) -> None:
    path = as_bin(safe, tmp_path / "both")
    with pytest.raises(ModelLoadError, match=r"pytorch_model.bin is PyTorch's own"):
        check_model(path, load_format="safetensors")
    shutil.copy(safe / SINGLE_NAME, path)
    (path / BIN_NAME).write_bytes(b"damaged")
    own = load_model(path, load_format="safetensors")
    assert own.fingerprint == load_model(safe).fingerprint


def test_headers_are_checked_before_tensors_are_read(safe: Path, tmp_path: Path) -> None:
    path = as_bin(safe, tmp_path / "bin")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"intermediate_size": 10**5}))
    with pytest.raises(ModelLoadError, match=r"pytorch_model.bin: tensor .* shape \[96, 160\]"):
        check_model(path)


class Malicious:
    """What a pickle calls when it is loaded."""

    def __init__(self, call: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda mark: (os.system, (f"touch {mark}",)), "system"),
        (lambda mark: (Path.touch, (Path(mark),)), "getattr|Path"),
        (lambda mark: (eval, (f"open({mark!r}, 'w')",)), "eval"),
        (lambda mark: (torch.load, (mark,)), "torch.serialization.load"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_calls_anything_is_refused_and_not_run(
    call: Callable[[str], Any], named: str, protocol: int, safe: Path, tmp_path: Path
) -> None:
    path, mark = as_bin(safe, tmp_path / "bin"), tmp_path / "mark"
    tensors = torch.load(path / BIN_NAME, weights_only=True)
    evil = {**tensors, "evil": Malicious(call(str(mark)))}
    torch.save(evil, path / BIN_NAME, pickle_protocol=protocol)
    for run in (check_model, load_model):
        with pytest.raises(ModelLoadError, match=f"bin is damaged or not only .*({named})"):
            run(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(1)], "it holds a list, not tensors by name"),
        ({"model": {"weight": torch.ones(1)}}, "it holds a dict as 'model', not a tensor"),
        ({"step": 5, "weight": torch.ones(1)}, "it holds a int as 'step', not a tensor"),
        ({"many": torch.ones(1).expand(10**9)}, "'many' has more numbers than its storage"),
        ({"thing": nn.Linear(2, 2)}, "instruction NEWOBJ|calls .*Linear|BUILD|NEWFALSE|sets"),
    ],
)
def test_what_is_no_tensor_by_name_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.bin")
    with pytest.raises(ModelLoadError, match=message):
        read_headers(tmp_path / "a.bin")


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], **how: Any) -> None:
    """Write an archive anew, with some entries changed or left out."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", **how) as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    path.write_bytes(out.getvalue())


def test_damaged_archives_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    def fails(message: str) -> None:
        with pytest.raises(ModelLoadError, match=message):
            read_headers(path)

    def save_two() -> None:
        torch.save({"a": torch.ones(5), "b": torch.ones(7)}, path)

    save_two()
    rewritten(path, lambda name, own: None if name.endswith("/data/1") else own)
    fails("tensor 'b' is in the storage 1, which is missing")
    save_two()
    rewritten(path, lambda name, own: own[:-4] if name.endswith("/data/1") else own)
    fails("tensor 'b' has more numbers than its storage")
    save_two()
    rewritten(path, lambda _, own: own, compression=zipfile.ZIP_DEFLATED)
    fails("its storage 0 is compressed")
    save_two()
    rewritten(path, lambda name, own: b"big" if name.endswith("byteorder") else own)
    fails("its numbers have their highest bytes first")
    save_two()
    path.write_bytes(path.read_bytes()[:-40])
    fails("damaged or not only tensors")
    torch.save({"a": torch.ones(5)}, path, _use_new_zipfile_serialization=False)
    fails("PyTorch before 1.6 wrote it: load it with")
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    fails("damaged or not only tensors")


def test_any_bytes_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever a pickle has become: no other error, and no call."""
    path, draw = tmp_path / "a.bin", random.Random(1)
    torch.save(every_kind(), path)
    original = path.read_bytes()
    num_refused = 0
    for _ in range(400):
        content = bytearray(original)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        try:
            with open_tensors(path) as file:
                for name in file.keys():  # noqa: SIM118 no dict
                    file.get_tensor(name)
        except ModelLoadError:
            num_refused += 1
    assert 0 < num_refused < 400


def test_old_pickles_have_no_way_in(tmp_path: Path) -> None:
    """Each instruction that makes an object is refused by its name."""
    path = tmp_path / "a.bin"
    torch.save({"a": torch.ones(1)}, path)
    for program, named in (
        (b"\x80\x02(S'true'\nios\nsystem\n.", "STRING|INST"),
        (b"\x80\x02cos\nsystem\n\x8c\x04true\x85\x81.", "NEWOBJ"),
        (b"\x80\x02(cos\nsystem\n\x8c\x04trueo.", "OBJ"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (pickle.dumps({1, 2}, protocol=4), "EMPTY_SET"),
    ):
        rewritten(path, lambda name, own, p=program: p if name.endswith("data.pkl") else own)
        with pytest.raises(ModelLoadError, match=named):
            read_headers(path)
