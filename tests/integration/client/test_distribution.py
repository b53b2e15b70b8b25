"""The wheel: what is in it, and that its README's examples run where nothing else is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.fakes.scripted.router import WORDS
from tests.fakes.scripted.router_process import router_process

ROOT = Path(__file__).resolve().parents[3]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
#: What `grpcio` and `protobuf` install; the environment of the test has these and no more.
DEPENDENCIES = ("grpc", "google", "typing_extensions.py")


def run(*command: str | Path, **kwargs: object) -> str:
    result = subprocess.run(  # type: ignore[call-overload]  # options of any type
        [str(part) for part in command], capture_output=True, text=True, check=False, **kwargs
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Building writes into the source folder: build a copy.
    source = folder / "client"
    shutil.copytree(ROOT / "client", source, ignore=shutil.ignore_patterns("__pycache__", "build"))
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index")
    run(*pip, "--wheel-dir", folder, source)
    [built] = folder.glob("baton_client-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, grpcio and protobuf."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    executable = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", executable, "install", "--no-index")
    run(*pip, "--no-deps", wheel)
    site = run(executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    for name in DEPENDENCIES:
        (Path(site.strip()) / name).symlink_to(SITE_PACKAGES / name)
    return executable


def test_the_wheel_claims_one_top_level_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"baton_client"}


def test_the_wheel_carries_the_contract_and_its_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"baton_client/contract.binpb", "baton_client/py.typed"} <= set(names)


def test_the_examples_of_the_readme_run(python: Path, tmp_path: Path) -> None:
    readme = (ROOT / "client" / "README.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with router_process() as address:
        for example in examples:
            assert "127.0.0.1:50051" in example
            script = tmp_path / "example.py"
            script.write_text(example.replace("127.0.0.1:50051", address))
            printed = run(python, "-W", "error", script, cwd=tmp_path, env=environ)
            assert "".join(WORDS) in printed
