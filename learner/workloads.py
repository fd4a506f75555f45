"""Kernels to sweep on the CPU: drawn by seed, read from a file, and the benchmark's own."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.kernels import ReductionKernel
from tileguard.features.pow2 import is_pow2
from tileguard.runtime.devices.cpu import CPU_DTYPES, OPS, PROGRAM_OPS, cpu_kernel

NUMEL_LOG2 = (12.0, 22.0)
"""Range of log2 of the element count of drawn kernels: 4 Ki to 4 Mi, where a whole lattice is swept in seconds."""

OP_SETS = {"passes": tuple(OPS), "programs": tuple(PROGRAM_OPS), "all": (*OPS, *PROGRAM_OPS)}
"""Operations to draw from, by name: those written as passes, as tile programs, or both."""

MIN_AXIS = 4
"""Least rnumel, and least xnumel where x is the contiguous axis: below it there is no choice of tiles to learn."""

LEAST_LOG2 = 2 * math.log2(MIN_AXIS)
"""Below it an axis would have no choice."""

MOST_DUPLICATES = 1000
"""Draws in a row that may bring a kernel that is there already: a range has so many shapes and no more."""

FILE_FIELDS = ("op", "xnumel", "rnumel", "dtype", "inner")


@dataclass(frozen=True, slots=True)
class Workload:
    """A kernel to sweep, its name (unique in a corpus) and its family, the unit of every split."""

    kernel: ReductionKernel
    workload: str
    family: str

    def __post_init__(self) -> None:
        for field in ("workload", "family"):
            if not getattr(self, field):
                raise InvalidInput(field, getattr(self, field), "a name")


def cpu_workload(op: str, xnumel: int, rnumel: int, dtype: str, *, inner: bool = True) -> Workload:
    """The workload `op:XxR:dtype`, `:outer` where the reduced axis is not the contiguous one.

    Its family is the operation, a tile program's that of what it computes: one must not be judged by the other.
    Raises InvalidInput naming the field (op, xnumel, rnumel, dtype).
    """
    kernel = cpu_kernel(op, xnumel, rnumel, dtype, inner=inner)
    name = f"{op}:{kernel.xnumel}x{kernel.rnumel}:{kernel.dtype}{'' if inner else ':outer'}"
    family = op.removeprefix("tile_").removesuffix("_left").removesuffix("_right") if op in PROGRAM_OPS else op
    return Workload(kernel, name, family)


def cpu_workloads(
    count: int, seed: int, *, ops: Sequence[str] = tuple(OPS), min_log2: float = NUMEL_LOG2[0]
) -> tuple[Workload, ...]:
    """`count` distinct workloads, the same for the same seed; those of a smaller count are their beginning.

    The operations take turns; each goes through all dtypes and layouts, with ragged sizes (one axis or both no power of
    two) and without, before it repeats one. Element counts and aspect ratios are log-uniform. ops: to draw from,
    those of passes where left out; PROGRAM_OPS are the others. min_log2: of the element counts, at least.
    """
    count = checked_int("count", count, minimum=1)
    if not LEAST_LOG2 <= min_log2 < NUMEL_LOG2[1]:
        raise InvalidInput("min_log2", min_log2, f"{LEAST_LOG2:g} to below {NUMEL_LOG2[1]:g}")
    draw = random.Random(checked_int("seed", seed, minimum=0))
    variants = [(dtype, inner, ragged) for dtype in CPU_DTYPES for inner in (True, False) for ragged in (True, False)]
    decks = {op: draw.sample(variants, len(variants)) for op in ops}
    names = list(ops)
    drawn: dict[str, Workload] = {}
    failed = 0
    while len(drawn) < count:
        if failed > MOST_DUPLICATES:
            raise InvalidInput("count", count, f"fewer: no {len(drawn) + 1} different kernels are found in this range")
        turn, position = divmod(len(drawn), len(names))
        op = names[position]
        dtype, inner, ragged = decks[op][turn % len(variants)]
        xnumel, rnumel = _shape(draw, min_log2, ragged=ragged, min_x=1 if inner else MIN_AXIS)
        one = cpu_workload(op, xnumel, rnumel, dtype, inner=inner)
        failed = failed + 1 if one.workload in drawn else 0
        drawn.setdefault(one.workload, one)
    return tuple(drawn.values())


def parse_workloads(path: str | Path) -> tuple[Workload, ...]:
    """Workloads from a JSON file: a list of {"op", "xnumel", "rnumel", "dtype", "inner"}, `inner` true if left out.

    Raises InvalidInput naming the file, or the entry (0 is the first) and its field.
    """
    path = Path(path)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput("workloads", str(path), f"a readable file ({error.strerror})") from None
    except ValueError as error:
        raise InvalidInput("workloads", str(path), f"a JSON file ({error})") from None
    if not isinstance(entries, list) or not entries:
        raise InvalidInput("workloads", str(path), "a JSON list of one workload or more")
    parsed = tuple(_entry(f"workloads[{index}]", entry) for index, entry in enumerate(entries))
    check_distinct(parsed)
    return parsed


def check_distinct(workloads: tuple[Workload, ...]) -> None:
    """Raises InvalidInput where a name occurs twice."""
    seen: dict[str, int] = {}
    for index, one in enumerate(workloads):
        if seen.setdefault(one.workload, index) != index:
            raise InvalidInput(
                f"workloads[{index}]", one.workload, f"another name than workloads[{seen[one.workload]}]"
            )


BENCH_KERNELS: tuple[Workload, ...] = (
    cpu_workload("sum", 512, 1024, "fp32"),
    cpu_workload("sum", 4096, 1000, "fp16", inner=False),
    cpu_workload("max", 1, 1_000_000, "fp64"),
    cpu_workload("max", 37, 20_011, "bf16"),
    cpu_workload("meanvar", 1000, 333, "fp64"),
    cpu_workload("rmsnorm", 256, 4096, "bf16"),
    cpu_workload("rmsnorm", 511, 1025, "fp32", inner=False),
    cpu_workload("softmax", 64, 1000, "fp32"),
    cpu_workload("masked_softmax", 128, 512, "fp16"),
    cpu_workload("layernorm", 300, 768, "fp32"),
    cpu_workload("add_sum", 2048, 255, "fp32", inner=False),
    cpu_workload("swiglu", 300, 777, "bf16"),
)
"""The benchmark's twelve: all operations and dtypes, both layouts, seven of them ragged, 64 Ki to 4 Mi elements."""

REPORT_KERNELS: tuple[Workload, ...] = (
    cpu_workload("tile_rmsnorm", 17, 7, "fp32"),
    cpu_workload("tile_rmsnorm", 17, 127, "fp32"),
    cpu_workload("tile_rmsnorm", 64, 256, "fp32"),
    cpu_workload("tile_rmsnorm", 1024, 256, "fp32"),
    cpu_workload("tile_rmsnorm", 64, 513, "fp32"),
    cpu_workload("tile_layernorm", 64, 256, "fp32"),
    cpu_workload("tile_masked_softmax", 17, 65, "fp32"),
    cpu_workload("tile_swiglu", 17, 65, "fp32"),
)
"""The Tile→XIR report's seven reductions and its control, which extracts nothing (§2)."""


def _shape(draw: random.Random, min_log2: float, *, ragged: bool, min_x: int) -> tuple[int, int]:
    log_numel = draw.uniform(min_log2, NUMEL_LOG2[1])
    log_x = draw.uniform(math.log2(min_x), log_numel - math.log2(MIN_AXIS))
    axes = [2 ** round(log_x), 2 ** round(log_numel - log_x)]
    if ragged:
        # Where a ragged axis comes out as a power of two it moves to the next odd number.
        exact = [round(2**log_x), round(2 ** (log_numel - log_x))]
        exact = [size + is_pow2(size) * (2 if size == 1 else 1) for size in exact]
        which = draw.choice(((True, False), (False, True), (True, True)))
        axes = [odd if take else even for odd, even, take in zip(exact, axes, which, strict=True)]
    return max(axes[0], min_x), max(axes[1], MIN_AXIS)


def _entry(where: str, entry: Any) -> Workload:
    if not isinstance(entry, dict):
        raise InvalidInput(where, entry, "an object with " + ", ".join(FILE_FIELDS))
    for name in entry:
        if name not in FILE_FIELDS:
            raise InvalidInput(f"{where}.{name}", entry[name], "no field but " + ", ".join(FILE_FIELDS))
    for name in FILE_FIELDS[:-1]:
        if name not in entry:
            raise InvalidInput(f"{where}.{name}", "(missing)", "a value")
    inner = entry.get("inner", True)
    if not isinstance(inner, bool):
        raise InvalidInput(f"{where}.inner", inner, "true or false")
    try:
        return cpu_workload(entry["op"], entry["xnumel"], entry["rnumel"], entry["dtype"], inner=inner)
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error.field}", error.value, error.allowed) from None
