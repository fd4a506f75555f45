"""`tileguard.learner.inductor.collect` on the fake GPU, as a program of the same arguments.

Workloads are those of `tests.inductor_host`; times are simulated, everything else is the real Inductor and ptxas.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
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

    torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=0)
    inductor_timing.DEVICE = "cpu"
    inductor_timing.make_stopwatch = SimulatedStopwatch
    return collect_inductor.main(arguments)


class SimulatedStopwatch:
    """Launches do nothing; a round takes what `fakegpu.simulated_ms` says, in µs, and a third of that in the next."""

    def launch(self, launcher: Any, args: Sequence[Any]) -> None:
        launcher(*args, stream=0)

    def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        from tests import fakegpu

        time.sleep(float(os.environ.get("SLOW_TIMING_S", "0")))
        found = []
        for launcher in launchers:
            for _ in range(rounds):
                launcher(*args, stream=0)
            us = fakegpu.simulated_ms("", fakegpu.describe(launcher.config))
            found.append([us + i % 3 for i in range(rounds)])
        return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
