"""Tiles of a CPU by what they are in registers: the width of a vector in bytes, vectors side by side, the lowering.

The reduction RFC's anchors are tile sizes in elements; a CPU has no such size. Its tiles are good where a vector fills so
many registers and so many of them are walked at once, whatever the element type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .errors import InvalidInput, checked_choice, checked_int
from .tiles import LOWERINGS

MOST_LOG2 = 48
"""Largest exponent of either extent: no lattice has more."""


class LaneTile(NamedTuple):
    """A tile by log2 of its vector's bytes (as computed with, not as stored), log2 of the vectors side by side, and the
    lowering; None is the one that the device takes where none is named."""

    bytes_log2: int
    beside_log2: int
    lowering: str | None


@dataclass(frozen=True, slots=True)
class LaneRule:
    """The tiles worth compiling for one class of kernels: tile programs or operations of passes, the reduced axis the
    contiguous one or not. tiles: in the order in which they were found worth it. Raises InvalidInput naming the field."""

    program: bool
    inner: bool
    tiles: tuple[LaneTile, ...]

    def __post_init__(self) -> None:
        for field in ("program", "inner"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidInput(field, getattr(self, field), "True or False")
        for tile in self.tiles:
            checked_int("bytes_log2", tile.bytes_log2, minimum=0, maximum=MOST_LOG2)
            checked_int("beside_log2", tile.beside_log2, minimum=0, maximum=MOST_LOG2)
            if tile.lowering is not None:
                checked_choice("lowering", tile.lowering, LOWERINGS)
