"""What an A/B run measures, frozen before anything runs: cases of one kernel and two tiles each, and how often."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu import cpu_kernel

DEVICE = "cpu"
KERNEL_FIELDS = ("op", "xnumel", "rnumel", "dtype", "inner")
TILE_FIELDS = ("xblock", "r0_block", "lowering")
SIDES = ("a", "b")


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel of the CPU device and the two tiles of it that are compared."""

    kernel: ReductionKernel
    a: ReductionTile
    b: ReductionTile

    @property
    def name(self) -> str:
        outer = "" if self.kernel.inner else ":outer"
        return f"{self.kernel.op}:{self.kernel.xnumel}x{self.kernel.rnumel}:{self.kernel.dtype}{outer}"

    def tile(self, side: str) -> ReductionTile:
        return self.a if side == "a" else self.b

    def to_json(self) -> dict[str, Any]:
        """The case as a file of cases has it, nothing left out."""
        kernel = {name: getattr(self.kernel, name) for name in KERNEL_FIELDS}
        return {"name": self.name, **kernel, "device": DEVICE, "a": tile_json(self.a), "b": tile_json(self.b)}


@dataclass(frozen=True, slots=True)
class AbSpec:
    """Cases and recipe of one run.

    rounds: two at least, in the order A→B, B→A in turn. samples: batches a round and side, each of `sample_us` of CPU
    time or so. singles: calls timed one by one, a round and side. seed: of the operands.
    """

    cases: tuple[Case, ...]
    rounds: int = 4
    samples: int = 7
    singles: int = 50
    sample_us: float = 3000.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.cases:
            raise InvalidInput("cases", self.cases, "one case or more")
        put = object.__setattr__
        for field, least in (("rounds", 2), ("samples", 3), ("singles", 3), ("seed", 0)):
            put(self, field, checked_int(field, getattr(self, field), minimum=least))
        if not (math.isfinite(self.sample_us) and self.sample_us > 0):
            raise InvalidInput("sample_us", self.sample_us, "a positive number of µs")

    def to_json(self) -> dict[str, Any]:
        """All of it, as the report keeps it."""
        recipe = {name: value for name, value in asdict(self).items() if name != "cases"}
        return {**recipe, "cases": [case.to_json() for case in self.cases]}


def digest_of(value: object) -> str:
    """SHA-256 of a value of JSON, in its canonical text: sorted keys, no spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tile_json(tile: ReductionTile) -> dict[str, Any]:
    """The fields that mean something on the CPU."""
    return {name: getattr(tile, name) for name in TILE_FIELDS}


def read_cases(a: Path, b: Path | None = None) -> tuple[Case, ...]:
    """Cases from a file of cases, or from a file of candidates each for A and B, paired in their order.

    A candidate is {op, xnumel, rnumel, dtype, inner, device, tile: {xblock, r0_block, lowering}}; a case has the tiles
    `a` and `b` instead. A file holds one of them or a list. inner (true), device (cpu) and lowering (null) may be left
    out. Raises InvalidInput naming the file or the field, and where A and B are not of the same kernels.
    """
    if b is None:
        return tuple(_case(f"{a}[{i}]", entry) for i, entry in enumerate(_entries(a)))
    sides = [[_candidate(f"{path}[{i}]", entry) for i, entry in enumerate(_entries(path))] for path in (a, b)]
    if len(sides[0]) != len(sides[1]):
        raise InvalidInput("candidates", f"{len(sides[0])} and {len(sides[1])}", "as many for A as for B")
    cases = []
    for index, ((kernel, tile), (other, other_tile)) in enumerate(zip(*sides, strict=True)):
        if kernel != other:
            raise InvalidInput(
                f"{b}[{index}]", Case(other, tile, tile).name, f"A's kernel, {Case(kernel, tile, tile).name}"
            )
        cases.append(Case(kernel, tile, other_tile))
    return tuple(cases)


def _entries(path: Path) -> list[Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput("spec", str(path), f"a readable file ({error.strerror})") from None
    except ValueError as error:
        raise InvalidInput("spec", str(path), f"a JSON file ({error})") from None
    entries = found if isinstance(found, list) else [found]
    if not entries:
        raise InvalidInput("spec", str(path), "one entry or more")
    return entries


def _case(where: str, entry: Any) -> Case:
    kernel = _kernel(where, entry, SIDES)
    a, b = (_tile(f"{where}.{side}", entry[side]) for side in SIDES)
    return Case(kernel, a, b)


def _candidate(where: str, entry: Any) -> tuple[ReductionKernel, ReductionTile]:
    return _kernel(where, entry, ("tile",)), _tile(f"{where}.tile", entry["tile"])


def _kernel(where: str, entry: Any, tiles: tuple[str, ...]) -> ReductionKernel:
    _check_fields(where, entry, (*KERNEL_FIELDS[:-1], *tiles), ("inner", "device", "name"))
    if entry.get("device", DEVICE) != DEVICE:
        raise InvalidInput(f"{where}.device", entry["device"], DEVICE)
    inner = entry.get("inner", True)
    if not isinstance(inner, bool):
        raise InvalidInput(f"{where}.inner", inner, "true or false")
    try:
        return cpu_kernel(entry["op"], entry["xnumel"], entry["rnumel"], entry["dtype"], inner=inner)
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error.field}", error.value, error.allowed) from None


def _tile(where: str, entry: Any) -> ReductionTile:
    _check_fields(where, entry, TILE_FIELDS[:-1], TILE_FIELDS[-1:])
    try:
        return ReductionTile(entry["xblock"], entry["r0_block"], lowering=entry.get("lowering"))
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error.field}", error.value, error.allowed) from None


def _check_fields(where: str, entry: Any, needed: tuple[str, ...], optional: tuple[str, ...]) -> None:
    if not isinstance(entry, dict):
        raise InvalidInput(where, entry, "an object with " + ", ".join(needed))
    for name in needed:
        if name not in entry:
            raise InvalidInput(f"{where}.{name}", "(missing)", "a value")
    for name in entry:
        if name not in (*needed, *optional):
            raise InvalidInput(f"{where}.{name}", entry[name], "no field but " + ", ".join((*needed, *optional)))
