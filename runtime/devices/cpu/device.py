"""The CPU as a device: real compiles through LLVM, checked results, real times, on one thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from tileguard.features.errors import InvalidInput, TileguardError, checked_int
from tileguard.features.hardware import HardwareSpec, host_cpu
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.optional import require

from ..base import Compiled, CompileError, Timing
from .budgets import CpuBudgets, check_budgets
from .compiler import ChildCompiler
from .targets import WITHOUT_FP16, checked_target, targeted
from .timing import BenchRecipe, interleave
from .workspace import Workspace

if TYPE_CHECKING:
    from .jit import LinkedKernel


MOST_COMPILES = 5
"""Times that a candidate is compiled at most."""


@dataclass(frozen=True, slots=True)
class _Code:
    """A candidate's code with the buffers it runs on."""

    linked: LinkedKernel
    workspace: Workspace

    def run(self, calls: int) -> None:
        self.linked.run(self.workspace.pointers, calls)


class CpuDevice:
    """Compiles and times tiled reductions on this machine's CPU, one thread. Implements Device.

    A candidate is compiled by LLVM in a child process (an abort or a hang there is the candidate's failure), linked
    here, run once and compared in full with a float64 reference. `compile_ms` is CPU time of IR, optimisation and
    code generation, the least where a candidate is compiled more than once. Tiles' num_warps and num_stages mean nothing
    here and are ignored.
    """

    def __init__(
        self,
        *,
        compile_timeout_s: float = 20.0,
        compile_again_ms: float = 0.0,
        seed: int = 0,
        rounds: int = 15,
        recipe: BenchRecipe | None = None,
        budgets: CpuBudgets | None = None,
        target: str | None = None,
    ) -> None:
        """`seed`: of operands and of the order of rounds. `rounds`: of the candidates that come through screening;
        `recipe` has the other terms of timing. `compile_again_ms`: a candidate is compiled until so much time went into
        it, MOST_COMPILES times at most: compile time is as noisy as run time. `target`: the CPU to generate code for, by
        LLVM's name (targets.py), this machine's own where left out; the hardware's name then ends in it. Raises
        MissingDependency without llvmlite, InvalidInput for a target that this machine does not run.
        """
        require("llvmlite")
        from .jit import toolchain

        target = checked_target(target)
        self._target = target
        self._toolchain = toolchain(target)
        self._hardware = targeted(host_cpu(), target)
        self._seed = seed
        self._recipe = replace(recipe or BenchRecipe(), rounds=checked_int("rounds", rounds, minimum=0))
        self._budgets = budgets or CpuBudgets()
        if not 0 <= compile_again_ms < math.inf:
            raise InvalidInput("compile_again_ms", compile_again_ms, "a number of ms >= 0")
        self._compile_again_ms = compile_again_ms
        # Threads share a kernel's buffers: one runs, checks or times at a time.
        self._running = threading.Lock()
        self._compiler = ChildCompiler(timeout_s=compile_timeout_s, target=target)
        # Buffers live as long as a candidate of their kernel does, and the last kernel's until there is another.
        self._workspaces: WeakValueDictionary[ReductionKernel, Workspace] = WeakValueDictionary()
        self._last: Workspace | None = None
        self._closed = False

    @property
    def hardware(self) -> HardwareSpec:
        return self._hardware

    @property
    def toolchain(self) -> str:
        return self._toolchain

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
        """Raises OutOfResource (a static budget), CompileError, CompileTimeout or WrongResult."""
        self._check_open()
        check_budgets(kernel, tile, self._budgets)
        if kernel.dtype == "fp16" and self._target in WITHOUT_FP16:
            raise CompileError(f"tile {tile}: fp16 needs x86-64-v3 or more, {self._target} has no conversion")
        made = self._compiler.compile(kernel, tile)
        spent = [made.compile_ms]
        while sum(spent) < self._compile_again_ms and len(spent) < MOST_COMPILES:
            spent.append(self._compiler.compile(kernel, tile).compile_ms)
        with self._running:
            workspace = self._workspace(kernel)
            code = _Code(self._link(made.image, len(workspace.pointers), tile), workspace)
            workspace.poison()
            code.run(1)
            workspace.check(tile)
        return Compiled(kernel, tile, min(spent), handle=code)

    def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
        """Time candidates by BenchRecipe. Those pruned on the way keep the timing of the rounds that they ran."""
        self._check_open()
        codes: list[_Code] = [candidate.handle for candidate in compiled]
        with self._running:
            return interleave([code.run for code in codes], [c.kernel for c in compiled], self._recipe, seed=self._seed)

    def close(self) -> None:
        self._closed = True
        self._compiler.close()
        self._last = None

    def _check_open(self) -> None:
        if self._closed:
            raise TileguardError("the device is closed")

    def _workspace(self, kernel: ReductionKernel) -> Workspace:
        found = self._workspaces.get(kernel)
        if found is None:
            self._last = None  # frees it before the next one is made
            found = self._workspaces[kernel] = Workspace(kernel, seed=self._seed)
        self._last = found
        return found

    @staticmethod
    def _link(image: bytes, pointers: int, tile: ReductionTile) -> LinkedKernel:
        from .jit import LinkedKernel

        try:
            return LinkedKernel(image, pointers)
        except RuntimeError as error:
            raise CompileError(f"tile {tile}: linking failed: {error}") from error
