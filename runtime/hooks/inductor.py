"""TorchInductor: `install()` before `torch.compile`, and eligible reductions get a short, right list.

What is patched, all of it undone by `uninstall()`:
- `TritonKernel.codegen_kernel`: ranks a reduction's tiles where its source is generated, and writes them into it;
- `async_compile._load_triton_kernel_from_source`: a loader that takes the hook along into the compile workers;
- `triton_heuristics.cached_autotune`: extends the host's list by the tiles in the source, there and here;
- `JITFunction.parse` of Triton: one at a time, there and here, since candidates compile on threads;
- `FxGraphHashDetails.__init__`: model and settings become part of the FX graph cache's key;
- with `matmul=True`, `InductorChoices._finalize_template_configs` and `AlgorithmSelectorCache`: matrix products (matmul.py).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tileguard
from tileguard.features.errors import InvalidInput, checked_choice
from tileguard.features.hardware import KNOWN, HardwareSpec, known_hardware
from tileguard.features.inductor import reduction_kernel

from ..calibration import checked_top_k
from ..guard import GuardPolicy
from ..lattice import lattice, one_row
from ..selector import DEFAULT_TOP_K, Selector
from . import npu, process_log
from .configs import Refused
from .digests import model_digests
from .gpu import gpu_hardware
from .loader import (
    CACHED_AUTOTUNE,
    Budget,
    KernelLoader,
    check_signature,
    spend_from,
    targets,
    unwrap_process,
    wrap_process,
)
from .locks import ForkLock
from .matmul import matmul_settings, product_targets
from .patches import Patches
from .proposal import check_eligible, insert_payload, payload, reduction_hint
from .report import Log
from .telling import warn_once

logger = logging.getLogger("tileguard")

WORKERS_S = 30.0
"""Longest wait for the compile workers to start; they do so while the first graph is traced."""

_LOCK = ForkLock()


@dataclass(frozen=True, slots=True)
class Settings:
    """What `install` was given.

    model: "champion" (the shipped one of the detected hardware), a folder, or None for the formula alone. top_k: tiles
    that the model adds, or "calibrated". hardware: a known name in place of the detected one. log: a path that gets a
    JSON line a kernel. kernel_budget_s, process_budget_s: seconds of compiling and racing beyond which, for one kernel
    and for the process, only the host's list and the best-ranked tiles run; None is no limit. matmul: whether matrix
    products under max-autotune get the planner's tiles too, and those of a model of theirs where there is one; "prune"
    also drops the host's tiles that the model is sure about.
    Raises InvalidInput naming the field.
    """

    model: str | Path | None = "champion"
    top_k: int | str = DEFAULT_TOP_K
    hardware: str | None = None
    log: str | Path | None = None
    kernel_budget_s: float | None = 20.0
    process_budget_s: float | None = 600.0
    policy: GuardPolicy = field(default_factory=GuardPolicy)
    matmul: bool | str = False

    def __post_init__(self) -> None:
        checked_top_k(self.top_k)
        matmul_settings(self.matmul)
        if self.model is not None and not isinstance(self.model, str | Path):
            raise InvalidInput("model", self.model, "'champion', a folder or None")
        if self.hardware is not None:
            checked_choice("hardware", self.hardware, tuple(KNOWN))
        if self.log is not None and not isinstance(self.log, str | Path):
            raise InvalidInput("log", self.log, "a path, or None")
        if not isinstance(self.policy, GuardPolicy):
            raise InvalidInput("policy", self.policy, "a GuardPolicy")
        for name in ("kernel_budget_s", "process_budget_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= 0):
                raise InvalidInput(name, value, "seconds >= 0, or None")


def install(
    *,
    model: str | Path | None = "champion",
    top_k: int | str = DEFAULT_TOP_K,
    hardware: str | None = None,
    log: str | Path | None = None,
    kernel_budget_s: float | None = 20.0,
    process_budget_s: float | None = 600.0,
    policy: GuardPolicy | None = None,
    matmul: bool | str = False,
) -> bool:
    """Hook TorchInductor in this process and its compile workers; whether that was done.

    A second call replaces the first one's settings. With TILEGUARD=0 in the environment, on a torch whose names or
    signatures are not those of 2.11 to 2.14, or where compile workers could not import this package, nothing is
    touched, the reason is logged once, and torch works as before. Raises InvalidInput for bad arguments, and nothing
    else. See Settings for the arguments.
    """
    settings = Settings(model, top_k, hardware, log, kernel_budget_s, process_budget_s, policy or GuardPolicy(), matmul)
    with _LOCK:
        uninstall()
        if os.environ.get("TILEGUARD") == "0":
            return _declined("TILEGUARD=0 in the environment")
        try:
            hook = _Hook(settings)
            hook.apply()
        except Exception as error:
            return _declined(f"{type(error).__name__}: {error}")
        global _ACTIVE
        _ACTIVE = hook
    return True


def uninstall() -> None:
    """Undo `install`: every patched name is again the very object that it was."""
    global _ACTIVE
    with _LOCK:
        if _ACTIVE is not None:
            _ACTIVE.undo()
            _ACTIVE = None


@contextlib.contextmanager
def enabled(**settings: Any) -> Iterator[bool]:
    """`install(**settings)` for a while; what was installed before is back afterwards."""
    global _ACTIVE
    before = _ACTIVE
    try:
        yield install(**settings)
    finally:
        uninstall()
        if before is not None:
            with _LOCK:
                before.apply()
                _ACTIVE = before


def is_installed() -> bool:
    """Whether the hook is in place in this process."""
    return _ACTIVE is not None


class _Hook:
    """One installation: its settings, selectors and what it patched. Raises where torch is not as expected."""

    def __init__(self, settings: Settings) -> None:
        from torch._inductor import async_compile, codecache, config
        from torch._inductor.codegen.triton import TritonKernel
        from torch._inductor.runtime import triton_heuristics

        from . import autotuner  # noqa: F401  (fails here rather than in a worker)

        check_signature(getattr(triton_heuristics, CACHED_AUTOTUNE))
        for owner, name, _ in targets():
            if name == "parse":
                _check_parameters(vars(owner)[name], ("self",))
        _check_parameters(TritonKernel.codegen_kernel, ("self", "name"))
        _check_parameters(async_compile._load_triton_kernel_from_source, ("kernel_name", "source_code"))
        _check_workers_import_us(async_compile)
        self.settings = settings
        self._budget = Budget(settings.kernel_budget_s, settings.process_budget_s)
        self._selectors: dict[int, Selector] = {}
        self._salt: str | None = None
        self._log = Log(settings.log)
        self._benchmarks_kernels = bool(config.benchmark_kernel)  # the user's own setting, not a trial's
        self._applied = False
        self._patches = Patches()
        self._undo: list[Callable[[], None]] = []
        self._targets: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
            (TritonKernel, "codegen_kernel", self._codegen_kernel),
            (codecache.FxGraphHashDetails, "__init__", self._hash_details),
            (async_compile, "_load_triton_kernel_from_source", lambda _: KernelLoader(self._budget, self._npu)),
        )
        self._matmul = matmul_settings(
            settings.matmul, model=settings.model, top_k=settings.top_k, policy=settings.policy
        )  # fmt: skip
        self._targets += product_targets(self._matmul, self._hardware, self._is_on)
        # A selector for an NPU is made where its kernels are loaded, from what can be pickled.
        model = None if settings.model is None else str(settings.model)
        choosers = functools.partial(npu.shared_selector, model=model, top_k=settings.top_k)
        self._npu: dict[str, Any] = {"choosers": choosers, "hardware": settings.hardware}

    def apply(self) -> None:
        """Patch; where that fails half way, nothing stays patched."""
        try:
            self._apply()
        except BaseException:
            self.undo()
            raise

    def _apply(self) -> None:
        self._applied = True
        for target in self._targets:
            self._patches.put(*target)
        spend_from(self._budget)
        self._undo.append(lambda: spend_from(None))
        wrap_process()
        self._undo.append(unwrap_process)
        if npu.install(**self._npu):
            self._undo.append(npu.uninstall)
        process_log.use(self._log)

    def undo(self) -> None:
        """Put everything back. A wrapper of ours that someone else has wrapped meanwhile does nothing from now on."""
        self._applied = False
        self._patches.undo()
        while self._undo:
            self._undo.pop()()

    def _codegen_kernel(self, original: Callable[..., str]) -> Callable[..., str]:
        def codegen_kernel(kernel: Any, name: str | None = None) -> str:
            source = original(kernel, name)
            try:
                return self._annotated(kernel, source)
            except Refused as refusal:
                process_log.current().count_untouched(str(refusal))
            except Exception as error:
                process_log.current().count_untouched("error")
                warn_once("tileguard leaves a kernel as it is", error)
            return source

        return codegen_kernel

    def _annotated(self, kernel: Any, source: str) -> str:
        """The kernel's source with its ranked tiles; unchanged where it is no reduction, or the hook is switched off."""
        if not kernel.inside_reduction or not self._is_on():
            return source
        from torch._inductor import config
        from torch._inductor.virtualized import V

        numels = {prefix: _hint(V.graph.sizevars, numel) for prefix, numel in kernel.numels.items()}
        triton_meta, inductor_meta = kernel.triton_meta, kernel.inductor_meta
        device = triton_meta["device"]
        if device.type == "npu":
            return source  # its kernels are ranked where they are loaded (npu.py)
        check_eligible(kernel._get_heuristic(), numels, triton_meta, inductor_meta)
        if config.autotune_lookup_table:
            raise Refused("lookup_table")
        if config.benchmark_kernel and not self._benchmarks_kernels:
            # A trial of a fusion: its kernels are timed once and thrown away.
            raise Refused("fusion_trial")
        if device.type not in ("cuda", "hip"):
            raise Refused(f"device_{device.type}")
        began = time.perf_counter_ns()  # the first kernel's time holds what is done once
        selector = self._selector(device.index or 0)
        if selector.hardware.kind != "nvidia":
            raise Refused("hardware")
        try:
            described = reduction_kernel(
                numels["x"], numels["r0_"], triton_meta["signature"], inductor_meta,
                reduction_hint=reduction_hint(source), persistent=bool(kernel.persistent_reduction), source=source,
            )  # fmt: skip
        except InvalidInput as error:
            raise Refused(f"unsupported_{error.field}") from None
        no_x_dim = bool(inductor_meta.get("no_x_dim"))
        space = one_row(lattice(described, selector.hardware)) if no_x_dim else None
        chosen = selector.select(described, space=space)
        data = payload(chosen, one_row=no_x_dim)
        taken_us = (time.perf_counter_ns() - began) / 1e3
        self._wait_for_workers()
        process_log.note_selection(data, taken_us)
        return insert_payload(source, data)

    def _is_on(self) -> bool:
        return self._applied and os.environ.get("TILEGUARD") != "0"

    def _wait_for_workers(self) -> None:
        """Once: until the compile workers that are starting have started, or WORKERS_S have passed.

        Until then Inductor compiles in this process, which has one interpreter lock for all the longer lists.
        """
        global _waited
        if not _waited:
            _waited = True
            from torch._inductor.async_compile import AsyncCompile, get_compile_threads

            with contextlib.suppress(Exception):
                if get_compile_threads() > 1:
                    AsyncCompile.wait_pool_ready(timeout=WORKERS_S)

    def _hardware(self, device_index: int) -> HardwareSpec:
        import torch

        if self.settings.hardware is not None:
            return known_hardware(self.settings.hardware)
        return gpu_hardware(torch.cuda.get_device_properties(device_index))

    def _selector(self, device_index: int) -> Selector:
        """The device's; equal devices share one."""
        with _LOCK:
            if device_index not in self._selectors:
                hardware = self._hardware(device_index)
                alike = [one for one in self._selectors.values() if one.hardware == hardware]
                self._selectors[device_index] = alike[0] if alike else self._made(hardware)
            return self._selectors[device_index]

    def _made(self, hardware: HardwareSpec) -> Selector:
        selector = Selector(hardware, model=self.settings.model, top_k=self.settings.top_k, policy=self.settings.policy)
        selector.prepare()
        return selector

    def _hash_details(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(details: Any, *args: Any, **kwargs: Any) -> None:
            original(details, *args, **kwargs)
            if not self._applied:
                return
            try:
                details.tileguard = self.salt()
            except Exception as error:
                # Without the salt a graph of another model could be served: better none than that one.
                details.tileguard = os.urandom(16).hex()
                warn_once("tileguard cannot tell its model", error)

        return init

    def salt(self) -> str:
        """A digest of all that the lists depend on: version, settings, and every file of the models in question."""
        if os.environ.get("TILEGUARD") == "0":
            return "off"
        if self._salt is None:
            settings = self.settings
            parts = [tileguard.__version__, str(settings.top_k), str(settings.hardware), repr(settings.policy)]
            if self._matmul is not None:
                parts.append(self._matmul.uuid)
            if settings.model is not None:
                parts += model_digests(settings.model)
            self._salt = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return self._salt


_ACTIVE: _Hook | None = None
_waited = False


def _declined(reason: str) -> bool:
    logger.warning("tileguard is not installed: %s", reason)
    return False


def _check_parameters(function: Callable[..., Any], expected: tuple[str, ...]) -> None:
    found = tuple(inspect.signature(function).parameters)
    if found != expected:
        raise TypeError(f"{function.__qualname__} takes {found}, not {expected}")


def _check_workers_import_us(async_compile: Any) -> None:
    """Raise ImportError where compile workers that run already could not unpickle the loader.

    A pool that starts later gets this process's sys.path; one that runs has the path of its start, so that only what
    a bare interpreter finds is safe.
    """
    running = getattr(async_compile.AsyncCompile.process_pool, "cache_info", None)
    if running is None or not running().currsize:
        return
    known = subprocess.run(
        [sys.executable, "-c", "import tileguard.runtime.hooks.loader"], capture_output=True, check=False
    )
    if known.returncode:
        raise ImportError(
            "compile workers run already and cannot import tileguard; install it, or call install() first"
        )


def _hint(sizevars: Any, numel: Any) -> int:
    """The size that a symbolic numel has in this compilation, exact where shapes are static."""
    hint = getattr(sizevars, "optimization_hint", None)
    if hint is not None:
        return int(hint(numel))
    from torch._inductor import config

    return int(sizevars.size_hint(numel, fallback=config.unbacked_symint_fallback))
