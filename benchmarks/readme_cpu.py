"""The tables of docs/cpu.md from the results files; benchmarks/readme.py puts them there."""

from __future__ import annotations

from typing import Any

from tileguard.learner.tables import percent

SHOWN = {"formula": "formula", "model@4": "model, k = 4", "model@8": "model, k = 8", "union@8": "**union, k = 8**"}


def objectives(result: dict[str, Any]) -> str:
    """Held-out quality by objective, families and sizes held out."""
    head = "held out | objective | set | ≤ 5 % | 5–10 % | 10–30 % | > 30 % | geomean | p5 | worst | tiles"
    rows = [f"| {head} |", "|---|---|---|" + "---:|" * 8]
    for split, found in result["splits"].items():
        for objective, judged in found["objectives"].items():
            for name, label in SHOWN.items():
                s = judged["selectors"][name]
                shares = " | ".join(percent(s[key]) for key in ("lossless", "loss_5_10", "loss_10_30", "severe"))
                rows.append(
                    f"| {split} | {objective} | {label} | {shares} | {s['geomean']:.3f} | {s['p5']:.3f} | "
                    f"{s['worst']:.2f} | {s['set_mean']:.1f} |"
                )
    lowering, noise = result["lowering"], result["noise"]
    violations = sum(
        judged["superset_violations"] for found in result["splits"].values() for judged in found["objectives"].values()
    )
    wins = "; ".join(
        f"{objective}: " + ", ".join(f"{name} {n}" for name, n in won.items())
        for objective, won in lowering["wins"].items()
    )
    floor = ", ".join(
        f"{objective} {percent(found['lossless'])}" for objective, found in noise.items() if objective != "kernels"
    )
    return "\n".join(rows) + (
        f"\n\n{result['corpus']['kernels']} kernels with {result['tiles_mean']:.1f} tiles each, one thread of "
        f"{result['hardware'].removeprefix('cpu-')}, {result['toolchain']}, {result['date']}; "
        f"`python benchmarks/cpu_objectives.py`, [cpu_objectives.json](../benchmarks/results/cpu_objectives.json). Least "
        f"cost in the set ÷ least of all tiles measured; superset violations: {violations}. Hyper-parameters were picked on "
        "these folds of families, which makes their figures a little kind.\n\n"
        f"The lowering: of {lowering['kernels']} kernels with more than one, the best tile's changes with N on "
        f"{percent(lowering['changes'])}, and on {percent(lowering['must_change'])} it has to: none is within 5 % of the best "
        f"for every N. Kernels whose best tile has each, {wins}.\n\n"
        f"Noise: {noise['kernels']} kernels were measured twice. The best tile of one run is within 5 % of the best in the "
        f"other on: {floor}. Compile times repeat less well than run times."
    )


def peers(result: dict[str, Any]) -> str:
    """Against numpy, numba and torch.compile: the means by family and kind, and every loss."""
    found = result["summary"]
    rows = ["| cases | n | geomean of best other ÷ tileguard | least | won |", "|---|---:|---:|---:|---:|"]
    groups = {"all": found["all"], "all but tiny": found["without_tiny"], **found["families"], **found["kinds"]}
    rows += [
        f"| {name} | {group['n']} | {group['geomean']:.2f} | {group['least']:.2f} | {group['won']} |"
        for name, group in groups.items()
        if group is not None
    ]
    over = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found["geomean_over"].items())
    losses = "; ".join(f"{one['family']} {one['size']} to {one['to']} ({one['ratio']:.2f})" for one in found["lost"])
    versions, load = result["versions"], result["load_average"]
    return "\n".join(rows) + (
        f"\n\nGeometric mean over each: {over}. Lost by over 5 %: {losses or 'none'}.\n\n"
        f"One thread of {result['hardware']['name'].removeprefix('cpu-')}, fp32, numpy {versions['numpy']}, numba "
        f"{versions['numba']}, torch {versions['torch']} ({versions['torch_simd']}, {versions['g++']}), {result['date'][:10]}, "
        f"load {load['before'][0]:.1f} before and {load['after'][0]:.1f} after; `python benchmarks/cpu_peers.py`, "
        "[cpu_peers.json](../benchmarks/results/cpu_peers.json)."
    )


ADAPTED = {
    "formula": "formula, which is all that a foreign model leaves",
    "base model@8": "the foreign model's 8 tiles",
    "adapted model@8": "the adapted model's 8 tiles",
    "adapted union@8": "the union after adapting",
    "base union@8, were it trusted": "the union, were the foreign model trusted",
}


def adapted(result: dict[str, Any]) -> str:
    """Both judgements of benchmarks/cpu_adapt.py: shares of kernels within 5 % of the dense best."""
    parts = []
    for title, key in (
        (f"families of the {result['judged']['kernels']} known", "families_known"),
        ("families held out", "families_held_out"),
    ):
        columns = ["run time" if one["calls"] is None else f"N = {one['calls']:,.0f}" for one in result[key]]
        rows = [f"| {title} | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
        rows += [
            f"| {label} | " + " | ".join(percent(one["sets"][name]["lossless"]) for one in result[key]) + " |"
            for name, label in ADAPTED.items()
        ]
        parts.append("\n".join(rows))
    violations = sum(
        one["superset_violations"] for key in ("families_known", "families_held_out") for one in result[key]
    )
    return "\n\n".join(parts) + (
        f"\n\nShares of kernels within 5 % of the dense best. {result['local']['kernels']} local kernels, base of "
        f"{result['base']['kernels']}; {result['hardware']['name'].removeprefix('cpu-')}, {result['toolchain']}, one thread, "
        f"{result['date'][:10]}, load {result['load_average'][0]:.1f}; superset violations: {violations}; `python "
        "benchmarks/cpu_adapt.py`, [cpu_adapt.json](../benchmarks/results/cpu_adapt.json)."
    )
