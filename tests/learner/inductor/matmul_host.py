"""What TorchInductor itself writes for matrix products on the fake GPU, beside what was captured: JSON on stdout.

For each of `tests.learner.inductor.collector.tiny_problems` and three larger products: the captured kernel, the host's own
file for every tile of its DEFAULT list, and what a few tiles of the last compile to.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

COMPILED = ((64, 64, 32, 4, 3, 8), (64, 64, 64, 4, 2, 4), (32, 64, 64, 4, 4, 8), (128, 64, 32, 8, 1, 1))
"""Tiles of the last product that are compiled, in the order of MatmulTile.sort_key."""


def main() -> None:
    collect: Any = importlib.import_module("tileguard.learner.inductor.collect")
    collect.prepare_process()
    del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]  # as in tests.learner.inductor.collector
    from tests import fakegpu
    from tests.learner.inductor.collector import tiny_problems

    fakegpu.install()
    importlib.import_module("tileguard.learner.inductor.cuda_fork").allow_cuda()
    from torch._inductor.choices import InductorChoices

    from tileguard.features.kernels import MatmulKernel
    from tileguard.learner.inductor.matmul_capture import capture_matmul
    from tileguard.learner.inductor.matmul_kernel import matmul_tile
    from tileguard.learner.inductor.matmul_problems import problem
    from tileguard.learner.inductor.timing import load_kernel

    own: list[tuple[dict[str, Any], str]] = []
    original = InductorChoices.get_ktc

    def get_ktc(self: Any, kernel_inputs: Any, template: Any, op_name: str, *rest: Any) -> Any:
        choices = list(original(self, kernel_inputs, template, op_name, *rest))
        for one in choices[:10] if template.uid.startswith("triton::") else ():
            one.layout = kernel_inputs.output_layout(flexible=False)
            own.append((one.params.to_kwargs(), Path(one.choice.bmreq.module_path).read_text()))
        return iter(choices)

    InductorChoices.get_ktc = get_ktc
    larger = [
        problem("large", "mm", MatmulKernel(1, 300, 256, 100, "bf16")),
        problem("large", "addmm", MatmulKernel(1, 256, 512, 512, "tf32", None, True, False)),
        problem("large", "mm", MatmulKernel(1, 256, 256, 256, "fp16", None, False, True)),
    ]
    found = []
    for one in [*tiny_problems(0), *larger]:
        own.clear()
        captured = capture_matmul(one)
        compiled: dict[str, int] = {}
        for numbers in COMPILED if one is larger[-1] else ():
            tile = matmul_tile(list(numbers))
            launcher = load_kernel(captured, tile)._precompile_config(captured.config(tile)).make_launcher()
            compiled[",".join(map(str, numbers))] = launcher.shared
        found.append({"captured": captured.to_json(), "own": list(own), "compiled": compiled})
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
