"""Write the figures of the README, docs/ranker.md, docs/cpu.md, docs/adapt.md and docs/matmul.md from the results files, so that none is
copied by hand.

python benchmarks/readme.py
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tileguard.learner.tables import percent

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from benchmarks.readme_matmul import load, products_block, products_page

README = ROOT / "README.md"
BEGIN, END = "<!-- results: written by benchmarks/readme.py -->", "<!-- end of results -->"
MATMUL_BEGIN, MATMUL_END = "<!-- matmul results: written by benchmarks/readme.py -->", "<!-- end of matmul results -->"
LABELS = {
    "host_default": "Inductor's default",
    "host_max_autotune": "Inductor's max-autotune",
    "host_coordinate_descent": "max-autotune, then coordinate descent (simulated)",
    "formula": "the fitted formula",
    "formula_all_warps": "the fitted formula, every warp count",
    "model@4": "model alone, k = 4",
    "model@8": "model alone, k = 8",
    "model@12": "model alone, k = 12",
    "union@4": "**tileguard's union, k = 4**",
    "union@8": "**tileguard's union, k = 8**",
    "union@12": "**tileguard's union, k = 12**",
}

CPU_SETS = {"formula": "formula", "model@4": "model, k = 4", "model@8": "model, k = 8", "union@8": "**union, k = 8**"}
ADAPTED = {
    "formula": "formula, which is all that a foreign model leaves",
    "base model@8": "the foreign model's 8 tiles",
    "adapted model@8": "the adapted model's 8 tiles",
    "adapted union@8": "the union after adapting",
    "base union@8, were it trusted": "the union, were the foreign model trusted",
}


def main() -> None:
    for page, written in BLOCKS.items():
        page.write_text(with_block(page.read_text(encoding="utf-8"), BEGIN, written(), END), encoding="utf-8")
    text = with_block(README.read_text(encoding="utf-8"), MATMUL_BEGIN, products_block(), MATMUL_END)
    README.write_text(text, encoding="utf-8")


def with_block(text: str, begin: str, block: str, end: str) -> str:
    """`text` with `block` between its two markers."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "".join((before, begin, "\n", *([block, "\n"] if block else []), end, after))


def block() -> str:
    """Everything between the README's two markers."""
    return "\n\n".join(
        (
            held_out(load("held_out_h200")),
            cpu(load("cpu_union")),
            latency(load("select_latency"), load("hook_latency")),
            inductor(load("inductor_h200")),
        )
    )


def ablation() -> str:
    """The ranker with one thing changed at a time."""
    result = load("ablation_h200")
    rows = [
        "| arm | k = 1 | k = 4 | k = 8 | k = 12 | > 30 % at k = 8 | worst at k = 8 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, arm in result["arms"].items():
        mean = arm["mean"]
        shares = " | ".join(percent(mean[f"model@{k}"]["lossless"]) for k in (1, 4, 8, 12))
        eight = mean["model@8"]
        rows.append(f"| {name} | {shares} | {percent(eight['severe'])} | {eight['worst']:.2f} |")
    spread = [seed["model@8"]["lossless"] for seed in result["arms"]["shipped"]["seeds"]]
    rows.append(
        f"\nShares of {result['corpus']['kernels']} kernels within 5 % of the best measured tile, families held out, mean of "
        f"{len(result['seeds'])} seeds ({percent(min(spread))} to {percent(max(spread))} for the shipped arm at k = 8); "
        "`python benchmarks/ablation_h200.py`, [ablation_h200.json](../benchmarks/results/ablation_h200.json)."
    )
    return "\n".join(rows)


def held_out(result: dict[str, Any]) -> str:
    """The table of candidate sets."""
    rows = [
        "| candidate set | ≤ 5 % | 5–10 % | 10–30 % | > 30 % | geomean | p95 | worst | tiles |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, label in LABELS.items():
        s = result["selectors"][name]
        shares = " | ".join(percent(s[key]) for key in ("lossless", "loss_5_10", "loss_10_30", "severe"))
        figures = " | ".join(f"{s[key]:.3f}" for key in ("geomean", "p95", "worst"))
        rows.append(f"| {label} | {shares} | {figures} | {s['set_mean']:.1f} |")
    loses = result["model_loses"]["model@8"]
    others = [seed["model@8"] for seed in result["other_seeds"].values()]
    whole, sampled = (result["by_sweep"][name] for name in ("whole lattice", "sampled"))
    second = result["second_opinion"]
    noise = load("noise_h200")["all"]
    rows.append(
        f"\n{result['kernels']} kernels in {result['families']} families, {result['folds']} folds by family, ranker and "
        "formula trained without the family that they are judged on; slowdown is the best time in the set ÷ the best "
        "measured; tiles is the size of the set that is compiled. Superset violations: "
        f"{result['superset_violations']}. Eight tiles of the model alone are over 2 % slower than the formula's "
        f"{result['selectors']['formula']['set_mean']:.0f} on {percent(loses['formula'])} of kernels, than the host's default "
        f"on {percent(loses['host_default'])}; its first tile alone loses to the host's default on "
        f"{percent(result['model_loses']['model@1']['host_default'])}. With {len(others)} other seeds, the model alone at "
        f"k = 8 is lossless on {percent(min(others))} to {percent(max(others))}. Where the whole lattice was measured "
        f"({whole['kernels']} kernels, the smaller lattices) it is on {percent(whole['model@8']['lossless'])} and the union "
        f"on {percent(whole['union@8']['lossless'])}, where a sample of some 50 tiles stands for it ({sampled['kernels']}) "
        f"on {percent(sampled['model@8']['lossless'])} and {percent(sampled['union@8']['lossless'])}. On {second['kernels']} "
        "dense sweeps of another run, which no training has seen "
        f"([h200-reduction-ops](corpora/README.md)), the model alone at k = 8 is on "
        f"{percent(second['selectors']['model@8']['lossless'])}, the union on "
        f"{percent(second['selectors']['union@8']['lossless'])}. Of two measurements of {noise['kernels']} kernels, one's "
        f"fastest tile is lossless in the other on {percent(noise['winner_lossless_in_the_other'])}, and over 2 % behind the "
        f"host's default on {percent(noise['winner_loses_to_host_default'])} (`python benchmarks/noise_h200.py`, "
        "[noise_h200.json](benchmarks/results/noise_h200.json))."
    )
    return "\n".join(rows)


def cpu(result: dict[str, Any]) -> str:
    """The CPU device's twelve kernels, in a paragraph."""
    kernels = result["kernels"]
    alone = {
        part: sum((case["dense_slowdown"][part] or 9.0) <= 1.05 for case in kernels) for part in ("formula", "model")
    }
    blind = statistics.mean(case["blind_lossless"]["union"] for case in kernels)
    spent = sum(case["compile_ms_sum"]["union"] for case in kernels)
    dense = sum(case["compile_ms_sum"]["dense"] for case in kernels)
    spread = sorted(case["spread"] for case in kernels)
    return (
        f"On this project's CPU device (LLVM, one thread of {result['hardware']['name'].removeprefix('cpu-')}; "
        "`python benchmarks/cpu_union.py`, [cpu_union.json](benchmarks/results/cpu_union.json)) the worst tile is "
        f"{spread[0]:.0f} to {spread[-1]:.0f} times slower than the best. Each of {result['n']} kernels was tuned with its "
        f"family held out of training and fitting: the union's winner is within 5 % of the dense best on {result['lossless']} "
        f"(timed anew, side by side), the formula alone on {alone['formula']}, the model's eight tiles alone on "
        f"{alone['model']}, as many tiles as the union drawn blindly on {percent(blind)} of kernels; compiling the union "
        f"took {percent(spent / dense)} of compiling the lattice."
    )


def latency(result: dict[str, Any], hook: dict[str, Any]) -> str:
    """What a selection costs, by itself and in the hook, in a paragraph."""
    cold, warm, large = result["cold"]["total_us"], result["warm"]["total_us"], result["around_200_tiles"]
    start = result["start"]
    return (
        f"One selection with the shipped model on one thread of {result['cpu']} (`python benchmarks/select_latency.py`, "
        f"[select_latency.json](benchmarks/results/select_latency.json)) takes {warm['p50'] / 1e3:.2f} ms at p50 and "
        f"{warm['p99'] / 1e3:.2f} ms at p99 over the corpus's kernels, {large['warm']['total_us']['p50'] / 1e3:.2f} and "
        f"{large['warm']['total_us']['p99'] / 1e3:.2f} ms where some 200 tiles are ranked; a kernel's first one in a "
        f"process {cold['p50'] / 1e3:.2f} and {cold['p99'] / 1e3:.2f} ms. Importing the runtime takes "
        f"{start['import_ms']:.0f} ms, the session and the first selection {start['session_and_first_select_ms']:.0f} ms. In "
        f"place, inside torch.compile ({hook['kernels']} kernels, torch {hook['torch'].partition('+')[0]}, same CPU; "
        "`python benchmarks/hook_latency.py`, [hook_latency.json](benchmarks/results/hook_latency.json)), reading the "
        f"source, ranking and uniting take {hook['select_us']['p50'] / 1e3:.2f} ms a kernel at p50 and "
        f"{hook['select_us']['p95'] / 1e3:.2f} ms at p95; the process's first takes {hook['first_us'] / 1e3:.0f} ms."
    )


MODE_LABELS = {
    "default": "Inductor's default",
    "max_autotune": "max-autotune (of reductions and pointwise kernels)",
    "coordinate_descent": "max-autotune, then coordinate descent",
    "tileguard": "**default with tileguard**",
}


def inductor(result: dict[str, Any]) -> str:
    """The hook in torch.compile on a GPU: device time, wall and compiles of four ways of tuning."""
    modes = result["modes"]
    rows = [
        "### TorchInductor on an H200",
        "",
        "| way of tuning | Σ reduction time | compile + autotune wall | reduction binaries compiled |",
        "|---|---|---|---|",
    ]
    for name, label in MODE_LABELS.items():
        mode = modes[name]
        rows.append(
            f"| {label} | {mode['reduction_us']:.0f} µs | {mode['wall_s']:.0f} s | {mode['compiles']['reduction']:.0f} |"
        )
    own = modes["tileguard"]["report"]
    ours = modes["tileguard"]
    slower = result["slower_than_default"]
    shown = ", ".join(
        f"{one['default_us']:.2f} to {one['us']:.2f} µs{'' if one['sure'] else ', within two standard errors'}"
        for one in slower
    )
    worst = (
        f"{len(slower)} measured over 5 % slower than under the default ({shown}), the worst {result['worst_ratio']:.3f} times"
        if slower
        else "none is over 5 % slower than under the default"
    )
    days = {name: {run["date"][:10] for run in modes[name]["runs"]} - {result["date"][:10]} for name in MODE_LABELS}
    others = " and ".join(name.replace("_", " ") for name in MODE_LABELS if days[name])
    earlier = f"{others} on {' and '.join(sorted(set().union(*days.values())))}" if others else ""
    divided = {name: ours["reduction_us"] / modes[name]["reduction_us"] for name in modes if name != "tileguard"}
    rows.append(
        f"\n{result['n_graphs']} graphs of this project's own (norms, softmax, losses, attention, convolution and MLP "
        f"blocks; forward and backward; bf16, fp16, fp32) with {result['n_kernels']} reduction kernels, of which all ways wrote "
        f"the same {result['n_matched']}, torch "
        f"{result['versions']['torch'].partition('+')[0]}, {result['date'][:10]}; `python benchmarks/inductor_h200.py`, "
        "[inductor_h200.json](benchmarks/results/inductor_h200.json). Each way in a process of its own with empty caches"
        f"{f' ({earlier}, on a machine of the same kind)' if earlier else ''}; then all winners timed side by side by CUPTI with a cold L2. With tileguard the reductions take "
        f"{percent(divided['default'])} of the default's time, {percent(divided['max_autotune'])} of max-autotune's and "
        f"{percent(divided['coordinate_descent'])} of coordinate descent's, at "
        f"{percent(ours['wall_s'] / modes['coordinate_descent']['wall_s'])} of the latter's wall (and "
        f"{ours['wall_s'] / modes['default']['wall_s']:.1f} times the default's). Of the kernels {worst}; one "
        f"configuration timed twice differs by {percent(result['noise']['aa_median'])} at the median and "
        f"{percent(result['noise']['aa_max'])} at most. The hook raced {own['tiles_compiled']} tiles in "
        f"{own['bench_s']:.1f} s, and took {result['hook']['select_us']['p50'] / 1e3:.2f} ms a kernel (p50) to choose them, "
        f"{percent(result['hook']['share_of_compile']['p50'])} of its compile time; outputs and gradients agree with eager "
        "in every graph."
    )
    return "\n".join(rows)


def objectives(result: dict[str, Any]) -> str:
    """Held-out quality by objective, families and sizes held out."""
    head = "held out | objective | set | ≤ 5 % | 5–10 % | 10–30 % | > 30 % | geomean | p5 | worst | tiles"
    rows = [f"| {head} |", "|---|---|---|" + "---:|" * 8]
    for split, found in result["splits"].items():
        for objective, judged in found["objectives"].items():
            for name, label in CPU_SETS.items():
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


def cpu_page() -> str:
    """Both tables of docs/cpu.md, each under its heading."""
    return (
        f"### By objective\n\n{objectives(load('cpu_objectives'))}\n\n"
        f"### Against numpy, numba and torch.compile\n\n{peers(load('cpu_peers'))}"
    )


def adapt_page() -> str:
    """Both tables of docs/adapt.md."""
    return adapted(load("cpu_adapt"))


BLOCKS: dict[Path, Callable[[], str]] = {
    README: block,
    ROOT / "docs" / "ranker.md": ablation,
    ROOT / "docs" / "cpu.md": cpu_page,
    ROOT / "docs" / "adapt.md": adapt_page,
    ROOT / "docs" / "matmul.md": products_page,
}
"""Page -> what stands between its two markers."""


if __name__ == "__main__":
    main()
