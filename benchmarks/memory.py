"""By how much the memory of a long run grows, with candidates and remarks of a realistic size."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from .stage import GOAL, StubModel, Target, arguments, evaluator_process, loop, verdict

WARM_UP = 100
"""Iterations of the same run before the first look: imports, caches and pools are filled by then."""
CANDIDATE_BYTES = 2_000
REMARK_BYTES = 2_000


def resident_mb() -> float:
    """Megabytes of memory that this process holds now, without what the C library keeps for later.

    That store is large after the imports, and growth would hide in it.
    """
    gc.collect()
    with suppress(AttributeError):  # only glibc has this
        ctypes.CDLL(None).malloc_trim(0)
    fields = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1_024 for line in fields if line.startswith("VmRSS:"))


async def measure(iterations: int, warm_up: int) -> list[float]:
    """Megabytes at the end of the warm-up, and after every tenth of the iterations that follow."""
    looks = {1 + warm_up + iterations * tenth // 10 for tenth in range(10)}
    marks: list[float] = []
    asked = 0

    def look(_messages: object) -> None:
        nonlocal asked
        asked += 1
        if asked in looks:
            marks.append(resident_mb())

    model = StubModel(candidate_bytes=CANDIDATE_BYTES, on_request=look)
    with evaluator_process(remark_bytes=REMARK_BYTES) as url, tempfile.TemporaryDirectory() as folder:
        async with loop(model, url, iterations + warm_up) as ready:
            result = await ready.run(GOAL, journal=Path(folder) / "journal.jsonl")
            marks.append(resident_mb())  # with all that the result holds
    assert len(result.iterations) == iterations + warm_up, result.sentence
    return marks


def main() -> int:
    """Measure, print, judge."""
    options = arguments(__doc__, iterations=1_000).parse_args()
    warm_up = min(WARM_UP, options.iterations)
    marks = asyncio.run(measure(options.iterations, warm_up))
    print(f"after {warm_up} iterations {marks[0]:.1f} MB, then after each tenth of {options.iterations} more:")
    print("  " + " ".join(f"{mark - marks[0]:+.1f}" for mark in marks[1:]))
    return verdict([Target("growth", marks[-1] - marks[0], 20, " MB")], check=options.check)


if __name__ == "__main__":
    sys.exit(main())
