"""Our formula beside torch_npu's own `_red_formula_configs`: equal, but for the differences that docs/ascend.md lists."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.runtime.hooks import npu_modules
from tests.support import ROOT, python

from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import DTYPE_BYTES, ReductionKernel, canonical_dtype
from tileguard.features.pow2 import pow2_ceil, pow2_floor, pow2_round
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import select_candidates

Pairs = list[tuple[int, int]]

THEIR_BYTES = {
    "fp8": 1, "i8": 1, "u8": 1, "fp16": 2, "bf16": 2, "i16": 2, "fp32": 4, "f32": 4, "i32": 4, "fp64": 4, "f64": 4,
    "i64": 8,
}  # fmt: skip
"""torch_npu's table of pointer types; one that it lacks counts as 4 in a mean and not at all in a minimum."""

TYPES = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv", "fp8e5", "i64", "i32", "i16", "i8", "u8", "i1")
"""Pointer types that Inductor's signatures hold."""

GOLDEN_KERNELS, RANDOM_KERNELS, SEED = 3, 4000, 20260
LARGEST_X, SMALL, HOLE = 4096, 64, 50_000


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel as torch_npu's generator describes it; soc is the chip's number."""

    xnumel: int
    rnumel: int
    pointers: tuple[str, ...]
    num_load: int
    num_reduction: int
    soc: int = npu_modules.SOC_910B3

    @property
    def signature(self) -> dict[str, str]:
        pointers = {f"in_ptr{i}": f"*{kind}" for i, kind in enumerate(self.pointers)}
        return pointers | {"xnumel": "i32", "r0_numel": "i32", "XBLOCK": "constexpr", "R0_BLOCK": "constexpr"}

    @property
    def sizes(self) -> list[int]:
        return [DTYPE_BYTES[canonical_dtype(kind)] for kind in self.pointers]

    @property
    def kernel(self) -> ReductionKernel:
        return ReductionKernel(
            self.xnumel, self.rnumel, self.pointers[0], self.num_load, self.num_reduction,
            min_ptr_elem_bytes=min(self.sizes), max_ptr_elem_bytes=max(self.sizes),
        )  # fmt: skip


def log_uniform(rng: random.Random, bits: float) -> int:
    return max(1, int(2.0 ** rng.uniform(0, bits)))


def random_cases() -> list[Case]:
    """Kernels of every type and regime: numels log-uniform, a third with pointers of several types."""
    rng = random.Random(SEED)
    cases = []
    for _ in range(RANDOM_KERNELS):
        kinds = rng.sample(TYPES, rng.choice((1, 1, 2)))
        pointers = tuple(rng.choice(kinds) for _ in range(rng.randint(2, 8)))
        xnumel, rnumel = log_uniform(rng, rng.choice((12.9, 20.0, 33.0))), log_uniform(rng, 19.0)
        soc = rng.choice((npu_modules.SOC_910B3,) * 9 + (npu_modules.SOC_950,))
        cases.append(Case(xnumel, rnumel, pointers, rng.randint(0, 12), rng.randint(1, 6), soc))
    return cases


F32 = ("fp32",) * 3
GOLDEN = (Case(64, 401408, F32, 6, 2), Case(65536, 49, F32, 2, 1), Case(2048, 768, F32, 6, 2))

SHOWN: dict[str, Case] = {
    "x_cap": Case(65536, 768, F32, 6, 2),
    "mean_bytes": Case(2048, 8000, ("fp16", "fp16", "fp32"), 3, 1),
    "fp64_bytes": Case(2048, 6000, ("fp64", "fp64"), 1, 1),
    "unknown_types": Case(2048, 768, ("i1", "i1"), 6, 2),
    "no_load": Case(2048, 12000, ("fp32",), 0, 1),
    "ub_950": Case(2048, 9000, F32, 1, 1, npu_modules.SOC_950),
    "grid": Case((1 << 31) - 5, 401408, F32, 1, 1),
}
"""A kernel for each difference that docs/ascend.md lists."""


def differences(case: Case) -> set[str]:
    """The differences that may apply to a kernel, read off torch_npu's source, not off its answers."""
    found = set()
    theirs = [THEIR_BYTES[kind] for kind in case.pointers if kind in THEIR_BYTES]
    narrowest = min(theirs, default=4)
    middle = SMALL < case.rnumel < HOLE
    wide_p = 2048 if narrowest <= 2 else 4096
    widest_x = LARGEST_X + 1 if middle else 4 * pow2_round(wide_p / case.rnumel) if case.rnumel <= SMALL else 0
    if pow2_floor(case.xnumel) > LARGEST_X and widest_x > LARGEST_X:
        found.add("x_cap")
    unknown = any(kind not in THEIR_BYTES for kind in case.pointers)
    if unknown and case.rnumel < HOLE and (middle or (narrowest <= 2) != (min(case.sizes) <= 2)):
        found.add("unknown_types")
    if middle:
        if -(-sum(case.sizes) // len(case.sizes)) != min(case.sizes):
            found.add("mean_bytes")
        if "fp64" in case.pointers:
            found.add("fp64_bytes")
        if case.num_load == 0:
            found.add("no_load")
        if case.soc == npu_modules.SOC_950:
            found.add("ub_950")
    if pow2_ceil(case.xnumel) > (1 << 31) - 1:
        found.add("grid")
    return found


def ours(case: Case) -> Pairs:
    return select_candidates(
        case.xnumel, case.rnumel, case.pointers[0], case.num_load, case.num_reduction, min(case.sizes)
    )


def all_cases() -> list[Case]:
    return [*GOLDEN, *SHOWN.values(), *random_cases()]


def print_their_pairs(path: str) -> None:
    """One JSON list of pairs a case of `all_cases`, on standard output; run in an interpreter of its own."""
    import importlib
    from pathlib import Path

    heuristics = npu_modules.load(Path(path))
    props: Any = importlib.import_module(f"{npu_modules.PACKAGE}.device_props")
    backends: Any = importlib.import_module("torch_npu.npu._backends")
    answers = []
    for case in all_cases():
        backends.get_soc_version = lambda case=case: case.soc
        props.get_npu_ub_size_bytes.cache_clear()
        heuristics._NPU_UB_CAPACITY_BYTES = props.get_npu_ub_size_bytes()
        configs = heuristics._red_formula_configs(
            {"x": case.xnumel, "r0_": case.rnumel}, {"signature": case.signature},
            {"num_load": case.num_load, "num_reduction": case.num_reduction},
        )  # fmt: skip
        answers.append([(config.kwargs["XBLOCK"], config.kwargs["R0_BLOCK"]) for config in configs])
    print(json.dumps(answers))


@pytest.fixture(scope="module")
def theirs() -> dict[Case, Pairs]:
    path = npu_modules.require()
    code = "import sys; from tests.runtime.hooks.test_npu_formula import print_their_pairs as p; p(sys.argv[1])"
    lines = python(code, str(path), timeout=300.0, **npu_modules.ENVIRONMENT).splitlines()
    answers = [[(x, r) for x, r in pairs] for pairs in json.loads(lines[-1])]
    return dict(zip(all_cases(), answers, strict=True))


def test_the_printed_examples_are_torch_npus_too(theirs: dict[Case, Pairs]) -> None:
    counts = [len(theirs[case]) for case in GOLDEN[::2]]
    assert counts == [16, 27]
    assert theirs[GOLDEN[0]] == ours(GOLDEN[0])
    assert theirs[GOLDEN[2]] == ours(GOLDEN[2])


def test_random_kernels_without_a_listed_difference_get_equal_sets(theirs: dict[Case, Pairs]) -> None:
    compared = [case for case in random_cases() if not differences(case)]
    assert len(compared) >= 1000
    for case in compared:
        assert sorted(theirs[case]) == ours(case), case
    assert {case.pointers[0] for case in compared} >= {"fp32", "fp16", "bf16", "i64", "i32", "i16", "i8", "u8"}
    regimes = Counter("hole" if c.rnumel >= HOLE else "small" if c.rnumel <= SMALL else "mid" for c in compared)
    assert min(regimes.values()) >= 100, regimes


def test_the_tiles_of_the_fallback_are_those_sets(theirs: dict[Case, Pairs]) -> None:
    npu = known_hardware("ascend910b3")
    for case in [case for case in random_cases() if not differences(case)][:200]:
        assert [(t.xblock, t.r0_block) for t in formula_tiles(case.kernel, npu)] == sorted(theirs[case]), case


@pytest.mark.parametrize("name", SHOWN)
def test_each_listed_difference_shows(name: str, theirs: dict[Case, Pairs]) -> None:
    case = SHOWN[name]
    assert differences(case) == {name}
    assert set(theirs[case]) != set(ours(case))
    assert f"`{name}`" in (ROOT / "docs" / "ascend.md").read_text(encoding="utf-8")


def test_no_block_of_theirs_is_wider_than_4096(theirs: dict[Case, Pairs]) -> None:
    assert max(x for pairs in theirs.values() for x, _ in pairs) == LARGEST_X
    case = SHOWN["x_cap"]
    assert {x for x, _ in ours(case)} - {x for x, _ in theirs[case]} == {65536}
    assert (LARGEST_X, 2) in theirs[case]


def test_a_grid_past_its_limit_makes_them_double_x_and_halve_r(theirs: dict[Case, Pairs]) -> None:
    case = SHOWN["grid"]
    assert (1, 512) in ours(case)
    assert min(x for x, _ in theirs[case]) == 2
    assert (2, 256) in theirs[case]


def test_what_torch_npu_counts_otherwise_explains_its_sets(theirs: dict[Case, Pairs]) -> None:
    no_load, unknown = SHOWN["no_load"], SHOWN["unknown_types"]
    assert theirs[no_load] == ours(replace(no_load, num_load=1))
    assert theirs[unknown] == ours(replace(unknown, pointers=("fp32", "fp32")))
    fp64 = SHOWN["fp64_bytes"]
    assert theirs[fp64] == ours(replace(fp64, pointers=("fp32", "fp32")))
