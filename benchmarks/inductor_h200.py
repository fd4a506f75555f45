"""Four ways of tuning reductions in torch.compile on one H200: device time of the kernels, and the wall time paid.

    PYTHONPATH=src python benchmarks/inductor_h200.py [--modes default,tileguard] [--graphs a,b] [--judge] [--out DIR]

Compiles 24 graphs (inductor_graphs.py) in one process a mode: Inductor's default, tileguard on top of it, Inductor's
max-autotune, max-autotune with coordinate descent, and the default once more, for what it owes to chance
(inductor_modes.py); then times all their winners side by side (inductor_judge.py). A mode's file in --out is continued, not repeated, so that the work may be cut into pieces; with
every piece there, the result is written and shown. Needs torch of the CUDA build and its GPU, numpy and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from benchmarks.inductor_graphs import select, tiny
from benchmarks.inductor_modes import AGAIN, MODES, TILEGUARD, run_mode
from benchmarks.pieces import at_most, geomean, judge_file, load_modes, mode_file, run_fresh, total

RESULT = ROOT / "benchmarks" / "results" / "inductor_h200.json"
DEFAULT, MAX_AUTOTUNE, DESCENT = "default", "max_autotune", "coordinate_descent"
TIME_TARGETS = {DEFAULT: 0.88, MAX_AUTOTUNE: 0.95, DESCENT: 1.00}
"""Σ device time of reduction kernels, tileguard's ÷ the mode's, at most."""

WALL_TARGET = 0.7
"""Σ compile and autotune wall, tileguard's ÷ coordinate descent's, at most."""

WORST_TARGET = 1.05
"""One kernel's device time, tileguard's ÷ the default's, at most."""

ERRORS = 2.0
"""Standard errors by which a kernel is past WORST_TARGET for sure."""

MEAN_ERROR = 1.087 * 1.4826
"""Standard error of the middle half's mean ÷ (median absolute deviation ÷ √n), of normal noise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", help=f"comma-separated: {', '.join(MODES)} (default: all, and the judge)")
    parser.add_argument("--judge", action="store_true", help="time the winners, also where --modes names some")
    parser.add_argument("--graphs", help="comma-separated names (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "inductor_h200", help="where the pieces are kept")
    parser.add_argument("--json", type=Path, help=f"the result (default: {RESULT.name} in --out)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the modes without a GPU")
    parser.add_argument("--tiny", action="store_true", help="with sizes for a CPU")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.graphs.split(",") if arguments.graphs else None
    graphs = [tiny(graph) if arguments.tiny else graph for graph in select(names)]
    arguments.out.mkdir(parents=True, exist_ok=True)

    if arguments.process == "judge":
        from benchmarks.inductor_judge import judge

        judge(graphs, load_modes(arguments.out, MODES), judge_file(arguments.out))
        return
    if arguments.process:
        run_mode(arguments.process, graphs, mode_file(arguments.out, arguments.process), device=arguments.device)
        return

    everything = arguments.modes is None and not arguments.judge
    for mode in MODES if everything else (arguments.modes or "").split(","):
        if mode and mode not in MODES:
            parser.error(f"--modes: {mode} is none of {', '.join(MODES)}")
        if mode and not finished(mode_file(arguments.out, mode), [graph.name for graph in graphs]):
            start(mode, arguments, MODES[mode])
    modes = load_modes(arguments.out, MODES)
    wanted = [graph.name for graph in graphs]
    if (everything or arguments.judge) and arguments.device == "cuda" and not load_judge(arguments.out, modes, wanted):
        # The judge forks to compile: no pool of workers and none of its threads.
        start("judge", arguments, {"TORCHINDUCTOR_COMPILE_THREADS": "1"})
    judged = load_judge(arguments.out, modes, wanted)
    if set(modes) != set(MODES) or not judged:
        print(f"so far: {', '.join(modes)}" + (", judge" if judged else ""))
        return
    result = summarise(modes, judged)
    result["hook"] = hook_overhead(arguments.out / "tileguard.jsonl")
    target = arguments.json or arguments.out / RESULT.name
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    show(result)
    sys.exit(not all(one["met"] for one in result["targets"].values()))


def load_judge(out: Path, modes: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """The judge's file, if it has seen just these modes and at least these graphs."""
    if not judge_file(out).exists():
        return None
    judged: dict[str, Any] = json.loads(judge_file(out).read_text(encoding="utf-8"))
    return judged if judged["modes"] == sorted(modes) and set(names) <= set(judged["graphs"]) else None


def finished(path: Path, names: Sequence[str]) -> bool:
    return path.exists() and set(names) <= set(json.loads(path.read_text(encoding="utf-8"))["graphs"])


def start(process: str, arguments: argparse.Namespace, settings: Mapping[str, str]) -> None:
    """This program again for one mode or the judge, with empty caches and nothing of Inductor's set from outside."""
    options = ["--process", process, "--out", str(arguments.out), "--device", arguments.device]
    options += ["--tiny"] if arguments.tiny else []
    options += ["--graphs", arguments.graphs] if arguments.graphs else []
    failed = run_fresh(__file__, options, settings)
    if failed:  # the other pieces are worth having all the same
        print(f"{process} ended with {failed}", flush=True)


def summarise(modes: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
    """The result file: sums and targets, then graphs and kernels."""
    names = [name for name in judged["graphs"] if all(name in modes[mode]["graphs"] for mode in MODES)]
    modes = {mode: found | {"graphs": {name: found["graphs"][name] for name in names}} for mode, found in modes.items()}
    kernels = [one_kernel(kernel, modes) for kernel in judged["kernels"] if kernel["graph"] in names]
    matched = [kernel for kernel in kernels if set(kernel["us"]) == set(MODES)]
    sums = {mode: sum(kernel["us"][mode] * kernel["launches"] for kernel in matched) for mode in MODES}
    walls = {mode: sum(graph.get("wall_s", math.nan) for graph in modes[mode]["graphs"].values()) for mode in MODES}
    worst = max(matched, key=lambda kernel: ratio(kernel, DEFAULT), default=None)
    disagreeing = {
        f"{mode} {name}": graph.get("agreement", graph.get("error"))
        for mode in MODES
        for name, graph in modes[mode]["graphs"].items()
        if not graph.get("agreement", {}).get("match")
    }
    targets = {
        **{
            f"reduction time, tileguard ÷ {mode}": at_most(sums[TILEGUARD] / sums[mode] if matched else None, limit)
            for mode, limit in TIME_TARGETS.items()
        },
        "wall, tileguard ÷ coordinate_descent": at_most(walls[TILEGUARD] / walls[DESCENT], WALL_TARGET),
        "slowest kernel, tileguard ÷ default": at_most(ratio(worst, DEFAULT) if worst else None, WORST_TARGET),
        "graph runs that do not match eager": at_most(float(len(disagreeing)), 0.0),
    }
    first = modes[TILEGUARD]["runs"][0]
    return {
        "benchmark": "inductor_h200",
        "command": "PYTHONPATH=src python benchmarks/inductor_h200.py",
        **{name: first[name] for name in ("date", "gpu", "cpu", "cpus", "versions")},
        "n_graphs": len(names),
        "n_kernels": len(kernels),
        "n_matched": len(matched),
        "targets": targets,
        "modes": {mode: one_mode(mode, modes[mode], kernels, sums[mode], walls[mode]) for mode in MODES},
        "noise": noise(matched),
        "slower_than_default": slower(matched, TILEGUARD),
        "default_again_slower_than_default": slower(matched, AGAIN),
        "geomean": {mode: geomean([ratio(kernel, mode) for kernel in matched]) for mode in TIME_TARGETS},
        "worst_kernel": worst and f"{worst['graph']}: {worst['name']}",
        "worst_ratio": worst and round(ratio(worst, DEFAULT), 4),
        "disagreeing": disagreeing,
        "judge": {"seconds": judged["seconds"], "failed": judged["failed"], "gpu": judged["gpu"]},
        "graphs": {name: one_graph(name, modes, matched) for name in names},
        "kernels": [{name: value for name, value in kernel.items() if name != "key"} for kernel in kernels],
    }


def one_kernel(kernel: Mapping[str, Any], modes: Mapping[str, Any]) -> dict[str, Any]:
    """A judged kernel with each mode's winner and its time; a mode that generated other code has none."""
    from benchmarks.inductor_judge import text_of

    times = kernel.get("us", {})
    winners, us, spread, rounds = {}, {}, {}, {}
    for mode in MODES:
        entries = modes[mode]["graphs"].get(kernel["graph"], {}).get("kernels", [])
        texts = [(text_of(one["config"]), one["launches"]) for one in entries if one["key"] == kernel["key"]]
        if not texts or any(text not in times for text, _ in texts):
            continue
        winners[mode] = texts[0][0]
        us[mode] = sum(times[text][0] * n for text, n in texts) / sum(n for _, n in texts)
        spread[mode], rounds[mode] = times[texts[0][0]][1:]
    kept = ("graph", "name", "key", "heuristic", "numels", "launches", "aa", "error", "errors")
    return {name: kernel[name] for name in kept if name in kernel} | {
        "winners": winners, "us": us, "mad": spread, "rounds": rounds,
    }  # fmt: skip


def one_mode(mode: str, found: Mapping[str, Any], kernels: Sequence[Any], us: float, wall: float) -> dict[str, Any]:
    graphs = found["graphs"].values()
    unmatched = [kernel for kernel in kernels if mode not in kernel["us"]]
    judged = {(kernel["graph"], kernel["key"]) for kernel in kernels}
    return {
        "reduction_us": round(us, 1),
        "wall_s": round(wall, 1),
        "runs": [{k: v for k, v in run.items() if k in ("date", "gpu", "cpu", "install_s", "warm_up_s")} for run in found["runs"]],
        "launch_s": total(graph.get("launch_s", {}) for graph in graphs),
        "compiles": total(graph.get("compiles", {}) for graph in graphs),
        "compiles_in_parent": total(graph.get("compiles_in_parent", {}) for graph in graphs),
        "benches": total(graph.get("benches", {}) for graph in graphs),
        "host_counters": total(graph.get("host_counters", {}) for graph in graphs),
        "unmatched": len(unmatched),
        "unmatched_default_us": round(sum(one["us"].get(DEFAULT, 0.0) * one["launches"] for one in unmatched), 1),
        "own_kernels": sum(
            (name, one["key"]) not in judged
            for name, graph in found["graphs"].items() for one in graph.get("kernels", [])
        ),
        **({"report": found["runs"][-1]["report"]} if "report" in found["runs"][-1] else {}),
    }  # fmt: skip


def one_graph(name: str, modes: Mapping[str, Any], matched: Sequence[Any]) -> dict[str, Any]:
    own = [kernel for kernel in matched if kernel["graph"] == name]
    return {
        "kernels": len(own),
        "reduction_us": {mode: round(sum(k["us"][mode] * k["launches"] for k in own), 2) for mode in MODES},
        "wall_s": {mode: modes[mode]["graphs"].get(name, {}).get("wall_s") for mode in MODES},
        "agreement": {mode: modes[mode]["graphs"].get(name, {}).get("agreement") for mode in MODES},
    }


def hook_overhead(log: Path) -> dict[str, Any]:
    """What ranking took a kernel, µs, and its share of the kernel's compile time: p50 and p95 over tileguard's log."""
    if not log.exists():
        return {}
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    tuned = [one for one in records if one.get("outcome") == "tuned" and one["select_us"] and one["compile_s"]]
    if len(tuned) < 2:
        return {}

    def quantiles(values: Sequence[float]) -> dict[str, float]:
        cuts = statistics.quantiles(values, n=20, method="inclusive")
        return {"p50": round(statistics.median(values), 5), "p95": round(cuts[18], 5)}

    return {
        "kernels": len(tuned),
        "select_us": quantiles([one["select_us"] for one in tuned]),
        "share_of_compile": quantiles([one["select_us"] / 1e6 / one["compile_s"] for one in tuned]),
    }


def slower(matched: Sequence[Any], mode: str) -> list[dict[str, Any]]:
    """Kernels that a mode left over 5 % slower than the default did, with both times and the default's spread, µs. sure:
    whether that is beyond ERRORS standard errors of the two times."""
    found = [kernel for kernel in matched if kernel["us"][mode] > WORST_TARGET * kernel["us"][DEFAULT]]
    return [
        {
            "kernel": f"{kernel['graph']}: {kernel['name']}",
            "default_us": kernel["us"][DEFAULT],
            "us": kernel["us"][mode],
            "mad_us": kernel["mad"][DEFAULT],
            "sure": kernel["us"][mode] - WORST_TARGET * kernel["us"][DEFAULT]
            > ERRORS * math.hypot(error_us(kernel, mode), WORST_TARGET * error_us(kernel, DEFAULT)),
        }
        for kernel in found
    ]


def error_us(kernel: Mapping[str, Any], mode: str) -> float:
    """Standard error of a mode's time, the mean of the middle half of its rounds."""
    return float(MEAN_ERROR * kernel["mad"][mode] / math.sqrt(kernel["rounds"][mode]))


def ratio(kernel: Mapping[str, Any], mode: str) -> float:
    return float(kernel["us"][TILEGUARD] / kernel["us"][mode])


def noise(matched: Sequence[Any]) -> dict[str, Any]:
    """How far one config's two times lie apart, and the median absolute deviation relative to its time."""
    aa = [abs(math.log(kernel["aa"])) for kernel in matched]
    mads = [kernel["mad"][DEFAULT] / kernel["us"][DEFAULT] for kernel in matched]
    if not matched:
        return {}
    return {
        "aa_median": round(statistics.median(aa), 4),
        "aa_max": round(max(aa), 4),
        "mad_median": round(statistics.median(mads), 4),
    }


def show(result: Mapping[str, Any]) -> None:
    """The table, the sums and the targets; plain text, since rich may be absent where this runs."""
    print(
        f"\n{result['gpu']}, torch {result['versions']['torch']}, {result['n_matched']} of {result['n_kernels']} kernels"
    )
    print(f"{'graph':<26}{'n':>3}{'default µs':>12}{'÷ def':>7}{'÷ max':>7}{'÷ desc':>7}   wall s: " + " ".join(MODES))
    for name, graph in result["graphs"].items():
        us, walls = graph["reduction_us"], graph["wall_s"]
        ratios = "".join(f"{us[TILEGUARD] / us[m]:7.3f}" if us[m] else f"{'-':>7}" for m in TIME_TARGETS)
        print(
            f"{name:<26}{graph['kernels']:>3}{us[DEFAULT]:>12.1f}{ratios}   "
            + " ".join(f"{walls[m] or math.nan:6.1f}" for m in MODES)
        )
    for mode, found in result["modes"].items():
        print(
            f"{mode:<19} Σ {found['reduction_us']:9.1f} µs  wall {found['wall_s']:6.1f} s  autotuning {found['launch_s']}"
            f"  compiles {found['compiles']}  unmatched {found['unmatched']} ({found['unmatched_default_us']} µs)"
        )
    print(f"noise {result['noise']}  geomean {result['geomean']}  worst {result['worst_kernel']}")
    print(f"hook {result.get('hook')}")
    for key in ("slower_than_default", "default_again_slower_than_default"):
        for one in result[key]:
            print(
                f"{key}: {one['kernel']} {one['default_us']} -> {one['us']} µs (MAD {one['mad_us']}{'' if one['sure'] else ', within its error'})"
            )
    for name, graph in result["disagreeing"].items():
        print("does not match eager:", name, str(graph)[-300:])
    for name, one in result["targets"].items():
        print(f"{'met ' if one['met'] else 'MISSED'} {name}: {one['value']} (at most {one['limit']})")


if __name__ == "__main__":
    main()
