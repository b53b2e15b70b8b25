"""Models by their name on the hub: what is downloaded, what is not, and what is said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.errors import CommandError
from cli.start.model_folder import resolve_model
from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.errors import ConfigError
from shared.folder.changes import FolderChanges
from shared.folder.find import change_folder
from shared.hub.model import hub_name, is_on_hub, local_model
from shared.hub.settings import HubSettings
from tests.fakes.servers.hub import COMMIT, TOKEN, Hub, running_hub

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = Path("org/small-chat")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    (folder / "original").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"):
        (folder / name).write_text(name)
    (folder / "original" / "consolidated.safetensors").write_text("not wanted")
    (folder / "picture.png").write_text("not wanted")
    for name in ("files.bin", "gguf"):
        shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "gguf" / "pytorch_model.bin").unlink()
    for kind in ("Q4_K_M", "Q8_0"):
        (tmp_path / "gguf" / f"small-{kind}.gguf").write_text(kind)
    repositories = {
        "org/small-chat": folder,
        "org/old": tmp_path / "files.bin",
        "org/many-bits": tmp_path / "gguf",
        "org/gated": folder,
    }
    with running_hub(repositories, gated=frozenset({"org/gated"})) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubSettings:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return HubSettings(download_dir=tmp_path / "cache")


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_downloaded_once(hub: Hub, settings: HubSettings) -> None:
    folder = local_model(MODEL, settings, endpoint=hub.address)
    assert names(folder) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert settings.download_dir in folder.parents
    assert (folder / "model.safetensors").read_text() == "model.safetensors"
    assert sorted(hub.downloads) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert local_model(MODEL, settings, endpoint=hub.address) == folder
    assert len(hub.downloads) == 3


def test_files_of_pytorch_come_where_there_are_no_others(hub: Hub, settings: HubSettings) -> None:
    assert "pytorch_model.bin" in names(
        local_model(Path("org/old"), settings, endpoint=hub.address)
    )


def test_a_gguf_file_is_chosen_by_its_type(hub: Hub, settings: HubSettings) -> None:
    file = local_model(Path("org/many-bits:Q4_K_M"), settings, endpoint=hub.address)
    assert (file.name, file.read_text()) == ("small-Q4_K_M.gguf", "Q4_K_M")
    assert hub.downloads == ["small-Q4_K_M.gguf"]
    with pytest.raises(ConfigError, match="no GGUF file of the type Q3_K"):
        local_model(Path("org/many-bits:Q3_K"), settings, endpoint=hub.address)
    with pytest.raises(ConfigError, match="name the type, too: org/many-bits:Q4_K_M"):
        local_model(Path("org/many-bits"), settings, endpoint=hub.address)


def test_patterns_and_a_commit(hub: Hub, settings: HubSettings) -> None:
    chosen = replace(settings, revision=COMMIT, ignore_patterns=("tokenizer*",))
    assert names(local_model(MODEL, chosen, endpoint=hub.address)) == {
        "config.json",
        "model.safetensors",
        "original/consolidated.safetensors",
    }


def test_a_tokenizer_has_a_revision_of_its_own(
    hub: Hub, settings: HubSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", hub.address)
    template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("shared.folder.changed.cache_dir", lambda: tmp_path / "made")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    of_model = replace(settings, revision="v9")
    changes = FolderChanges(tokenizer=MODEL, tokenizer_revision=COMMIT)
    made = change_folder(model, of_model, changes)
    assert (made / "tokenizer.json").read_text() == "tokenizer.json"
    with pytest.raises(ConfigError, match=r"small-chat at v8 .*there is no such revision"):
        change_folder(model, of_model, replace(changes, tokenizer_revision="v8"))


def test_a_gated_model_needs_a_token(hub: Hub, settings: HubSettings) -> None:
    with pytest.raises(ConfigError, match=r"org/gated .*its owners must let you in"):
        local_model(Path("org/gated"), settings, endpoint=hub.address)
    with_token = replace(settings, hf_token=TOKEN)
    assert names(local_model(Path("org/gated"), with_token, endpoint=hub.address))


def test_what_is_not_there_is_named(hub: Hub, settings: HubSettings) -> None:
    with pytest.raises(ConfigError, match=r"cannot download org/none .*there is no such model"):
        local_model(Path("org/none"), settings, endpoint=hub.address)
    other = replace(settings, revision="v9")
    with pytest.raises(ConfigError, match=r"small-chat at v9 .*there is no such revision"):
        local_model(MODEL, other, endpoint=hub.address)


def test_without_a_network_only_the_cache_serves(hub: Hub, settings: HubSettings) -> None:
    folder = local_model(MODEL, settings, endpoint=hub.address)
    nowhere = "http://127.0.0.1:9"
    assert local_model(MODEL, settings, endpoint=nowhere) == folder
    with pytest.raises(ConfigError, match="it is not in the cache, and the hub cannot be reached"):
        local_model(Path("org/old"), settings, endpoint=nowhere)


def test_a_folder_of_that_name_comes_first(
    tmp_path: Path, settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / MODEL).mkdir(parents=True)
    assert is_on_hub(MODEL)
    monkeypatch.chdir(tmp_path)
    assert not is_on_hub(MODEL)
    assert local_model(MODEL, settings) == MODEL


@pytest.mark.parametrize(
    "name", ["model", "./org/m", "../org/m", "/org/m", "a/b/c", "org/.m", "o:q"]
)
def test_other_words_are_files(name: str) -> None:
    assert hub_name(Path(name)) == ("org/m" if name == "./org/m" else None)


def test_a_worker_has_the_name_of_the_repository() -> None:
    words = ["--model", "org/small-chat", "--revision", "v1", "--directory", "h:1"]
    model = load_config(WorkerProgramConfig, words, prog="test", environ={}).worker.model
    assert (model.name, model.hub.revision) == ("org/small-chat", "v1")


def test_a_cluster_is_told_why_nothing_can_be_downloaded(
    settings: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        CommandError, match="cannot download org/small-chat from the hub"
    ) as refused:
        resolve_model(MODEL, None, settings)
    assert refused.value.exit_code == 2
