"""The measuring of A/B cases: compiles, checks and times, kept raw. Nothing here judges."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import OK, CandidateError, CompileError, WrongResult
from tileguard.runtime.devices.cpu import CpuBudgets, check_budgets
from tileguard.runtime.devices.cpu.compiler import ChildCompiler, CompiledObject
from tileguard.runtime.devices.cpu.jit import LinkedKernel

from .ab_buffers import AbBuffers
from .ab_spec import SIDES, AbSpec, Case, tile_json

WARM_NS = 20_000_000
"""CPU time that a side runs before its batches are sized."""

now = time.thread_time_ns
"""The clock: CPU time of the one thread. Waiting for a core does not count."""


class CaseRun:
    """One case: `compile` its sides, `measure` their rounds, `compile_again`; `raw` is all that was seen."""

    def __init__(
        self, case: Case, spec: AbSpec, compiler: ChildCompiler, budgets: CpuBudgets, tensors: Path | None = None
    ) -> None:
        """`tensors`: a file (.npz) for the operands and what each side made of them in the last round."""
        self._case, self._spec, self._compiler, self._budgets = case, spec, compiler, budgets
        self._images: dict[str, bytes] = {}
        self._tensors = tensors
        self.raw: dict[str, Any] = {
            "name": case.name, "kernel": {k: v for k, v in case.to_json().items() if k not in (*SIDES, "name")},
            "inputs": {}, "a": {"tile": tile_json(case.a)}, "b": {"tile": tile_json(case.b)}, "rounds": [],
        }  # fmt: skip

    def compile(self) -> None:
        """Compile A, then B. A side that fails says how, and is not measured."""
        for side in SIDES:
            entry = self.raw[side]
            try:
                check_budgets(self._case.kernel, self._case.tile(side), self._budgets)
                made = self._compiler.compile(self._case.kernel, self._case.tile(side))
            except CandidateError as error:
                entry |= {"status": error.status, "error": str(error)}
                continue
            self._images[side] = made.image
            entry |= {"status": OK, "object_bytes": len(made.image), "compiles": [_compile_record(made)]}

    def compile_again(self) -> None:
        """Compile B, then A, once more: the same object must come out, and the times of both orders are kept."""
        for side in reversed(SIDES):
            if side in self._images:
                made = self._compiler.compile(self._case.kernel, self._case.tile(side))
                self.raw[side]["compiles"].append(_compile_record(made))

    def measure(self, origin_ns: int) -> None:
        """Check both sides, size their batches, then run the rounds: A→B, B→A in turn. Nothing where a side failed."""
        if len(self._images) < len(SIDES):
            return
        buffers = AbBuffers(self._case.kernel, seed=self._spec.seed)
        self.raw["inputs"] = buffers.input_digests()
        runs: dict[str, Callable[[int], None]] = {}
        for side, image in self._images.items():
            try:
                runs[side] = linked = _linked(image, buffers, self._case.tile(side))
                _demand_right(_checked(linked, buffers, self._case.tile(side)), self._case.kernel)
            except CandidateError as error:
                self.raw[side] |= {"status": error.status, "error": str(error)}
        if any(self.raw[side]["status"] != OK for side in SIDES):
            return
        for side in SIDES:
            self.raw[side]["calls"] = _batch_size(runs[side], self._spec.sample_us)
        kept: dict[str, Any] = {}
        for number in range(self._spec.rounds):
            order = SIDES if number % 2 == 0 else SIDES[::-1]
            blocks = {}
            for side in order:
                blocks[side] = self._block(side, runs[side], buffers, origin_ns)
                if self._tensors is not None and number == self._spec.rounds - 1:
                    kept |= {f"{side}:{name}": values for name, values in buffers.output_copies().items()}
            self.raw["rounds"].append({"order": list(order), **blocks})
        if self._tensors is not None:
            kept |= {f"input:{name}": values for name, values in buffers.input_copies().items()}
            np.savez(self._tensors, **kept)

    def _block(self, side: str, run: Callable[[int], None], buffers: AbBuffers, origin_ns: int) -> dict[str, Any]:
        """One side's turn in a round: full check, a batch for nothing, batches, single calls, digests of the inputs."""
        calls, started = self.raw[side]["calls"], time.perf_counter_ns()
        check = _checked(run, buffers, self._case.tile(side))
        run(calls)
        batch = [_timed(run, calls) for _ in range(self._spec.samples)]
        single = [_timed(run, 1) for _ in range(self._spec.singles)]
        return {
            "started_ns": started - origin_ns, "ended_ns": time.perf_counter_ns() - origin_ns,
            "batch_ns": batch, "single_ns": single, "check": check, "inputs": buffers.input_digests(),
        }  # fmt: skip


def _compile_record(made: CompiledObject) -> dict[str, Any]:
    return {"ms": made.compile_ms, "phases_ms": made.phases, "sha256": hashlib.sha256(made.image).hexdigest()}


def _linked(image: bytes, buffers: AbBuffers, tile: ReductionTile) -> Callable[[int], None]:
    try:
        linked = LinkedKernel(image, len(buffers.pointers))
    except RuntimeError as error:
        raise CompileError(f"tile {tile}: linking failed: {error}") from error
    return lambda calls: linked.run(buffers.pointers, calls)


def _checked(run: Callable[[int], None], buffers: AbBuffers, tile: ReductionTile) -> dict[str, Any]:
    buffers.poison()
    run(1)
    return buffers.check(tile)


def _demand_right(check: dict[str, Any], kernel: ReductionKernel) -> None:
    """Raises WrongResult: there is no point in timing what computes something else."""
    if check["guard_bytes_touched"]:
        raise WrongResult(f"{kernel.op}: wrote {check['guard_bytes_touched']} bytes outside its buffers")
    for name, output in check["outputs"].items():
        if output["wrong"]:
            raise WrongResult(
                f"{kernel.op}: {output['wrong']} of {output['elements']} numbers of {name} are wrong, the worst by "
                f"{output['worst']:.3g} times what rounding may do"
            )


def _timed(run: Callable[[int], None], calls: int) -> int:
    start = now()
    run(calls)
    return now() - start


def _batch_size(run: Callable[[int], None], sample_us: float) -> int:
    """Calls that take about `sample_us`, after WARM_NS of running."""
    calls, spent, took = 1, 0, 0
    while spent < WARM_NS or took < 1000:
        took = _timed(run, calls)
        spent += took
        if took < sample_us * 500:
            calls *= 2
        elif spent >= WARM_NS:
            break
    return max(1, round(calls * sample_us * 1e3 / max(took, 1)))
