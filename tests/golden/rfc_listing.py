"""The reduction RFC's own listing of `select_candidates`, as an oracle.

Transcribed from the reduction RFC §3.3 ("源码", select_reduction_final.py): same names, constants and order of steps,
with float log2 and without the input checks that the RFC leaves out. Not used by the package.
"""

from __future__ import annotations

import math

UB_CAPACITY_BYTES = 192 * 1024
UB_OVERHEAD_FACTOR = 2.0
HOLE_X = (1, 2, 4, 8)
HOLE_R = (512, 1024, 2048, 4096)
RN_HOLE = 50000
RN_SMALL = 64
POW2 = [1 << e for e in range(21)]


def p2floor(n: float) -> int:
    return 1 << math.floor(math.log2(n))


def p2ceil(n: float) -> int:
    return 1 << math.ceil(math.log2(max(1, n)))


def p2round(n: float) -> int:
    return 1 if n < 1 else 1 << round(math.log2(max(1, n)))


def dt_bytes(dtype: str, min_ptr_elem_bytes: int | None) -> int:
    if min_ptr_elem_bytes:
        return min_ptr_elem_bytes
    return 2 if dtype in ("bf16", "fp16", "f16") else 4


def select_candidates(
    xnumel: int, rnumel: int, dtype: str, num_load: int, num_reduction: int, min_ptr_elem_bytes: int | None = None
) -> list[tuple[int, int]]:
    d = dt_bytes(dtype, min_ptr_elem_bytes)
    x_cap = p2floor(xnumel)
    P = 2048 if d <= 2 else 4096
    buffers = num_load + num_reduction + 1
    ub_cap = UB_CAPACITY_BYTES / (d * buffers * UB_OVERHEAD_FACTOR)
    rmax = p2floor(min(rnumel, max(ub_cap, 1)))
    r_cap = p2ceil(rnumel)
    cands: set[tuple[int, int]] = set()

    def add(X: int, R: int) -> None:
        if xnumel < X or r_cap < R:
            return
        cands.add((X, R))

    if rnumel >= RN_HOLE:
        for X in HOLE_X:
            for R in HOLE_R:
                add(X, R)
        return sorted(cands)

    if rnumel <= RN_SMALL:
        rset = {rnumel, p2ceil(rnumel)}
        pX = p2round(P / rnumel)
        for X in {1, pX // 4, pX // 2, pX, pX * 2, pX * 4}:
            if x_cap >= X:
                for R in rset:
                    add(X, R)
        return sorted(cands)

    ratio = xnumel / rnumel
    logsplit = -2.06 + 0.59 * math.log2(ratio)
    split = 2.0**logsplit
    pX = min(p2round(math.sqrt(P * split)), x_cap)
    pR = min(p2round(math.sqrt(P / split)), rmax)
    xs = [x for x in sorted({1, max(1, pX // 2), pX, min(pX * 2, x_cap), x_cap}) if 1 <= x <= x_cap]
    rs = [r for r in sorted({max(1, pR // 2), pR, min(pR * 2, rmax)}) if 1 <= r <= rmax]
    for X in xs:
        for R in rs:
            add(X, R)
    for R in (pR // 4, pR // 8, 16, 32):
        if 1 <= R < pR and rmax >= R:
            add(pX, R)
    if rnumel <= ub_cap:
        for X in [p for p in POW2 if p <= min(x_cap, 128)]:
            add(X, rnumel)
    add(x_cap, 2)
    add(x_cap, min(rnumel, 8))
    return sorted(cands)
