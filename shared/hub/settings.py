"""Settings of downloads. Names as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 read at run time by the settings loader

from shared.config import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """What is downloaded of a model that --model names as on the hub, and to where."""

    revision: str | None = setting(
        None, help="branch, tag or commit of a model on the hub; by default its main branch"
    )
    hf_token: str | None = setting(
        None,
        help="token for the hub; better in the environment as HF_TOKEN, where other users of this "
        "machine do not see it; by default the one that `hf auth login` has stored",
    )
    download_dir: Path | None = setting(
        None, help="folder of downloaded models; by default that of Hugging Face's tools"
    )
    ignore_patterns: tuple[str, ...] = setting(
        ("original/*",), help="files that are not downloaded, as patterns"
    )
