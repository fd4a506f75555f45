"""`@triton.autotune` for hand-written reductions: an `early_config_prune` that adds tiles to the declared configs.

    @triton.autotune(configs=[...], key=["n_rows", "n_cols"],
                     prune_configs_by={"early_config_prune": tileguard.triton.prune(kernel_of=describe)})
    @triton.jit
    def softmax(...): ...

Triton benchmarks whatever the function returns, declared or not. Nothing is raised: whatever fails, the declared list
stands as it is. docs/triton.md has the whole story.
"""

from __future__ import annotations

import copy
import enum
import logging
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tileguard.features.errors import InvalidInput, checked_choice, checked_int
from tileguard.features.hardware import KNOWN, HardwareSpec, known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.pow2 import is_pow2
from tileguard.features.tiles import ReductionTile

from ..fallback import formula_tiles
from ..guard import Ranker
from ..lattice import is_legal, lattice, persistent_r0
from ..optional import require
from ..selector import DEFAULT_TOP_K, MODEL, CandidateSet, Selector
from .gpu import gpu_hardware

logger = logging.getLogger("tileguard")

Config = Any
"""A `triton.Config`: triton has no types, and is not imported before a kernel is tuned."""

UNION, DECLARED = "union", "declared"
BLOCK_NAMES: Mapping[str, str] = MappingProxyType({"xblock": "XBLOCK", "r0_block": "R0_BLOCK"})
DEFAULT_MAX_EXTRA = 16
"""Triton compiles and times configs one after the other, about half a second each."""

MAX_TILE_NUMEL = 1 << 20
"""Triton's TRITON_MAX_TENSOR_NUMEL. A larger tile is a CompilationError, which the autotuner lets through."""


class Outcome(enum.StrEnum):
    """What became of a call."""

    UNION = "union"
    PRUNED = "pruned"
    DISABLED = "disabled"
    NO_KERNEL = "no_kernel"
    KERNEL_OF_FAILED = "kernel_of_failed"
    UNKNOWN_HARDWARE = "unknown_hardware"
    NOT_TUNABLE = "not_tunable"
    UNSURE = "unsure"
    ERROR = "error"


_SILENT = (Outcome.UNION, Outcome.PRUNED, Outcome.DISABLED, Outcome.NO_KERNEL)


def prune(
    *,
    kernel_of: Callable[..., ReductionKernel | Mapping[str, Any] | None],
    model: str | Path | Ranker | None = "champion",
    hardware: HardwareSpec | str | None = None,
    top_k: int = DEFAULT_TOP_K,
    block_names: Mapping[str, str] = BLOCK_NAMES,
    keep: str = UNION,
    max_extra: int | None = DEFAULT_MAX_EXTRA,
) -> Callable[..., list[Config]]:
    """An `early_config_prune` for `@triton.autotune`.

    kernel_of: called as Triton calls the pruner, (named_args, **launch_kwargs); returns the reduction that is about to
    run (a ReductionKernel or its fields), or None to leave this launch alone. hardware: left out, the current device.
    block_names: what the kernel calls its blocks; one that no config sets is fixed: by the launch, or else an XBLOCK
    of 1, an R0_BLOCK that covers the row of a persistent kernel.

    keep="union": the declared configs, as they are and first, then `top_k` tiles of the model's choice and the
    formula's best, `max_extra` in all (None: every one). keep="declared": the `top_k` best-scored of the declared
    configs and the first one, in their order, where the model is trusted; nothing is added.

    The kernel must be right for every power of two in its blocks. Raises InvalidInput for options that cannot be used.
    """
    options = _Options(kernel_of, model, hardware, top_k, block_names, keep, max_extra)
    told: set[Outcome] = set()

    def early_config_prune(configs: list[Config], named_args: Mapping[str, Any], /, **kwargs: Any) -> list[Config]:
        # torch.compile traces this function: neither a model nor a counter can be reached from there.
        if _traced():
            return configs
        try:
            outcome, detail, chosen = _outcome(options, configs, named_args, kwargs)
            if not chosen:
                raise RuntimeError("no config is left")
        except _Declared as reason:
            outcome, detail, chosen = reason.outcome, reason.detail, configs
        except Exception as error:
            outcome, detail, chosen = Outcome.ERROR, f"{type(error).__name__}: {error}", configs
        with _LOCK:
            _COUNTS[outcome] += 1
            first = outcome not in told
            told.add(outcome)
        if first and outcome not in _SILENT:
            name = getattr(kernel_of, "__qualname__", type(kernel_of).__name__)
            logger.warning("tileguard leaves the declared configs of %s as they are: %s: %s", name, outcome, detail)
        return chosen

    return early_config_prune


def counts() -> dict[str, int]:
    """How often each Outcome came about in this process."""
    with _LOCK:
        return {str(outcome): count for outcome, count in sorted(_COUNTS.items())}


_COUNTS: Counter[Outcome] = Counter()
_LOCK = threading.Lock()


class _Declared(Exception):
    """The declared list stands; says why."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        self.outcome, self.detail = outcome, detail
        super().__init__(detail)


@dataclass(frozen=True)
class _Options:
    """What `prune` was given, checked."""

    kernel_of: Callable[..., ReductionKernel | Mapping[str, Any] | None]
    model: str | Path | Ranker | None
    hardware: HardwareSpec | str | None
    top_k: int
    block_names: Mapping[str, str]
    keep: str
    max_extra: int | None
    selector: Callable[[HardwareSpec], Selector] = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not callable(self.kernel_of):
            raise InvalidInput("kernel_of", self.kernel_of, "a function")
        if isinstance(self.hardware, str):
            put(self, "hardware", known_hardware(self.hardware))
        if self.hardware is not None and not (
            isinstance(self.hardware, HardwareSpec) and self.hardware.kind in ("nvidia", "ascend")
        ):
            raise InvalidInput("hardware", self.hardware, "what Triton compiles for: one of " + ", ".join(KNOWN))
        put(self, "top_k", checked_int("top_k", self.top_k, minimum=1))
        checked_choice("keep", self.keep, (UNION, DECLARED))
        if self.max_extra is not None:
            put(self, "max_extra", checked_int("max_extra", self.max_extra, minimum=0))
        names = self.block_names
        if not (
            isinstance(names, Mapping)
            and names
            and set(names) <= set(BLOCK_NAMES)
            and all(isinstance(name, str) for name in names.values())
            and len(set(names.values())) == len(names)
        ):
            raise InvalidInput("block_names", names, "a name for xblock, for r0_block or one for each")
        put(self, "block_names", dict(names))
        model, top_k = self.model, self.top_k
        # One selector a hardware, made when a kernel is first tuned there: importing a kernel loads no model.
        put(self, "selector", lru_cache(lambda spec: Selector(spec, model=model, top_k=top_k)))


@dataclass(frozen=True)
class _Launch:
    """What is about to be tuned: the kernel, which config entry sets which block, and the blocks that no entry sets."""

    kernel: ReductionKernel
    hardware: HardwareSpec
    tuned: Mapping[str, str]
    fixed: Mapping[str, int]
    declared: tuple[ReductionTile | None, ...]
    grid_follows: bool

    def admits(self, tile: ReductionTile) -> bool:
        """Whether a config of this tile may be added without changing what the kernel computes."""
        if not is_legal(tile, self.kernel, self.hardware) or tile.xblock * tile.r0_block > MAX_TILE_NUMEL:
            return False
        if any(getattr(tile, axis) != value for axis, value in self.fixed.items()):
            return False
        # Ascend's R0_BLOCK may be any number, a kernel written for Triton's arange takes powers of two.
        if not all(is_pow2(getattr(tile, axis)) for axis in self.tuned):
            return False
        declared = [own for own in self.declared if own is not None]
        # A grid of plain numbers was made for the declared blocks.
        if not self.grid_follows and all(own.xblock != tile.xblock for own in declared):
            return False
        # Where no declared block is shorter than the row, nothing says that the kernel loops over it.
        rnumel = self.kernel.rnumel
        return tile.r0_block >= rnumel or any(own.r0_block < rnumel for own in declared)


def _outcome(
    options: _Options, configs: list[Config], named_args: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[Outcome, str, list[Config]]:
    """The list to benchmark. Raises _Declared where the declared one stands."""
    if os.environ.get("TILEGUARD") == "0":
        raise _Declared(Outcome.DISABLED)
    kernel = _described(options.kernel_of, named_args, kwargs)
    hardware = options.hardware or _current_hardware()
    assert isinstance(hardware, HardwareSpec)
    launch = _launch(options, kernel, hardware, configs, {**named_args, **kwargs})
    selector = options.selector(hardware)
    if options.keep == DECLARED:
        return Outcome.PRUNED, "", _best_declared(selector, launch, configs, options.top_k)
    own = tuple(tile for tile in launch.declared if tile is not None)
    space = [tile for tile in lattice(kernel, hardware) if launch.admits(tile)]
    found = selector.select(kernel, own, space=space)
    extra = [tile for tile in found.tiles if tile not in own and launch.admits(tile)]
    limit = len(extra) if options.max_extra is None else options.max_extra
    return Outcome.UNION, "", _with_new(configs, _in_order(extra, found, hardware, limit)[:limit], launch)


def _described(
    kernel_of: Callable[..., ReductionKernel | Mapping[str, Any] | None],
    named_args: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> ReductionKernel:
    try:
        # A copy: the autotuner launches with the mapping it gave us.
        kernel = kernel_of(dict(named_args), **kwargs)
        if isinstance(kernel, Mapping):
            kernel = ReductionKernel(**kernel)
    except Exception as error:
        raise _Declared(Outcome.KERNEL_OF_FAILED, f"{type(error).__name__}: {error}") from error
    if kernel is None:
        raise _Declared(Outcome.NO_KERNEL)
    if not isinstance(kernel, ReductionKernel):
        raise _Declared(Outcome.KERNEL_OF_FAILED, f"it returned a {type(kernel).__name__}, not a ReductionKernel")
    return kernel


def _current_hardware() -> HardwareSpec:
    """The device that Triton would launch on."""
    driver = require("triton").runtime.driver.active
    target = driver.get_current_target()
    if target.backend in ("cuda", "hip"):
        return gpu_hardware(require("torch").cuda.get_device_properties(driver.get_current_device()))
    name = "".join(re.findall("[a-z0-9]+", str(target.arch).lower()))
    if name in KNOWN:
        return KNOWN[name]
    raise _Declared(Outcome.UNKNOWN_HARDWARE, f"{target.backend} {target.arch}; name one by hardware=")


def _launch(
    options: _Options,
    kernel: ReductionKernel,
    hardware: HardwareSpec,
    configs: Sequence[Config],
    arguments: Mapping[str, Any],
) -> _Launch:
    tuned = {axis: name for axis, name in options.block_names.items() if name in configs[0].kwargs}
    if not tuned:
        names = " or ".join(options.block_names.values())
        raise _Declared(Outcome.NOT_TUNABLE, f"the first config sets no {names}; say what it sets by block_names=")
    fixed: dict[str, int] = {}
    for axis in BLOCK_NAMES.keys() - tuned.keys():
        name = options.block_names.get(axis)
        if name is not None and name in arguments:
            fixed[axis] = checked_int(name, arguments[name], minimum=1)
        elif axis == "xblock":
            fixed[axis] = 1
        elif kernel.persistent:
            fixed[axis] = persistent_r0(kernel, hardware)
        else:
            raise _Declared(Outcome.NOT_TUNABLE, "the kernel loops, but neither a config nor the launch says R0_BLOCK")
    declared = tuple(_tile_of(config, tuned, fixed, hardware) for config in configs)
    grid = arguments.get("grid")
    return _Launch(kernel, hardware, tuned, fixed, declared, grid is None or callable(grid))


def _tile_of(
    config: Config, tuned: Mapping[str, str], fixed: Mapping[str, int], hardware: HardwareSpec
) -> ReductionTile | None:
    """The tile of a declared config, None for one that sets its blocks otherwise: it can only be kept."""
    blocks = {**{axis: config.kwargs.get(name) for axis, name in tuned.items()}, **fixed}
    warps = config.num_warps if hardware.has_warps else None
    try:
        return ReductionTile(blocks["xblock"], blocks["r0_block"], warps, config.num_stages)
    except InvalidInput:
        return None


def _best_declared(selector: Selector, launch: _Launch, configs: list[Config], top_k: int) -> list[Config]:
    tiles = launch.declared
    known = tuple(tile for tile in tiles if tile is not None)
    if len(configs) <= top_k or not known:
        return configs
    found = selector.select(launch.kernel, known, space=known)
    if not found.verdict.trusted:
        raise _Declared(Outcome.UNSURE, str(found.verdict))
    scores = {candidate.tile: candidate.score or 0.0 for candidate in found.candidates}
    ranked = sorted((-scores[tile], place) for place, tile in enumerate(tiles) if tile is not None)
    best = {place for _, place in ranked[:top_k]}
    return [c for place, c in enumerate(configs) if place == 0 or place in best or tiles[place] is None]


def _in_order(
    tiles: Sequence[ReductionTile], found: CandidateSet, hardware: HardwareSpec, limit: int
) -> list[ReductionTile]:
    """`tiles` of the set, the worthiest first: the model's choice, then the formula's by score. Without trust first the
    formula's with their own warps, spread evenly where `limit` cuts them short, then guesses and other warp counts."""
    model = set(found.proposed_by(MODEL))
    ordered = sorted(tiles, key=lambda tile: tile not in model)  # stable: within each, the set's order
    if found.verdict.trusted:
        return ordered
    own_warps = set(formula_tiles(found.kernel, hardware))
    formula = [tile for tile in tiles if tile in own_warps]
    if len(formula) > limit:
        formula = [formula[place * len(formula) // limit] for place in range(limit)]
    return list(dict.fromkeys((*formula, *ordered)))


def _with_new(configs: list[Config], tiles: Sequence[ReductionTile], launch: _Launch) -> list[Config]:
    """`configs` as they stand, then a new one for each tile."""
    first = configs[0]
    new = []
    for tile in tiles:
        config = copy.copy(first)  # with its other entries, num_ctas, maxnreg, pre_hook, ir_override
        config.kwargs = first.kwargs | {name: getattr(tile, axis) for axis, name in launch.tuned.items()}
        config.num_stages = tile.num_stages
        if tile.num_warps is not None:
            config.num_warps = tile.num_warps
        new.append(config)
    return [*configs, *new]


def _traced() -> bool:
    """Whether torch.compile is tracing this call; it sees the answer as a constant."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
