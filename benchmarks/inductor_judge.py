"""The modes' winners, kernel by kernel, timed side by side in one process.

Each graph is compiled once as the host would. Every distinct winner of a reduction kernel is compiled for the very
arguments that the graph gave it, and all are timed in interleaved rounds by CUPTI's kernel durations, with the L2
overwritten before every launch; a time is the mean of the middle half of its rounds. The default's own winner runs
twice in each round: that ratio is the noise.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.inductor_graphs import Graph, gradients_for, materialise, step
from benchmarks.inductor_modes import describe, describe_config, machine, watching
from benchmarks.pieces import write
from tileguard.learner.inductor.cupti import CuptiStopwatch
from tileguard.learner.inductor.timing import summary

LOOK_ROUNDS, ROUNDS = 5, 51
"""Rounds that tell how long a kernel is, and rounds that count."""

SHORT_US, SHORT_ROUNDS = 6.0, 301
"""CUPTI's tick of 32 ns is 2.6 % of a kernel of 1.25 µs: only a mean over many rounds tells 5 % from none."""

SLOW_US, SLOW_ROUNDS = 500.0, 25
COMPILE_TIMEOUT_S = 60.0


@dataclass
class Contest:
    """One reduction kernel of one graph, with its arguments and the configs to time. configs, by text."""

    graph: str
    facts: dict[str, Any]
    autotuner: Any
    args: tuple[Any, ...]
    launches: int
    configs: dict[str, Any] = field(default_factory=dict)


def judge(graphs: Sequence[Graph], modes: Mapping[str, Mapping[str, Any]], path: Path, *, device: str = "cuda") -> None:
    """Write to `path` the times of every winner. modes: the mode files' content, by name."""
    began = time.perf_counter()
    result: dict[str, Any] = {
        **machine(device),
        "modes": sorted(modes),
        "graphs": [graph.name for graph in graphs],
        "failed": {},
        "kernels": [],
    }
    contests: list[Contest] = []
    for graph in graphs:
        try:
            contests += contests_of(graph, modes)
        except Exception:
            result["failed"][graph.name] = traceback.format_exc()[-2000:]
    captured = time.perf_counter()
    compile_ahead(contests)
    compiled = time.perf_counter()
    stopwatch = CuptiStopwatch(device)
    for contest in contests:
        found = {**contest.facts, "graph": contest.graph, "launches": contest.launches}
        try:
            found |= time_contest(contest, stopwatch)
        except Exception:
            found["error"] = traceback.format_exc()[-1000:]
        result["kernels"].append(found)
    result["seconds"] = {
        "capture": round(captured - began, 1),
        "compile": round(compiled - captured, 1),
        "time": round(time.perf_counter() - compiled, 1),
    }
    write(path, result)


def contests_of(graph: Graph, modes: Mapping[str, Mapping[str, Any]]) -> list[Contest]:
    """Compile `graph` as the host would, and pair each reduction kernel with the configs that any mode chose for it."""
    torch._dynamo.reset()
    inputs = materialise(graph, device="cuda")
    gradients = gradients_for(graph.call(*inputs)) if graph.backward else None
    compiled = torch.compile(graph.call, dynamic=False)
    step(compiled, inputs, gradients)
    with watching() as watch:
        watch.keep = True
        step(compiled, inputs, gradients)
        torch.cuda.synchronize()
    found: dict[str, Contest] = {}
    for autotuner, args in watch.launches:
        facts = describe(autotuner)
        contest = found.setdefault(facts["key"], Contest(graph.name, facts, autotuner, args, 0))
        contest.launches += 1
    for contest in found.values():
        chosen = [contest.facts["config"]]
        for mode in modes.values():
            entries = mode["graphs"].get(graph.name, {}).get("kernels", [])
            chosen += [entry["config"] for entry in entries if entry["key"] == contest.facts["key"]]
        contest.configs = {text_of(config): rebuilt(contest.autotuner, config) for config in chosen}
    return list(found.values())


def text_of(config: Mapping[str, int]) -> str:
    """XBLOCK=1 R0_BLOCK=2048 num_warps=16 num_stages=1, the same for equal configs."""
    return " ".join(f"{name}={config[name]}" for name in sorted(config, key=lambda name: (name.islower(), name)))


def rebuilt(autotuner: Any, config: Mapping[str, int]) -> Any:
    """A config of the host's own class with these values."""
    (launcher,) = autotuner.launchers
    made = copy.deepcopy(launcher.config)
    made.kwargs = {name: value for name, value in config.items() if name not in ("num_warps", "num_stages")}
    made.num_warps, made.num_stages = config["num_warps"], config["num_stages"]
    if describe_config(made) != dict(config):
        raise ValueError(f"{config} cannot be made from {launcher.config}")
    return made


_JOBS: list[tuple[Any, Any]] = []


def compile_ahead(contests: Sequence[Contest]) -> None:
    """Fill Triton's cache from forked processes; whatever fails or hangs there is compiled again, one by one, later."""
    for contest in contests:
        if contest.autotuner.fn.fn is None:  # compiled in a worker, which kept the function
            contest.autotuner.fn = contest.autotuner._reload_kernel().fn
    _JOBS[:] = [(contest.autotuner, config) for contest in contests for config in contest.configs.values()]
    workers = max(1, min((os.cpu_count() or 2) - 1, len(_JOBS)))
    pool = multiprocessing.get_context("fork").Pool(workers)
    try:
        pending = pool.imap_unordered(_compile_job, range(len(_JOBS)))
        for _ in _JOBS:
            pending.next(timeout=COMPILE_TIMEOUT_S)
    except multiprocessing.TimeoutError:
        print("compiling ahead hangs; going on without", flush=True)
    finally:
        pool.terminate()
        _JOBS.clear()


def _compile_job(index: int) -> None:
    autotuner, config = _JOBS[index]
    try:
        autotuner._precompile_config(config)
    except Exception as error:
        print("compiling ahead:", type(error).__name__, str(error)[:200], flush=True)


def time_contest(contest: Contest, stopwatch: CuptiStopwatch) -> dict[str, Any]:
    """Time, median absolute deviation and count of each config's times, µs; aa: the default's two times' ratio."""
    launchers, errors = {}, {}
    for text, config in contest.configs.items():
        try:
            launchers[text] = contest.autotuner._precompile_config(config).make_launcher()
        except Exception as error:
            errors[text] = f"{type(error).__name__}: {error}"[:200]
    default = text_of(contest.facts["config"])
    names = [*launchers, default]  # the default once more, last: the noise
    runners = [launchers[name] for name in names]
    args, _ = contest.autotuner.clone_args(*contest.args)  # what the kernel changes in place is not the graph's own
    looks = [statistics.median(one) for one in stopwatch.time(runners, args, LOOK_ROUNDS)]
    rounds = SHORT_ROUNDS if min(looks) < SHORT_US else SLOW_ROUNDS if max(looks) > SLOW_US else ROUNDS
    times = [summary(one) for one in stopwatch.time(runners, args, rounds)]
    return {
        "us": {name: [one["us"], one["mad"], one["reps"]] for name, one in zip(names[:-1], times, strict=False)},
        "aa": round(times[-1]["us"] / times[names.index(default)]["us"], 4),
        "registers": {name: [runner.n_regs, runner.n_spills] for name, runner in launchers.items()},
        **({"errors": errors} if errors else {}),
    }
