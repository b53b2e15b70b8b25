from __future__ import annotations

import subprocess
import sys


def test_the_router_needs_no_torch() -> None:
    code = (
        "import sys, services.router.__main__;"
        "heavy = ('torch', 'transformers', 'triton', 'zmq', 'redis', 'cryptography');"
        "print([m for m in heavy if m in sys.modules])"
    )
    path = ["-c", f"import sys; sys.path[:0] = ['.', 'proto']; {code}"]
    done = subprocess.run([sys.executable, *path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
