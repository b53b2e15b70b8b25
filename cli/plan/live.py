"""What a running router says of its load, its workers' speed and its bounds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from cli.errors import CommandError
from cli.security.access import open_http
from services.router.planning.base import Bounds, Counts, Demand
from services.router.planning.speed import Speed
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.security.access import Secure

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """One model's workers, as its router sees them."""

    model: str
    demand: Demand
    speed: Speed
    bounds: Bounds
    counts: Counts


def read_live(url: str, *, model: str, key: str, secure: Secure | None) -> LiveCluster:
    """Ask a router that plans.

    Raises:
        CommandError: it cannot be asked, or see `live_of`.
    """
    found = _ask(f"{url.rstrip('/')}/server_info", key, secure)
    return live_of(found, url, model=model)


def live_of(found: Mapping[str, Any], url: str, *, model: str) -> LiveCluster:
    """Return what `GET /server_info` says of a model.

    Raises:
        CommandError: there is no such model, or the router does not plan.
    """
    pools = found.get("pools") or []
    names = [str(name) for pool in pools for name in pool.get("names", ())]
    chosen = [pool for pool in pools if not model or model in pool.get("names", ())]
    if not chosen:
        raise CommandError(f"{url} has no model {model!r}; it serves {', '.join(names)}")
    if len(chosen) > 1:
        raise CommandError(
            f"{url} serves several models", advice=f"name one with --model: {', '.join(names)}"
        )
    plan = chosen[0].get("planner")
    if plan is None:
        raise CommandError(
            f"the router at {url} does not count what is asked of it",
            advice="start it with --planner advise, or give a trace",
        )
    if plan.get("demand") is None:
        raise CommandError(f"the router at {url} has just started: ask again in a few seconds")
    workers = [
        each
        for each in found.get("workers", ())
        if each.get("model") in (None, *chosen[0]["names"])
    ]
    roles = [each.get("preference") or each.get("role") for each in workers]
    return LiveCluster(
        model=str(chosen[0]["model"]),
        demand=msgspec.convert(plan["demand"], Demand),
        speed=msgspec.convert(plan["speed"], Speed),
        bounds=msgspec.convert(plan["bounds"], Bounds),
        counts=Counts(roles.count(Role.PREFILL.value), roles.count(Role.DECODE.value)),
    )


def _ask(url: str, key: str, secure: Secure | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--router must be a URL such as http://127.0.0.1:8000, not {url!r}")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with open_http(secure).open(request, timeout=TIMEOUT_S) as answer:
            found = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise CommandError(
                f"{url} needs an operator's key", advice="give it with --key or BATON_API_KEY"
            ) from error
        raise CommandError(f"{url} answered with status {error.code}") from error
    except (OSError, ValueError) as error:
        raise CommandError(f"{url} cannot be asked: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"{url} is no router of Baton")
    return found
