"""Matrix products that TorchInductor autotunes on the fake GPU, and their records: one JSON object on stdout.

The host makes its choices, asks its cache and takes its winner as ever; nothing is compiled, and what a choice takes is
made up: TIMES, in µs, by what it is.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .matmul_host import PRODUCTS, broken, lowered

TIMES: Mapping[str, float] = {"aten": 30.0, "host": 20.0, "added": 15.0}
SLOW: Mapping[str, float] = {"aten": 30.0, "host": 20.0, "added": 1500.0}
LOSING: Mapping[str, float] = {"aten": 10.0, "host": 20.0, "added": 15.0}
LAUNCH_US = 10.0
"""What the host's own stopwatch adds to each."""


def main(folder: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("TORCHINDUCTOR_", "TRITON_"))]:
        del os.environ[name]
    from tests import fakegpu

    fakegpu.install()
    tileguard: Any = importlib.import_module("tileguard")
    race: Any = importlib.import_module("tileguard.runtime.hooks.matmul_race")
    log: Any = importlib.import_module("tileguard.runtime.hooks.matmul_log")
    select: Any = importlib.import_module("torch._inductor.select_algorithm")
    kind, original = select.AlgorithmSelectorCache, vars(select.AlgorithmSelectorCache)["do_autotuning"]
    found: dict[str, Any] = {}

    def recorded(times: Mapping[str, float], *cases: str, **tuning: Any) -> dict[str, Any]:
        path = folder / f"{len(list(folder.iterdir()))}.jsonl"
        with tileguard.enabled(model=None, matmul=True, log=path), made_up(times):
            settings = {"benchmark_epilogue_fusion": False, "autotune_local_cache": False} | tuning
            lists, raised = [], ""
            try:
                lists += [lowered(*PRODUCTS[case], whole=True, **settings) for case in cases]
            except Exception as error:
                raised = str(error)
            result: dict[str, Any] = json.loads(json.dumps(tileguard.report().to_dict()))
        return result | {
            "lists": lists,
            "raised": raised,
            "log": path.read_text(encoding="utf-8") if path.exists() else "",
        }

    found["raced"] = recorded(TIMES, *PRODUCTS)
    found["losing"] = recorded(LOSING, "mm")
    found["far"] = recorded(SLOW, "mm")
    found["failed"] = recorded({"aten": float("inf"), "host": float("inf"), "added": float("inf")}, "mm")
    found["cached"] = recorded(TIMES, "bmm", "bmm", autotune_local_cache=True)
    with in_subprocess(kind):
        found["subprocess"] = recorded(TIMES, "mm", autotune_in_subproc=True)
    with broken(race, "run_of", RuntimeError):
        found["race_error"] = recorded(TIMES, "mm")
    with broken(log, "product_record", ZeroDivisionError):
        found["no_record"] = recorded(TIMES, "mm")
    found["untuned"] = recorded(TIMES, "mm", max_autotune_gemm_backends="ATEN")
    found["restored"] = vars(kind)["do_autotuning"] is original

    def renamed(self: Any, something_else: Any) -> None: ...

    raced = vars(kind)["benchmark_choices"]
    kind.do_autotuning = renamed
    try:
        with tileguard.enabled(model=None, matmul=True):
            found["renamed_patched"] = kind.do_autotuning is not renamed
            found["renamed_raced"] = vars(kind)["benchmark_choices"] is not raced
    finally:
        kind.do_autotuning = original
    print(json.dumps(found))


@contextmanager
def made_up(times: Mapping[str, float]) -> Iterator[None]:
    """Choices take so long, and are neither compiled nor launched."""
    select: Any = importlib.import_module("torch._inductor.select_algorithm")
    race: Any = importlib.import_module("tileguard.runtime.hooks.matmul_race")
    benchmarking: Any = importlib.import_module("torch._inductor.runtime.benchmarking")
    torch: Any = importlib.import_module("torch")
    kind, benchmarker = select.AlgorithmSelectorCache, benchmarking.benchmarker

    def us(choice: Any) -> float:
        if race.is_added(choice):
            return times["added"]
        return times["host" if choice.annotations["ktc"].template.uid.startswith("triton") else "aten"]

    def benchmark_choice(cls: Any, choice: Any, autotune_args: Any) -> float:
        return float(benchmarker.benchmark_gpu(lambda: us(choice)))

    def stopwatch(run: Callable[[], float], **kwargs: Any) -> float:
        return 1e-3 * (run() + LAUNCH_US)

    def measured(runs: Sequence[Callable[[], float]], host: Sequence[int]) -> Callable[[Sequence[int]], list[float]]:
        return lambda indices: [runs[i]() for i in indices]

    tensors = SimpleNamespace(unpack=lambda: ([torch.zeros(2)], torch.zeros(2)))
    inputs = SimpleNamespace(get_benchmark_tensors=lambda extern: tensors)
    changes: list[tuple[Any, str, Any]] = [
        (kind, "benchmark_choice", classmethod(benchmark_choice)),
        (kind, "get_inputs", classmethod(lambda cls, *args, **kwargs: inputs)),
        (kind, "make_precompile_fn", lambda self, *args, **kwargs: lambda: None),
        (kind, "log_results", staticmethod(lambda *args, **kwargs: None)),
        (race, "measured", measured),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    benchmarker.benchmark_gpu = stopwatch
    try:
        yield
    finally:
        del benchmarker.benchmark_gpu
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def in_subprocess(kind: Any) -> Iterator[None]:
    """The host's Triton choices are timed elsewhere; what comes back is made up."""
    process: Any = importlib.import_module("torch._inductor.autotune_process")
    before = process.benchmark_in_sub_process, process.get_tuning_process_pool
    process.benchmark_in_sub_process = lambda choices: dict.fromkeys(choices, 0.025)
    process.get_tuning_process_pool = lambda: None
    try:
        yield
    finally:
        process.benchmark_in_sub_process, process.get_tuning_process_pool = before


if __name__ == "__main__":
    main(Path(sys.argv[1]))
