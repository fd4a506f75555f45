"""What nvMatmulHeuristics proposes for a product, as Triton tiles; an optional package under its vendor's licence.

Nothing of it is here or needed: without the package (`pip install nvidia-matmul-heuristics`) the mode is skipped. Its
calls are as TorchInductor 2.11 makes them (template_heuristics/nv_universal_gemm.py), but for its TRITON target.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import MatmulKernel
from tileguard.features.tiles import MatmulTile

PACKAGE, DISTRIBUTION = "nvMatmulHeuristics", "nvidia-matmul-heuristics"
GPU = "H200_SXM"
"""Its name of the GPU."""

COUNT = 16
"""Proposals asked for: what it is advertised with. Those that split K are none of this template's, and left out."""

PRECISIONS = {"bf16": "TST", "fp16": "HSH", "tf32": "SSS", "fp32": "SSS"}
"""Its letters of inputs, sums and outputs. It knows no tf32 apart from fp32."""


def version() -> str | None:
    """The installed version, None without the package."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(DISTRIBUTION)
    return "unknown"


class Proposer:
    """Asks the library; to be closed before the process ends, else it crashes on its way out."""

    def __init__(self) -> None:
        self._module: Any = importlib.import_module(PACKAGE)
        self._library = self._module.NvMatmulHeuristicsInterfaceEx(
            backend=self._module.NvMatmulHeuristicsTarget.TRITON,
            flags=self._module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
            load_discovery_implicitly=True,
            gpu=self._module.NvMatmulHeuristicsNvidiaGpu[GPU],
        )

    def tiles(self, kernel: MatmulKernel) -> tuple[MatmulTile, ...]:
        """Its tiles that split no K, the fastest by its own estimate first. Warps are tiles of a block ÷ tiles of a warp."""
        letters = "".join("NT"[not transposed] for transposed in (kernel.a_transposed, kernel.b_transposed))
        layout = self._module.NvMatmulHeuristicsMatmulLayout[f"{letters}_ROW_MAJOR"]
        problem = self._library.makeNvMatmulHeuristicsProblem(
            kernel.m, kernel.n, kernel.k, layout, batch_size=kernel.batch
        )
        found = self._library.get(problem, COUNT, precision=PRECISIONS[kernel.dtype])
        ordered = sorted(found, key=lambda one: float(one["runtime"]))
        return tuple(dict.fromkeys(tile for one in ordered for tile in _tile(one["kernel"])))

    def close(self) -> None:
        if self._library.hardware_descriptor is not None:
            self._library.destroyHardwareDescriptor(self._library.hardware_descriptor)
            self._library.hardware_descriptor = None


def _tile(config: Any) -> Iterator[MatmulTile]:
    if config.split_k > 1:
        return
    warps = (config.cta_tile_m // config.warp_tile_m) * (config.cta_tile_n // config.warp_tile_n)
    numbers = (config.cta_tile_m, config.cta_tile_n, config.cta_tile_k, warps, config.stages)
    # A tile that Triton cannot take is not its proposal's fault; the host would stumble over it all the same.
    with contextlib.suppress(InvalidInput):
        if all(number & (number - 1) == 0 for number in numbers[:4]) and min(numbers[:3]) >= 16:
            yield MatmulTile(*numbers, group_m=max(1, config.swizzle_factor))


@contextlib.contextmanager
def proposing(kernel: MatmulKernel, tiles: tuple[MatmulTile, ...]) -> Iterator[None]:
    """Let the host choose for a while among ATen and `tiles` alone, wherever it would list tiles of its plain template."""
    from torch._inductor.choices import InductorChoices

    from tileguard.runtime.hooks.matmul import FINALIZE, _even_k, _like, _templates

    original: Callable[..., list[Any]] = vars(InductorChoices)[FINALIZE]

    @functools.wraps(original)
    def finalize(self: Any, template_choices: Any, kernel_inputs: Any, *rest: Any, **more: Any) -> list[Any]:
        listed = original(self, template_choices, kernel_inputs, *rest, **more)
        own = [choice for choice in listed if choice.template.uid in _templates()]
        if not own or tuple(map(int, kernel_inputs.mnk_hinted())) != (kernel.m, kernel.n, kernel.k):
            return listed
        even, given = _even_k(kernel_inputs), own[0].params.to_kwargs()
        kept = [choice for choice in listed if choice.template.uid.startswith("aten::")]
        return [*kept, *(_like(own[0], given, tile, even) for tile in tiles)]

    setattr(InductorChoices, FINALIZE, finalize)
    try:
        yield
    finally:
        setattr(InductorChoices, FINALIZE, original)
