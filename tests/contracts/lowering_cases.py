"""Cases of LoweringContract: small tile programs of the kinds that the Tile→XIR report (§5) tests, on set operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.runtime.devices.cpu.operation import Vocabulary
from tileguard.runtime.devices.cpu.ops import cpu_kernel
from tileguard.runtime.devices.cpu.program_ops import PROGRAM_OPS
from tileguard.runtime.devices.cpu.programs import (
    EACH,
    Carried,
    Fold,
    Index,
    Let,
    Load,
    Loop,
    Map,
    Program,
    Read,
    Statement,
    Store,
    View,
)
from tileguard.runtime.devices.cpu.storage import to_storage

ROWS = 19
"""No multiple of any width but 1, and more than the widest."""

LENGTH = 5
GUARD = 24
"""Numbers before and after the views of a buffer; nothing may change them."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A program, and where each of its views lies: (buffer, first number). exact: it computes no exponential."""

    name: str
    program: Program
    places: tuple[tuple[int, int], ...]
    buffers: tuple[Array, ...]
    exact: bool = True

    def memory(self) -> list[Array]:
        """The buffers as they are before a run."""
        return [buffer.copy() for buffer in self.buffers]

    def pointers(self, memory: Sequence[Array]) -> list[int]:
        """The program's parameters."""
        return [memory[buffer].ctypes.data + start * self._size(i) for i, (buffer, start) in enumerate(self.places)]

    def _size(self, view: int) -> int:
        return 1 if self.program.views[view].flags else self.buffers[self.places[view][0]].itemsize


def _add(e: Vocabulary, a: Any, b: Any) -> Any:
    return e.add(a, b)


def _sub(e: Vocabulary, a: Any, b: Any) -> Any:
    return e.sub(a, b)


def _max(e: Vocabulary, a: Any, b: Any) -> Any:
    return e.max(a, b)


def _first(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return elements[0]


def _scalar(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return scalars[0]


def _sum(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.add(elements[0], elements[1])


def _difference(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.sub(elements[0], elements[1])


def _double(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.add(elements[0], elements[0])


def _plus_scalar(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.add(elements[0], scalars[0])


def _plus_one(e: Vocabulary, elements: Sequence[Any], scalars: Sequence[Any]) -> Any:
    return e.add(elements[0], e.const(elements[0], 1.0))


def _random(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def _case(
    name: str,
    body: Sequence[Statement],
    *,
    data: Array | None = None,
    extents: tuple[int, ...] = (LENGTH,),
    results: tuple[int, ...] = (LENGTH,),
    rows: int = ROWS,
) -> Case:
    """Inputs of `extents` a row, then outputs of `results`, each in a buffer of its own, none known to lie apart."""
    inputs = []
    for number, extent in enumerate(extents):
        values = _random(rows * extent, number) if data is None else np.resize(data, rows * extent)
        inputs.append(_guarded(values.astype(np.float32)))
    outputs = [_guarded(np.full(rows * extent, np.float32(77))) for extent in results]
    views = tuple(View(extent, max(extent, 1)) for extent in (*extents, *results))
    buffers = (*inputs, *outputs)
    return Case(name, Program(rows, "fp32", views, tuple(body)), tuple((i, GUARD) for i in range(len(views))), buffers)


def _apart(case: Case, suffix: str = ", known to lie apart") -> Case:
    """The same case with that proven: what leaves `loop` legal."""
    program = case.program
    proven = Program(program.rows, program.dtype, program.views, program.body, apart=True)
    return Case(case.name + suffix, proven, case.places, case.buffers, case.exact)


def _guarded(values: Array) -> Array:
    guard = np.full(GUARD, 55, values.dtype)
    return np.concatenate([guard, values, guard])


def _folded(*folds: Fold | Let, result: str = "total", before: Sequence[Statement] = ()) -> list[Statement]:
    """Store a fold of the tile x."""
    return [Load("x", 0), *before, *folds, Map("result", 1, (), _scalar, (result,)), Store(1, "result")]


def _fold(
    index: Index = EACH, count: int = LENGTH, start: float = 0.0, *, right: bool = False, sub: bool = False
) -> Fold:
    return Fold("total", count, (Read("x", index),), _first, _sub if sub else _add, start, right=right)


_CANCELLING = np.array([1e8, 1.0, -1e8, 3.0, 1e-3], np.float32)
_ZEROS = np.full(LENGTH, -0.0, np.float32)

_FOLDS = (
    _case("left sum, cancelling", _folded(_fold()), data=_CANCELLING, results=(1,)),
    _case("right sum, cancelling", _folded(_fold(right=True)), data=_CANCELLING, results=(1,)),
    _case("left difference", _folded(_fold(sub=True)), results=(1,)),
    _case("right difference", _folded(_fold(right=True, sub=True)), results=(1,)),
    _case("sum of negative zeros from a negative zero", _folded(_fold(start=-0.0)), data=_ZEROS, results=(1,)),
    _case("sum of negative zeros from zero", _folded(_fold()), data=_ZEROS, results=(1,)),
    _case(
        "largest of zeros of both signs",
        _folded(Fold("total", LENGTH, (Read("x", EACH),), _first, _max, -1.0)),
        data=np.array([0.0, -0.0], np.float32), results=(1,),
    ),
    _case("fold of no turns", _folded(_fold(count=0, start=2.5)), results=(1,)),
    _case("fold of no turns from a negative zero", _folded(_fold(count=0, start=-0.0)), results=(1,)),
    _case("fold of one turn", _folded(_fold(count=1)), results=(1,)),
    _case("fold backwards by its index", _folded(_fold(Index(turn=-1, offset=LENGTH - 1))), results=(1,)),
    _case("fold of every other element, past the end", _folded(_fold(Index(turn=2))), results=(1,)),
    _case("extracts before the first element", _folded(_fold(Index(turn=1, offset=-2))), results=(1,)),
    _case("extracts after the last element", _folded(_fold(Index(turn=1, offset=3))), results=(1,)),
    _case("extracts all outside", _folded(_fold(Index(turn=1, offset=50), start=1.0)), results=(1,)),
    _case("a one-element tile extracted in every turn", _folded(_fold(count=3)), extents=(1,), results=(1,)),
    _case("an empty tile extracted in every turn", _folded(_fold(count=3, start=4.0)), extents=(0,), results=(1,)),
    _case(
        "fixed extracts inside and outside",
        _folded(
            Let("inside", _first, reads=(Read("x", Index(offset=LENGTH - 1)),)),
            Let("total", _plus_scalar, ("inside",), (Read("x", Index(offset=LENGTH)),)),
        ),  
        results=(1,),
    ),
    _case(
        "fold of a tile made by a fold",
        _folded(
            Fold("all", LENGTH, (Read("moved", EACH),), _first, _add), result="all",
            before=[_fold(), Map("moved", LENGTH, (Read("x"),), _plus_scalar, ("total",))],
        ),
        results=(1,),
    ),
)  # fmt: skip

_MAPS = (
    _case("negative zeros pass through", [Load("x", 0), Store(1, "x")], data=np.array([-0.0, 1.0], np.float32)),
    _case(
        "neighbours, the last without one",
        [Load("x", 0), Map("y", LENGTH, (Read("x", Index(1, offset=1)), Read("x")), _difference), Store(1, "y")],
    ),
    _case(
        "reversed by the index of the element",
        [Load("x", 0), Map("y", LENGTH, (Read("x", Index(-1, offset=LENGTH - 1)),), _first), Store(1, "y")],
    ),
    _case("one element", [Load("x", 0), Map("y", 1, (Read("x"),), _double), Store(1, "y")], extents=(1,), results=(1,)),
    _case(
        "an empty tile beside another",
        [Load("x", 0), Load("none", 1), Map("y", LENGTH, (Read("x"), Read("none")), _sum), Store(2, "y")],
        extents=(LENGTH, 0),
    ),
)


def _looped(*carried: Carried, count: int, result: str = "a") -> list[Statement]:
    return [Load("x", 0), Load("w", 1), Loop(count, carried), Store(2, result)]


_SWAP = (Carried("a", "x", (Read("b"),), _first), Carried("b", "w", (Read("a"),), _first))
_FIBONACCI = (Carried("a", "x", (Read("b"),), _first), Carried("b", "w", (Read("a"), Read("b")), _sum))
_BOTH = (LENGTH, LENGTH)
_LOOPS = (
    _case("a loop of no turns keeps its tile", _looped(*_FIBONACCI, count=0), extents=_BOTH),
    _case("a loop of no turns keeps its one element", _looped(*_FIBONACCI, count=0), extents=(1, 1), results=(1,)),
    _case("a loop of one turn", _looped(*_FIBONACCI, count=1), extents=_BOTH),
    _case("two tiles change places, an odd count", _looped(*_SWAP, count=3), extents=_BOTH),
    _case("two tiles change places, an even count", _looped(*_SWAP, count=4), extents=_BOTH),
    _case("two tiles carried together", _looped(*_FIBONACCI, count=6, result="b"), extents=_BOTH),
    _case("two elements carried together", _looped(*_FIBONACCI, count=5), extents=(1, 1), results=(1,)),
    _case(
        "a tile moves by one in every turn",
        _looped(Carried("a", "x", (Read("a", Index(1, offset=1)),), _first), count=3), extents=_BOTH,
    ),
    _case(
        "a carried tile adds element r of another",
        _looped(Carried("a", "x", (Read("a"), Read("w", EACH)), _sum), count=LENGTH), extents=_BOTH,
    ),
    _case(
        "a carried tile extracts from itself in turn r",
        _looped(Carried("a", "x", (Read("a"), Read("a", EACH)), _sum), count=4), extents=_BOTH,
    ),
    _case(
        "a tile and an element carried together",
        [
            Load("x", 0), Load("w", 1),
            Loop(4, (
                Carried("a", "x", (Read("a"), Read("s", Index())), _sum),
                Carried("s", "w", (Read("s"), Read("a", EACH)), _sum),
            )),
            Store(2, "a"), Store(3, "s"),
        ],
        extents=(LENGTH, 1), results=(LENGTH, 1),
    ),
    _case(
        "an empty tile carried",
        [Load("x", 0), Load("none", 1), Loop(3, (
            Carried("n", "none", (Read("n"),), _double), Carried("a", "x", (Read("a"), Read("n")), _sum),
        )), Store(2, "a")],
        extents=(LENGTH, 0),
    ),
    _case(
        "two loops, the second from the first's result",
        [Load("x", 0), Loop(3, (Carried("a", "x", (Read("a"),), _double),)),
         Loop(2, (Carried("b", "a", (Read("b"), Read("a")), _sum),)), Store(1, "b")],
    ),
)  # fmt: skip


def _overlap(name: str, body: Sequence[Statement], shift: int, *, offset: int = 0, stride: int = 1) -> Case:
    """Views 0 (in) and 1 (out) of one buffer, the second `shift` numbers on, in rows far enough apart."""
    pitch = offset + stride * LENGTH + 4
    buffer = _guarded(_random(ROWS * pitch))
    view = View(LENGTH, pitch, stride, offset)
    return Case(name, Program(ROWS, "fp32", (view, view), tuple(body)), ((0, GUARD), (0, GUARD + shift)), (buffer,))


_TWICE: list[Statement] = [Load("x", 0), Map("y", LENGTH, (Read("x"),), _double), Store(1, "y")]
_SCALED: list[Statement] = [
    Load("x", 0),
    _fold(),
    Map("y", LENGTH, (Read("x"),), _plus_scalar, ("total",)),
    Store(1, "y"),
]
_STORED_BEFORE: list[Statement] = [
    Load("x", 0), Map("y", LENGTH, (Read("x"),), _plus_one), Store(1, "y"), _fold(),
    Map("z", LENGTH, (Read("x"),), _plus_scalar, ("total",)), Store(1, "z"),
]  # fmt: skip
_ALIASES = (
    _overlap("in place", _SCALED, 0),
    _overlap("in place, no extract", _TWICE, 0),
    _overlap("stored one to the right", _SCALED, 1),
    _overlap("stored one to the right, no extract", _TWICE, 1),
    _overlap("stored one to the left", _SCALED, -1),
    _overlap("stored three to the right", _TWICE, 3),
    _overlap("folded after its memory was stored to", _STORED_BEFORE, 0),
    _overlap("folded after its memory was stored to, moved", _STORED_BEFORE, 2),
    _overlap("loaded again after a store", [*_TWICE, Load("new", 0), Map("z", LENGTH, (Read("new"), Read("x")), _sum),
                                            Store(1, "z")], 1),
    _overlap("offset and strided views", _SCALED, 0, offset=3, stride=2),
    _overlap("offset and strided views, moved", _SCALED, 2, offset=3, stride=2),
    _overlap("carried over a store", [Load("x", 0), Loop(3, (Carried("a", "x", (Read("a"), Read("x", EACH)), _sum),)),
                                      Store(1, "a"), Map("z", LENGTH, (Read("x"), Read("a")), _sum), Store(1, "z")], 1),
)  # fmt: skip


def _kernel(op: str, dtype: str = "fp32", *, rows: int = ROWS, length: int = 5, inner: bool = True) -> Case:
    """An operation of the device, on separate buffers."""
    spec = PROGRAM_OPS[op]
    program = spec.program(cpu_kernel(op, rows, length, dtype, inner=inner))
    buffers = []
    for number, view in enumerate(program.views):
        count = rows * view.extent if view.pitch else view.extent
        if view.flags:
            buffers.append(_guarded((_random(count, number) > -0.5).astype(np.uint8)))
        elif number < spec.num_load:
            buffers.append(_guarded(to_storage(_random(count, number), dtype)))
        else:
            buffers.append(_guarded(to_storage(np.full(count, 77.0), dtype)))
    name = f"{op} {dtype} {rows}x{length}{'' if inner else ', columns'}"
    places = tuple((i, GUARD) for i in range(len(buffers)))
    return Case(name, program, places, tuple(buffers), exact=op not in ("tile_swiglu", "tile_masked_softmax"))


_KERNELS = (
    *(_kernel(op) for op in PROGRAM_OPS),
    *(_kernel("tile_rmsnorm", dtype) for dtype in ("fp64", "bf16", "fp16")),
    *(_kernel(op, inner=False) for op in ("tile_layernorm", "tile_normdot", "tile_masked_softmax")),
    *(_kernel("tile_prefix", length=length) for length in (1, 2, 8)),
    _kernel("tile_rmsnorm", rows=1),
    _kernel("tile_rmsnorm", rows=16),
)
_NO_ROWS = Program(0, "fp32", (View(LENGTH, LENGTH), View(LENGTH, LENGTH)), tuple(_SCALED))
_EMPTY = Case("no rows", _NO_ROWS, ((0, GUARD), (1, GUARD)), (_guarded(_random(0)), _guarded(_random(0))))

CASES: tuple[Case, ...] = (*_FOLDS, *(_apart(case) for case in _FOLDS[:8]), *_MAPS, *(_apart(c) for c in _MAPS),
                           *_LOOPS, *_ALIASES, *_KERNELS, _EMPTY)  # fmt: skip
