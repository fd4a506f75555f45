"""`tileguard.learner.inductor.collect` on the fake GPU, as a program of the same arguments.

Workloads are those of `tests.inductor_host`; times are simulated, everything else is the real Inductor and ptxas.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any


def main(arguments: Sequence[str]) -> int:
    from tileguard.learner.inductor import collect as collect_inductor

    collect_inductor.prepare_process()
    del os.environ[
        "PYTORCH_NVML_BASED_CUDA_CHECK"
    ]  # the fake GPU counts as one, but nobody may ask whether CUDA is there
    from tests import fakegpu

    from tileguard.learner.inductor import timing as inductor_timing

    fakegpu.install()
    import torch

    kinds: Any = importlib.import_module("tileguard.learner.inductor.kinds")

    torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=0)
    if "TINY_PROBLEMS" in os.environ:
        kinds.problems = tiny_problems
    inductor_timing.DEVICE = "cpu"
    inductor_timing.make_stopwatch = SimulatedStopwatch
    return collect_inductor.main(arguments)


class SimulatedStopwatch:
    """Launches do nothing; a round takes what `fakegpu.simulated_ms` says, in µs, and a third of that in the next."""

    def launch(self, launcher: Any, args: Sequence[Any]) -> None:
        launcher(*args, stream=0)

    def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        time.sleep(float(os.environ.get("SLOW_TIMING_S", "0")))
        found = []
        for launcher in launchers:
            for _ in range(rounds if hasattr(launcher, "config") else 0):  # ATen's would be computed in earnest
                launcher(*args, stream=0)
            us = simulated_us(launcher)
            found.append([us + i % 3 for i in range(rounds)])
        return found


def simulated_us(launcher: Any) -> float:
    """Of ATen, which has no config, the least."""
    from tests import fakegpu

    if not hasattr(launcher, "config"):
        return 0.5
    grid = {"grid": launcher.grid} if hasattr(launcher, "grid") else {}
    return fakegpu.simulated_ms("", fakegpu.describe(launcher.config) | grid)


def tiny_problems(seed: int) -> Iterator[Any]:
    """Products so small that the host lists few tiles: one of each operation, one of which k is ragged."""
    from tileguard.features.kernels import MatmulKernel
    from tileguard.learner.inductor.matmul_problems import problem

    yield problem("small", "mm", MatmulKernel(1, 16, 20, 32, "bf16"))
    yield problem("batched", "bmm", MatmulKernel(3, 10, 16, 25, "fp16", None, False, True))
    yield problem("bias", "addmm", MatmulKernel(1, 9, 24, 16, "tf32", None, True, False))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
