"""The distribution in a folder of its own, used from another one that has files of our names.

It is installed from the source distribution, so that both are tested by one build.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cli.places import ROOT, SHIPPED_MODEL
from scripts.wheel.layout import MOVED, source_files
from shared.offline.llm import LLM
from shared.offline.records.sampling_params import SamplingParams
from shared.version import VERSION
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 90.0
NUM_TOKENS = 16
#: Long enough for several blocks.
PROMPT = "What does os.path.join do? " * 8
#: Modules of the user's own that stand in the way of ours, and of what our processes import.
USERS_OWN = ("shared", "services", "kernels", "cli", "models")
IN_THE_WAY = (*USERS_OWN, "baton_client", "msgspec", "numpy")
PROGRAM = """
import json, multiprocessing, sys

import cli, kernels, models, services, shared
from baton import SamplingParams

assert all(m.__file__.startswith(sys.argv[3]) for m in (cli, kernels, models, services, shared))


def returned(params):
    return params


if __name__ == "__main__":
    from baton import AsyncLLM, EngineArgs, LLM, LLMEngine
    import baton

    params = SamplingParams(temperature=0, max_tokens=int(sys.argv[2]), ignore_eos=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(returned, (params,)) == params
    with open(sys.argv[1], encoding="utf-8") as file:
        wish = json.load(file)
    llm = LLM(wish["model"], num_gpu_blocks_override=64)
    [answer] = llm.generate([wish["prompt"]], params, use_tqdm=False)
    llm.close()
    ours = [name for name in sys.modules if name.startswith(("shared.", "services.", "kernels."))]
    print(json.dumps([answer.outputs[0].token_ids, baton.__file__, baton.__version__, ours]))
"""


def run(*command: str | Path, **kwargs: Any) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **kwargs,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = "import sys; from scripts.wheel.backend import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, folder, cwd=ROOT)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def site(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    )
    run(*pip, "--no-compile", "--target", folder, sdist, env=environ())
    return folder


def environ(site: Path | None = None) -> dict[str, str]:
    """Return an environment in which the repository is out of sight."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return others if site is None else {**others, "PYTHONPATH": str(site)}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which modules of many names end their importer."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in IN_THE_WAY:
        (folder / f"{name}.py").write_text(f"raise SystemExit('imported {name} of the user')\n")
    return folder


@pytest.fixture(scope="module")
def url(site: Path, hostile: Path) -> Iterator[str]:
    """`baton serve` with a prefill and a decode worker; its end is clean."""
    port, grpc_port = free_port(), free_port()
    flags = ("--prefill", "1", "--port", str(port), "--grpc-port", str(grpc_port))
    flags += ("--placement", "disaggregated")
    engine = ("--num-blocks", "64", "--structured-outputs-backend", "guidance")
    process = subprocess.Popen(
        [site / "bin" / "baton", "serve", *flags, *engine, "--decode.local-prefill-threshold", "0"],
        env=environ(site),
        cwd=hostile,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        try:
            seen = []
            for line in lines:
                seen.append(line)
                if "Ctrl-C" in line:
                    break
            else:
                raise AssertionError("".join(seen))
            yield f"http://127.0.0.1:{port}/v1/completions"
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(TIMEOUT_S)
    assert code == 0


@pytest.fixture(scope="module")
def expected() -> tuple[list[int], str]:
    """The repository's own answer: tokens and text."""
    llm = LLM(SHIPPED_MODEL, num_gpu_blocks_override=64)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    [answer] = llm.generate([PROMPT], params, use_tqdm=False)
    llm.close()
    return list(answer.outputs[0].token_ids), answer.outputs[0].text


def test_the_source_distribution_has_what_a_wheel_is_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        for path in source_files(ROOT):
            name = f"baton-{VERSION}/{path.relative_to(ROOT).as_posix()}"
            file = archive.extractfile(name)
            assert file is not None
            assert file.read() == path.read_bytes(), name


def test_it_claims_one_top_level_name(site: Path) -> None:
    assert {path.name for path in site.iterdir()} == {"baton", f"baton-{VERSION}.dist-info", "bin"}


@pytest.fixture(scope="module")
def names(site: Path) -> list[tuple[str, str]]:
    """Every name of a module in the package: file and line, and the name."""
    package = site / "baton"
    # Strings of the command are completed by `cli.places.module_name`.
    return [
        (f"{path.relative_to(site)}:{line}", name)
        for path in sorted(package.rglob("*.py"))
        for line, name in named(path, package, strings=path.parts[len(package.parts)] != "cli")
    ]


def test_nothing_names_a_top_level_module_of_the_repository(names: list[tuple[str, str]]) -> None:
    assert [found for found in names if found[1].partition(".")[0] in MOVED] == []


def test_the_package_has_every_module_that_it_imports(
    site: Path, names: list[tuple[str, str]]
) -> None:
    ours = [found for found in names if found[1].startswith("baton.")]
    assert len(ours) > 1000
    assert [found for found in ours if not is_module(found[1], site)] == []


def named(path: Path, package: Path, *, strings: bool) -> Iterator[tuple[int, str]]:
    """Yield the modules that a file imports, and strings that name a module or begin such a name.

    As to strings, below the package: elsewhere a word with dots means something else.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif strings and isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if re.fullmatch(r"\w+(\.\w+)*\.", name) or is_module(name, package):
                yield node.lineno, name


def is_module(name: str, package: Path) -> bool:
    if not re.fullmatch(r"\w+(\.\w+)+", name):
        return False
    place = package.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_the_command_says_its_version(site: Path, hostile: Path) -> None:
    printed = run(site / "bin" / "baton", "--version", env=environ(site), cwd=hostile)
    assert printed == f"baton {VERSION}\n"


def test_a_program_beside_modules_of_our_names_gets_the_same_tokens(
    site: Path, tmp_path: Path, expected: tuple[list[int], str]
) -> None:
    for name in USERS_OWN:
        (tmp_path / f"{name}.py").touch()
    program, wish = tmp_path / "program.py", tmp_path / "wish.json"
    program.write_text(PROGRAM)
    model = site / "baton" / "models" / "pydoc" / "checkpoint"
    wish.write_text(json.dumps({"model": str(model), "prompt": PROMPT}))
    printed = run(sys.executable, program, wish, str(NUM_TOKENS), tmp_path, env=environ(site))
    tokens, file, version, ours = json.loads(printed.splitlines()[-1])
    assert tokens == expected[0]
    assert (file, version, ours) == (str(site / "baton" / "__init__.py"), VERSION, [])


def test_two_workers_answer_over_http(url: str, expected: tuple[list[int], str]) -> None:
    body = {"model": "pydoc", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    answer = httpx.post(url, json=body | {"ignore_eos": True}, timeout=TIMEOUT_S).json()
    assert answer["choices"][0]["text"] == expected[1]
    assert answer["timings"]["prefill_worker"] == "prefill-0"


def test_grammars_get_their_process(url: str) -> None:
    wish = {"structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 8}
    body = {"model": "pydoc", "prompt": "Is it?", **wish}
    answer = httpx.post(url, json=body, timeout=TIMEOUT_S).json()
    assert answer["choices"][0]["text"] in ("yes", "no")


def test_nothing_is_written_beside_the_code(site: Path, url: str) -> None:
    """The environment may belong to another user."""
    with (site / f"baton-{VERSION}.dist-info" / "RECORD").open(encoding="utf-8") as file:
        recorded = {line.partition(",")[0] for line in file}
    there = {path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    names = {path.relative_to(site).as_posix() for path in there}
    assert {name for name in names if name.startswith("baton/")} <= recorded
