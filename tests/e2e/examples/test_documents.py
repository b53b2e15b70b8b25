"""Every program in a document that shows how to ask does what it says."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import grpc
import pytest

from cli.security.certs import make_certificates
from shared.rpc.tls.identity import PeerRole
from tests.e2e.examples.running import run_python, run_shell
from tests.fakes.pages.documents import Block, blocks
from tests.fakes.scripted.router import MODEL, ScriptedRouter, serve

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: `client/README.md` is run elsewhere as well, where nothing but the SDK is installed.
DOCUMENTS = (
    "README.md", "client/README.md", "docs/sdk.md",
    "docs/tools.md", "docs/structured-output.md", "docs/batch.md",
)  # fmt: skip
#: Blocks in other languages than these are not for running: settings, answers, diagrams.
BLOCKS = [
    block for path in DOCUMENTS for block in blocks(path) if block.language in ("python", "bash")
]
SECURE = "ca.crt"

#: OpenAI's client closes nothing unless it is asked to, and examples may leave that to Python.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def name_of(block: Block) -> str:
    return f"{block.path}-{block.line}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if SECURE not in b.text], ids=name_of)
def test_a_block_runs(
    block: Block, addresses: Mapping[str, str], reader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = block.asking(addresses)
    assert text != block.text, "it asks nobody"
    if block.language == "python":
        run_python(text, reader)
        assert capsys.readouterr().out.strip()
    elif "curl" in text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    else:
        run_shell(text)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_what_looks_like_a_program_is_marked_as_one(path: str) -> None:
    unmarked = [b for b in blocks(path) if b.language not in ("python", "bash", "mermaid")]
    assert not [b for b in unmarked if "import " in b.text or "curl " in b.text]
    assert any(block.path == path for block in BLOCKS)


async def test_the_block_about_tls_shows_its_key_over_tls(
    reader: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = [block for block in BLOCKS if SECURE in block.text]
    certificates = make_certificates(reader / "certs")
    shutil.copy(certificates.ca, reader / SECURE)
    key, cert = (certificates.key(PeerRole.ROUTER), certificates.cert(PeerRole.ROUTER))
    router = ScriptedRouter()
    server, port = await serve(
        router,
        "127.0.0.1:0",
        credentials=grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())]),
    )
    try:
        text = block.asking({"127.0.0.1:50051": f"127.0.0.1:{port}"})
        await asyncio.to_thread(run_python, text, reader)
    finally:
        await server.stop(None)
    assert MODEL in capsys.readouterr().out
    assert [call["authorization"] for call in router.metadata] == ["Bearer bt-my-key"]
