"""What runs where a kernel's source is loaded: in TorchInductor's compile workers, or in the parent without a pool.

Imports neither numpy nor onnxruntime nor a model: the ranked list lies in the kernel's metadata.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

from .configs import Limits, Refused, key_of, unite
from .locks import ForkLock
from .patches import Patches
from .payload import META_KEY, PAYLOAD_VERSION
from .telling import warn_once

logger = logging.getLogger("tileguard")

CACHED_AUTOTUNE = "cached_autotune"
CONFIGS, HEURISTIC, SIZE_HINTS = "configs", "heuristic_type", "size_hints"
EXPECTED_ARGUMENTS = (
    SIZE_HINTS, CONFIGS, "triton_meta", HEURISTIC, "filename", "inductor_meta", "custom_kernel",
    "caching_autotuner_cls", "debug_autotuner_cls",
)  # fmt: skip
"""Of `cached_autotune` in torch 2.11 to 2.14."""

NPU_HEURISTICS = "npu_triton_heuristics"
"""The module that torch_npu's generated kernels call."""

_PATCHES = Patches()
_LIMIT = threading.local()


class Budget:
    """Seconds that this process may still spend on candidates beyond the host's own; None is no limit."""

    def __init__(self, kernel_s: float | None, process_s: float | None) -> None:
        self._lock = ForkLock()
        self._kernel_s, self._process_s = kernel_s, process_s
        self._spent_s = 0.0

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._spent_s += seconds

    @property
    def limit_s(self) -> float | None:
        """For the next kernel: the lesser of a kernel's budget and what is left of the process's."""
        with self._lock:
            left = None if self._process_s is None else max(self._process_s - self._spent_s, 0.0)
        limits = [limit for limit in (self._kernel_s, left) if limit is not None]
        return min(limits, default=None)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker gets what is left at the moment that its job is sent.
        return (Budget, (self.limit_s, None))


_spender: Budget | None = None


def spend_from(budget: Budget | None) -> None:
    """Let this process's tuning be charged to `budget`."""
    global _spender
    _spender = budget


def spend(seconds: float) -> None:
    """Charge seconds of compiling and racing to this process's budget, if it has one."""
    if _spender is not None:
        _spender.spend(seconds)


class KernelLoader:
    """Stands in for TorchInductor's `_load_triton_kernel_from_source`; pickled by reference into compile workers, where
    unpickling it imports this module, and calling it puts the hook in place before the kernel's source runs.

    npu: arguments of `npu.enable_worker` for kernels of torch_npu, which are ranked where they are loaded.
    """

    def __init__(self, budget: Budget, npu: dict[str, Any]) -> None:
        self._budget = budget
        self._npu = npu

    def __call__(self, kernel_name: str, source_code: str) -> Any:
        from torch._inductor.codecache import PyCodeCache

        try:
            if META_KEY in source_code:
                wrap_process()
                _LIMIT.seconds = self._budget.limit_s
            elif NPU_HEURISTICS in source_code:
                from . import npu

                npu.enable_worker(source_code, **self._npu)
        except Exception as error:
            warn_once("tileguard leaves this process alone", error)
        try:
            return getattr(PyCodeCache.load(source_code), kernel_name)
        finally:
            _LIMIT.seconds = None


def wrap_process() -> None:
    """Hook the loading of kernels in this process: lists that carry a payload get extended. Idempotent."""
    for target in targets():
        _PATCHES.put(*target)


def unwrap_process() -> None:
    """Put the originals back. A wrapper that someone else has wrapped meanwhile extends nothing without a payload."""
    _PATCHES.undo()


def targets() -> tuple[tuple[Any, str, Callable[..., Any]], ...]:
    """What is wrapped in a process that loads kernels. Raises ImportError or StopIteration where it is not there."""
    from torch._inductor.runtime import triton_heuristics
    from triton.runtime.jit import JITFunction

    parser = next(owner for owner in JITFunction.__mro__ if "parse" in vars(owner))
    return (triton_heuristics, CACHED_AUTOTUNE, extending), (parser, "parse", one_at_a_time)


def one_at_a_time(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that one thread runs at once: CPython (3.11, 3.12) keeps count of an AST's depth for the process, not
    for the thread, and raises SystemError where another thread's parsing came in between."""
    lock = ForkLock()

    @functools.wraps(original)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return original(*args, **kwargs)

    return alone


def check_signature(original: Callable[..., Any]) -> None:
    """Raise TypeError unless `cached_autotune` takes what this hook passes on."""
    missing = [name for name in EXPECTED_ARGUMENTS if name not in inspect.signature(original).parameters]
    if missing:
        raise TypeError(f"cached_autotune has no argument {missing[0]}")


def extending(original: Callable[..., Any]) -> Callable[..., Any]:
    """`cached_autotune` with the union of its configs and the payload's tiles; whatever goes wrong, with its own."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def cached_autotune(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
            _extend(bound.arguments)
        except Refused as refusal:
            # The parent counts what it knows beforehand; this is the host's own list not being what it should.
            logger.debug("tileguard leaves a list as it is: %s", refusal)
        except Exception as error:
            warn_once("tileguard leaves a list as it is", error)
        else:
            return original(*bound.args, **bound.kwargs)
        return original(*args, **kwargs)

    return cached_autotune


def _extend(arguments: dict[str, Any]) -> None:
    """Put the union into the arguments of a call; raises Refused for a kernel that is none of ours."""
    meta: dict[str, Any] = arguments.get("inductor_meta") or {}
    data = meta.get(META_KEY)
    if not isinstance(data, dict):
        raise Refused("no_payload")
    if data.get("v") != PAYLOAD_VERSION:
        raise Refused("payload_version")
    from torch._inductor.runtime import hints, triton_heuristics

    from .autotuner import TileguardAutotuner

    size_hints, triton_meta = arguments[SIZE_HINTS], arguments["triton_meta"]
    heuristic = arguments[HEURISTIC]
    if heuristic not in (hints.HeuristicType.REDUCTION, hints.HeuristicType.PERSISTENT_REDUCTION):
        raise Refused("heuristic_type")
    if size_hints is None or set(size_hints) != {"x", "r0_"}:
        raise Refused("size_hints")
    if arguments.get("custom_kernel") or "caching_autotuner_cls" in arguments:
        raise Refused("custom")
    if meta.get("profile_bandwidth"):
        raise Refused("profile_bandwidth")  # the host then has an autotuner of its own
    persistent = heuristic is hints.HeuristicType.PERSISTENT_REDUCTION
    device = triton_meta["device"]
    minimums = dict(meta.get("tma_min_block_sizes") or {})
    for name, key in (("XBLOCK", "min_xblock"), ("R0_BLOCK", "min_rblock")):
        minimums[name] = max(minimums.get(name, 1), meta.get(key) or 1)
    xnumel, rnumel, _, _ = data["kernel"]
    limits = Limits(
        xnumel=xnumel, rnumel=rnumel,
        max_x=hints.TRITON_MAX_BLOCK["X"], max_r0=hints.TRITON_MAX_BLOCK["R0_"],
        max_threads=getattr(device, "max_threads_per_block", None) or 1024,
        warp_size=getattr(device, "warp_size", None) or 32, hip=device.type == "hip",
        index64="i64" in (triton_meta["signature"].get("xnumel"), triton_meta["signature"].get("r0_numel")),
        one_row=bool(meta.get("no_x_dim")), minimums=minimums,
    )  # fmt: skip
    scales = not persistent and meta.get("dynamic_scale_rblock", True) and device.type in ("cuda", "hip")
    if any(c.kwargs.get(name, floor) < floor for c in arguments[CONFIGS] for name, floor in minimums.items()):
        raise Refused("block_minimums")  # the host will raise these, and file its winner under the raised ones
    united = unite(
        arguments[CONFIGS], data["tiles"],
        lambda kwargs, warps, stages: triton_heuristics.InductorConfig(kwargs, num_warps=warps, num_stages=stages),
        limits, persistent=persistent, scales=scales,
    )  # fmt: skip
    meta = meta | {
        META_KEY: data
        | {
            "host": len(arguments[CONFIGS]),
            "limit_s": getattr(_LIMIT, "seconds", None),
            "set": [(*key_of(c.config), c.proposers) for c in united],
        }
    }
    if scales:
        # The halved variants are in the set: the parent need not compile them one by one.
        meta["dynamic_scale_rblock"] = False
    arguments["inductor_meta"] = meta
    arguments[CONFIGS] = [candidate.config for candidate in united]
    arguments["caching_autotuner_cls"] = TileguardAutotuner
