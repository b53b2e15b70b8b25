"""Our top-level names get in nobody's way, and the router starts without torch."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> None:
    """Run `code` in a fresh interpreter with the repository first on its path."""
    path = [str(ROOT), str(ROOT / "proto"), str(ROOT / "client")]
    prologue = f"import sys; sys.path[:0] = {path!r}\n"
    result = subprocess.run(
        [sys.executable, "-P", "-c", prologue + code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", ["kernels", "services", "shared", "cli"])
def test_package_markers_hold_a_docstring_and_nothing_else(package: str) -> None:
    module = ast.parse((ROOT / package / "__init__.py").read_text())
    assert ast.get_docstring(module)
    assert len(module.body) == 1


def test_proto_is_a_path_root_with_one_package() -> None:
    # It names the classes of the engine in a program; see docs/adr/0001-packaging.md.
    package = ROOT / "proto" / "baton"
    found = set((ROOT / "proto").rglob("__init__.py"))
    folders = (package, package / "engine", package / "lora", package / "utils")
    assert found == {folder / "__init__.py" for folder in folders}


def test_transformers_is_not_confused_by_our_kernels_folder() -> None:
    run("import transformers; from transformers.utils import import_utils")


def test_the_other_package_called_kernels_is_not_installed() -> None:
    spec = importlib.util.find_spec("kernels")
    assert spec is not None
    assert spec.origin == str(ROOT / "kernels" / "__init__.py")


def test_the_router_imports_no_torch() -> None:
    """And a router without Redis and TLS none of their libraries, and searches for no garbage."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "services" / "router").rglob("*.py")
        if path.name != "__main__.py"
    ]
    run(
        "import gc, importlib, services.router.__main__\n"
        "assert gc.isenabled()\n"
        "num_searches = sum(each['collections'] for each in gc.get_stats())\n"
        "assert num_searches < 50, num_searches\n"
        "heavy = {'torch', 'transformers', 'triton'}\n"
        "found = {*heavy, 'zmq', 'redis', 'cryptography'} & sys.modules.keys()\n"
        "assert not found, found\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "found = heavy & sys.modules.keys()\n"
        "assert not found, found"
    )


def test_the_command_line_starts_light() -> None:
    run(
        "import cli.__main__\n"
        "heavy = {'torch', 'grpc', 'httpx', 'transformers'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )


def test_doctor_does_without_what_only_workers_need() -> None:
    """The router's image has the extra `router` alone, and the documents ask for doctor there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {extra: {re.split(r"[^\w-]", each)[0] for each in extras[extra]} for extra in extras}
    missing = names["worker"] - names["router"] | {"transformers", "zmq"}
    folder = ROOT / "models" / "pydoc" / "checkpoint"
    run(
        f"for name in {sorted(missing)!r}: sys.modules[name.replace('-', '_')] = None\n"
        "from pathlib import Path\n"
        "from cli.doctor.command import check_model\n"
        f"found = str([*check_model(Path({str(folder)!r}))])\n"
        "assert 'read by workers only' in found, found"
    )


def test_settings_and_what_checks_them_and_a_checkpoint_import_no_torch() -> None:
    modules = (
        "services.worker.config",
        "shared.model.checks",
        "shared.worker.checks",
    )
    folder = ROOT / "models" / "pydoc" / "checkpoint"
    run(
        "import importlib\nfrom pathlib import Path\n"
        "def check(what):\n"
        "    found = {'torch', 'triton', 'transformers'} & sys.modules.keys()\n"
        "    assert not found, (what, found)\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    check(name)\n"
        "from shared.model.checks import check_model\n"
        f"check_model(Path({str(folder)!r}))\n"
        "check('check_model')"
    )


def test_tensors_of_checkpoints_are_named_by_families_only() -> None:
    """A new family is then one file, whatever reads weights.

    GGUF files have names of their own, which are translated in one place.
    """
    folders = [ROOT / name for name in ("shared", "services", "cli", "kernels")]
    naming = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in folder.rglob("*.py")
        if any(name in path.read_text("utf-8") for name in ("model.layers.", "self_attn", "_proj."))
    }
    assert naming
    translating = {
        f"shared/gguf/{name}.py" for name in ("architecture", "architectures", "tensors")
    }
    assert all(path.startswith("shared/model/families/") for path in naming - translating)
