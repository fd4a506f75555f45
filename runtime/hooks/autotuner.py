"""TorchInductor's CachingAutotuner for a kernel with a longer list: it compiles without risk and races in short rounds.

Only kernels whose list was extended get this class; every other one keeps the host's.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.runtime import benchmarking, triton_heuristics

from .compiling import compile_all
from .configs import HOST, Key, key_of
from .loader import spend
from .payload import META_KEY
from .race import RaceResult, race
from .stopwatch import spills, stopwatch
from .telling import warn_once

if TYPE_CHECKING:
    from .records import KernelRecord

logger = logging.getLogger("tileguard")

_alone_on_the_gpu = getattr(benchmarking, "maybe_gpu_benchmark_lock", contextlib.nullcontext)
"""The host's own lock around benchmarks, where it has one."""

_quiet = threading.local()
logging.getLogger(triton_heuristics.__name__).addFilter(lambda record: not getattr(_quiet, "on", False))

_HOST_ERRORS = tuple(
    error
    for error in (getattr(triton_heuristics, name, None) for name in ("OutOfResources", "PTXASError", "IntelGPUError"))
    if error is not None
)
"""What the host itself takes for a failed candidate."""


class TileguardAutotuner(triton_heuristics.CachingAutotuner):  # type: ignore[misc]
    """A CachingAutotuner over the union; picklable, also into the FX graph cache."""

    fn: Any
    launchers: list[Any]
    compile_results: list[Any]
    configs: list[Any] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compile_s = 0.0
        self.failures: dict[Key, str] = {}
        self.compile_ms: dict[Key, float] = {}

    @property
    def union(self) -> list[Any]:
        """(XBLOCK, R0_BLOCK or None, num_warps, num_stages, proposers) of every candidate, in order, the host's first."""
        return list(self.inductor_meta[META_KEY]["set"])

    def _precompile_worker(self) -> None:
        if self.compile_results or not self.configs or len(self.configs) < 2:
            super()._precompile_worker()
            return
        began = time.perf_counter()
        configs = list(self.configs)
        meta = self.inductor_meta[META_KEY]
        by_host = {_entry_key(entry) for entry in self.union if HOST in entry[4]}
        required = [key_of(config) in by_host for config in configs]
        outcomes = compile_all(self._compile_quietly, configs, required, limit_s=meta.get("limit_s"))
        own = {_entry_key(entry) for entry in self.union[: meta["host"]]}
        results, last_error = [], None
        for config, outcome in zip(configs, outcomes, strict=True):
            key = key_of(config)
            if key in own and outcome.error is not None and not isinstance(outcome.error, _HOST_ERRORS):
                # What the host would have compiled must not fail for having been compiled beside something else; if it
                # fails alone too, it fails as it would without us.
                outcome.result, outcome.error = self._precompile_config(config), None
            if outcome.done:
                self.compile_ms[key] = outcome.ms
            if outcome.error is None and outcome.result is not None:
                results.append(outcome.result)
            elif outcome.error is None:
                self.failures[key] = "over_budget"
            else:
                self.failures[key] = _status(outcome.error)
                last_error = outcome.error
        self.compile_s = time.perf_counter() - began
        if not results:
            raise triton_heuristics.NoTritonConfigsError(
                f"No valid triton configs. {type(last_error).__name__}: {last_error}"
            )
        self.compile_results, self.configs = results, None

    def recheck_autotune_cache(self, reload_kernel_from_src: Callable[[], Any]) -> None:
        # The host hashes what it finds compiled, but winners are filed under the whole union: candidates that failed
        # to compile are put back for the comparison, else every process would tune again. Such a stand-in has another
        # candidate's code: a winner that is one (another process had more time) is compiled.
        compiled = self.compile_results
        by_key = {key_of(result.config): result for result in compiled}
        whole = []
        for entry in self.union:
            result = by_key.get(_entry_key(entry))
            if result is None:
                result = copy.copy(compiled[0])
                result.config = _config(entry)
            whole.append(result)
        self.compile_results = whole
        try:
            super().recheck_autotune_cache(reload_kernel_from_src)
            found = self.compile_results
        finally:
            self.compile_results = compiled
        if len(found) == 1:
            winner = found[0]
            if not any(winner is result for result in compiled) and any(winner is result for result in whole):
                if self.fn.fn is None:
                    self.fn = reload_kernel_from_src().fn
                winner = self._precompile_config(winner.config)
            self.compile_results = [winner]

    def precompile(self, warm_cache_only: bool = False, **kwargs: Any) -> None:
        super().precompile(warm_cache_only=warm_cache_only, **kwargs)
        if warm_cache_only or not self.launchers:
            return
        if (self.autotune_cache_info or {}).get("autotune_cache_state") == "hit":
            self._record("cached", winner=self.launchers[0].config)
        elif len(self.launchers) == 1:
            self._record("tuned", winner=self.launchers[0].config)  # nothing else could be compiled: there is no race

    def benchmark_all_configs(self, *args: Any, **kwargs: Any) -> dict[Any, float]:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            # A race would wait for the device, which ends the capture.
            return self._as_the_host(*args, reason="capturing", **kwargs)
        began = time.perf_counter()
        launchers = list(self.launchers)
        try:
            keys = [key_of(launcher.config) for launcher in launchers]
            hosts = [_entry_key(entry) for entry in self.union if HOST in entry[4]]
            host = [keys.index(key) for key in hosts if key in keys]
            with _alone_on_the_gpu():
                outcome = race(len(launchers), stopwatch(self, launchers, args, kwargs, host), host=host)
            if outcome.winner is None:
                raise RuntimeError("no candidate could be launched")
        except Exception as error:
            warn_once("tileguard leaves timing to the host", error)
            return self._as_the_host(*args, reason=f"race: {type(error).__name__}", **kwargs)
        self.reset_to_zero_args(*args, **kwargs)
        timings = {launcher: us / 1e3 for launcher, us in zip(launchers, outcome.times_us, strict=True)}
        for launcher, ms in timings.items():
            self.coordesc_tuner.cache_benchmark_result(launcher.config, ms)
        # The host takes the least time, the first of equals: the race's winner, which may have won by a tie.
        best = launchers[outcome.winner]
        timings = {best: min(timings.values())} | {k: v for k, v in timings.items() if k is not best}
        spilled = {key for key, launcher in zip(keys, launchers, strict=True) if spills(self, launcher)}
        bench_s = time.perf_counter() - began
        spend(self.compile_s + bench_s)
        self._record("tuned", winner=best.config, keys=keys, spilled=spilled, outcome=outcome, bench_s=bench_s)
        return timings

    def _as_the_host(self, *args: Any, reason: str, **kwargs: Any) -> dict[Any, float]:
        """The host's own list alone, timed by the host; a single one is not timed at all, as without us."""
        self._record("failed", reason=reason)
        own = {_entry_key(entry) for entry in self.union[: self.inductor_meta[META_KEY]["host"]]}
        launchers = [launcher for launcher in self.launchers if key_of(launcher.config) in own] or self.launchers[:1]
        # What was never compared is no winner to remember.
        self.save_cache_hook = None
        if len(launchers) == 1:
            return {launchers[0]: 0.0}
        self.launchers = launchers
        return dict(super().benchmark_all_configs(*args, **kwargs))

    def _compile_quietly(self, config: Any) -> Any:
        """`_precompile_config`, without the host's printing a traceback for a candidate that may fail."""
        _quiet.on = True
        try:
            return self._precompile_config(config)
        finally:
            _quiet.on = False

    def _record(self, result: str, **facts: Any) -> None:
        try:
            from . import process_log

            process_log.current().add(_kernel_record(self, result, **facts))
        except Exception as error:
            logger.debug("tileguard cannot record a kernel: %s: %s", type(error).__name__, error)


def _kernel_record(
    autotuner: TileguardAutotuner,
    result: str,
    *,
    winner: Any = None,
    keys: Sequence[Key] = (),
    spilled: Container[Key] = (),
    outcome: RaceResult | None = None,
    bench_s: float = 0.0,
    reason: str = "",
) -> KernelRecord:
    from tileguard.features.pow2 import pow2_ceil

    from .process_log import selection_us
    from .records import KernelRecord, TileRecord

    meta = autotuner.inductor_meta[META_KEY]
    xnumel, rnumel, dtype, persistent = meta["kernel"]
    position = {key: i for i, key in enumerate(keys)}
    winner_key = None if winner is None else key_of(winner)
    tiles, best, winner_us = [], None, None
    default_us: float | None = None
    for number, entry in enumerate(autotuner.union):
        x, r, warps, stages, proposers = entry
        key = _entry_key(entry)
        status, us, mad, rounds = "not_compiled", None, None, 0
        if outcome is None and result == "tuned":
            status = autotuner.failures.get(key, "ok" if key == winner_key else "out_of_resource")
        if outcome is not None:
            status = autotuner.failures.get(key, "out_of_resource")
            if (i := position.get(key)) is not None:
                us, mad, rounds = outcome.times_us[i], outcome.mads_us[i], outcome.rounds[i]
                status = "spilled" if key in spilled else "ok" if outcome.launched[i] else "launch_error"
                us, mad = (us, mad) if math.isfinite(us) else (None, None)
        if key == winner_key:
            best, winner_us = number, us
        if us is not None and HOST in proposers:
            default_us = us if default_us is None else min(default_us, us)
        tiles.append(
            TileRecord(
                xblock=x,
                r0_block=r if r is not None else pow2_ceil(rnumel),
                num_warps=warps,
                num_stages=stages,
                proposers=tuple(proposers),
                status=status,
                compile_ms=autotuner.compile_ms.get(key) if outcome is not None else None,
                us=us,
                us_mad=mad,
                reps=rounds,
            )
        )
    verdict, detail = meta["verdict"]
    return KernelRecord(
        kernel=autotuner.fn.__name__, source=str(autotuner.kernel_hash)[:16], xnumel=xnumel, rnumel=rnumel, dtype=dtype,
        persistent=persistent, hardware=meta["hardware"], outcome=result, reason=reason, verdict=verdict,
        verdict_detail=detail, select_us=selection_us(meta), tiles=tuple(tiles), winner=best, host_us=default_us,
        winner_us=winner_us, compile_s=autotuner.compile_s if outcome is not None else 0.0, bench_s=bench_s,
        over_budget=any(tile.status == "over_budget" for tile in tiles), time=time.time(), pid=os.getpid(),
    )  # fmt: skip


def _config(entry: Sequence[Any]) -> Any:
    x, r, warps, stages, _ = entry
    kwargs = {"XBLOCK": x} if r is None else {"XBLOCK": x, "R0_BLOCK": r}
    return triton_heuristics.InductorConfig(kwargs, num_warps=warps, num_stages=stages)


def _entry_key(entry: Sequence[Any]) -> Key:
    x, r, warps, stages, _ = entry
    return x, r, warps, stages


def _status(error: BaseException) -> str:
    return "out_of_resource" if "OutOfResource" in type(error).__name__ else "compile_error"
