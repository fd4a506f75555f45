"""A matrix product's kernel as TorchInductor's Triton template writes it, captured as plain data."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import MatmulKernel
from tileguard.features.tiles import MatmulTile
from tileguard.runtime.optional import require

from .capture import known_fields
from .swept import Row

TEMPLATE = "TEMPLATE"
"""TorchInductor's name of the heuristic under which it compiles templates."""

EVEN, RAGGED = "even_k", "ragged_k"
"""Which of a template's two sources a tile takes: whether BLOCK_K divides k (the template's EVEN_K)."""

HOPELESS = 1.5
"""As SweptKernel says: products run long enough for a first look to tell."""

ROW_KEYS = ("BM", "BN", "BK", "w", "st", "g")
"""A tile's keys in a raw sweep, in the order of MatmulTile.sort_key."""


@dataclass(frozen=True, slots=True)
class CapturedMatmul:
    """One product. The fields are those of a raw sweep's line (docs/collect.md).

    sources: by EVEN or RAGGED, the template's file for some tile; `code` puts others in. baselines: tiles in the order
    of MatmulTile.sort_key, those of the host's search space DEFAULT and, as `max_autotune`, EXHAUSTIVE. decompose_k:
    whether the host would leave its template out, for it prefers to split k. label: `family:` and all that tells the
    problem from others. args: as `describe_args` gives them, in the kernel's order. allow_tf32: whether fp32 may be
    multiplied as tf32, as ATen then does; dtype says whether the template does too, which from torch 2.13 on needs
    some size.
    """

    key: str
    label: str
    kernel: str
    op: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str
    a_transposed: bool
    b_transposed: bool
    allow_tf32: bool
    decompose_k: bool
    baselines: dict[str, list[list[int]]]
    sources: dict[str, str]
    args: tuple[Any, ...]
    heuristic: str = TEMPLATE

    @property
    def family(self) -> str:
        return self.label.partition(":")[0]

    @property
    def described(self) -> MatmulKernel:
        return MatmulKernel(
            self.batch, self.m, self.n, self.k, self.dtype, None, self.a_transposed, self.b_transposed
        )  # fmt: skip

    @property
    def hopeless(self) -> float:
        return HOPELESS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any], *, where: str) -> CapturedMatmul:
        """Keys of other things are ignored. Raises InvalidInput for a missing one."""
        given = known_fields(cls, data, where=where)
        return cls(**given | {"args": tuple(given["args"])})

    def code(self, tile: MatmulTile) -> str:
        """The host's file for a tile. Raises InvalidInput where the template has changed."""
        return render(self.sources[EVEN if self.k % tile.block_k == 0 else RAGGED], tile)

    def config(self, tile: MatmulTile) -> Any:
        from torch._inductor.runtime.triton_heuristics import InductorConfig

        return InductorConfig({}, num_warps=tile.num_warps, num_stages=tile.num_stages)

    def grid(self, tile: MatmulTile) -> tuple[int, ...]:
        return ceil_div(self.m, tile.block_m) * ceil_div(self.n, tile.block_n), self.batch, 1

    def row(self, tile: MatmulTile) -> Row:
        return dict(zip(ROW_KEYS, tile.sort_key, strict=True))

    def tile(self, row: Row) -> MatmulTile:
        """The tile of a raw sweep's row."""
        return matmul_tile([row[key] for key in ROW_KEYS])

    def twin(self, tile: MatmulTile) -> Hashable:
        return tile.block_m, tile.block_n, tile.block_k, tile.num_warps, tile.group_m

    def references(self) -> dict[str, Callable[..., None]]:
        """What the host has from ATen: of addmm with the vector as it is, and spread over the rows."""
        torch, tf32 = require("torch"), self.allow_tf32
        matmul = torch.backends.cuda.matmul

        def product(a: Any, b: Any, out: Any, *, stream: Any) -> None:
            matmul.allow_tf32 = tf32
            (torch.bmm if self.op == "bmm" else torch.mm)(a, b, out=out)

        def with_vector(bias: Any, a: Any, b: Any, out: Any, *, stream: Any) -> None:
            matmul.allow_tf32 = tf32
            torch.addmm(bias, a, b, out=out)

        def with_rows(bias: Any, a: Any, b: Any, out: Any, *, stream: Any) -> None:
            matmul.allow_tf32 = tf32
            torch.addmm(bias.expand(self.m, self.n), a, b, out=out)

        if self.op == "addmm":
            return {"aten::bias_addmm": with_vector, "aten::addmm": with_rows}
        return {f"aten::{self.op}": product}


def ceil_div(size: int, block: int) -> int:
    """Blocks that cover an axis."""
    return -(-size // block)


def matmul_tile(numbers: list[int]) -> MatmulTile:
    """(BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, GROUP_M) as a tile. Raises InvalidInput."""
    if len(numbers) != len(ROW_KEYS):
        raise InvalidInput("tile", numbers, "six integers: " + ", ".join(ROW_KEYS))
    block_m, block_n, block_k, num_warps, num_stages, group_m = numbers
    return MatmulTile(block_m, block_n, block_k, num_warps, num_stages, group_m)


def render(source: str, tile: MatmulTile) -> str:
    """A template's file for another tile than it was written for. Raises InvalidInput naming what is not in it."""
    blocks = {
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP_M": tile.group_m,
    }  # fmt: skip
    for name, size in blocks.items():
        source = _put(source, name, rf"^( *{name} : tl\.constexpr = )\d+$", size)
        source = _put(source, name, rf"('{name}': )\d+\b", size)
    for name, number in (("num_warps", tile.num_warps), ("num_stages", tile.num_stages)):
        source = _put(source, name, rf"^( *{name}=)\d+(?=,$)", number)
    return source


def _put(source: str, name: str, pattern: str, value: int | None) -> str:
    changed, found = re.subn(pattern, rf"\g<1>{value}", source, flags=re.MULTILINE)
    if found != 1:
        raise InvalidInput("template", f"{name} in {found} places", "TorchInductor's template, as of 2.11 to 2.14")
    return changed
