"""The union of a host's Triton configs and a ranked list, under the host's own rules. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_GRID = 2**31 - 1
"""Blocks of a grid's first axis on CUDA; on HIP all its threads."""

MAX_INDEX = 2**31 - 1

MAX_TILE = 1 << 20
"""Triton's largest tensor, in elements."""

HOST = "host"
"""Who proposed a tile: the host, by its list or by what it would itself add to it after compiling."""


Key = tuple[int, int | None, int, int]
"""XBLOCK, R0_BLOCK (None where fixed), num_warps, num_stages: what tells configs apart."""


class Refused(Exception):
    """A kernel whose list must stay as the host made it; carries the reason in one word."""


def key_of(config: Any) -> Key:
    """The key of a Triton config of a reduction."""
    return config.kwargs.get("XBLOCK", 1), config.kwargs.get("R0_BLOCK"), config.num_warps, config.num_stages


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config to try, and who proposed it."""

    config: Any
    proposers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device and a kernel allow. one_row: a program covers one output (no_x_dim)."""

    xnumel: int
    rnumel: int
    max_x: int
    max_r0: int
    max_threads: int
    warp_size: int
    hip: bool
    index64: bool
    one_row: bool
    minimums: Mapping[str, int]

    def allows(self, x: int, r: int, warps: int, *, persistent: bool) -> bool:
        """Whether the host could have made such a config.

        XBLOCK divides the largest block and is 1 where there is one output; blocks are powers of two, not below the
        kernel's minimums (block floors, tensor descriptors); threads fit a block, blocks a grid; and with 32-bit
        indices the last block's end does not wrap around.
        """
        if x < 1 or r < 1 or warps < 1 or x & (x - 1) or r & (r - 1) or warps & (warps - 1):
            return False
        if self.max_x % x or ((self.xnumel == 1 or self.one_row) and x != 1) or (not persistent and r > self.max_r0):
            return False
        if x < self.minimums.get("XBLOCK", 1) or (not persistent and r < self.minimums.get("R0_BLOCK", 1)):
            return False
        if warps * self.warp_size > self.max_threads or x * r > MAX_TILE:
            return False
        blocks = -(-self.xnumel // x)
        if (blocks * warps * self.warp_size if self.hip else blocks) > MAX_GRID:
            return False
        trips = 1 if persistent else -(-self.rnumel // r)
        return self.index64 or max(blocks * x, trips * r) <= MAX_INDEX


def unite(
    host: Sequence[Any],
    tiles: Iterable[Sequence[Any]],
    make: Callable[[dict[str, int], int, int], Any],
    limits: Limits,
    *,
    persistent: bool,
    scales: bool,
) -> list[Candidate]:
    """The host's configs as they stand and first, then those of `tiles` that are legal and new, in their order.

    tiles: (XBLOCK, R0_BLOCK, num_warps, num_stages, "proposer+proposer"). make: kwargs, num_warps, num_stages -> config.
    scales: whether the host would halve R0_BLOCK of a config that takes many registers, and compile it again, in the
    parent and one by one: here the halved variants of its list are candidates from the start. Raises Refused for a host list of another kind than (XBLOCK, R0_BLOCK).
    """
    known = {"XBLOCK"} if persistent else {"XBLOCK", "R0_BLOCK"}
    for config in host:
        if not set(config.kwargs) <= known:
            raise Refused("config_kind")
    wanted: dict[Key, list[str]] = {}
    for config in host:
        wanted.setdefault(key_of(config), []).append(HOST)
    extra: list[Key] = []

    def want(x: int, r: int, warps: int, stages: int, proposers: list[str]) -> None:
        key = (x, None if persistent else r, warps, stages)
        if limits.allows(x, r, warps, persistent=persistent):
            if key not in wanted:
                extra.append(key)
            wanted.setdefault(key, []).extend(proposers)

    for config in host:
        x, r0, warps, stages = key_of(config)
        if scales and r0 is not None and r0 > 64:
            want(x, r0 // 2, warps, stages, [HOST])
    for x, r, warps, stages, proposers in tiles:
        want(x, r, warps, stages, proposers.split("+"))
    united = [Candidate(c, tuple(dict.fromkeys(wanted[key_of(c)]))) for c in host]
    for x, r0, warps, stages in extra:
        kwargs = {"XBLOCK": x} if r0 is None else {"XBLOCK": x, "R0_BLOCK": r0}
        united.append(Candidate(make(kwargs, warps, stages), tuple(dict.fromkeys(wanted[x, r0, warps, stages]))))
    return united
