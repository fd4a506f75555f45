"""The strategies, enumerated: which tiles each would take and how long it would need (BMM note §2.5, §3, §7).

Everything is searched over every aligned tile that keeps the limits; ties (to one part in 10⁹) go to the smaller total
transfer, then to the smaller tile, then to the taller one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tileguard.features.kernels import MatmulKernel
from tileguard.features.waves import waves

from .limits import TileLimits, even_sides, fits, sides
from .region import block_rects, tail_region, tile_count, tiles_of
from .rules import A0, A1A, A1B, B1, B
from .terms import Rates, Terms, block_terms, block_us

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

EXACT, COUNTED = "exact", "area"
GEOMETRIES = (EXACT, COUNTED)

TIE = 1 + 1e-9
JOINT_SPLITS = 16
"""Main tiles whose tails `first="joint"` enumerates: those that closed forms promise most of."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel with everything that the search needs of its hardware."""

    kernel: MatmulKernel
    cores: int
    rates: Rates
    limits: TileLimits
    geometry: str


@dataclass(frozen=True, slots=True)
class Cut:
    """How one strategy cuts the outputs, and its predicted time.

    main_tile: s_m, s_n of the blocks; split: blocks per batch along M and N; n_blk, n_wave, r: blocks, rounds, blocks of
    the last, partial round; block: the terms of a main block; tail_tile: what the last round takes, the main tile where
    it is not cut anew; tail_blocks: cores that it keeps busy (0 where r = 0); tail: the terms of its blocks; us: time
    of all rounds.
    """

    strategy: str
    main_tile: tuple[int, int]
    split: tuple[int, int]
    n_blk: int
    n_wave: int
    r: int
    block: Terms
    tail_tile: tuple[int, int]
    tail_blocks: int
    tail: Terms
    us: float

    @property
    def new_tail(self) -> bool:
        """Whether the last round has a tile of its own."""
        return self.tail_tile != self.main_tile

    def utilisation(self, cores: int) -> float:
        """Busy cores over all rounds ÷ n_wave·C."""
        last = self.tail_blocks if self.r else cores
        return ((self.n_wave - 1) * cores + last) / (self.n_wave * cores)


@dataclass(frozen=True, slots=True)
class Splits:
    """Every uniform cut of a problem, one entry a tile: sides, blocks along M and N and in all, rounds, busy share, T_block
    and n_wave·T_block in µs, and Σ (s_m + s_n) over all blocks."""

    s_m: IntArray
    s_n: IntArray
    m_cnt: IntArray
    n_cnt: IntArray
    n_blk: IntArray
    n_wave: IntArray
    busy: FloatArray
    block_us: FloatArray
    us: FloatArray
    transfer: FloatArray


@dataclass(frozen=True, slots=True)
class TailTiles:
    """Every tile that a tail may be cut anew by, one entry each: its sides, s_m·s_n and T_block in µs."""

    t_m: IntArray
    t_n: IntArray
    area: IntArray
    block_us: FloatArray


def all_splits(problem: Problem) -> Splits:
    """Every cut into equal blocks that keeps the limits (§2.5); at least one. int64 throughout: no product overflows."""
    kernel, limits = problem.kernel, problem.limits
    return _splits(problem, *_pairs(even_sides(kernel.m, limits), even_sides(kernel.n, limits), limits))


def all_tail_tiles(problem: Problem) -> TailTiles:
    """Every aligned tile within M x N that keeps the limits (§3.2)."""
    limits = problem.limits
    t_m, t_n = _pairs(sides(limits.m, limits), sides(limits.n, limits), limits)
    return TailTiles(t_m, t_n, t_m * t_n, block_us(t_m, t_n, problem.rates))


def best_split(splits: Splits, allowed: BoolArray | None = None) -> tuple[int, int] | None:
    """The tile of the least n_wave·T_block (§2.5, amended in v1.5), or None where none is allowed."""
    found = _best(splits.us, allowed, splits.transfer, splits.s_m * splits.s_n, -splits.s_m)
    return None if found is None else (int(splits.s_m[found]), int(splits.s_n[found]))


def filling_split(problem: Problem, splits: Splits) -> tuple[int, int]:
    """The older rule of §2.5: at least P = ⌈C/Batch⌉ blocks a batch, then the least 1/s_m + 1/s_n, then fewest blocks.

    Where no cut has as many blocks, the most that there are.
    """
    per_batch = splits.m_cnt * splits.n_cnt
    least = min(-(-problem.cores // problem.kernel.batch), int(per_batch.max()))
    found = _best(1.0 / splits.s_m + 1.0 / splits.s_n, per_batch >= least, per_batch, -splits.s_m)
    assert found is not None
    return int(splits.s_m[found]), int(splits.s_n[found])


def joint_split(problem: Problem, splits: Splits, tail_tiles: Callable[[], TailTiles]) -> tuple[int, int]:
    """The main tile whose A1b is fastest, of those that closed forms promise most of and the best uniform one."""
    rho = splits.n_blk % problem.cores / problem.cores
    ideal = block_us(splits.s_m * np.sqrt(rho), splits.s_n * np.sqrt(rho), problem.rates)
    promise = np.where(rho > 0, splits.us - splits.block_us + ideal, splits.us)
    tiles = [(int(splits.s_m[i]), int(splits.s_n[i])) for i in np.argsort(promise, kind="stable")[:JOINT_SPLITS]]
    best = best_split(splits)
    assert best is not None
    return min((best, *tiles), key=lambda tile: a1b(problem, tile, tail_tiles).us)


def uniform(problem: Problem, tile: tuple[int, int], strategy: str = A0) -> Cut:
    """A0 (or B, B1) with this tile: every round as the first, n_wave·T_block (§3.3)."""
    one = _splits(problem, np.array([tile[0]]), np.array([tile[1]]))
    terms = block_terms(*tile, problem.rates)
    n_blk, n_wave = int(one.n_blk[0]), int(one.n_wave[0])
    r = n_blk % problem.cores
    split = (int(one.m_cnt[0]), int(one.n_cnt[0]))
    return Cut(strategy, tile, split, n_blk, n_wave, r, terms, tile, r, terms, n_wave * terms.block)


def a1a(problem: Problem, tile: tuple[int, int]) -> Cut | None:
    """Each tail block cut into s equal parts, 2 <= s <= ⌊C/r⌋, the fastest (§3.2); None where there is no tail or no s.

    The area geometry cuts along N alone, as the note's figures do; the exact one along M too.
    """
    base = uniform(problem, tile)
    if not 0 < 2 * base.r <= problem.cores:
        return None
    parts = np.arange(2, problem.cores // base.r + 1, dtype=np.int64)
    align = problem.limits.align
    along_m, along_n = ((side + parts * align - 1) // (parts * align) * align for side in tile)
    t_m, t_n = np.full_like(parts, tile[0]), along_n
    if problem.geometry == EXACT:
        t_m, t_n = np.concatenate((t_m, along_m)), np.concatenate((t_n, np.full_like(parts, tile[1])))
    smaller = (t_m < tile[0]) | (t_n < tile[1])
    found = _best(block_us(t_m, t_n, problem.rates), fits(t_m, t_n, problem.limits) & smaller, t_m * t_n, -t_m)
    if found is None:
        return None
    tail = (int(t_m[found]), int(t_n[found]))
    blocks = base.r * -(-tile[0] // tail[0]) * -(-tile[1] // tail[1])
    if problem.geometry == EXACT:
        kernel = problem.kernel
        rects = block_rects(kernel.batch, kernel.m, kernel.n, *tile, base.n_blk - base.r, base.n_blk)
        blocks = tiles_of(rects, *tail)
    return _with_tail(problem, base, A1A, tail, blocks)


def a1b(
    problem: Problem, tile: tuple[int, int], tail_tiles: Callable[[], TailTiles], equal_parts: Cut | None = None
) -> Cut:
    """The tail's region cut anew by one tile into at most C blocks, the fastest (§3.2); A0's cut where none is faster.

    How many blocks a tile makes: ⌈r·s_m·s_n/(t_m·t_n)⌉ by area; by rectangles that cover the region in the exact
    geometry. A1a's tile is one of them (A1a ⊆ A1b), also where `sides` leaves it out.
    """
    base = uniform(problem, tile, A1B)
    if base.r == 0:
        return base
    kernel, tiles, exact = problem.kernel, tail_tiles(), problem.geometry == EXACT
    region = tail_region(kernel.batch, kernel.m, kernel.n, *tile, base.r) if exact else None
    outputs = region.outputs if region is not None else base.r * tile[0] * tile[1]
    # Most tiles are slower than none at all, or too small for C of them to cover the tail: they are never counted.
    worth = np.flatnonzero((tiles.area >= -(-outputs // problem.cores)) & (tiles.block_us < base.block.block))
    t_m, t_n, area = tiles.t_m[worth], tiles.t_n[worth], tiles.area[worth]
    counts = tile_count(region, t_m, t_n) if region is not None else -(-outputs // area)
    found = _best(tiles.block_us[worth], counts <= problem.cores, area, -t_m)
    best = base
    if found is not None:
        best = _with_tail(problem, base, A1B, (int(t_m[found]), int(t_n[found])), int(counts[found]))
    if equal_parts is not None and equal_parts.us * TIE < best.us:
        t_m, t_n = (np.array([side]) for side in equal_parts.tail_tile)
        counts = tile_count(region, t_m, t_n) if region is not None else -(-outputs // (t_m * t_n))
        best = _with_tail(problem, base, A1B, equal_parts.tail_tile, int(counts[0]))
    return best


def general_b(splits: Splits, problem: Problem, least_utilisation: float) -> Cut | None:
    """B: everything cut anew by one tile, at least that share of n_wave·C busy (§7.2.3); None where no cut is."""
    tile = best_split(splits, splits.busy >= least_utilisation)
    return None if tile is None else uniform(problem, tile, B)


def whole_rounds_b(splits: Splits, problem: Problem) -> Cut | None:
    """B1: everything cut anew by one tile into a multiple of C blocks (§7.1); None where no cut is."""
    tile = best_split(splits, splits.n_blk % problem.cores == 0)
    return None if tile is None else uniform(problem, tile, B1)


def _splits(problem: Problem, s_m: IntArray, s_n: IntArray) -> Splits:
    kernel, cores = problem.kernel, problem.cores
    m_cnt, n_cnt = -(-kernel.m // s_m), -(-kernel.n // s_n)
    found = waves(kernel.batch * (m_cnt * n_cnt), cores)
    block = block_us(s_m, s_n, problem.rates)
    return Splits(
        s_m, s_n, m_cnt, n_cnt, found.n_blk, found.n_wave, found.n_blk / (found.n_wave * float(cores)), block,
        found.n_wave * block, found.n_blk.astype(np.float64) * (s_m + s_n),
    )  # fmt: skip


def _pairs(sides_m: IntArray, sides_n: IntArray, limits: TileLimits) -> tuple[IntArray, IntArray]:
    """Every pair of sides that keeps the limits, flat."""
    # L1 alone refuses half of a large grid, by one comparison.
    rows, columns = np.nonzero(sides_m[:, None] + sides_n[None, :] <= limits.longest)
    s_m, s_n = sides_m[rows], sides_n[columns]
    good = fits(s_m, s_n, limits)
    return (s_m, s_n) if good.all() else (s_m[good], s_n[good])


def _with_tail(problem: Problem, base: Cut, strategy: str, tile: tuple[int, int], blocks: int) -> Cut:
    tail = block_terms(*tile, problem.rates)
    us = (base.n_wave - 1) * base.block.block + tail.block
    return Cut(
        strategy, base.main_tile, base.split, base.n_blk, base.n_wave, base.r, base.block, tile, blocks, tail, us
    )


def _best(primary: FloatArray, allowed: BoolArray | None, *ties: IntArray | FloatArray) -> int | None:
    """Index of the least `primary` among those allowed; those within TIE of it are told apart by `ties`, in order."""
    usable = primary if allowed is None else np.where(allowed, primary, np.inf)
    if not usable.size or not np.isfinite(least := usable.min()):
        return None
    tied = np.flatnonzero(usable <= least * TIE)
    if tied.size == 1:
        return int(tied[0])
    return int(tied[np.lexsort([tie[tied] for tie in reversed(ties)])[0]])
