"""A recorded corpus as a device: every part that needs measurements can be tested without the hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from .base import (
    NOT_MEASURED,
    OK,
    CandidateError,
    Compiled,
    CompileError,
    CompileTimeout,
    OutOfResource,
    Timing,
    WrongResult,
)

_ERROR_OF: dict[str, type[CandidateError]] = {
    error.status: error for error in (OutOfResource, CompileError, CompileTimeout, WrongResult)
}


class RecordedSweep(Protocol):
    """What replay needs of a sweep; `learner.corpus.KernelSweep` has it."""

    @property
    def kernel(self) -> ReductionKernel: ...
    @property
    def index(self) -> Mapping[ReductionTile, int]: ...
    @property
    def status(self) -> Sequence[str]: ...
    @property
    def timings(self) -> Sequence[Timing | None]: ...
    @property
    def compile_ms(self) -> Sequence[float] | npt.NDArray[np.float64]: ...


class ReplayDevice:
    """Compiles by looking up, benches by repeating what was recorded.

    A tile that the corpus lacks fails as CompileError, one that failed when it was recorded fails the same way.
    Of several sweeps of one kernel the first counts.
    """

    def __init__(self, sweeps: Iterable[RecordedSweep], hardware: HardwareSpec, *, toolchain: str = "replay") -> None:
        self._hardware = hardware
        self._toolchain = toolchain
        self._sweeps: dict[ReductionKernel, RecordedSweep] = {}
        for sweep in sweeps:
            self._sweeps.setdefault(sweep.kernel, sweep)

    @property
    def hardware(self) -> HardwareSpec:
        return self._hardware

    @property
    def toolchain(self) -> str:
        return self._toolchain

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
        sweep = self._sweeps.get(kernel)
        if sweep is None:
            raise CompileError(f"no sweep of {kernel} is recorded")
        position = sweep.index.get(tile)
        if position is None or sweep.status[position] == NOT_MEASURED:
            raise CompileError(f"tile {tile} was not measured")
        if sweep.status[position] != OK:
            raise _ERROR_OF[sweep.status[position]](f"recorded failure of tile {tile}")
        return Compiled(kernel, tile, float(sweep.compile_ms[position]), handle=sweep.timings[position])

    def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
        return [one.handle for one in compiled]

    def close(self) -> None:
        self._sweeps.clear()
