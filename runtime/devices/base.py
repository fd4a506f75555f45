"""The contract of a device: compile a tile of a kernel, bench compiled tiles side by side.

tests/contracts/device_contract.py holds every implementation to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tileguard.features.errors import TileguardError
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

OK = "ok"
NOT_MEASURED = "not_measured"


class CandidateError(TileguardError):
    """One candidate failed; the others go on. `status` is what its row in a corpus says."""

    status: ClassVar[str] = "failed"


class OutOfResource(CandidateError):
    """The tile exceeds a budget of the hardware or compiler; the message names budget, use and limit."""

    status = "out_of_resource"


class CompileError(CandidateError):
    """The compiler refused, raised or died."""

    status = "compile_error"


class CompileTimeout(CandidateError):
    """The compiler did not finish in time and was ended."""

    status = "compile_timeout"


class WrongResult(CandidateError):
    """The kernel ran, but its output differs from the reference."""

    status = "wrong_result"


STATUSES = (OK, NOT_MEASURED, *(e.status for e in (OutOfResource, CompileError, CompileTimeout, WrongResult)))


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled candidate. `handle` belongs to the device; n_regs, n_spills and shared where it knows them."""

    kernel: ReductionKernel
    tile: ReductionTile
    compile_ms: float
    handle: Any = None
    n_regs: int | None = None
    n_spills: int | None = None
    shared: int | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one call in µs. `us` is the device's own estimate and the one compared: the median of the rounds on a
    GPU, the minimum of thread CPU time on the CPU. us_mad: median absolute deviation; reps: rounds counted.
    """

    us: float
    us_median: float
    us_min: float
    us_mad: float
    reps: int


class Device(Protocol):
    """Compiles and times candidates of one kernel on one hardware."""

    @property
    def hardware(self) -> HardwareSpec:
        """What it runs on."""

    @property
    def toolchain(self) -> str:
        """Compiler and driver versions, as one string: winners are only valid under the same one."""

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
        """Compile one candidate and check its output. Raises a CandidateError; anything else is a bug."""

    def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
        """Time candidates in interleaved rounds; timings in the order given."""

    def close(self) -> None:
        """Free processes, memory and code. Idempotent; the device is unusable afterwards."""
