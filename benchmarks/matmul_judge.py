"""The modes' winners, product by product, timed side by side in one process.

Each mode kept the code that the host generated in the end, whatever won: ATen, a Triton template, a split K. That very
code is loaded again here, once for each distinct winner, and all are timed in interleaved rounds by CUPTI's kernel
durations, from the first kernel's start to the last one's end, with the L2 overwritten before every launch. The winner of
max-autotune runs twice in each round: that ratio is the noise.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.inductor_judge import SLOW_US
from benchmarks.inductor_modes import machine, warm_up
from benchmarks.matmul_cases import DEFAULT, MAX_AUTOTUNE
from benchmarks.matmul_modes import checked, hush, release
from benchmarks.pieces import write
from tileguard.learner.inductor.args import build_args
from tileguard.learner.inductor.cupti import CuptiStopwatch
from tileguard.learner.inductor.matmul_capture import describe_problem
from tileguard.learner.inductor.matmul_problems import Problem
from tileguard.learner.inductor.timing import Stopwatch, error_text, summary

ROUNDS, SLOW_ROUNDS, WARM_ROUNDS = 51, 25, 4

Loaded = dict[str, dict[str, Any]]
"""Product -> winner -> its module, or why there is none."""


def judge(products: Sequence[Problem], modes: Mapping[str, Mapping[str, Any]], path: Path, *, device: str) -> None:
    """Write to `path` the times of every winner. modes: the mode files' content, by name."""
    began = time.perf_counter()
    hush()
    result: dict[str, Any] = {
        **machine(device),
        "seen": seen(modes),
        "pool_ready": warm_up(device),
        "products": {},
    }
    ready = time.perf_counter()
    sources = {product.name: winners_of(product.name, modes) for product in products}
    modules = load_all(sources)
    loaded = time.perf_counter()
    stopwatch = CuptiStopwatch(device)
    for product in products:
        if not sources[product.name]:
            continue
        try:
            found = time_product(product, modules[product.name], noisy(product.name, modes), stopwatch, device=device)
        except Exception:
            found = {"error": traceback.format_exc()[-1000:]}
        result["products"][product.name] = found
        release(device)
    result["seconds"] = {
        "start": round(ready - began, 1),
        "load": round(loaded - ready, 1),
        "time": round(time.perf_counter() - loaded, 1),
    }
    write(path, result)


def seen(modes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """What a judgement is of: each mode's products."""
    return {mode: sorted(found["products"]) for mode, found in sorted(modes.items())}


def key_of(row: Mapping[str, Any]) -> str:
    """A winner by what was chosen; where that is not known, by the code."""
    return str(row.get("winner") or row["code"])


def winners_of(name: str, modes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The distinct winners of a product, each with its code."""
    rows = [found["products"].get(name, {}) for found in modes.values()]
    return {key_of(row): row["code"] for row in rows if row.get("code")}


def noisy(name: str, modes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The winner that runs twice."""
    rows = [modes[mode]["products"].get(name, {}) for mode in (MAX_AUTOTUNE, DEFAULT) if mode in modes]
    return next((key_of(row) for row in rows if row.get("code")), None)


def load_all(sources: Mapping[str, Mapping[str, str]]) -> Loaded:
    """Every code as a module. Its kernels are all given to the compile workers before the first is waited for."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    modules: Loaded = {name: {} for name in sources}
    with no_waiting() as wait:
        for name, winners in sources.items():
            for winner, source in winners.items():
                try:
                    modules[name][winner] = PyCodeCache.load(source)
                except Exception as error:
                    modules[name][winner] = error_text(error)
    for found in modules.values():
        for winner, module in found.items():
            if not isinstance(module, str):
                try:
                    wait(AsyncCompile(), module.__dict__)
                except Exception as error:
                    found[winner] = error_text(error)
    return modules


@contextlib.contextmanager
def no_waiting() -> Iterator[Callable[[Any, dict[str, Any]], None]]:
    """Generated code does not wait for its kernels for a while. Gives what does."""
    from torch._inductor.async_compile import AsyncCompile

    kind: Any = AsyncCompile
    original: Callable[[Any, dict[str, Any]], None] = kind.wait
    kind.wait = lambda self, scope: None
    try:
        yield original
    finally:
        kind.wait = original


def time_product(
    product: Problem, modules: Mapping[str, Any], again: str | None, stopwatch: Stopwatch, *, device: str
) -> dict[str, Any]:
    """`us`: each winner's times (timing.summary). aa: the second ÷ the first of `again`. off: errors that are too large.

    A winner that cannot be loaded or run, or is wrong, is in `errors` and has no times, or none that count.
    """
    torch.backends.cuda.matmul.allow_tf32 = product.allow_tf32
    args = build_args(describe_problem(product)[:-1], device=device)
    runners: dict[str, Callable[..., Any]] = {}
    errors: dict[str, str] = {}
    off: dict[str, float | None] = {}
    slowest = 0.0
    for winner, module in modules.items():
        if isinstance(module, str):
            errors[winner] = module
            continue
        try:
            runner = caller(module)
            verdict = checked(product, args, runner(*args, stream=None)[0])
            off[winner] = verdict["off"]
            if not verdict["agrees"]:
                errors[winner] = f"wrong: off by {verdict['off']}"
            slowest = max(slowest, wall_us(runner, args))
            runners[winner] = runner
        except Exception as error:
            errors[winner] = error_text(error)
    if not runners:
        return {"us": {}, "errors": errors}
    names = [*runners, *(name for name in [again] if name in runners)]
    rounds = WARM_ROUNDS + (SLOW_ROUNDS if slowest > SLOW_US else ROUNDS)
    times = stopwatch.time([runners[name] for name in names], args, rounds)
    summaries = [summary(one[WARM_ROUNDS:]) for one in times]
    found: dict[str, Any] = {"us": dict(zip(runners, summaries, strict=False)), "off": off, "errors": errors}
    if len(names) > len(runners) and again:
        found["aa"] = round(summaries[-1]["us"] / found["us"][again]["us"], 5)
    return found


def caller(module: Any) -> Callable[..., Any]:
    """A launcher, as CuptiStopwatch takes them, of a graph's generated code, which empties the list it is given."""

    def launch(*args: Any, stream: Any) -> Any:
        return module.call(list(args))

    return launch


def wall_us(runner: Any, args: Sequence[Any]) -> float:
    """Of a second launch, with its overhead: enough to tell slow products."""
    stream = torch.cuda.current_stream().cuda_stream
    runner(*args, stream=stream)
    torch.cuda.synchronize()
    began = time.perf_counter()
    runner(*args, stream=stream)
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - began)
