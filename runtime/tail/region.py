"""Exact geometry: which rectangles the tail is, how many tiles cover it, and who computes what (BMM note §1.2, §8.2).

Blocks are launched batch by batch and, within a batch, row by row; block i runs on core i mod C in round i // C. The
last r of them cover whole batches and, of one more batch, its last blocks: rows of blocks under a part of a row, an L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rect:
    """Rows m0 to m1 and columns n0 to n1 of one batch's output, ends excluded; never empty."""

    m0: int
    m1: int
    n0: int
    n1: int


@dataclass(frozen=True, slots=True)
class Region:
    """The outputs of the tail.

    m, n: the output's sides; whole_batches: batches from `first_whole` to the last; part: the cuts of the L of the batch
    before into one or two rectangles each: by rows, then by columns; a single empty cut where there is no L.
    """

    m: int
    n: int
    first_whole: int
    whole_batches: int
    part: tuple[tuple[Rect, ...], ...]

    @property
    def outputs(self) -> int:
        """Outputs in the region."""
        return self.whole_batches * self.m * self.n + sum((c.m1 - c.m0) * (c.n1 - c.n0) for c in self.part[0])


def tail_region(batch: int, m: int, n: int, s_m: int, s_n: int, r: int) -> Region:
    """The region of the last r blocks of batch x m x n outputs in blocks of s_m x s_n."""
    m_cnt, n_cnt = -(-m // s_m), -(-n // s_n)
    whole, part = divmod(r, m_cnt * n_cnt)
    full_rows, strip = divmod(part, n_cnt)
    below = max(0, (m_cnt - full_rows) * s_m)  # first row of the full rows
    above, left = below - s_m, (n_cnt - strip) * s_n
    by_rows = [Rect(below, m, 0, n)] if full_rows else []
    by_columns = by_rows
    if strip:
        end = min(below, m)
        by_rows = [*by_rows, Rect(above, end, left, n)]
        by_columns = [Rect(above, m, left, n), *([Rect(below, m, 0, left)] if full_rows else [])]
    cuts = dict.fromkeys((tuple(by_rows), tuple(by_columns)))
    return Region(m, n, batch - whole, whole, tuple(cuts))


def tile_count(region: Region, t_m: Any, t_n: Any) -> IntArray:
    """Tiles of t_m x t_n (broadcast) that cover the region, by the better of the L's cuts."""
    least: IntArray = _counts(region, t_m, t_n).min(axis=0)
    return least


def better_cut(region: Region, t_m: int, t_n: int) -> tuple[Rect, ...]:
    """The cut of the L that needs fewer tiles of t_m x t_n; by rows at a tie."""
    return region.part[int(_counts(region, t_m, t_n).argmin(axis=0))]


def block_rects(batch: int, m: int, n: int, s_m: int, s_n: int, start: int, stop: int) -> IntArray:
    """int64[stop - start, 5]: batch, m0, m1, n0, n1 of blocks start to stop in launch order."""
    n_cnt = -(-n // s_n)
    per_batch = -(-m // s_m) * n_cnt
    index = np.arange(start, stop, dtype=np.int64)
    within = index % per_batch
    m0, n0 = within // n_cnt * s_m, within % n_cnt * s_n
    return np.stack((index // per_batch, m0, np.minimum(m0 + s_m, m), n0, np.minimum(n0 + s_n, n)), axis=1)


def tiles_of(rects: IntArray, t_m: int, t_n: int) -> int:
    """Tiles of t_m x t_n that cover each of the rectangles, int64[q, 5], by itself; none is empty."""
    _, m0, m1, n0, n1 = rects.T
    return int((-((m0 - m1) // t_m) * -((n0 - n1) // t_n)).sum())


def split_rects(rects: IntArray, t_m: int, t_n: int) -> IntArray:
    """int64[p, 5]: every rectangle cut into tiles of t_m x t_n, clipped to it; none is empty."""
    pieces = []
    for b, m0, m1, n0, n1 in rects.tolist():
        rows, columns = (grid.ravel() for grid in np.mgrid[m0:m1:t_m, n0:n1:t_n])
        pieces.append(
            np.stack((np.full_like(rows, b), rows, np.minimum(rows + t_m, m1), columns, np.minimum(columns + t_n, n1)), axis=1)
        )  # fmt: skip
    return np.concatenate(pieces).astype(np.int64) if pieces else np.empty((0, 5), np.int64)


def region_rects(region: Region, t_m: int, t_n: int) -> IntArray:
    """int64[q, 5]: the rectangles of the region, batch, m0, m1, n0, n1: the L by its better cut, then whole batches."""
    rows = [(region.first_whole - 1, c.m0, c.m1, c.n0, c.n1) for c in better_cut(region, t_m, t_n)]
    rows += [
        (b, 0, region.m, 0, region.n) for b in range(region.first_whole, region.first_whole + region.whole_batches)
    ]
    return np.array(rows, np.int64).reshape(-1, 5)


def _counts(region: Region, t_m: Any, t_n: Any) -> IntArray:
    """Tiles that cover the region, by each of the L's cuts: int64[cuts, …]."""
    tall, wide = np.asarray(t_m, np.int64), np.asarray(t_n, np.int64)
    whole = region.whole_batches * (-(-region.m // tall) * -(-region.n // wide))
    per_cut = []
    for rects in region.part:
        count = whole
        for c in rects:
            count = count + -((c.m0 - c.m1) // tall) * -((c.n0 - c.n1) // wide)
        per_cut.append(count)
    return np.stack(per_cut)
