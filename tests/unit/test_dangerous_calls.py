"""Nothing in the tree runs what it reads: no pickle, no eval, no code of a checkpoint's.

Its code runs where an operator asks for it: `trust_remote_code` is passed on, never set.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "cli", "client", "kernels", "models", "scripts", "services", "shared")
FORBIDDEN_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def findings(source: str) -> list[str]:
    """What a module does that none may, by line."""
    return [
        f"line {node.lineno}: {what}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
        for what in _wrong(node)
    ]


def _wrong(node: ast.Import | ast.ImportFrom | ast.Call) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
    if isinstance(node, ast.ImportFrom):
        module = (node.module or "").split(".")[0]
        return [module] if module in FORBIDDEN_MODULES else []
    options = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
    name = _dotted(node.func)
    wrong = [name] if name in FORBIDDEN_CALLS else []
    wrong += [o for o in ("trust_remote_code", "allow_pickle", "shell") if options.get(o)]
    if name == "torch.load" and options.get("weights_only") is not True:
        wrong.append("torch.load without weights_only")
    if name in ("yaml.load", "os.system", "os.popen"):
        wrong.append(name)
    return wrong


def _dotted(function: ast.expr) -> str:
    """As it is written, if it is names alone: "torch.load"."""
    parts = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    parts.append(function.id if isinstance(function, ast.Name) else "")
    return ".".join(reversed(parts))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_runs_what_it_reads(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in (ROOT / folder).rglob("*.py")
        if (wrong := findings(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval(x)",
        "AutoTokenizer.from_pretrained(p, trust_remote_code=True)",
        "np.load(p, allow_pickle=True)",
        "torch.load(p)",
        "subprocess.run(c, shell=True)",
    ],
)
def test_each_of_them_is_found(source: str) -> None:
    assert findings(source)
