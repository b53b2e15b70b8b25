"""Measures the machine code of a kernel and checks it against limits.

It sees neither speed nor races.
"""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Most dynamic shared memory of one thread block.
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024}
#: The attribute of pointers and strides that are multiples of 16; Triton derives it at a launch.
DIVISIBLE = [["tt.divisibility", 16]]
#: Loads and stores of local memory, to which the assembler spills registers.
SPILL = re.compile(r"\b(?:LDL|STL)\b")
#: Patterns of machine code for `GateCase.instructions`.
WARPGROUP_PRODUCT = r"\bHGMMA\."
WIDE_LOAD = r"\b(?:LDG\.E(?:\.\w+)*\.128|LDGSTS\.E(?:\.\w+)*\.128)\b"
WIDE_STORE = r"\bSTG\.E(?:\.\w+)*\.128\b"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCase:
    """One kernel with the types, constants and options of a launch."""

    name: str
    kernel: Any
    #: Types of the arguments that are not constants, in Triton's spelling.
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    aligned: frozenset[str]
    num_warps: int
    num_stages: int = 2
    #: The architectures on which it is launched: sm_80 has no fp8e4nv, for example.
    archs: tuple[int, ...] = (80, 90)
    #: Regular expressions that the machine code of each architecture must match.
    instructions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of one compiled kernel, per thread or thread block."""

    registers: int
    stack_bytes: int
    #: Instructions that save or restore a register.
    spill_accesses: int
    shared_bytes: int
    #: Patterns of `GateCase.instructions` that the code does not match.
    missing: tuple[str, ...] = ()

    def violations(self, arch: int) -> list[str]:
        """Return a description of each broken limit."""
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
    """Compile a case for sm_`arch` and return the resources that its machine code takes.

    Raises:
        Exception: the kernel does not compile; of any type.
    """
    import triton  # noqa: PLC0415 the interpreter has to be switched off before it loads
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    names = case.kernel.arg_names
    source = ASTSource(
        fn=case.kernel,
        signature={n: "constexpr" if n in case.constants else case.types[n] for n in names},
        constexprs={(names.index(n),): value for n, value in case.constants.items()},
        attrs={(names.index(n),): DIVISIBLE for n in case.aligned},
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
        spill_accesses=len(SPILL.findall(code)),
        shared_bytes=compiled.metadata.shared,
        missing=tuple(p for p in case.instructions.get(arch, ()) if not re.search(p, code)),
    )


def measure_all(
    work: Sequence[tuple[GateCase, int]], num_jobs: int = 1
) -> Iterator[Resources | str]:
    """Yield, in order, the resources of each case, or the error if it does not compile."""
    # Kernels cannot be pickled, so the processes have to be copies of this one.
    copies = multiprocessing.get_context("fork")
    with copies.Pool(num_jobs, initializer=_adopt, initargs=(work,)) as pool:
        yield from pool.imap(_examine, range(len(work)))


def show(case: GateCase, arch: int, found: Resources | str) -> bool:
    """Print a line about a case; return whether it compiles and keeps to the limits."""
    if isinstance(found, str):
        problems, facts = [f"does not compile: {found}"], ""
    else:
        problems, facts = found.violations(arch), _describe(found)
    verdict = "; ".join(problems) or "ok"
    sys.stdout.write(f"sm_{arch} {case.name:52} {facts:58} {verdict}\n")
    sys.stdout.flush()
    return not problems


_adopted: list[tuple[GateCase, int]] = []


def _adopt(work: Sequence[tuple[GateCase, int]]) -> None:
    """Keep the work in a process of the pool, which is sent indices only."""
    _adopted[:] = work


def _examine(index: int) -> Resources | str:
    try:
        return measure(*_adopted[index])
    except Exception as error:  # noqa: BLE001 compilers raise anything; it is reported
        return str(error)


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
