"""Matrix products to sweep: an endless stream of families in turn, sizes drawn log-uniformly by seed.

None is a model's. The BMM note's own shapes are a family of their own. A family is the unit of every split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from tileguard.features.errors import InvalidInput, checked_choice
from tileguard.features.kernels import MatmulKernel

OPS = ("mm", "bmm", "addmm")

DTYPES = (("bf16", 3), ("fp16", 2), ("tf32", 2), ("fp32", 2))
"""dtypes and how often each is drawn; tf32 is fp32 in memory. PyTorch multiplies fp32 as fp32 unless told otherwise."""

MAX_BYTES = 2 << 30
"""Of all three matrices."""

MAX_FLOPS = {"bf16": 3e12, "fp16": 3e12, "tf32": 1e12, "fp32": 1e11}
"""Of one product: about 4 ms on an H200."""

MIN_K, MAX_K = 16, 16384
QUANTUM = 128
MAX_BATCH = 65535
"""Of a CUDA grid's second axis, which is the batch."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One product: `name` is distinct, `family` the unit of splits. addmm adds a vector of n. Raises InvalidInput."""

    family: str
    name: str
    op: str
    kernel: MatmulKernel

    def __post_init__(self) -> None:
        checked_choice("op", self.op, OPS)
        checked_choice("dtype", self.kernel.dtype, list(MAX_FLOPS))
        most = MAX_BATCH if self.op == "bmm" else 1
        if self.kernel.batch > most:
            raise InvalidInput("batch", self.kernel.batch, f"1 to {most} for {self.op}")

    @property
    def allow_tf32(self) -> bool:
        return self.kernel.dtype == "tf32"


def problem(family: str, op: str, kernel: MatmulKernel) -> Problem:
    """A problem named after all that tells it from others."""
    sizes = "x".join(map(str, (kernel.batch, kernel.m, kernel.n, kernel.k)))
    layout = "nt"[kernel.a_transposed] + "nt"[kernel.b_transposed]
    return Problem(family, f"{family}:{op}:{sizes}:{kernel.dtype}:{layout}", op, kernel)


class Draw:
    """Sizes and dtypes by seed."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def number(self, least: float, most: float) -> int:
        """Log-uniform from `least` to `most`."""
        return round(math.exp(self.random.uniform(math.log(least), math.log(most))))

    def size(self, least: float, most: float) -> int:
        """Log-uniform; every second time a multiple of QUANTUM, or below it a power of two, and else never one: then a
        multiple of 8 or any number."""
        exact = self.number(least, most)
        if self.coin(0.5):
            return max(1, round(exact / QUANTUM) * QUANTUM) if exact >= QUANTUM else 1 << round(math.log2(exact))
        unit = self.random.choice((1, 8)) if exact >= 16 else 1
        size = max(1, round(exact / unit) * unit)
        return size + (size % QUANTUM == 0) * unit

    def k(self, least: float = MIN_K, most: float = MAX_K) -> int:
        return min(max(self.size(least, most), MIN_K), MAX_K)

    def dtype(self) -> str:
        return self.random.choices([name for name, _ in DTYPES], [weight for _, weight in DTYPES])[0]

    def coin(self, share: float) -> bool:
        return self.random.random() < share


Family = Callable[[Draw], tuple[str, int, int, int, int, bool, bool]]
"""Draws op, batch, m, n, k, a_transposed, b_transposed."""


def prefill(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Many rows against a weight, batched or not (BMM note §7.2.5: m from 4 Ki on, n and k from 128 to 10 Ki)."""
    batch = draw.number(2, 16) if draw.coin(0.5) else 1
    op = "bmm" if batch > 1 else "mm"
    return op, batch, draw.size(4096, 65536), draw.size(128, 10240), draw.k(128, 10240), False, draw.coin(0.5)


def decode(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Few rows in each of many batches (BMM note §7.2.5: batch 2 to 128, m to 128, n and k from 128 to 10 Ki)."""
    return (
        "bmm",
        draw.number(2, 127),
        draw.size(1, 128),
        draw.size(128, 10240),
        draw.k(128, 10240),
        False,
        draw.coin(0.3),
    )


def projection(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """A layer's weight, stored as outputs by inputs, mostly with a bias."""
    op = "addmm" if draw.coin(0.7) else "mm"
    return op, 1, draw.size(64, 16384), draw.size(256, 12288), draw.k(256, 12288), False, draw.coin(0.8)


def single_rows(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """A handful of rows against a weight."""
    op = "addmm" if draw.coin(0.6) else "mm"
    return op, 1, draw.size(1, 64), draw.size(512, 32768), draw.k(512, 16384), False, draw.coin(0.7)


def attention_scores(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Queries by keys: k is a head's width."""
    rows = draw.size(64, 4096)
    return (
        "bmm",
        draw.number(4, 512),
        rows,
        rows if draw.coin(0.6) else draw.size(64, 4096),
        draw.k(32, 256),
        False,
        True,
    )


def attention_values(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Weights by values: n is a head's width."""
    rows = draw.size(1, 4096)
    return "bmm", draw.number(4, 512), rows, draw.size(32, 256), draw.k(64, 4096), False, False


def attention_gradients(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """The transposed weights by a gradient."""
    return "bmm", draw.number(4, 256), draw.size(64, 4096), draw.size(32, 256), draw.k(64, 4096), True, False


def batched_small(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Very many small products."""
    return (
        "bmm",
        draw.number(128, 8192),
        draw.size(8, 160),
        draw.size(8, 160),
        draw.k(16, 256),
        draw.coin(0.3),
        draw.coin(0.3),
    )


def batched_wide(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """One product for each of a few groups: what a mixture of weights does."""
    return (
        "bmm",
        draw.number(2, 64),
        draw.size(16, 2048),
        draw.size(256, 8192),
        draw.k(256, 8192),
        False,
        draw.coin(0.5),
    )


def square(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """All three axes of one length, nearly."""
    side = draw.size(128, 8192)
    return "mm", 1, side, side, min(side, MAX_K), draw.coin(0.3), draw.coin(0.3)


def odd(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Odd sizes on every axis, which align to nothing."""
    m, n, k = (2 * (draw.size(*ends) // 2) + 1 for ends in ((17, 8192), (17, 8192), (17, 4096)))
    return draw.random.choice(("mm", "addmm")), 1, m, n, k, draw.coin(0.2), draw.coin(0.4)


def tall(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Very many rows, few columns."""
    return "mm", 1, draw.size(16384, 1 << 20), draw.size(8, 256), draw.k(16, 1024), False, draw.coin(0.4)


def weight_gradient(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Both factors share their long axis, the rows of a batch: k is long."""
    return "mm", 1, draw.size(64, 8192), draw.size(64, 8192), draw.k(1024, 16384), True, False


def long_k(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """A small product over a long axis."""
    return "mm", 1, draw.size(16, 768), draw.size(16, 768), draw.k(4096, 16384), False, draw.coin(0.5)


def short_k(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """A large product over a short axis: what is written is most of the work."""
    return "mm", 1, draw.size(512, 16384), draw.size(512, 16384), draw.k(16, 128), False, draw.coin(0.5)


def vocabulary(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """Some rows against very many columns."""
    return (
        draw.random.choice(("mm", "addmm")),
        1,
        draw.size(1, 2048),
        draw.size(24000, 160000),
        draw.k(512, 4096),
        False,
        draw.coin(0.8),
    )


def one_wave(draw: Draw) -> tuple[str, int, int, int, int, bool, bool]:
    """About as many blocks of 128 x 128 as an H200 has cores, and up to twice that: where a tail costs most."""
    rows = draw.random.randint(4, 33)
    columns = max(1, round(draw.random.uniform(100, 290) / rows))
    ragged = draw.random.randint(0, 127) if draw.coin(0.5) else 0
    return "mm", 1, rows * QUANTUM - ragged, columns * QUANTUM, draw.k(256, 8192), False, draw.coin(0.5)


FAMILIES: tuple[Family, ...] = (
    prefill, decode, projection, single_rows, attention_scores, attention_values, attention_gradients, batched_small,
    batched_wide, square, odd, tall, weight_gradient, long_k, short_k, vocabulary, one_wave,
)  # fmt: skip

NOTE = "note"
NOTE_SHAPES = (
    (1, 1792, 1792, 4096), (1, 1536, 2048, 4096), (1, 1536, 1536, 256), (1, 2304, 2304, 256), (34, 1024, 1024, 2048),
    (7, 1280, 256, 8192), (100, 64, 3328, 512), (1, 16896, 512, 140), (2, 4224, 4096, 1024), (8, 64, 512, 1024),
    (2, 4096, 4096, 4096), (128, 1, 128, 10240),
)  # fmt: skip
"""(batch, m, n, k) of the BMM note's examples (§4.4, §5.4, §7.2.3, §7.2.5), in bf16; the last five are of the ranges
that §7.2.5 gives for prefill and decode."""


def problems(seed: int) -> Iterator[Problem]:
    """Problems without end: one of every family and then the next of every family, the note's while they last. The same
    for the same seed, none twice."""
    seen: set[str] = set()
    for turn in count():
        drawn = (draw_problem(family, seed, turn) for family in FAMILIES)
        noted = [note_problem(turn)] if turn < len(NOTE_SHAPES) else []
        for one in (*noted, *drawn):
            if one.name not in seen:
                seen.add(one.name)
                yield one


def note_problem(turn: int) -> Problem:
    batch, m, n, k = NOTE_SHAPES[turn]
    return problem(NOTE, "bmm" if batch > 1 else "mm", MatmulKernel(batch, m, n, k, "bf16"))


def draw_problem(family: Family, seed: int, turn: int) -> Problem:
    """A family's problem of one turn, drawn again until it is neither too large nor too long."""
    draw = Draw(Random(f"{seed}:{family.__name__}:{turn}"))
    while True:
        op, batch, m, n, k, a_transposed, b_transposed = family(draw)
        kernel = MatmulKernel(batch, m, n, k, draw.dtype(), None, a_transposed, b_transposed)
        if batch <= MAX_BATCH and _bytes(kernel) <= MAX_BYTES and _flops(kernel) <= MAX_FLOPS[kernel.dtype]:
            return problem(family.__name__, op, kernel)


def _bytes(kernel: MatmulKernel) -> int:
    return kernel.input_bytes + kernel.batch * kernel.m * kernel.n * kernel.out_bytes


def _flops(kernel: MatmulKernel) -> int:
    return 2 * kernel.batch * kernel.m * kernel.n * kernel.k
