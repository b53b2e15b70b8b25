"""The compile gate as a command.

It prints registers, stack, accesses of spilled registers and shared memory of each kernel. It exits
with 1 if a kernel does not compile, spills, uses the stack, needs more shared memory than a block
may have, or lacks the instructions that make it fast (tensor cores, 128-bit accesses). Cases that
record.tsv holds are not compiled again.
"""

from __future__ import annotations

import argparse
import os
import random
import sys


def main() -> int:
    """Run the gate; return the exit status."""
    arguments = _parse()
    os.environ.pop("TRITON_INTERPRET", None)
    from kernels.compile_cases import all_cases  # noqa: PLC0415 it loads Triton
    from kernels.compile_gate.gate import measure_all, show  # noqa: PLC0415
    from kernels.compile_gate.record import Record  # noqa: PLC0415

    record, cases = Record(), all_cases()
    work = [(case, arch) for case in cases if arguments.only in case.name for arch in case.archs]
    recorded = [(each, None if arguments.all else record.find(*each)) for each in work]
    known = [(each, found) for each, found in recorded if found is not None]
    good = True
    for each, found in known:
        good = show(*each, found) and good
    left = [each for each, found in recorded if found is None]
    for (case, arch), measured in zip(left, measure_all(left, arguments.jobs), strict=True):
        if show(case, arch, measured) and not isinstance(measured, str):
            record.note(case, arch, measured)
        else:
            good = False
    sample = random.sample(known, min(arguments.sample, len(known)))
    again = measure_all([each for each, _ in sample], arguments.jobs)
    for ((case, arch), found), now in zip(sample, again, strict=True):
        if now != found:
            sys.stdout.write(f"sm_{arch} {case.name}: it is {now}, but recorded as {found}\n")
            good = False
    if arguments.write:
        record.write({case.name for case in cases})
    elif left:
        sys.stdout.write(
            f"{len(left)} are not recorded: `python -m kernels.compile_gate --write`\n"
        )
    return 0 if good else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.compile_gate", description=__doc__)
    parser.add_argument("--only", default="", help="the cases whose names contain this")
    parser.add_argument("--all", action="store_true", help="compile what is recorded too")
    parser.add_argument("--sample", type=int, default=0, help="check so many recorded cases")
    parser.add_argument("--write", action="store_true", help="record what passes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
