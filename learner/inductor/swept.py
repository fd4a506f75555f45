"""What the collector asks of a kernel, whatever its family of operations. Tiles are of the family's own class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

Row = dict[str, Any]


class SweptKernel(Protocol):
    """A captured kernel: plain data, that travels between processes and stays in a raw sweep."""

    @property
    def key(self) -> str:
        """16 hex digits, equal for what would be measured twice."""

    @property
    def label(self) -> str:
        """`family:name` of its workload."""

    @property
    def family(self) -> str:
        """Of its workload: the unit of every split."""

    @property
    def kernel(self) -> str:
        """The name of the kernel function."""

    @property
    def args(self) -> tuple[Any, ...]:
        """As `describe_args` gives them."""

    @property
    def hopeless(self) -> float:
        """A tile that took so many times the best in a first look is not launched again."""

    def to_json(self) -> dict[str, Any]: ...

    def code(self, tile: Any) -> str:
        """The host's file that holds the kernel for a tile."""

    def config(self, tile: Any) -> Any:
        """A config of the host's own class, for that file's kernel."""

    def grid(self, tile: Any) -> tuple[int, ...]:
        """What a launch is given after the arguments; nothing where the host works it out."""

    def row(self, tile: Any) -> Row:
        """A tile's keys in a raw sweep."""

    def tile(self, row: Row) -> Any:
        """The tile of a raw sweep's row."""

    def twin(self, tile: Any) -> Hashable:
        """What two tiles must share to have equal times where their binaries are equal."""

    def references(self) -> Mapping[str, Callable[..., None]]:
        """What is timed beside the tiles, by name; called like a launcher, with the arguments and `stream`."""
