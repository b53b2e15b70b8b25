"""Compiles every Triton kernel for the GPUs we support, with no GPU, and refuses bad machine code.

`python -m kernels.compile_gate [--arch 80] [--arch 90] [--only TEXT] [--jobs N]` prints registers,
stack, accesses of spilled registers and shared memory of each, and exits with 1 when one does not
compile, spills, uses the stack, needs more shared memory than a block may have, or lacks the
instructions that make it fast (tensor cores, 128-bit accesses). Speed and races it cannot see.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.gate_cache import GateCache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Most dynamic shared memory of one thread block.
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024}
#: What the just-in-time compiler finds out about pointers and strides: multiples of 16.
_DIVISIBLE = [["tt.divisibility", 16]]
#: Loads and stores of local memory, where the assembler keeps registers that it has not got.
_SPILL = re.compile(r"\b(?:LDL|STL)\b")
#: For `GateCase.instructions`, in the machine code's spelling.
WARPGROUP_PRODUCT = r"\bHGMMA\."
WIDE_LOAD = r"\b(?:LDG\.E(?:\.\w+)*\.128|LDGSTS\.E(?:\.\w+)*\.128)\b"
WIDE_STORE = r"\bSTG\.E(?:\.\w+)*\.128\b"


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
    #: Where it is launched: sm_80 has no fp8e4nv, for example.
    archs: tuple[int, ...] = (80, 90)
    #: Regular expressions that the machine code of each architecture must match.
    instructions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one compiled kernel takes of a multiprocessor, per thread or thread block."""

    registers: int
    stack_bytes: int
    #: Instructions that save or restore a register.
    spill_accesses: int
    shared_bytes: int
    #: Of `GateCase.instructions`, what the code lacks.
    missing: tuple[str, ...] = ()

    def violations(self, arch: int) -> list[str]:
        """Which limits are broken."""
        found = []
        if self.spill_accesses:
            found.append(f"spills: {self.spill_accesses} accesses")
        if self.stack_bytes:
            found.append(f"uses {self.stack_bytes} bytes of stack")
        if self.shared_bytes > SHARED_LIMIT_BYTES[arch]:
            limit = SHARED_LIMIT_BYTES[arch]
            found.append(f"needs {self.shared_bytes} bytes of shared memory, over {limit}")
        found += [f"has no instruction like {pattern}" for pattern in self.missing]
        return found


def measure(case: GateCase, arch: int) -> Resources:
    """Compile, and read the machine code."""
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
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        code = _run(cuobjdump, "-res-usage", "-sass", str(cubin))
    return Resources(
        registers=_number(r"REG:(\d+)", code),
        stack_bytes=_number(r"STACK:(\d+)", code),
        spill_accesses=len(_SPILL.findall(code)),
        shared_bytes=compiled.metadata.shared,
        missing=tuple(p for p in case.instructions.get(arch, ()) if not re.search(p, code)),
    )


def run_gate(
    cases: Sequence[GateCase],
    archs: Sequence[int],
    num_jobs: int = 1,
    cache: GateCache | None = None,
) -> bool:
    """Print a line per case and architecture; True if all are well.

    Cases that `cache` knows are not compiled; those that pass are added to it one by one.
    """
    passed = {} if cache is None else cache.read()
    work = [
        (index, arch) for arch in archs for index, case in enumerate(cases) if arch in case.archs
    ]
    known = [(index, arch) for index, arch in work if (arch, cases[index].name) in passed]
    for index, arch in known:
        sys.stdout.write(passed[arch, cases[index].name] + "\n")
    left = [each for each in work if each not in known]
    good = True
    # Kernels cannot be pickled, so the processes have to be copies of this one.
    copies = multiprocessing.get_context("fork")
    with copies.Pool(num_jobs, initializer=_adopt, initargs=(cases,)) as pool:
        for (index, arch), (line, is_good) in zip(left, pool.imap(_examine, left), strict=True):
            good = good and is_good
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            if is_good and cache is not None:
                passed[arch, cases[index].name] = line
                cache.write(passed)
    return good


_adopted: list[GateCase] = []


def _adopt(cases: Sequence[GateCase]) -> None:
    """In a process of the pool: what the numbers that it gets stand for."""
    _adopted[:] = cases


def _examine(work: tuple[int, int]) -> tuple[str, bool]:
    index, arch = work
    case = _adopted[index]
    try:
        found = measure(case, arch)
        problems, facts = found.violations(arch), _describe(found)
    except Exception as error:  # noqa: BLE001 compilers raise anything; it is reported
        problems, facts = [f"does not compile: {error}"], ""
    verdict = "; ".join(problems) or "ok"
    return f"sm_{arch} {case.name:52} {facts:58} {verdict}", not problems


def _describe(found: Resources) -> str:
    return (
        f"registers {found.registers:3} stack {found.stack_bytes} "
        f"spills {found.spill_accesses} shared {found.shared_bytes}"
    )


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
    parser.add_argument("--only", default="", help="compile the cases whose names contain this")
    parser.add_argument("--no-cache", action="store_true", help="compile what has passed too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    from kernels.compile_cases import all_cases  # noqa: PLC0415 it loads Triton

    cases = [case for case in all_cases() if arguments.only in case.name]
    archs = arguments.arch or sorted(SHARED_LIMIT_BYTES)
    cache = None if arguments.no_cache else GateCache.of_this_tree()
    return 0 if run_gate(cases, archs, arguments.jobs, cache) else 1


if __name__ == "__main__":
    sys.exit(main())
