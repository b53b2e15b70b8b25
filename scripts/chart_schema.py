"""Writes the services' settings into the chart's schema, so that unknown names are refused.

`settings` of the chart become variables, and a service passes over variables that it does not know:
other services share the prefix. `--check` fails instead of writing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
import typing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.router.config import RouterConfig
from services.worker.config import WorkerProgramConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = Path(__file__).resolve().parents[1] / "helm" / "values.schema.json"
CONFIGS = {
    "routerSettings": RouterConfig,
    "prefillSettings": WorkerProgramConfig,
    "decodeSettings": WorkerProgramConfig,
}
#: What the chart itself says, from other values.
OWN = frozenset(
    {
        "advertise_host", "advertise_port", "advertise_transfer_port", "api_keys", "client_keys",
        "cluster_token", "default_model", "directory", "drain_grace_s", "grpc_port", "host",
        "https_ca", "https_cert", "https_client_certs", "https_key", "insecure_bind",
        "distributed_executor_backend", "log_format", "master_addr", "master_port",
        "metrics_port", "model", "model_generation", "models", "name",
        "node_patience_s", "node_rank", "own_grpc_port", "own_port", "port", "redis_password_file", "redis_url", "runtime_dir",
        "served_model_name",
        "share_ports", "tls_ca", "tls_cert", "tls_client_certs", "tls_key", "tls_server_name",
        "transfer_port",
    }
)  # fmt: skip
_TYPES = {bool: "boolean", int: "integer", float: "number"}


def settings_schema(cls: type[Any]) -> dict[str, Any]:
    """The object that `settings` of a service may be."""
    properties = {
        name: {**type_schema(hint), "description": text}
        for name, hint, text in sorted(_leaves(cls))
        if name not in OWN
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def type_schema(hint: Any) -> dict[str, Any]:
    """What YAML may say for a field of this type. None is said by leaving it out."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        [inner] = [each for each in typing.get_args(hint) if each is not type(None)]
        return type_schema(inner)
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if origin is tuple:
        return {"type": ["string", "array"], "items": type_schema(typing.get_args(hint)[0])}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return {"type": _TYPES.get(hint, "string")}


def _leaves(cls: type[Any]) -> Iterator[tuple[str, Any, str]]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _leaves(hints[field.name])
        else:
            yield field.name, hints[field.name], field.metadata.get("help", "")


def main() -> int:
    """Exit code 1 if the file is not as it should be and `--check` was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = SCHEMA.read_text()
    schema = json.loads(text)
    for name, config in CONFIGS.items():
        schema["definitions"][name] = settings_schema(config)
    wanted = json.dumps(schema, indent=2) + "\n"
    if check and text != wanted:
        print(f"{SCHEMA.name} is not what the settings say: run make chart", file=sys.stderr)
        return 1
    if not check:
        SCHEMA.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
