"""A worker's settings of adapters, and the names that KV events have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.adapters.folders import parse_modules
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.model import ModelSettings
from shared.errors import ConfigError
from shared.kv.change_log import CacheChange
from shared.kv.content_log import ContentLog
from shared.kv.layout import KVGroup, KVLayout
from shared.worker.adapters import open_adapters
from shared.worker.config import WorkerConfig
from shared.worker.kv_events.cache_events import CacheEvents
from shared.worker.kv_events.events import BlockStored
from tests.fakes.engine.adapted_model import digest_of, read_fake, write_fake

if TYPE_CHECKING:
    from pathlib import Path


def config(tmp_path: Path, *, enable_lora: bool = True, **settings: Any) -> WorkerConfig:
    return WorkerConfig(
        model=ModelSettings(model=tmp_path),
        directory=("127.0.0.1:1",),
        engine=EngineConfig(enable_lora=enable_lora, max_loras=1),
        **settings,
    )


def test_adapters_of_the_settings_are_loaded_at_the_start(tmp_path: Path) -> None:
    for value in (1, 2):
        write_fake(tmp_path / f"a{value}", value)
    modules = (f"one={tmp_path}/a1", f'{{"name": "two", "path": "{tmp_path}/a2"}}')
    adapters = open_adapters(config(tmp_path, lora_modules=modules))
    store = adapters.required()
    store.attach(read_fake)
    adapters.load_modules()
    assert [(known.ref.name, known.ref.digest) for known in store.names()] == [
        ("one", digest_of(1)),
        ("two", digest_of(2)),
    ]
    store.close()


def test_one_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    adapters = open_adapters(config(tmp_path, lora_modules=(f"one={tmp_path}/none",)))
    adapters.required().attach(read_fake)
    with pytest.raises(ConfigError, match="--lora-modules: one: there is no folder"):
        adapters.load_modules()
    adapters.required().close()


@pytest.mark.parametrize("settings", [{"lora_modules": ("a=b",)}, {"lora_dir": "folder"}])
def test_settings_without_adapters_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --enable-lora"):
        config(tmp_path, enable_lora=False, **settings)


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        (("a",), "no name, or no path"),
        (("=a",), "no name, or no path"),
        (("a=b", "a=c"), "named twice"),
        (("{a",), "not JSON"),
        (('{"name": "a"}',), "must have name and path"),
        (('{"name": "a", "path": 1}',), "must have texts"),
        (('{"name": "a", "path": "b", "more": 1}',), "no other keys"),
    ],
)
def test_wrong_modules_are_refused(modules: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_modules(modules)


def test_memory_is_at_least_for_a_step() -> None:
    with pytest.raises(ConfigError, match="max_cpu_loras"):
        EngineConfig(enable_lora=True, max_loras=3, max_cpu_loras=2)


def test_events_name_the_adapter_of_blocks() -> None:
    log = ContentLog()
    base, adapted = [bytes([1]) * 32], [bytes([2]) * 32]
    log.note(base, [1, 2], first=0, block_size=2)
    log.note(adapted, [1, 2], first=0, block_size=2, adapter=digest_of(1))
    names = {digest_of(1): "sql"}
    layout = KVLayout.of(
        (KVGroup(num_layers=1, num_kv_heads=1, head_dim=4),), block_size=2, dtype="float32"
    )
    events = CacheEvents(log, layout=layout, adapter_name=names.get)
    plain, named = events.of(CacheChange(stored=(*base, *adapted)))
    assert isinstance(plain, BlockStored)
    assert plain.lora_name is None
    assert isinstance(named, BlockStored)
    assert (named.lora_name, named.group_idx, named.token_ids) == ("sql", 0, [1, 2])
