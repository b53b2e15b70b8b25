"""Every program in examples/ runs, and prints what its first lines promise."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.examples.running import run_command, run_python
from tests.fakes.clients.litellm_python import litellm_python
from tests.fakes.pages.documents import ROOT, replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.processes import Cluster

EXAMPLES = ROOT / "examples"
#: What the output of each must have.
PYTHON = {
    "openai_chat.py": r"\S+.*\n.*\S+\n\d+ tokens",
    "openai_tools.py": r'get_weather \{"city": ?"(Rome|Oslo)"\}\n.*\S',
    "openai_structured.py": r"^(good|bad) [1-5]$",
    "anthropic_messages.py": r"\S+\n\d+ tokens\n.*\S",
    "langchain_chat.py": r"\S+\n.*\S+\nmood='(good|bad)'",
    "sdk_sync.py": r"computed by (prefill|decode)-0\n.*\S\n(yes|no)$",
    "sdk_async.py": r"(.* -> .*\S\n){3}left after",
}
#: For its own environment.
LITELLM = "litellm_chat.py"
SHELL = {
    "curl.sh": r'"id":"pydoc".*data: \[DONE\].*"content":"\{\\"good\\":(\\n| )*(true|false)',
    "batch.sh": r"\A(\{.*\}\n){3}\Z",
}

#: Adapters' own warnings are not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_every_program_is_tried_and_in_the_table() -> None:
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert programs == {*PYTHON, LITELLM, *SHELL}
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `.*?examples/(\w+\.\w+)`", table, re.MULTILINE)) == programs


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_program_runs(
    name: str, addresses: Mapping[str, str], reader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("langchain"):
        pytest.importorskip("langchain_openai", reason="it is in the extra `clients`")
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    run_python(replaced(text, addresses), reader)
    assert re.search(PYTHON[name], printed := capsys.readouterr().out.strip()), printed


def test_litellm_s_program_runs_in_its_own_environment(
    served: Cluster,
    addresses: Mapping[str, str],
    reader: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process goes on and asks both APIs, whole and as streams: it takes long to load."""
    python = litellm_python()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # It would wait for a list of prices from the internet.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    script = reader / LITELLM
    script.write_text(replaced((EXAMPLES / LITELLM).read_text(encoding="utf-8"), addresses))
    hello = [{"role": "user", "content": "What is a baton?"}]
    common = {"api_key": "none", "messages": hello, "temperature": 0.0, "max_tokens": 8}
    asked = [
        {"model": "openai/pydoc", "api_base": f"{served.url}/v1", **common},
        {"model": "anthropic/pydoc", "api_base": served.url, **common},
    ]
    ask = Path(__file__).with_name("ask_litellm.py")
    printed, _, told = (
        run_command([python, str(ask), str(script), json.dumps(asked)]).rstrip().rpartition("\n")
    )
    assert re.search(r"\S.*\n--\n.*\S", printed, re.DOTALL), printed
    answers = json.loads(told)
    assert len(answers) == len(asked)
    for answer in answers:
        assert answer["completion_tokens"] > 0
        assert answer["streamed"] == answer["whole"]


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_program_runs(name: str, addresses: Mapping[str, str], reader: Path) -> None:
    if name == "curl.sh" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    script = reader / name
    script.write_text(replaced((EXAMPLES / name).read_text(encoding="utf-8"), addresses))
    printed = run_command(["bash", str(script)])
    assert re.search(SHELL[name], printed, re.DOTALL), printed
    if name == "batch.sh":
        answers = [json.loads(line) for line in printed.splitlines()]
        assert {answer["response"]["status_code"] for answer in answers} == {200}
