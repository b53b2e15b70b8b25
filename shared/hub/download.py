"""Downloads from Hugging Face's hub.

The cache is that of `huggingface_hub`, and so is the environment: HF_HOME, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from huggingface_hub import HfApi, errors

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.hub.settings import HubSettings


def downloader(
    repo: str, settings: HubSettings, endpoint: str | None
) -> Callable[[list[str]], Path]:
    """Return a function that downloads the files of some patterns and returns their folder.

    The function raises `ConfigError` with the reason and what to do.
    """
    api = HfApi(endpoint=endpoint, token=settings.hf_token)

    def download(patterns: list[str]) -> Path:
        try:
            return Path(
                api.snapshot_download(
                    repo,
                    revision=settings.revision,
                    cache_dir=settings.download_dir,
                    allow_patterns=patterns,
                    ignore_patterns=list(settings.ignore_patterns),
                )
            )
        # The library's own errors are of one of these kinds.
        except (OSError, ValueError, httpx.HTTPError) as error:
            raise _explained(error, repo, settings) from error

    return download


def _explained(error: Exception, repo: str, settings: HubSettings) -> ConfigError:
    at = f" at {settings.revision}" if settings.revision else ""
    if isinstance(error, errors.GatedRepoError):
        reason = "its owners must let you in, and HF_TOKEN (or --hf-token) must name you"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = "there is no such revision"
    elif isinstance(error, errors.RepositoryNotFoundError):
        reason = "there is no such model, or it needs HF_TOKEN (or --hf-token)"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        reason = "the disk is full; --download-dir names another"
    elif isinstance(error, errors.LocalEntryNotFoundError):
        reason = (
            "it is not in the cache, and the hub cannot be reached (or HF_HUB_OFFLINE is set); "
            "copy the model's folder here and name that"
        )
    else:
        reason = str(error).strip() or type(error).__name__
    return ConfigError(f"cannot download {repo}{at} from the hub: {reason}")
