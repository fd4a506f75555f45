"""Products that are drawn: many families in turn, distinct, within their bounds, half of them aligned to nothing."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import MatmulKernel
from tileguard.learner.inductor.capture import label_of
from tileguard.learner.inductor.matmul_problems import (
    FAMILIES,
    MAX_BYTES,
    NOTE_SHAPES,
    QUANTUM,
    Problem,
    draw_problem,
    problem,
    problems,
)

COUNT = 160


def prefix(seed: int, count: int = COUNT) -> list[Problem]:
    return list(islice(problems(seed), count))


def test_problems_are_the_same_for_a_seed_and_distinct() -> None:
    names = [one.name for one in prefix(0)]
    assert names == [one.name for one in prefix(0)]
    assert len(set(names)) == COUNT
    assert len(set(names) & {one.name for one in prefix(1)}) < 20
    assert all(label_of(one) == one.name and one.name.startswith(f"{one.family}:") for one in prefix(0))


def test_every_family_has_its_share_of_every_prefix() -> None:
    for count in (18, 60, COUNT):
        seen = Counter(one.family for one in prefix(0, count))
        shares = [seen.get(family.__name__, 0) for family in FAMILIES]
        assert max(shares) - min(shares) <= 1
    assert len(FAMILIES) >= 15


def test_the_notes_own_shapes_are_among_them() -> None:
    kernels = [(one.kernel.batch, one.kernel.m, one.kernel.n, one.kernel.k) for one in prefix(0, 300)]
    assert set(NOTE_SHAPES) <= set(kernels)
    assert {(7, 1280, 256, 8192), (100, 64, 3328, 512), (1, 16896, 512, 140)} <= set(NOTE_SHAPES)


def test_sizes_dtypes_and_operations_are_spread() -> None:
    found = prefix(0, 600)
    sizes = [size for one in found for size in (one.kernel.m, one.kernel.n, one.kernel.k)]
    assert 0.45 < sum(size % QUANTUM != 0 for size in sizes) / len(sizes) < 0.75
    assert sum(any(size % 2 for size in (one.kernel.m, one.kernel.n, one.kernel.k)) for one in found) > 150
    ks = [one.kernel.k for one in found]
    assert 16 <= min(ks) < 20
    assert 15000 < max(ks) <= 16384
    dtypes = Counter(one.kernel.dtype for one in found)
    assert dtypes["bf16"] > dtypes["tf32"] > dtypes["fp32"] > 20
    ops = Counter(one.op for one in found)
    assert min(ops["mm"], ops["bmm"], ops["addmm"]) > 50
    layouts = Counter((one.kernel.a_transposed, one.kernel.b_transposed) for one in found)
    assert min(layouts.values()) > 10
    assert len(layouts) == 4
    assert {1} < {one.kernel.m for one in found}


def test_nothing_is_too_large() -> None:
    for turn in range(10):
        for family in FAMILIES:
            kernel = draw_problem(family, 3, turn).kernel
            product = kernel.batch * kernel.m * kernel.n * kernel.out_bytes
            assert kernel.input_bytes + product <= MAX_BYTES
            assert 2 * kernel.batch * kernel.m * kernel.n * kernel.k <= 3e12


@pytest.mark.parametrize(
    ("op", "kernel", "field"),
    [("mm", MatmulKernel(2, 8, 8, 8, "bf16"), "batch"), ("mv", MatmulKernel(1, 8, 8, 8, "bf16"), "op"),
     ("mm", MatmulKernel(1, 8, 8, 8, "fp64"), "dtype"), ("bmm", MatmulKernel(65536, 8, 8, 8, "bf16"), "batch")],
)  # fmt: skip
def test_a_problem_that_is_none_is_refused(op: str, kernel: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        problem("family", op, kernel)
    assert error.value.field == field
