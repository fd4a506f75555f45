"""Which tiles of a matrix product are measured: the host's own, the planner's, and a sample of its exhaustive space."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise, zip_longest

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import MatmulKernel
from tileguard.features.tiles import MatmulTile
from tileguard.runtime.matmul_tiles import fits, matmul_lattice, planner_tiles
from tileguard.runtime.selector import FORMULA, HOST

from .matmul_kernel import CapturedMatmul, ceil_div, matmul_tile
from .plan import LATTICE, SAMPLE, Plan, PlannedTile, in_turn

GROUP, DOUBTFUL = "group", "doubtful"
"""Rules beside HOST, LATTICE and SAMPLE: another GROUP_M than the host's 8; a tile that the estimate thinks hopeless."""

GROUPS = (1, 4, 16)
GROUP_SHARE, DOUBTFUL_SHARE = 8, 10
"""Of what a capped plan samples, one tile in so many: a ranker must have seen other groups, and bad tiles."""

REST_SHARE = 10
"""Of what a dense plan leaves out of the host's space, one tile in so many is measured: whether a lattice holds the best
tile can then be seen."""

NEAR_ESTIMATE, HOPELESS_ESTIMATE = 1.5, 3.0
"""Times the least estimate: up to the first a tile is near, past the second doubtful."""

FLOPS_PER_S = {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12, "fp32": 67e12}
L2_BYTES_PER_S = 5.5e12
CORES = 132
"""Of an H200: dense rates of the vendor's data sheet (H200 SXM), and about what its L2 delivers. For comparing tiles
with one another, never for times."""


def plan_matmul(kernel: CapturedMatmul, hardware: HardwareSpec, *, most: int | None, seed: int = 0) -> Plan:
    """The host's DEFAULT list and the planner's tiles, whole; then of the host's EXHAUSTIVE list what fits: with `most`
    None the lattice that a ranker chooses from, and one in REST_SHARE of the rest; else a stratified sample that fills up
    to `most` tiles.

    Strata are pairs of (BLOCK_M, BLOCK_N). One sampled tile in GROUP_SHARE has another GROUP_M, one in DOUBTFUL_SHARE
    is doubtful; of the others every second one is near, until either kind runs out.
    """
    described = kernel.described
    hosts = [matmul_tile(one) for one in kernel.baselines["default"]]
    by: dict[MatmulTile, tuple[str, ...]] = dict.fromkeys(hosts, (HOST,))
    by |= {tile: (*by.get(tile, ()), FORMULA) for tile in planner_tiles(described, hardware)}
    space = [tile for one in kernel.baselines["max_autotune"] if fits(tile := matmul_tile(one), described, hardware)]
    text = f"{seed}:{kernel.key}"
    if most is None:
        by |= {tile: (*by.get(tile, ()), LATTICE) for tile in matmul_lattice(described, hardware)}
        rest = stratified([tile for tile in space if tile not in by], seed=text)
        by |= dict.fromkeys(rest[: len(rest) // REST_SHARE], (SAMPLE,))
        return _plan(by, len(space))
    rest = [tile for tile in space if tile not in by]
    near, far, doubtful = (stratified(tiles, seed=text) for tiles in split(rest, described, hardware))
    likely = in_turn_of_order(near, far)
    room = max(0, most - len(by))
    few = doubtful[: room // DOUBTFUL_SHARE]
    wanted = [(tile, GROUP) for tile in other_groups(likely, described, seed=text)[: room // GROUP_SHARE]]
    wanted += [(tile, DOUBTFUL) for tile in few]
    wanted += [(tile, SAMPLE) for tile in likely[: max(0, room - len(wanted))]]
    wanted += [(tile, DOUBTFUL) for tile in doubtful[len(few) :]]
    by |= {tile: (rule,) for tile, rule in wanted[:room]}
    return _plan(by, len(space))


def estimate_us(tile: MatmulTile, kernel: MatmulKernel, hardware: HardwareSpec) -> float:
    """What a tile takes at the rates of an H200's cores, in µs: the longest of arithmetic and loads, wave by wave, and
    of moving every matrix once, over all cores. It knows nothing of stages and warps."""
    blocks = kernel.batch * ceil_div(kernel.m, tile.block_m) * ceil_div(kernel.n, tile.block_n)
    waves = ceil_div(blocks, hardware.cores)
    flops = 2 * tile.block_m * tile.block_n * kernel.k
    loaded = (tile.block_m + tile.block_n) * kernel.k * kernel.elem_bytes
    block_s = CORES * max(flops / FLOPS_PER_S[kernel.dtype], loaded / L2_BYTES_PER_S)
    moved = kernel.input_bytes + kernel.batch * kernel.m * kernel.n * kernel.out_bytes
    return 1e6 * max(waves * block_s, moved / hardware.dram_bytes_per_s)


def split(
    tiles: list[MatmulTile], kernel: MatmulKernel, hardware: HardwareSpec
) -> tuple[list[MatmulTile], list[MatmulTile], list[MatmulTile]]:
    """(near, far, doubtful), by how many times the least estimate theirs is."""
    estimates = {tile: estimate_us(tile, kernel, hardware) for tile in tiles}
    least = min(estimates.values(), default=0.0)
    ends = (0.0, NEAR_ESTIMATE, HOPELESS_ESTIMATE, math.inf)
    near, far, doubtful = (
        [tile for tile in tiles if low * least < estimates[tile] <= high * least] for low, high in pairwise(ends)
    )
    return near, far, doubtful


def in_turn_of_order(one: list[MatmulTile], other: list[MatmulTile]) -> list[MatmulTile]:
    """One of each in turn, both in their order, then the rest."""
    pairs = (pair for both in zip_longest(one, other) for pair in both)
    return [tile for tile in pairs if tile is not None]


def stratified(tiles: Iterable[MatmulTile], *, seed: str) -> list[MatmulTile]:
    """All tiles: in turn one of each (BLOCK_M, BLOCK_N), in random order; equal for equal seeds."""
    strata: dict[tuple[int, int], list[MatmulTile]] = defaultdict(list)
    for tile in tiles:
        strata[tile.block_m, tile.block_n].append(tile)
    return in_turn(list(strata.values()), seed=seed)


def other_groups(tiles: Iterable[MatmulTile], kernel: MatmulKernel, *, seed: str) -> list[MatmulTile]:
    """Tiles like these with one of GROUPS each, where there is more than one row of blocks to group."""
    draw = random.Random(seed)
    found = []
    for tile in tiles:
        rows = ceil_div(kernel.m, tile.block_m)
        choices = [group for group in GROUPS if group == 1 or group < 2 * rows]
        if rows > 1 and ceil_div(kernel.n, tile.block_n) > 1:
            numbers = (tile.block_m, tile.block_n, tile.block_k, tile.num_warps, tile.num_stages)
            found.append(MatmulTile(*numbers, group_m=draw.choice(choices)))
    return found


def _plan(by: dict[MatmulTile, tuple[str, ...]], size: int) -> Plan:
    return Plan(tuple(PlannedTile(tile, rules) for tile, rules in by.items()), size)
