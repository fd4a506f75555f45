"""A program that torch.compile compiles on the fake GPU, and what its compiler did, as one JSON object on stdout.

    python -m tests.inductor_host --cache DIR [--threads 2] [--start fork] [--tileguard '{"top_k": 4}'] softmax sum0

All is the host's own (Dynamo, AOTAutograd, Inductor, its compile workers, every cache) but for two things. The GPU is
`tests.fakegpu`. And since autograd cannot run on a device that is not there, the program's tensors live on the CPU, and
each graph, forward or backward, is moved to the GPU where Inductor's inner compiler takes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Of the host's modules none is imported before `main` has set its environment.


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A function of a matrix and `rest(rows, columns)`, the matrix's usual size, and whether gradients are taken."""

    function: Callable[..., Any]
    rows: int
    columns: int
    rest: Callable[[int, int], Sequence[Any]] = lambda rows, columns: ()
    backward: bool = False


def workloads() -> dict[str, Workload]:
    import torch
    from torch.nn import functional

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        return functional.layer_norm(x, (x.shape[-1],), weight, bias)

    def parameters(rows: int, columns: int) -> list[Any]:
        return [torch.ones(columns, requires_grad=True), torch.zeros(columns, requires_grad=True)]

    def targets(rows: int, columns: int) -> list[Any]:
        return [torch.zeros(rows, dtype=torch.int64)]

    return {
        "softmax": Workload(lambda x: torch.softmax(x, -1), 1000, 5000),
        "short_softmax": Workload(lambda x: torch.softmax(x, -1), 4000, 300),
        "sum0": Workload(lambda x: x.sum(0), 1000, 5000),
        "layer_norm": Workload(layer_norm, 600, 3000, parameters, backward=True),
        "cross_entropy": Workload(functional.cross_entropy, 700, 6000, targets, backward=True),
    }


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments)
    for name in [name for name in os.environ if name.startswith(("TORCHINDUCTOR_", "TRITON_"))]:
        del os.environ[name]  # a user's setting must not decide what the tests see
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.cache)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(options.threads)
    os.environ["TORCHINDUCTOR_WORKER_START"] = options.start
    import torch
    from tests import fakegpu

    fakegpu.install()
    settings = {"use_static_triton_launcher": not options.no_static} | options.config
    _configure(settings)
    if options.tileguard is not None:
        import tileguard

        tileguard.install(**options.tileguard)
        autotuner: Any = importlib.import_module("tileguard.runtime.hooks.autotuner")
        autotuner.stopwatch = _simulated_stopwatch
    exec(options.before, {})  # noqa: S102
    autotuners = _watch_autotuners()
    cubins = _cubins(options.cache)
    _start_workers()
    began = time.perf_counter()
    _run([options.workloads[i :: options.at_once] for i in range(options.at_once)], options.dynamic, settings)
    seconds = time.perf_counter() - began
    kernels = [_describe(*seen) for seen in autotuners]
    report = {
        "kernels": kernels,
        "benches": sum(kernel["benches"] for kernel in kernels),
        "cubins": len(_cubins(options.cache) - cubins),
        "cache": _cache_counters(),
        "pid": os.getpid(),
        "seconds": round(seconds, 2),
        "torch": torch.__version__,
    }
    if options.tileguard is not None:
        report["tileguard"] = dataclasses.asdict(tileguard.report())
    print(json.dumps(report, default=str))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.inductor_host")
    parser.add_argument("workloads", nargs="+", help="NAME or NAME:ROWSxCOLUMNS, compiled in this order")
    parser.add_argument("--cache", type=Path, required=True, help="TORCHINDUCTOR_CACHE_DIR; Triton's cache is within")
    parser.add_argument("--dynamic", choices=["rows", "columns", "both"], help="sizes that are marked dynamic")
    parser.add_argument("--at-once", type=int, default=1, help="Python threads that compile at the same time")
    parser.add_argument("--threads", type=int, default=1, help="compile workers; 1 compiles in this process")
    parser.add_argument("--start", choices=["subprocess", "fork", "spawn"], default="subprocess")
    parser.add_argument("--config", type=json.loads, default={}, help="JSON object of torch._inductor.config values")
    parser.add_argument("--no-static", action="store_true", help="launch through Triton, not the static launcher")
    parser.add_argument("--tileguard", type=json.loads, help="JSON object of arguments of tileguard.install")
    parser.add_argument("--before", default="", help="Python code to run when all is installed")
    return parser.parse_args(arguments)


def _simulated_stopwatch(
    autotuner: Any, launchers: Sequence[Any], args: Any, kwargs: Any, host: Any
) -> Callable[..., Any]:
    """Stands in for the hook's: µs of one launch of each, by the clock that the host's own benchmarks go by."""
    from tests import fakegpu

    def measure(indices: Sequence[int]) -> list[float]:
        return [1e3 * fakegpu.bench(autotuner, launchers[i], *args, **kwargs) for i in indices]

    return measure


def _watch_autotuners() -> list[tuple[Any, list[dict[str, Any]]]]:
    """A list that fills with every autotuner of every loaded graph, and the configs it has before it first runs."""
    from tests import fakegpu
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    seen: list[tuple[Any, list[dict[str, Any]]]] = []
    wait = AsyncCompile.wait

    def watched(self: Any, scope: dict[str, Any]) -> None:
        wait(self, scope)
        for kernel in scope.values():
            if isinstance(kernel, CachingAutotuner):
                seen.append((kernel, [fakegpu.describe(result.config) for result in kernel.compile_results]))

    AsyncCompile.wait = watched
    return seen


def _start_workers() -> None:
    """Wait until the workers are up: before that Inductor compiles in this process, and no test could tell where."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if get_compile_threads() > 1:
        AsyncCompile.wait_pool_ready()


def _configure(settings: Mapping[str, Any]) -> None:
    """Set Inductor's configuration: of this thread only, from torch 2.13 on."""
    from torch._inductor import config

    for name, value in settings.items():
        setattr(config, name, value)


def _run(parts: Sequence[Sequence[str]], dynamic: str | None, settings: Mapping[str, Any]) -> None:
    """Compile and run every part's workloads, each part in a thread of its own."""

    def run_part(part: Sequence[str]) -> None:
        _configure(settings)
        for text in part:
            _run_workload(text, dynamic)

    if len(parts) == 1:
        run_part(parts[0])
        return
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(run_part, parts))


def _run_workload(text: str, dynamic: str | None) -> None:
    import torch
    from torch._inductor.compile_fx import compile_fx

    name, _, size = text.partition(":")
    workload = workloads()[name]
    rows, columns = map(int, size.split("x")) if size else (workload.rows, workload.columns)
    tensors = [torch.zeros(rows, columns, requires_grad=workload.backward), *workload.rest(rows, columns)]
    marked = {None: (), "rows": (rows,), "columns": (columns,), "both": (rows, columns)}[dynamic]
    for tensor in tensors:
        torch._dynamo.mark_dynamic(tensor, [i for i, size in enumerate(tensor.shape) if size in marked])

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=_compile_on_gpu)

    y = torch.compile(workload.function, backend=backend)(*tensors)
    if workload.backward:
        y.backward(torch.ones_like(y))


def _compile_on_gpu(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
    """`compile_fx_inner` of the graph, with every CPU device in its inputs and its nodes made the GPU."""
    import torch
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.fx.node import map_aggregate

    gpu = torch.device("cuda", 0)

    def on_gpu(value: Any) -> Any:
        if isinstance(value, torch.device):
            return gpu if value.type == "cpu" else value
        if isinstance(value, torch.Tensor):
            with value.fake_mode:
                return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=gpu)
        return value

    for node in graph.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, on_gpu), map_aggregate(node.kwargs, on_gpu)
        if "val" in node.meta:
            node.meta["val"] = map_aggregate(node.meta["val"], on_gpu)
    graph.recompile()
    return compile_fx_inner(graph, [on_gpu(value) for value in inputs], **options)


def _describe(autotuner: Any, configs: list[dict[str, Any]]) -> dict[str, Any]:
    """A kernel of the report; `configs` are those that it had before it ran, `winner` the one it ran with."""
    from tests import fakegpu

    name = autotuner.inductor_meta["kernel_name"]
    return {
        "name": name,
        "source": Path(autotuner.filename).stem,  # a hash of the kernel's whole source
        "autotuner": type(autotuner).__name__,
        "configs": configs,
        "winner": fakegpu.describe(autotuner.launchers[0].config) if len(autotuner.launchers) == 1 else None,
        "state": (autotuner.autotune_cache_info or {}).get("autotune_cache_state"),
        "benches": getattr(autotuner, "benches", 0),
        "launches": fakegpu.launches[name],
        "static": all(getattr(launcher, "_is_static", False) for launcher in autotuner.launchers),
        # Of the worker, if one compiled it; the graph cache keeps both.
        "compiled_by": getattr(autotuner, "compiled_by", None),
        "worker_imports": getattr(autotuner, "worker_imports", None),
    }


def _cubins(cache: Path) -> set[Path]:
    return set(cache.glob("triton/**/*.cubin"))


def _cache_counters() -> dict[str, int]:
    """Inductor's and AOTAutograd's counts of cache hits, misses and bypasses, and of bundled kernels."""
    from torch._dynamo.utils import counters

    counts = {**counters["inductor"], **counters["aot_autograd"]}
    return {name: count for name, count in counts.items() if re.search("cache|bundler", name)}


if __name__ == "__main__":
    main(sys.argv[1:])
