"""One way of compiling the graphs, in a process of its own: what each took, what won, and whether outputs are right.

benchmarks/inductor_h200.py starts it. Wall time is that of the first call, forward and backward: tracing, code
generation, compiling, autotuning and the launches, to the device's last kernel. The pool of compile workers is up
before the first graph; what a mode needs beyond that (tileguard's model, the host's benchmark buffers) it pays itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.inductor_graphs import DTYPES, Graph, gradients_for, materialise, step
from benchmarks.pieces import write

TILEGUARD = "tileguard"
AGAIN = "default_again"
"""The default once more: how far the host's own choices lie apart between two processes."""

MODES: dict[str, dict[str, str]] = {
    "default": {},
    TILEGUARD: {},
    "max_autotune": {"TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1"},
    "coordinate_descent": {
        "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1",
        "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "1",
    },
    AGAIN: {},
}
"""Name -> environment. Tuning of matrix products is another matter, and off in all of them."""

TOLERANCES = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1.6e-2}
"""‖compiled - eager‖ ÷ ‖eager‖ of an output or gradient; either rounds at other places."""

WORST_TOLERANCES = 8.0
"""No element may be further off than this many tolerances of (its size + the tensor's root mean square)."""

REDUCTION, OTHER = "reduction", "other"


@dataclass
class Watch:
    """What went through the host's autotuners while `watching`. launches: (autotuner, arguments) of reduction kernels,
    kept while `keep` is set. launch_s: time in `run`, which holds all autotuning. in_parent: Triton compiles here."""

    keep: bool = False
    launches: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    launch_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    in_parent: Counter[str] = field(default_factory=Counter)
    benches: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.launches.clear()
        self.launch_s.clear()
        self.in_parent.clear()
        self.benches.clear()


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Wrap `CachingAutotuner` for a while, in every thread of this process: a backward runs in another one."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    watch, lock = Watch(), threading.Lock()
    originals = {name: CachingAutotuner.__dict__[name] for name in ("run", "bench", "_precompile_config")}

    def run(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return originals["run"](autotuner, *args, **kwargs)
        finally:
            with lock:
                watch.launch_s[kind_of(autotuner)] += time.perf_counter() - began
                if watch.keep and kind_of(autotuner) == REDUCTION:
                    watch.launches.append((autotuner, args))

    def bench(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            watch.benches[kind_of(autotuner)] += 1
        return originals["bench"](autotuner, *args, **kwargs)

    def precompile_config(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            watch.in_parent[kind_of(autotuner)] += 1
        return originals["_precompile_config"](autotuner, *args, **kwargs)

    for name, wrapper in (("run", run), ("bench", bench), ("_precompile_config", precompile_config)):
        setattr(CachingAutotuner, name, wrapper)
    try:
        yield watch
    finally:
        for name, original in originals.items():
            setattr(CachingAutotuner, name, original)


def kind_of(autotuner: Any) -> str:
    reductions = ("REDUCTION", "PERSISTENT_REDUCTION")
    return REDUCTION if autotuner.heuristic_type.name in reductions else OTHER


def run_mode(mode: str, graphs: Sequence[Graph], path: Path, *, device: str) -> None:
    """Compile and check the graphs that `path` lacks; the file is whole after each of them."""
    result: dict[str, Any] = {"mode": mode, "runs": [], "graphs": {}}
    if path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
    began = time.perf_counter()
    if mode == TILEGUARD:
        import tileguard

        if not tileguard.install(model="champion", log=path.with_name("tileguard.jsonl")):
            raise SystemExit("tileguard could not be installed")
    installed = time.perf_counter()
    ready = warm_up(device)
    result["runs"].append(
        {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "install_s": round(installed - began, 2),
            "warm_up_s": round(time.perf_counter() - installed, 2),
            "pool_ready": ready,
            **machine(device),
        }
    )
    with watching() as watch:
        for graph in graphs:
            if graph.name in result["graphs"]:
                continue
            try:
                found = run_graph(graph, watch, device=device)
            except Exception:
                found = {"error": traceback.format_exc()[-2000:]}
            result["graphs"][graph.name] = found
            print(mode, graph.name, found.get("wall_s"), found.get("agreement", found.get("error")), flush=True)
            write(path, result)
    if mode == TILEGUARD:
        result["runs"][-1]["report"] = tileguard.report().to_dict()["totals"]
    write(path, result)


def warm_up(device: str) -> bool:
    """Start the compile workers and what every mode shares; whether the workers are ready."""
    from torch._inductor import async_compile

    workers: Any = async_compile.AsyncCompile
    workers.warm_pool()
    workers.wait_pool_ready()
    for size in (1000, 2000):
        x = torch.randn(size, device=device, requires_grad=True)
        torch.compile(lambda x, size=size: x.sin() * size, dynamic=False)(x).backward(torch.ones_like(x))
        synchronize(device)
    return bool(workers.use_process_pool())


def run_graph(graph: Graph, watch: Watch, *, device: str) -> dict[str, Any]:
    """Eager for reference, the timed first call, a comparison, then a second call to see what is launched."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = False  # else a convolution's library rounds more than the check allows
    inputs = materialise(graph, device=device)
    gradients = gradients_for(graph.call(*inputs)) if graph.backward else None
    reference = step(graph.call, inputs, gradients)
    watch.clear()
    counters.clear()
    before = cubins()
    compiled = torch.compile(graph.call, dynamic=False)
    synchronize(device)
    began = time.perf_counter()
    outputs = step(compiled, inputs, gradients)
    synchronize(device)
    wall_s = time.perf_counter() - began
    found: dict[str, Any] = {
        "wall_s": round(wall_s, 3),
        "launch_s": {kind: round(seconds, 3) for kind, seconds in watch.launch_s.items()},
        "compiles": dict(cubins() - before),
        "compiles_in_parent": dict(watch.in_parent),
        "benches": dict(watch.benches),
        "host_counters": {k: v for k, v in counters["inductor"].items() if "bench" in k or "async_compile" in k},
    }
    precise = step(graph.call, [in_fp32(one) for one in inputs], [one.float() for one in gradients or ()] or None)
    found["agreement"] = agreement(outputs, reference, precise)
    del outputs, reference, precise
    watch.clear()
    watch.keep = True
    step(compiled, inputs, gradients)
    synchronize(device)
    watch.keep = False
    found["kernels"] = kernels(watch.launches)
    watch.clear()
    return found


def in_fp32(tensor: Tensor) -> Tensor:
    if not tensor.dtype.is_floating_point:
        return tensor
    return tensor.detach().float().requires_grad_(tensor.requires_grad)


def agreement(outputs: Sequence[Tensor], reference: Sequence[Tensor], precise: Sequence[Tensor]) -> dict[str, Any]:
    """The largest errors over all outputs and gradients, in tolerances of their dtypes; what is NaN never matches.

    Each is compared with eager's, and where that is too far off, with those of eager in fp32 (`precise`), which tells a
    wrong result from an eager that rounds more. eager_off: how many were. Integers must be equal.
    """
    error = worst = 0.0
    eager_off = 0
    match = len(outputs) == len(reference) == len(precise)
    for out, ref, exact in zip(outputs, reference, precise, strict=False):
        if out.shape != ref.shape or out.dtype != ref.dtype:
            match = False
        elif not ref.dtype.is_floating_point:
            match = match and torch.equal(out, ref)
        else:
            found = errors(out, ref)
            if not within(found):
                eager_off += 1
                found = errors(out, exact)
            match = match and within(found)
            error, worst = max(error, found[0]), max(worst, found[1])
    shown = {"error": round(min(error, 1e9), 4), "worst": round(min(worst, 1e9), 4)}  # JSON knows no infinity
    return {"match": match, **shown, "eager_off": eager_off}


def errors(out: Tensor, ref: Tensor) -> tuple[float, float]:
    """Of the whole, and of its worst element, in tolerances; infinite for what is not finite."""
    tolerance = next(TOLERANCES[name] for name, dtype in DTYPES.items() if dtype == out.dtype)
    off, exact = (out.float() - ref.float()).abs(), ref.float()
    if not bool(torch.isfinite(off).all()):
        return math.inf, math.inf
    norm, rms = float(exact.norm()), float(exact.square().mean().sqrt())
    worst = float((off / (exact.abs() + rms).clamp_min(1e-30)).max())
    return float(off.norm()) / max(norm, 1e-30) / tolerance, worst / tolerance


def within(found: tuple[float, float]) -> bool:
    return found[0] <= 1.0 and found[1] <= WORST_TOLERANCES


def kernels(launches: Sequence[tuple[Any, tuple[Any, ...]]]) -> list[dict[str, Any]]:
    """One entry a reduction kernel object: key, numels, how often it was launched, and the config that won."""
    times = Counter(id(autotuner) for autotuner, _ in launches)
    objects = {id(autotuner): autotuner for autotuner, _ in launches}
    return [describe(autotuner) | {"launches": times[i]} for i, autotuner in objects.items()]


def describe(autotuner: Any) -> dict[str, Any]:
    """What identifies a kernel across modes, and its winner."""
    source = str(autotuner.fn.src)
    source = source[source.index("def ") :]
    signature = {name: str(kind) for name, kind in autotuner.triton_meta["signature"].items()}
    # Configs of a row-and-column kernel say how many partial results its caller has room for.
    parts = [
        re.sub(r"\btriton_\w+", "K", source),
        json.dumps(signature),
        str(autotuner.inductor_meta.get("RSPLIT_SIZE")),
    ]
    (launcher,) = autotuner.launchers
    return {
        "key": hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16],
        "name": autotuner.fn.__name__,
        "heuristic": autotuner.heuristic_type.name,
        "numels": {k: int(n) for k, n in re.findall(r"^\s*([xyzr]\d?_?numel) = (\d+)\s*$", source, re.MULTILINE)},
        "pointers": [kind for kind in signature.values() if kind.startswith("*")],
        "config": describe_config(launcher.config),
    }


def describe_config(config: Any) -> dict[str, int]:
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def cubins() -> Counter[str]:
    """Binaries that Triton has made since this mode's caches were empty, in whatever process, by kind of kernel."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    names = [path.name for path in Path(folder).rglob("*.cubin")] if folder else []
    return Counter(REDUCTION if name.startswith(("triton_red", "triton_per")) else OTHER for name in names)


def machine(device: str) -> dict[str, Any]:
    """Hardware, driver and versions, as far as they can be known."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = ""
    model = (
        re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        if Path("/proc/cpuinfo").exists()
        else None
    )
    return {
        "gpu": gpu or device,
        "cpu": model[1] if model else platform.processor(),
        "cpus": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": importlib.metadata.version("triton"),
            "cuda": torch.version.cuda,
        },
    }


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
