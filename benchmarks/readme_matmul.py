"""What benchmarks/readme.py writes of matrix products."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tileguard.learner.tables import percent

RESULTS = Path(__file__).resolve().parent / "results"

MATMUL_LABELS = {
    "default": "Inductor's default (ATen)",
    "max_autotune": "max-autotune, ATen and Triton",
    "max_autotune_again": "the same in another process",
    "exhaustive": "max-autotune, exhaustive search space",
    "nv_heuristics": "ATen and nvMatmulHeuristics' proposals",
}


SETS = {
    "host_default": "the host's list (max-autotune)",
    "model@4": "model alone, k = 4",
    "model@8": "model alone, k = 8",
    "model@12": "model alone, k = 12",
    "union@8": "**tileguard's union, k = 8**",
    "union@12": "**tileguard's union, k = 12**",
}


def load(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def products_block() -> str:
    """What stands between the README's markers of matrix products: held out, and in the compiler where that was measured."""
    parts = ["### Matrix products on an H200", held_out_products(load("matmul_held_out"), "")]
    if (RESULTS / "matmul_h200.json").exists():
        parts.append(matmul(load("matmul_h200")))
    return "\n\n".join(parts)


def products_page() -> str:
    """What stands in docs/matmul.md: the same table with what bounds it."""
    result = load("matmul_held_out")
    others, prune, noise, measured = result["others"], result["prune"], result["noise"], result["measured"]
    spread = [one["model@8"]["lossless"] for one in others.values()]
    return "\n\n".join(
        (
            held_out_products(result, "../"),
            (
                f"Model and union choose here among the tiles that a sweep measured, on most products a sample; in the compiler they "
                f"choose from the whole of `matmul_lattice` ({measured['lattice_mean']:.0f} tiles on average). The next table is of "
                "products whose lattice was measured. Eight tiles drawn blindly from the measured ones hold one within 5 % on "
                f"{percent(measured['blind_8_lossless'])} of products."
            ),
            dense_products(result),
            (
                f"With other seeds and other folds ({', '.join(others)}) the model alone at k = 8 is within 5 % on "
                f"{percent(min(spread))} to {percent(max(spread))} of all. Of {noise['kernels']} products compiled and timed twice, near-best tiles differ by "
                f"{percent(noise['near_best_apart_median'])} at the median and {percent(noise['near_best_apart_p90'])} at p90, and one "
                f"run's fastest tile is within 5 % in the other on {percent(noise['winner_lossless_in_the_other'])}."
            ),
            (
                f'`matmul="prune"` keeps the {prune["calibrated_k"]} best-scored tiles of a set, and would drop {prune["dropped"]} of '
                f"{prune['host_tiles']} tiles of the host's: the set is then over 2 % slower than the union on "
                f"{percent(prune['over_2_percent_slower_than_the_union'])} of products."
            ),
        )
    )


def dense_line(result: dict[str, Any]) -> str:
    """Of the products whose lattice was measured, what the union and the model alone reach of the dense best."""
    union, model, host = (result["selectors"][name] for name in ("union@8", "model@8", "host_default"))
    return (
        f"Of the {result['products']} whose lattice was measured the union at k = 8 reaches {union['geomean']:.3f} of the best's speed "
        f"(geomean; p5 {union['p5']:.3f}), the model alone {model['geomean']:.3f}, the host's list {host['geomean']:.3f}."
    )


DENSE_SETS = {
    **SETS, "planner": "the planner's tiles, up to ten", "lattice": "all that the model chooses from",
}  # fmt: skip


def dense_products(result: dict[str, Any]) -> str:
    """The same sets as a compiler would try them, where the lattice was measured; what was aimed at, and what limits it."""
    found, alone = result["dense"], result["dense_leave_one_out"]
    rows = [
        "| candidate set | ≤ 5 % | > 30 % | geomean | p5 | worst | geomean, p5: one family held out |",
        "|---|" + "---|" * 6,
    ]
    for name, label in DENSE_SETS.items():
        s, other = found["selectors"][name], alone["selectors"][name]
        rows.append(
            f"| {label} | {percent(s['lossless'])} | {percent(s['severe'])} | {s['geomean']:.3f} | {s['p5']:.3f} | {s['worst']:.3f} | "
            f"{other['geomean']:.3f}, {other['p5']:.3f} |"
        )
    aims = "; ".join(
        f"{name} {one['value']:.3f} of {one['limit']} ({'met' if one['met'] else 'missed'})"
        for name, one in found["targets"].items()
    )
    rows.append(
        f"\n{found['products']} products, {found['split']}: best measured time ÷ the set's; a tile that was not measured counts as none. "
        f"Aimed at: {aims}. The best measured tile is outside the lattice on {percent(found['best_outside'])} of them, by at most "
        f"{percent(found['outside_behind'] - 1)}. The union is behind the host's list on {found['union_behind_host']}."
    )
    return "\n".join(rows)


def figure(value: float | None) -> str:
    """A slowdown; none where no tile of some product's set was measured."""
    return "none" if value is None else f"{value:.3f}"


def held_out_products(result: dict[str, Any], root: str) -> str:
    """The table of candidate sets of products. root: the way from the page to the project's folder, with a slash."""
    rows = [
        "| candidate set | ≤ 5 % | 5–10 % | 10–30 % | > 30 % | geomean | p5 | worst | tiles |",
        "|---|" + "---|" * 8,
    ]
    for name, label in SETS.items():
        s = result["selectors"][name]
        shares = " | ".join(percent(s[tier]) for tier in ("lossless", "loss_5_10", "loss_10_30", "severe"))
        rows.append(
            f"| {label} | {shares} | {figure(s['geomean'])} | {s['p5']:.3f} | {figure(s['worst'])} | {s['set_mean']:.1f} |"
        )
    union, host = result["against"]["union@8"], result["against"]["host_default"]
    rows.append(
        f"\n{result['kernels']} products (mm, bmm, addmm; bf16, fp16, tf32, fp32) in {result['families']} families, {result['folds']} "
        f"folds by family; slowdown (p5: of its inverse) is the best time in the set ÷ the best measured, of some 60 to 1,200 "
        f"tiles a product ({result['measured']['measured_mean']:.0f} on average). {dense_line(result['dense'])} Superset "
        f"violations: {result['superset_violations']}. With ATen beside both, the union at k = 8 is {union['host']['geomean']:.3f} "
        f"times as fast as the host's pick (geomean), slower on {percent(union['host']['slower'])}; ATen alone is over 2 % faster "
        f"than the union on {percent(union['aten']['slower'])} and than the host's list on {percent(host['aten']['slower'])}. "
        "`python benchmarks/matmul_held_out.py`, "
        f"[matmul_held_out.json]({root}benchmarks/results/matmul_held_out.json), [corpora]({root}corpora/README.md)."
    )
    return "\n".join(rows)


def matmul(result: dict[str, Any]) -> str:
    """Matrix products in torch.compile: each way of choosing against tileguard, over the products that both compiled."""
    rows = [
        "| compared with tileguard | n | time ÷ tileguard's, geomean | p5 | least | over 5 % faster | Triton tiles | wall |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, label in MATMUL_LABELS.items():
        found = result["against"].get(name)
        if found is None:
            continue
        tiles, walls = found["triton_choices"], found["wall_s"]
        rows.append(
            f"| {label} | {found['n']} | {found['geomean']:.3f} | {found['p5']:.3f} | {found['worst']:.3f} | "
            f"{percent(found['slower_5'])} | {tiles[0]:.0f} to {tiles[1]:.0f} | {walls[0]:.0f} to {walls[1]:.0f} s |"
        )
    skipped = [f"{name} ({mode['skipped']})" for name, mode in result["modes"].items() if "skipped" in mode]
    stopped = [f"{name} after {mode['n']}" for name, mode in result["modes"].items() if "stopped" in mode]
    noise, own = result["noise"], result["proposers"]
    apart = (
        f"one winner timed twice differs by {percent(noise['aa_median'])} at the median and {percent(noise['aa_max'])} at most"
        if noise
        else "the noise was not measured"
    )
    model = "the planner alone" if result["model"] == "planner alone" else f"the model {result['model']}"
    rows.append(
        f"\n{result['n']} products in {result['families']} families that no corpus holds (mm, addmm, bmm; bf16, fp16, tf32, "
        f"fp32), tileguard with {model}, torch {result['versions']['torch'].partition('+')[0]}, {result['date'][:10]}; "
        "`python benchmarks/matmul_h200.py`, [matmul_h200.json](benchmarks/results/matmul_h200.json). Each row is over the n "
        "products that both compiled: above 1 tileguard is faster; tiles and compile-and-autotune wall are the way's and, "
        "after `to`, tileguard's. All winners were timed side by side by CUPTI with a cold L2; "
        f"{apart}. tileguard's winner is a tile that max-autotune did not list on {sum(own['won_alone'].values())}, "
        f"ATen's or a split K on {own['beside_tiles']}; results of {len(result['disagreeing'])} runs do not match float64."
        + (f" Skipped: {', '.join(skipped)}." if skipped else "")
        + (f" Stopped by their budget: {', '.join(stopped)}." if stopped else "")
    )
    return "\n".join(rows)
