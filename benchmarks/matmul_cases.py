"""What benchmarks/matmul_h200.py compares: fresh products, and ways of choosing their kernels. Needs no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random
from typing import Any

from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.features.pow2 import pow2_ceil
from tileguard.learner.inductor.matmul_plan import FLOPS_PER_S
from tileguard.learner.inductor.matmul_problems import NOTE, Problem, problem, problems

DEFAULT, MAX_AUTOTUNE, EXHAUSTIVE = "default", "max_autotune", "exhaustive"
TILEGUARD, NV, AGAIN = "tileguard", "nv_heuristics", "max_autotune_again"

MODES = (DEFAULT, MAX_AUTOTUNE, TILEGUARD, EXHAUSTIVE, NV)
"""Those that are run where none is named. AGAIN is max-autotune once more: what it owes to chance."""

NAMED = (*MODES, AGAIN)

CORPUS_SEED, CORPUS_DRAWN = 0, 4000
"""The corpus holds the first of this seed's problems, fewer than these."""

SIDES = (16, 32, 64, 128, 256)
"""Of blocks in the host's exhaustive search space."""

LONGEST_US = 1000.0
"""Of a product, by the data sheet's rates."""


def settings_of(mode: str) -> dict[str, str]:
    """A mode's environment. Padding of odd sizes is off in all of them: whether it pays is measured anew in each process,
    and a padded product is another one."""
    common = {"TORCHINDUCTOR_SHAPE_PADDING": "0"}
    if mode == DEFAULT:
        return common
    tuned = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "1", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN,TRITON"}
    space = {"TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE": "EXHAUSTIVE"} if mode == EXHAUSTIVE else {}
    return common | tuned | space


def fresh_products(count: int, seed: int) -> list[Problem]:
    """Products that no corpus holds, of at most LONGEST_US, from all families in turn, then shuffled: what comes first is
    spread over families too. Equal for equal arguments."""
    known = {identity(one) for one in itertools.islice(problems(CORPUS_SEED), CORPUS_DRAWN)}
    drawn = (
        one
        for one in problems(seed)
        if one.family != NOTE and identity(one) not in known and roofline_us(one.kernel) <= LONGEST_US
    )
    found = list(itertools.islice(drawn, count))
    Random(seed).shuffle(found)
    return found


def identity(product: Problem) -> tuple[Any, ...]:
    """What makes two products one: all but the family that drew them."""
    kernel = product.kernel
    sizes = (kernel.batch, kernel.m, kernel.n, kernel.k)
    return (product.op, *sizes, kernel.dtype, kernel.a_transposed, kernel.b_transposed)


def roofline_us(kernel: MatmulKernel) -> float:
    """At the data sheet's rates of an H200: the longer of arithmetic and of moving every matrix once."""
    flops = 2.0 * kernel.batch * kernel.m * kernel.n * kernel.k
    moved = kernel.input_bytes + kernel.batch * kernel.m * kernel.n * kernel.out_bytes
    return 1e6 * max(flops / FLOPS_PER_S[kernel.dtype], moved / known_hardware("h200").dram_bytes_per_s)


def products_of(mode: str, products: Sequence[Problem], exhaustive: int) -> list[Problem]:
    """What a mode has to compile: all, or the first `exhaustive` of them, the smallest search space first, for a budget
    stops a mode between products and one with a large space takes minutes."""
    return sorted(products[:exhaustive], key=space_size) if mode == EXHAUSTIVE else list(products)


def space_size(product: Problem) -> int:
    """About a tenth of the tiles in the host's exhaustive search space: which of five block sizes an axis has room for."""
    kernel = product.kernel
    return math.prod(
        sum(side <= max(SIDES[0], pow2_ceil(size)) for side in SIDES) for size in (kernel.m, kernel.n, kernel.k)
    )


def tiny(product: Problem) -> Problem:
    """The same kind of product in a size for a CPU."""
    k = product.kernel
    batch, m, n, depth = min(k.batch, 3), min(k.m, 48), min(k.n, 40), min(k.k, 64)
    kernel = MatmulKernel(batch, m, n, depth, k.dtype, None, k.a_transposed, k.b_transposed)
    return problem(product.family, product.op, kernel)
