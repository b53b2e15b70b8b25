"""Compiles every Triton kernel for the GPUs we support, with no GPU, and refuses bad machine code.

`python -m kernels.compile_gate [--arch 80] [--arch 90]` prints registers, stack, spills and shared
memory of each, and exits with 1 when one does not compile, spills, uses the stack, or needs more
shared memory than a block may have. Speed and races it cannot see.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Most dynamic shared memory of one thread block.
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024}
#: What the just-in-time compiler finds out about pointers and strides: multiples of 16.
_DIVISIBLE = [["tt.divisibility", 16]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCase:
    """One kernel with the types, constants and options that it is launched with."""

    name: str
    kernel: Any
    #: Types of the arguments that are not constants, in Triton's spelling.
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: frozenset[str]
    num_warps: int
    num_stages: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one compiled kernel takes of a multiprocessor, per thread or thread block."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int

    def violations(self, arch: int) -> list[str]:
        """Which limits are broken."""
        found = []
        if self.spilled_bytes:
            found.append(f"spills {self.spilled_bytes} bytes")
        if self.stack_bytes:
            found.append(f"uses {self.stack_bytes} bytes of stack")
        if self.shared_bytes > SHARED_LIMIT_BYTES[arch]:
            limit = SHARED_LIMIT_BYTES[arch]
            found.append(f"needs {self.shared_bytes} bytes of shared memory, over {limit}")
        return found


def measure(case: GateCase, arch: int) -> Resources:
    """Compile, and ask the assembler what the code needs."""
    import triton  # noqa: PLC0415 the interpreter has to be switched off before it loads
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = case.kernel.arg_names
    source = ASTSource(
        fn=case.kernel,
        signature={n: "constexpr" if n in case.constants else case.types[n] for n in names},
        constexprs={(names.index(n),): value for n, value in case.constants.items()},
        attrs={(names.index(n),): _DIVISIBLE for n in case.aligned},
    )
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = Path(folder, "kernel.cubin"), Path(folder, "kernel.ptx")
        cubin.write_bytes(compiled.asm["cubin"])
        ptx.write_text(compiled.asm["ptx"])
        usage = _run(tools / "cuobjdump", "-res-usage", str(cubin))
        log = _assemble(tools, arch, ptx)
    return Resources(
        registers=_number(r"REG:(\d+)", usage),
        stack_bytes=_number(r"STACK:(\d+)", usage),
        spilled_bytes=_number(r"(\d+) bytes spill stores", log)
        + _number(r"(\d+) bytes spill loads", log),
        shared_bytes=compiled.metadata.shared,
    )


def run_gate(cases: Sequence[GateCase], archs: Sequence[int]) -> bool:
    """Print a line per case and architecture; True if all are well."""
    good = True
    for arch in archs:
        for case in cases:
            try:
                found = measure(case, arch)
                problems, facts = found.violations(arch), _describe(found)
            except Exception as error:  # noqa: BLE001 compilers raise anything; it is reported
                problems, facts = [f"does not compile: {error}"], ""
            good = good and not problems
            verdict = "; ".join(problems) or "ok"
            sys.stdout.write(f"sm_{arch} {case.name:44} {facts:52} {verdict}\n")
    return good


def _describe(found: Resources) -> str:
    return (
        f"registers {found.registers:3} stack {found.stack_bytes} "
        f"spilled {found.spilled_bytes} shared {found.shared_bytes}"
    )


def _assemble(tools: Path, arch: int, ptx: Path) -> str:
    """The assembler's report. The newest one reads every version of PTX, if the wheel has it."""
    target = "sm_90a" if arch == 90 else f"sm_{arch}"
    newest = tools / "ptxas-blackwell"
    ptxas = newest if newest.exists() else tools / "ptxas"
    return _run(ptxas, "-v", f"-arch={target}", str(ptx), "-o", str(ptx.with_suffix(".out")))


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"no {pattern!r} in the tool's report")
    return int(match.group(1))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", type=int, action="append", choices=sorted(SHARED_LIMIT_BYTES))
    archs = parser.parse_args().arch or sorted(SHARED_LIMIT_BYTES)
    os.environ.pop("TRITON_INTERPRET", None)
    from kernels.compile_cases import all_cases  # noqa: PLC0415 it loads Triton

    return 0 if run_gate(all_cases(), archs) else 1


if __name__ == "__main__":
    sys.exit(main())
