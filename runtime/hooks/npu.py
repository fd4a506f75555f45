"""The hook on torch_npu's experimental Triton backend: its lists of reduction tiles, joined by the selector's.

torch_npu 2.13 and 2.14 keep their own copy of TorchInductor's heuristics, npu_triton_heuristics. Two names of it are
wrapped. `cached_autotune` gets the host's list with ours behind it, so that the host's autotune cache covers the union.
`NPUCachingAutotuner._precompile_worker` sees the host's list alone and compiles ours afterwards: the host's tiers and
fallbacks go as they would without us, and no candidate of ours can fail a kernel. docs/ascend.md says what differs
between the two formulas, and what the host's metadata leave open.

The wrap holds for one process. Compile workers get it from `enable_worker`, called before a kernel's source is run.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tileguard.features.inductor import reduction_kernel
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from ..selector import DEFAULT_TOP_K, CandidateSet, Selector
from .configs import Refused
from .proposal import check_eligible

logger = logging.getLogger("tileguard")

MODULE = "torch_npu._inductor.triton_experimental.npu_triton_heuristics"
META_KEY = "tileguard_npu"
"""Where a kernel's `inductor_meta`, which a compile worker sends back to the parent, says what was done."""

ARGUMENTS = ("size_hints", "configs", "triton_meta", "heuristic_type", "filename", "inductor_meta", "custom_kernel")
"""Of `cached_autotune` in torch_npu 2.13 and 2.14."""

NEEDED = ("NPUCachingAutotuner", "disable_pointwise_autotuning", "ncfg", "npu_triton_config_reduction")

EXTENDED, NOTHING_NEW, ERROR = "extended", "nothing_new", "error"
FALLBACK_TIER, NOT_BUILT, RESCALED, COMPILE_FAILED = "fallback_tier", "not_built", "rescaled", "compile_failed"

_MARK = "tileguard_added"


class Chooser(Protocol):
    """What a selector does here."""

    def select(self, kernel: ReductionKernel) -> CandidateSet:
        """The candidates of a kernel, in order."""


ChooserFactory = Callable[[str], Chooser]
"""The name of a known hardware -> its selector. Picklable, since compile workers get it too."""


@dataclass(frozen=True, slots=True)
class Extension:
    """Configs to put behind the host's, and how many tiles were left out, by reason."""

    added: tuple[Any, ...]
    left_out: Mapping[str, int]


@dataclass(slots=True)
class Counts:
    """What this process did: kernels by outcome (`extended`, `nothing_new`, `error`, or why the list was left as it
    is), and tiles that were not added or did not compile, by reason."""

    kernels: Counter[str] = field(default_factory=Counter)
    tiles: Counter[str] = field(default_factory=Counter)


counts = Counts()


@functools.lru_cache(maxsize=16)
def shared_selector(hardware: str, *, model: str | None = "champion", top_k: int | str = DEFAULT_TOP_K) -> Selector:
    """One selector a process and hardware; bind `model` (a folder, or None) and `top_k` by functools.partial."""
    return Selector(hardware, model=model, top_k=top_k)


def install(choosers: ChooserFactory = shared_selector, *, hardware: str | None = None) -> bool:
    """Hook the backend if this process has imported it; whether the hook is in place.

    hardware: a known name that overrides the driver's. A second call changes the settings only. A module that does not
    look as it should is left alone, with a warning.
    """
    global _hook
    with _LOCK:
        module = sys.modules.get(MODULE)
        if module is None:
            return False
        if _hook is not None and _hook.module is module and _hook.stands():
            _hook.choosers, _hook.hardware, _hook.active = choosers, hardware, True
            return True
        try:
            check_module(module)
            _hook = _Hook(module, choosers, hardware)
        except Exception as error:
            logger.warning("this torch_npu cannot be hooked (%s: %s); its lists stay", type(error).__name__, error)
            return False
        _hook.set()
        return True


def uninstall() -> None:
    """Put the originals back; where someone wrapped our wrapper, it stays and passes everything through."""
    global _hook
    with _LOCK:
        if _hook is not None:
            _hook.unset()
            _hook = None


def enable_worker(source: str, choosers: ChooserFactory = shared_selector, *, hardware: str | None = None) -> bool:
    """`install` for a process that is about to run a kernel's `source`: importing the backend first if that will."""
    if MODULE.rpartition(".")[2] not in source:
        return False
    try:
        importlib.import_module(MODULE)
    except Exception:
        return False  # running the source says why
    return install(choosers, hardware=hardware)


def check_module(module: Any) -> None:
    """Raise TypeError unless the module has what the hook calls."""
    found = tuple(inspect.signature(module.cached_autotune).parameters)
    if found != ARGUMENTS:
        raise TypeError(f"cached_autotune takes {', '.join(found)}")
    missing = [name for name in NEEDED if not hasattr(module, name)]
    missing += [
        name
        for name in ("_precompile_worker", "_partition_configs_by_tier", "_compile_configs_batch")
        if name not in vars(module.NPUCachingAutotuner)
    ]
    if missing:
        raise TypeError(f"it lacks {', '.join(missing)}")


def npu_hardware(device_name: object) -> str | None:
    """The known hardware that the driver's name of a device stands for, or None.

    Other members of the 910B family have other numbers of cores, and of the 950 only the PR is known.
    """
    if device_name == "Ascend910B3":
        return "ascend910b3"
    if isinstance(device_name, str) and device_name.partition("_")[0] == "Ascend950PR":
        return "ascend950pr"
    return None


def npu_kernel(module: Any, arguments: Mapping[str, Any]) -> ReductionKernel:
    """The kernel that a call of `cached_autotune` is about; numels are exact there, as its code generator's are.

    Raises Refused for one whose list must stay as it is, InvalidInput for one it cannot describe.
    """
    heuristic = arguments["heuristic_type"].name.lower()
    size_hints, triton_meta = arguments["size_hints"], arguments["triton_meta"]
    meta = arguments.get("inductor_meta") or {}
    check_eligible(heuristic, size_hints or {}, triton_meta, meta)
    if triton_meta.get("npu_permute_gather"):
        raise Refused("permute_gather")  # any other pair of blocks miscompiles the gather, silently
    if module.ncfg.pin_xr:
        raise Refused("pin_xr")
    if arguments.get("custom_kernel") or not arguments.get("filename"):
        raise Refused("custom")
    if module.disable_pointwise_autotuning(meta):
        raise Refused("autotuning_off")
    signature = triton_meta["signature"]
    known = {
        "num_load": meta.get("num_load", 1),
        "num_reduction": meta.get("num_reduction", 1),
        "num_store": sum(name.startswith(("out_ptr", "in_out_ptr")) for name in signature),  # not in the metadata
    }
    return reduction_kernel(
        size_hints["x"], size_hints["r0_"], signature, known,
        reduction_hint=meta.get("reduction_hint"), persistent=heuristic == "persistent_reduction",
    )  # fmt: skip


def extend_configs(
    module: Any, host: Sequence[Any], tiles: Iterable[ReductionTile], size_hints: Mapping[str, int], *, persistent: bool
) -> Extension:
    """The tiles that the host's list lacks, as the host would build them, in their order; nothing is changed.

    Left out: a tile that the host's builder refuses (its XBLOCK is above 4096) or turns into another (the grid would
    pass 2^31 - 1 programs); and one of the tier that the host compiles only after all of the better tier failed, where
    its list has a better tier. Blocks alone tell configs apart, for the NPU ignores num_warps.
    Raises Refused for a host list of another kind than (XBLOCK, R0_BLOCK).
    """
    known = {"XBLOCK"} if persistent else {"XBLOCK", "R0_BLOCK"}
    if not all(set(config.kwargs) <= known for config in host):
        raise Refused("config_kind")
    partition = module.NPUCachingAutotuner._partition_configs_by_tier
    has_primary = bool(partition(None, list(host))[0])
    seen = {_blocks(config) for config in host}
    added, left_out = [], Counter[str]()
    for tile in tiles:
        try:
            config = module.npu_triton_config_reduction(dict(size_hints), tile.xblock, tile.r0_block)
        except Exception:
            left_out[NOT_BUILT] += 1
            continue
        if config.kwargs != {"XBLOCK": tile.xblock, "R0_BLOCK": tile.r0_block}:
            left_out[RESCALED] += 1
            continue
        if persistent:
            del config.kwargs["R0_BLOCK"]  # written into the kernel, no argument of it
        if _blocks(config) in seen:
            continue
        seen.add(_blocks(config))
        if has_primary and not partition(None, [config])[0]:
            left_out[FALLBACK_TIER] += 1
            continue
        setattr(config, _MARK, True)
        added.append(config)
    return Extension(tuple(added), dict(left_out))


def is_added(config: Any) -> bool:
    """Whether a config is one of ours; in the process that made it, for pickling drops the mark."""
    return getattr(config, _MARK, False) is True


class _Hook:
    """The two wrappers on one module, and what they replaced."""

    def __init__(self, module: Any, choosers: ChooserFactory, hardware: str | None) -> None:
        self.module, self.choosers, self.hardware = module, choosers, hardware
        self.active = True
        self.told = False
        self.cached_autotune = module.cached_autotune
        self.precompile_worker = vars(module.NPUCachingAutotuner)["_precompile_worker"]
        self.our_cached_autotune = _extending(self)
        self.our_precompile_worker = _compiling_after(self)

    def stands(self) -> bool:
        return self.module.cached_autotune is self.our_cached_autotune

    def set(self) -> None:
        self.module.cached_autotune = self.our_cached_autotune
        self.module.NPUCachingAutotuner._precompile_worker = self.our_precompile_worker

    def unset(self) -> None:
        self.active = False
        autotuner = self.module.NPUCachingAutotuner
        if self.stands():
            self.module.cached_autotune = self.cached_autotune
        if vars(autotuner).get("_precompile_worker") is self.our_precompile_worker:
            autotuner._precompile_worker = self.precompile_worker

    def fail(self, what: str, error: Exception) -> None:
        """Log the first failure of this hook."""
        if not self.told:
            self.told = True
            logger.warning("%s: %s: %s; further failures are counted only", what, type(error).__name__, error)

    def extend(self, arguments: dict[str, Any]) -> None:
        """Put the union into the arguments of a call of `cached_autotune`. Raises as `npu_kernel`, or for a defect."""
        kernel = npu_kernel(self.module, arguments)
        device = arguments["triton_meta"].get("device")
        # Inductor's compute capability of an NPU is the driver's name of it, asked for in the compiling process.
        hardware = self.hardware or npu_hardware(getattr(device, "cc", None))
        if hardware is None:
            raise Refused("hardware")
        tiles = self.choosers(hardware).select(kernel).tiles
        host = arguments["configs"]
        found = extend_configs(self.module, host, tiles, arguments["size_hints"], persistent=kernel.persistent)
        outcome = EXTENDED if found.added else NOTHING_NEW
        counts.kernels[outcome] += 1
        counts.tiles.update(found.left_out)
        if found.added:
            arguments["configs"] = [*host, *found.added]
        if isinstance(arguments.get("inductor_meta"), dict):
            arguments["inductor_meta"][META_KEY] = {
                "outcome": outcome,
                "hardware": hardware,
                "added": [dict(config.kwargs) for config in found.added],
                "left_out": dict(found.left_out),
            }


_LOCK = threading.Lock()
_hook: _Hook | None = None


def _blocks(config: Any) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(config.kwargs.items()))


def _extending(hook: _Hook) -> Callable[..., Any]:
    """`cached_autotune` with the union; whatever goes wrong, with the host's list."""
    original = hook.cached_autotune
    signature = inspect.signature(original)

    @functools.wraps(original)
    def cached_autotune(*args: Any, **kwargs: Any) -> Any:
        if not hook.active or os.environ.get("TILEGUARD") == "0":
            return original(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
            hook.extend(bound.arguments)
        except Refused as refusal:
            counts.kernels[str(refusal)] += 1
        except Exception as error:
            counts.kernels[ERROR] += 1
            hook.fail("tileguard leaves a list as it is", error)
        else:
            return original(*bound.args, **bound.kwargs)
        return original(*args, **kwargs)

    return cached_autotune


def _compiling_after(hook: _Hook) -> Callable[[Any], None]:
    """`_precompile_worker` on the host's configs, which may fail as it does, and then on ours, which may not."""
    original = hook.precompile_worker

    @functools.wraps(original)
    def _precompile_worker(self: Any) -> None:
        ours = [config for config in self.configs or () if is_added(config)]
        if not hook.active or not ours or self.compile_results or len(ours) == len(self.configs):
            original(self)
            return
        self.configs = [config for config in self.configs if not is_added(config)]
        original(self)
        try:
            results, failed, _ = self._compile_configs_batch(ours)
            self.compile_results.extend(results)
            counts.tiles[COMPILE_FAILED] += len(failed)
        except Exception as error:
            counts.tiles[COMPILE_FAILED] += len(ours)
            hook.fail("tileguard's candidates are left out of a kernel", error)

    return _precompile_worker
