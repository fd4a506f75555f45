"""A kernel's buffers, shared by all its candidates: operands, outputs, guard bytes between them, the right answer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from ..base import WrongResult
from .ops import find_op
from .reference import reference, rounding_unit
from .storage import EPS, STORAGE, TINY, Array, compute_dtype, to_storage, widened

PAGE = 4096
# Buffers begin on a page each, moved on by a few cache lines: the same in every process, so that times do not
# depend on where an allocator put them, and never all at one offset of a page, where stores would hold up loads.
STAGGER = 320
FIRST_GUARD = 0xA1
"""Byte of the first guard; each next one has the next byte, so that what is read from one and written to another shows."""
POISON_BYTE = 0xFF  # NaN in every storage dtype: an output that was not written shows
CHUNK = 1 << 18  # elements compared or referenced at a time, to stay in cache


@dataclass(frozen=True, slots=True)
class _Expected:
    """Of one output, in the dtype computed in: value, and slack in the sense of reference.py."""

    name: str
    value: Array
    slack: Array


def _guard_byte(index: int) -> int:
    return FIRST_GUARD + index % 64


class Workspace:
    """Buffers of one kernel in one arena, every byte between them a guard's.

    `pointers` are their addresses in the order of the kernel's parameters: tile operands, row operands, outputs.
    """

    def __init__(self, kernel: ReductionKernel, *, seed: int = 0, operands: Mapping[str, Array] | None = None) -> None:
        """`operands` by name (float[xnumel, rnumel] or float[rnumel], the mask bool); made from `seed` if left out."""
        self.kernel = kernel
        self._op = find_op(kernel.op)
        values = dict(_make_operands(kernel, seed) if operands is None else operands)
        tile_shape = (kernel.xnumel, kernel.rnumel)
        names = [*self._op.tile_inputs, *self._op.row_inputs]
        output_shape = tile_shape if self._op.stores_tile else (kernel.xnumel,)
        stored = [self._stored(name, values.pop(name)) for name in names]
        blanks = [np.empty(self._laid_out(output_shape), STORAGE[kernel.dtype]) for _ in self._op.outputs]
        self._arena, views, self._guards = guarded_buffers([*stored, *blanks])
        for view, data in zip(views, stored, strict=False):
            view[...] = data
        self._inputs, self._outputs = views[: len(names)], views[len(names) :]
        self.pointers = tuple(view.ctypes.data for view in views)
        # Sums of small multiples of 1/4 are exact in any order, so our own data leaves their rounding no slack.
        self._expected = self._reference(exact=operands is None and self._op.sums_data)

    def poison(self) -> None:
        """Make outputs NaN, and guards whole again."""
        for output in self._outputs:
            output.view(np.uint8)[...] = POISON_BYTE
        for index, guard in enumerate(self._guards):
            guard[...] = _guard_byte(index)

    def check(self, tile: ReductionTile) -> None:
        """Compare every output and every guard byte after a run of `tile`.

        Raises WrongResult saying which output, where, how much and how many; or which byte outside was written.
        """
        for index, guard in enumerate(self._guards):
            touched = np.flatnonzero(guard != _guard_byte(index))
            if touched.size:
                where = f"byte {int(touched[0])} of guard {index}"
                raise WrongResult(f"tile {tile}: wrote outside its buffers, {touched.size} bytes from {where}")
        unit = rounding_unit(self.kernel, tile)
        for expected, output in zip(self._expected, self._outputs, strict=True):
            self._compare(expected, self._logical(output), unit, tile)

    def output(self, index: int) -> Array:
        """An output's numbers by x (and r), as float64."""
        return widened(self._logical(self._outputs[index]), self.kernel.dtype).astype(np.float64)

    def _compare(self, expected: _Expected, output: Array, unit: float, tile: ReductionTile) -> None:
        dtype, count, worst = self.kernel.dtype, 0, ("", 0.0)
        # Half a unit for the result's rounding to storage, and half a one for the reference's to what is computed in.
        roundings = (EPS[dtype] + EPS["fp64" if dtype == "fp64" else "fp32"]) / 2
        for rows in _row_chunks(output):
            got, want = widened(output[rows], dtype), expected.value[rows]
            allowed = expected.slack[rows] * unit + np.abs(want) * roundings + TINY[dtype]
            with np.errstate(invalid="ignore"):
                excess = np.abs(got - want) / allowed
            bad = ~(excess <= 1) & ~((got == want) | (np.isnan(got) & np.isnan(want)))
            if bad.any():
                count += int(bad.sum())
                place = np.unravel_index(
                    int(np.argmax(np.where(bad, np.nan_to_num(excess, nan=np.inf), -1))), bad.shape
                )
                size = float(np.nan_to_num(excess[place], nan=np.inf))
                if size > worst[1]:
                    spot = (place[0] + rows.start, *place[1:])
                    text = f"[{', '.join(map(str, spot))}] is {got[place]:.9g}, not {want[place]:.9g} ± {allowed[place]:.2g}"
                    worst = (text, size)
        if count:
            raise WrongResult(
                f"{self.kernel.op} {dtype} {self.kernel.xnumel}x{self.kernel.rnumel}, tile {tile}: "
                f"{count} of {output.size} numbers of {expected.name} are wrong; worst {worst[0]}"
            )

    def _reference(self, *, exact: bool) -> list[_Expected]:
        kernel, op, kind = self.kernel, self._op, compute_dtype(self.kernel.dtype)
        tile_inputs = [self._logical(view) for view in self._inputs[: len(op.tile_inputs)]]
        rows = [widened(view, kernel.dtype).astype(np.float64) for view in self._inputs[len(op.tile_inputs) :]]
        parts = []
        for chunk in _row_chunks(tile_inputs[0]):
            tiles = [
                view[chunk] != 0 if name == "mask" else widened(view[chunk], kernel.dtype).astype(np.float64)
                for name, view in zip(op.tile_inputs, tile_inputs, strict=True)
            ]
            with np.errstate(over="ignore"):
                parts.append([(v.astype(kind), s.astype(kind)) for v, s in reference(op.name, tiles, rows)])
        found = []
        for name, pieces in zip(op.outputs, zip(*parts, strict=True), strict=True):
            value, slack = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
            found.append(_Expected(name, value, slack * 0 if exact else slack))
        return found

    def _stored(self, name: str, values: Array) -> Array:
        """An operand in storage dtype and memory layout."""
        stored = values.astype(np.uint8) if name == "mask" else to_storage(values, self.kernel.dtype)
        return np.ascontiguousarray(stored if self.kernel.inner or stored.ndim == 1 else stored.T)

    def _laid_out(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.kernel.inner else shape[::-1]

    def _logical(self, view: Array) -> Array:
        """A buffer as [x] or [x, r], whatever its layout."""
        return view if self.kernel.inner or view.ndim == 1 else view.T


def _make_operands(kernel: ReductionKernel, seed: int) -> dict[str, Array]:
    """Operands of every kernel from its own stream of random numbers."""
    op = find_op(kernel.op)
    shape = (kernel.xnumel, kernel.rnumel)
    random = np.random.default_rng([seed, zlib.crc32(repr(kernel).encode())])
    made: dict[str, Array] = {}
    for name in op.tile_inputs:
        if name == "mask":
            made[name] = random.random(shape, dtype=np.float32) < 0.8
            if kernel.xnumel > 1:
                made[name][kernel.xnumel // 2] = False  # one row with nothing left
        else:
            values = random.standard_normal(shape, dtype=np.float32)
            if op.name == "max":  # where one left out would show: the last element of some rows, the first of others
                values[0::2, -1] += 8
                values[1::2, 0] += 8
            made[name] = np.clip(np.rint(values * 4), -16, 16) / 4 if op.sums_data else values
    for name in op.row_inputs:
        made[name] = random.standard_normal(kernel.rnumel, dtype=np.float32) + 1
    return made


def guarded_buffers(arrays: list[Array]) -> tuple[Array, list[Array], list[Array]]:
    """(arena, views, guards): uninitialised buffers of the arrays' shapes, and all bytes between and around them."""
    offset, spans = PAGE, []
    for index, array in enumerate(arrays):
        start = -(-offset // PAGE) * PAGE + index * STAGGER
        spans.append((start, start + array.nbytes))
        offset = start + array.nbytes + PAGE
    raw = np.empty(offset + PAGE, np.uint8)
    arena = raw[-raw.ctypes.data % PAGE :][:offset]
    views = [
        arena[start:end].view(array.dtype).reshape(array.shape)
        for (start, end), array in zip(spans, arrays, strict=True)
    ]
    edges = [0, *(edge for span in spans for edge in span), offset]
    guards = [arena[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return arena, views, guards


def _row_chunks(array: Array) -> list[slice]:
    rows = max(1, CHUNK // (array.shape[1] if array.ndim > 1 else 1))
    return [slice(start, start + rows) for start in range(0, array.shape[0], rows)]
