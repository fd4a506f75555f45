"""Which tiles of a kernel are measured, and who asked for each."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.hooks.configs import MAX_INDEX, Limits
from tileguard.runtime.lattice import TRITON_MAX_R0, TRITON_MAX_X, is_legal, lattice
from tileguard.runtime.selector import HOST, Selector

from .capture import HOST_LISTS, CapturedKernel

LATTICE, SAMPLE = "lattice", "sample"
"""Rules beside the proposers of a Selector: the whole lattice, or a stratified sample of it."""

MODEL_SHARE = 6
"""Of a capped plan the model picks one tile in so many."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedTile:
    """A tile to measure, of its family's class. by: the rules that chose it, in the order host, formula, model, then
    lattice or sample."""

    tile: Any
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The tiles of one kernel, those that the host listed first; lattice_size: of the whole legal lattice."""

    tiles: tuple[PlannedTile, ...]
    lattice_size: int


def plan_tiles(
    kernel: CapturedKernel,
    selector: Selector,
    *,
    most: int | None,
    stages: Sequence[int] = (1,),
    seed: int = 0,
) -> Plan:
    """The host's two lists, what the formula and the model propose, and of the lattice all (`most` None) or a
    stratified sample that fills up to `most` tiles; each with every num_stages of `stages`.

    Hosts' lists are kept whole; all else must be legal for the hardware and for this kernel's code. Strata are pairs
    of (elements a tile, warps), so that a sample covers what a uniform one would mostly miss.
    """
    described, limits = kernel.described, _limits(kernel, selector.hardware)
    by: dict[ReductionTile, list[str]] = {}
    hosts = host_tiles(kernel)
    for tile in hosts:
        by.setdefault(tile, []).append(HOST)

    def legal(tile: ReductionTile) -> bool:
        return is_legal(tile, described, selector.hardware) and limits.allows(
            tile.xblock, tile.r0_block, tile.num_warps or 0, persistent=kernel.persistent
        )

    for candidate in selector.select(described, hosts).candidates:
        for proposer in candidate.proposers:
            if proposer != HOST and (candidate.tile in by or legal(candidate.tile)):
                by.setdefault(candidate.tile, []).append(proposer)
    whole = [tile for tile in lattice(described, selector.hardware) if legal(tile)]
    if most is None:
        for tile in whole:
            by.setdefault(tile, []).append(LATTICE)
    else:
        rest = [tile for tile in whole if tile not in by]
        for tile in stratified(rest, max(0, most - len(by)), seed=f"{seed}:{kernel.key}"):
            by[tile] = [SAMPLE]
    tiles = [
        PlannedTile(ReductionTile(tile.xblock, tile.r0_block, tile.num_warps, number), tuple(rules))
        for tile, rules in by.items()
        for number in dict.fromkeys((tile.num_stages, *stages))
    ]
    return Plan(tuple({one.tile: one for one in reversed(tiles)}.values())[::-1], len(whole))


def host_tiles(kernel: CapturedKernel) -> tuple[ReductionTile, ...]:
    """The tiles of the host's lists, its default first; a list that could not be made has none."""
    lists = [kernel.baselines.get(name) for name in HOST_LISTS]
    return tuple(dict.fromkeys(ReductionTile(*tile) for tiles in lists if isinstance(tiles, list) for tile in tiles))


def stratified(tiles: Iterable[ReductionTile], count: int, *, seed: str) -> list[ReductionTile]:
    """`count` tiles at most: in turn one of each pair of (elements, warps), in random order; equal for equal seeds."""
    strata: dict[tuple[int, int], list[ReductionTile]] = defaultdict(list)
    for tile in tiles:
        strata[tile.xblock * tile.r0_block, tile.num_warps or 0].append(tile)
    return in_turn(list(strata.values()), seed=seed)[:count]


def in_turn(groups: Sequence[Sequence[T]], *, seed: str) -> list[T]:
    """Everything, one of each group after another: groups and what is in them in random order, equal for equal seeds."""
    shuffle = random.Random(seed)
    left = [shuffle.sample(list(group), len(group)) for group in groups]
    shuffle.shuffle(left)
    return [group[i] for i in range(max(map(len, left), default=0)) for group in left if i < len(group)]


def check_most(most: int | None) -> None:
    if most is not None and most < 1:
        raise InvalidInput("tiles", most, "dense, or a number of tiles")


def _limits(kernel: CapturedKernel, hardware: HardwareSpec) -> Limits:
    signature = kernel.signature
    return Limits(
        xnumel=kernel.numels["xnumel"], rnumel=kernel.numels["r0_numel"], max_x=TRITON_MAX_X, max_r0=TRITON_MAX_R0,
        max_threads=hardware.max_threads_per_block, warp_size=hardware.warp_size, hip=False,
        index64="i64" in (signature.get("xnumel"), signature.get("r0_numel"))
        or max(kernel.numels.values()) > MAX_INDEX,
        one_row=bool(kernel.inductor_meta.get("no_x_dim")) or "XBLOCK" not in kernel.arg_names,
        minimums=kernel.minimums,
    )  # fmt: skip
