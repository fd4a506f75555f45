"""The buffers that A and B of a case share, guard bytes around each, and what an output should be in float64."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import numpy as np

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu.ops import find_op
from tileguard.runtime.devices.cpu.reference import reference, rounding_unit
from tileguard.runtime.devices.cpu.storage import EPS, STORAGE, TINY, Array, to_storage, widened
from tileguard.runtime.devices.cpu.workspace import guarded_buffers

FIRST_GUARD, POISON_BYTE = 0xA7, 0xFF
WORST = 1e300
"""Stands for an error without bound: JSON has no infinity."""


class AbBuffers:
    """Operands, outputs and guard bytes of one kernel in one arena: what A reads and writes, B does too.

    `pointers`: addresses in the order of the kernel's parameters, tile operands, row operands, outputs.
    """

    def __init__(self, kernel: ReductionKernel, *, seed: int) -> None:
        self.kernel = kernel
        self._op = op = find_op(kernel.op)
        operands = make_operands(kernel, seed)
        stored = {name: self._stored(name, values) for name, values in operands.items()}
        shape: tuple[int, ...] = (kernel.xnumel, kernel.rnumel) if kernel.inner else (kernel.rnumel, kernel.xnumel)
        blank = np.empty(shape if op.stores_tile else (kernel.xnumel,), STORAGE[kernel.dtype])
        self._arena, views, self._guards = guarded_buffers([*stored.values(), *(blank for _ in op.outputs)])
        self._inputs = dict(zip(stored, views, strict=False))
        self._outputs = dict(zip(op.outputs, views[len(stored) :], strict=True))
        for name, data in stored.items():
            self._inputs[name][...] = data
        self.pointers = tuple(view.ctypes.data for view in views)
        tiles = [self._numbers(name) for name in op.tile_inputs]
        # Small multiples of 1/4 add up exactly in any order: no slack then.
        self._expected = [
            (value, slack * 0 if op.sums_data else slack)
            for value, slack in reference(op.name, tiles, [self._numbers(name) for name in op.row_inputs])
        ]

    def input_digests(self) -> dict[str, str]:
        """SHA-256 of every operand's bytes, as they lie in memory now."""
        return {name: _sha256(view) for name, view in self._inputs.items()}

    def input_copies(self) -> dict[str, Array]:
        """The operands as they lie in memory."""
        return {name: view.copy() for name, view in self._inputs.items()}

    def output_copies(self) -> dict[str, Array]:
        """The outputs as they lie in memory."""
        return {name: view.copy() for name, view in self._outputs.items()}

    def poison(self) -> None:
        """Make outputs NaN and guards whole, so that what is not written, or written outside, shows."""
        for view in self._outputs.values():
            view.view(np.uint8)[...] = POISON_BYTE
        # Each its own byte: what is read from one guard and written to another shows.
        for index, guard in enumerate(self._guards):
            guard[...] = FIRST_GUARD + index % 64

    def check(self, tile: ReductionTile) -> dict[str, Any]:
        """Compare every number of every output with float64, and every guard byte, after a run of `tile`.

        worst: the largest error as a share of what rounding may do, `WORST` where it has no bound; right up to 1.
        """
        touched = sum(int((guard != FIRST_GUARD + index % 64).sum()) for index, guard in enumerate(self._guards))
        unit = rounding_unit(self.kernel, tile)
        outputs = {
            name: {"elements": view.size, **self._errors(view, *expected, unit), "sha256": _sha256(view)}
            for (name, view), expected in zip(self._outputs.items(), self._expected, strict=True)
        }
        return {
            "guard_bytes": sum(guard.size for guard in self._guards), "guard_bytes_touched": touched, "outputs": outputs,
        }  # fmt: skip

    def _errors(self, view: Array, want: Array, slack: Array, unit: float) -> dict[str, Any]:
        dtype = self.kernel.dtype
        got = widened(self._logical(view), dtype).astype(np.float64)
        # One rounding to storage, and one to what is computed in.
        roundings = (EPS[dtype] + EPS["fp64" if dtype == "fp64" else "fp32"]) / 2
        with np.errstate(all="ignore"):
            excess = np.abs(got - want) / (slack * unit + np.abs(want) * roundings + TINY[dtype])
        excess[(got == want) | (np.isnan(got) & np.isnan(want))] = 0
        excess = np.nan_to_num(excess, nan=WORST, posinf=WORST)
        return {"wrong": int((excess > 1).sum()), "worst": float(excess.max())}

    def _numbers(self, name: str) -> Array:
        view = self._logical(self._inputs[name])
        return view != 0 if name == "mask" else widened(view, self.kernel.dtype).astype(np.float64)

    def _stored(self, name: str, values: Array) -> Array:
        stored = values.astype(np.uint8) if name == "mask" else to_storage(values, self.kernel.dtype)
        return np.ascontiguousarray(stored if self.kernel.inner or stored.ndim == 1 else stored.T)

    def _logical(self, view: Array) -> Array:
        return view if self.kernel.inner or view.ndim == 1 else view.T


def make_operands(kernel: ReductionKernel, seed: int) -> dict[str, Array]:
    """Operands by name in the order of parameters: float32[xnumel, rnumel] or [rnumel], the mask bool."""
    op, shape = find_op(kernel.op), (kernel.xnumel, kernel.rnumel)
    random = np.random.default_rng([seed, zlib.crc32(repr(kernel).encode())])
    made: dict[str, Array] = {}
    for name in op.tile_inputs:
        values = random.standard_normal(shape, dtype=np.float32)
        if name == "mask":
            made[name] = values < 0.8
        else:
            made[name] = np.clip(np.rint(values * 4), -16, 16) / 4 if op.sums_data else values
    for name in op.row_inputs:
        made[name] = random.standard_normal(kernel.rnumel, dtype=np.float32) + 1
    return made


def _sha256(view: Array) -> str:
    return hashlib.sha256(view.view(np.uint8).reshape(-1).data).hexdigest()
