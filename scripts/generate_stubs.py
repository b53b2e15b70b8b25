"""Generates everything that comes from proto/, or checks that what is committed is up to date.

- `proto/baton/v1/*_pb2*`: the Python stubs and their types, used by the services.
- `client/baton_client/contract.binpb`: the part of the contract that the SDK speaks, as a
  descriptor set without comments (docs/adr/0001-packaging.md says why not stubs).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("baton/v1")
CONTRACT = Path("client/baton_client/contract.binpb")
FRONT_DOOR = PACKAGE / "router.proto"
STUB_GLOBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(proto_root: Path, out: Path) -> None:
    """Write the stubs to `out`/baton/v1 and the contract to `out`/contract.binpb."""
    protos = sorted(str(path) for path in (proto_root / PACKAGE).glob("*.proto"))
    _protoc(
        proto_root,
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *protos,
    )
    raw = out / "raw.binpb"
    _protoc(
        proto_root,
        "--include_imports",
        f"--descriptor_set_out={raw}",
        str(proto_root / FRONT_DOOR),
    )
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(raw.read_bytes())
    raw.unlink()
    (out / CONTRACT.name).write_bytes(descriptors.SerializeToString(deterministic=True))


def install(generated: Path, proto_root: Path) -> None:
    """Replace what is committed by what was generated."""
    for path in _stubs(proto_root):
        path.unlink()
    for path in _stubs(generated):
        shutil.copyfile(path, proto_root / PACKAGE / path.name)
    shutil.copyfile(generated / CONTRACT.name, ROOT / CONTRACT)


def drift(generated: Path, proto_root: Path) -> list[str]:
    """Committed files that are missing, extra, or differ from what was generated."""
    fresh = {path.name: path for path in _stubs(generated)}
    committed = {path.name: path for path in _stubs(proto_root)}
    names = sorted(fresh.keys() | committed.keys())
    found = [
        str(proto_root / PACKAGE / name)
        for name in names
        if not _same(fresh.get(name), committed.get(name))
    ]
    if not _same(generated / CONTRACT.name, ROOT / CONTRACT):
        found.append(str(ROOT / CONTRACT))
    return found


def _stubs(root: Path) -> list[Path]:
    return sorted(path for glob in STUB_GLOBS for path in (root / PACKAGE).glob(glob))


def _same(left: Path | None, right: Path | None) -> bool:
    if left is None or right is None or not left.exists() or not right.exists():
        return False
    return left.read_bytes() == right.read_bytes()


def _protoc(proto_root: Path, *arguments: str) -> None:
    well_known = files("grpc_tools") / "_proto"
    command = ["protoc", f"-I{proto_root}", f"-I{well_known}", *arguments]
    if protoc.main(command) != 0:
        raise SystemExit(f"protoc failed: {' '.join(command)}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Generate the stubs from the contract.")
    parser.add_argument("proto", type=Path, help="the folder that holds baton/v1/*.proto")
    parser.add_argument("--check", action="store_true", help="change nothing; fail on drift")
    options = parser.parse_args()
    # protoc looks for the mypy plugins on the path; they lie beside this interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder)
        generate(options.proto, generated)
        if not options.check:
            install(generated, options.proto)
            return 0
        stale = drift(generated, options.proto)
    for name in stale:
        print(f"{name} does not match the contract; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
