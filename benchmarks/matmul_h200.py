"""Ways of choosing the kernels of matrix products in torch.compile on one H200: device time against compiles and wall.

    PYTHONPATH=src python benchmarks/matmul_h200.py [--modes default,tileguard] [--products 24] [--exhaustive 4]
                                                    [--budget SECONDS] [--judge] [--out DIR]

Compiles products that no corpus holds (matmul_cases.py), one process a mode with empty caches (matmul_modes.py): the
host's default, which is ATen; its max-autotune over ATen and Triton; tileguard on top of that; the exhaustive search
space, for the first few products alone; and ATen beside what nvMatmulHeuristics proposes, where that package is
installed. Then all winners are timed side by side (matmul_judge.py). A mode's file in --out is continued, not repeated, so
that the work may be cut into pieces; `so far` is shown until every mode and the judge have run. Needs torch of the CUDA
build and its GPU, numpy and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from benchmarks.matmul_cases import (
    MAX_AUTOTUNE,
    MODES,
    NAMED,
    TILEGUARD,
    fresh_products,
    products_of,
    settings_of,
    tiny,
)
from benchmarks.pieces import at_most, geomean, judge_file, load_modes, mode_file, run_fresh, total
from tileguard.learner.inductor.matmul_problems import Problem

RESULT = ROOT / "benchmarks" / "results" / "matmul_h200.json"
SEED = 1000
BUDGET_S = 75.0

SLOWER, MUCH_SLOWER = 1.02, 1.05
"""tileguard's time ÷ another mode's: from where on a product counts as slower. The second is the target's limit."""

Rows = Mapping[str, Mapping[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--modes", help=f"comma-separated: {', '.join(NAMED)} (default: all but the last, and the judge)"
    )
    parser.add_argument("--judge", action="store_true", help="time the winners, also where --modes names some")
    parser.add_argument("--products", type=int, default=24, help="how many (default: 24)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"what they are drawn by (default: {SEED})")
    parser.add_argument(
        "--exhaustive", type=int, default=4, help="how many of them in the exhaustive mode (default: 4)"
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S,
        help=f"seconds after which a mode begins no further product; 0: none (default: {BUDGET_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--model", default="champion", help="tileguard's: champion, none (the planner alone), or a folder"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "matmul_h200", help="where the pieces are kept")
    parser.add_argument("--json", type=Path, help=f"the result (default: {RESULT.name} in --out)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the modes without a GPU")
    parser.add_argument("--tiny", action="store_true", help="with sizes for a CPU")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.products, arguments.exhaustive) < 1 or arguments.budget < 0:
        parser.error("--products and --exhaustive are at least 1, --budget at least 0")
    arguments.out.mkdir(parents=True, exist_ok=True)
    products = drawn(arguments)
    if arguments.process:
        run_piece(arguments.process, products, arguments)
        return

    everything = arguments.modes is None and not arguments.judge
    wanted = MODES if everything else [mode for mode in (arguments.modes or "").split(",") if mode]
    for mode in wanted:
        if mode not in NAMED:
            parser.error(f"--modes: {mode} is none of {', '.join(NAMED)}")
    for mode in wanted:
        if not finished(mode_file(arguments.out, mode), products_of(mode, products, arguments.exhaustive)):
            start(mode, arguments, settings_of(mode))
    modes = load_modes(arguments.out, NAMED)
    judged = load_judge(arguments.out, modes)
    if (everything or arguments.judge) and arguments.device == "cuda" and modes and not judged:
        start("judge", arguments, {})
        judged = load_judge(arguments.out, modes)
    if not judged or not {MAX_AUTOTUNE, TILEGUARD} <= modes.keys():
        print("so far:", ", ".join(f"{mode} ({len(found['products'])})" for mode, found in modes.items()), end="")
        print(", judge" if judged else "")
        return
    result = summarise(products, modes, judged, seed=arguments.seed)
    target = arguments.json or arguments.out / RESULT.name
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    show(result)
    sys.exit(not all(one["met"] for one in result["targets"].values()))


def drawn(arguments: argparse.Namespace) -> list[Problem]:
    products = fresh_products(arguments.products, arguments.seed)
    if not arguments.tiny:
        return products
    return list({small.name: small for small in map(tiny, products)}.values())


def run_piece(process: str, products: Sequence[Problem], arguments: argparse.Namespace) -> None:
    """A mode, or the judge, in this process."""
    if process == "judge":
        from benchmarks.matmul_judge import judge

        judge(products, load_modes(arguments.out, NAMED), judge_file(arguments.out), device=arguments.device)
        return
    from benchmarks.matmul_modes import run_mode

    run_mode(
        process, products_of(process, products, arguments.exhaustive), mode_file(arguments.out, process), device=arguments.device,
        budget_s=arguments.budget or None, model=arguments.model,
    )  # fmt: skip


def start(process: str, arguments: argparse.Namespace, settings: Mapping[str, str]) -> None:
    """This program again for one mode or the judge."""
    options = ["--process", process]
    for name in ("products", "seed", "exhaustive", "budget", "model", "out", "device"):
        options += [f"--{name}", str(getattr(arguments, name))]
    options += ["--tiny"] if arguments.tiny else []
    failed = run_fresh(__file__, options, settings, log=arguments.out / f"{process}.log")
    if failed:  # the other pieces are worth having all the same
        print(f"{process} ended with {failed}", flush=True)


def load_judge(out: Path, modes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The judge's file, if it has seen just these modes with just these products."""
    if not judge_file(out).exists():
        return None
    judged: dict[str, Any] = json.loads(judge_file(out).read_text(encoding="utf-8"))
    same = judged["seen"] == {mode: sorted(found["products"]) for mode, found in modes.items()}
    return judged if same else None


def finished(path: Path, products: Sequence[Problem]) -> bool:
    """Whether a mode has all its products; a mode that was skipped is asked again, which costs nothing."""
    if not path.exists():
        return False
    found = json.loads(path.read_text(encoding="utf-8"))
    return "skipped" not in found and {product.name for product in products} <= set(found["products"])


def summarise(
    products: Sequence[Problem], modes: Mapping[str, Any], judged: Mapping[str, Any], *, seed: int
) -> dict[str, Any]:
    """The result file: comparisons and targets, then products. Every comparison is over the products that both modes have
    a time of."""
    rows = {product.name: one_product(product, modes, judged) for product in products}
    rows = {name: row for name, row in rows.items() if row["us"] or row["failed"]}
    against = {mode: compare(mode, rows, modes) for mode in modes if mode != TILEGUARD}
    host = against[MAX_AUTOTUNE]
    disagreeing = {
        f"{mode} {name}": found["products"][name].get("error", found["products"][name].get("off"))
        for mode, found in modes.items()
        for name in rows
        if name in found["products"] and not found["products"][name].get("agrees")
    }
    targets = {
        "geomean time, tileguard ÷ max_autotune": at_most(1 / host["geomean"] if host else None, 1.0),
        "slowest product, tileguard ÷ max_autotune": at_most(1 / host["worst"] if host else None, MUCH_SLOWER),
        "runs that do not match float64": at_most(float(len(disagreeing)), 0.0),
    }
    first = modes[TILEGUARD]["runs"][-1]
    return {
        "benchmark": "matmul_h200",
        "command": "PYTHONPATH=src python benchmarks/matmul_h200.py",
        **{name: first[name] for name in ("date", "gpu", "cpu", "cpus", "versions")},
        "seed": seed,
        "n": sum(TILEGUARD in row["us"] for row in rows.values()),
        "families": len({row["family"] for row in rows.values() if TILEGUARD in row["us"]}),
        "model": first.get("model"),
        "setting": "no padding of odd sizes in any mode; each with empty caches; times by CUPTI with a cold L2",
        "targets": targets,
        "against": against,
        "least_of_all": least_of_all(rows),
        "modes": {mode: one_mode(found, rows) for mode, found in modes.items()},
        "proposers": proposers(modes[TILEGUARD], rows),
        "noise": noise(rows),
        "slower": [
            {"product": name, "max_autotune_us": row["us"][MAX_AUTOTUNE], "us": row["us"][TILEGUARD], "mad_us": row["mad"]}
            for name, row in rows.items()
            if {MAX_AUTOTUNE, TILEGUARD} <= row["us"].keys() and row["us"][TILEGUARD] > SLOWER * row["us"][MAX_AUTOTUNE]
        ],
        "disagreeing": disagreeing,
        "judge": {"seconds": judged["seconds"], "gpu": judged["gpu"], "errors": judge_errors(judged)},
        "products": rows,
    }  # fmt: skip


def one_product(product: Problem, modes: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
    """A product with each mode's winner, its time (µs) and its price; a winner that is wrong or was not timed has none."""
    found = judged["products"].get(product.name, {})
    times, wrong = found.get("us", {}), found.get("errors", {})
    winners, us, walls, kinds, mads, listed, failed = {}, {}, {}, {}, [], {}, []
    for mode, content in modes.items():
        row = content["products"].get(product.name)
        if row is None:
            continue
        if "code" not in row:
            failed.append(mode)
            continue
        key = str(row.get("winner") or row["code"])
        winners[mode], kinds[mode], walls[mode] = row.get("winner"), row.get("kind"), row["wall_s"]
        listed[mode] = row.get("listed", {})
        if key in times and key not in wrong and row.get("agrees"):
            us[mode] = times[key]["us"]
            mads.append(times[key]["mad"])
    return {
        "family": product.family, "us": us, "winners": winners, "kinds": kinds, "wall_s": walls, "listed": listed,
        "mad": max(mads, default=None), "aa": found.get("aa"), "failed": failed,
    }  # fmt: skip


def compare(mode: str, rows: Rows, modes: Mapping[str, Any]) -> dict[str, Any] | None:
    """A mode's time ÷ tileguard's: above 1 where tileguard is faster. `worst` is tileguard's worst. Then what both paid
    on these products: Σ wall and Triton choices, the mode's and tileguard's."""
    both = {name: row for name, row in rows.items() if {mode, TILEGUARD} <= row["us"].keys()}
    if not both:
        return None
    ratios = {name: row["us"][mode] / row["us"][TILEGUARD] for name, row in both.items()}
    ordered = sorted(ratios.values())
    p5 = statistics.quantiles(ordered, n=20, method="inclusive")[0] if len(ordered) > 1 else ordered[0]
    worst = min(ratios, key=ratios.__getitem__)

    def share(limit: float) -> float:
        slower = len([ratio for ratio in ordered if 1 / ratio > limit])
        return round(slower / len(ordered), 4)

    def paid(name: str) -> list[float]:
        prices = [modes[one]["products"][product] for one in (mode, TILEGUARD) for product in both]
        values = [row["wall_s"] if name == "wall_s" else row.get("listed", {}).get("triton", 0) for row in prices]
        return [round(sum(values[: len(both)]), 1), round(sum(values[len(both) :]), 1)]

    return {
        "n": len(both), "geomean": geomean(ordered), "p5": round(p5, 4), "worst": round(ordered[0], 4),
        "worst_product": worst, "best": round(ordered[-1], 4),
        "slower_2": share(SLOWER), "slower_5": share(MUCH_SLOWER), "faster_2": round(sum(r > SLOWER for r in ordered) / len(ordered), 4),
        "sum_us": [round(sum(row["us"][one] for row in both.values()), 1) for one in (mode, TILEGUARD)],
        "wall_s": paid("wall_s"), "triton_choices": paid("triton"),
    }  # fmt: skip


def least_of_all(rows: Rows) -> dict[str, Any]:
    """The least time of any mode ÷ tileguard's, at most 1: what a better choice would still have gained."""
    ratios = sorted(min(row["us"].values()) / row["us"][TILEGUARD] for row in rows.values() if TILEGUARD in row["us"])
    return {"n": len(ratios), "geomean": geomean(ratios), "worst": round(ratios[0], 4) if ratios else None}


def one_mode(found: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """What a mode paid and chose over all its products."""
    own = [row for name, row in found["products"].items() if name in rows]
    done = [row for row in own if "code" in row]
    runs = [{k: v for k, v in run.items() if k not in ("cpus", "versions")} for run in found["runs"]]
    return {
        "n": len(done),
        "failed": len(own) - len(done),
        "wall_s": round(sum(row["wall_s"] for row in done), 1),
        "binaries": sum(row["binaries"] for row in done),
        "listed": total(row.get("listed", {}) for row in done),
        "timed": total(row.get("timed", {}) for row in done),
        "choices_failed": sum(row.get("failed", 0) for row in done),
        "winners": dict(Counter(str(row.get("kind")) for row in done)),
        "trouble": sorted({text for row in done for text in row.get("trouble", [])}),
        **{name: found[name] for name in ("stopped", "skipped") if name in found},
        "runs": runs,
    }


def proposers(found: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Of tileguard: whose tile won (host: of its list), products whose winner the host lacked, tiles by proposer."""
    own = [row for name, row in found["products"].items() if name in rows and "code" in row]
    won = Counter(who for row in own for who in row.get("proposers", []))
    added = [row for row in own if row.get("proposers") and "host" not in row["proposers"]]
    return {
        "won": dict(won), "won_alone": dict(Counter("+".join(row["proposers"]) for row in added)),
        "beside_tiles": sum(not row.get("proposers") for row in own),
        "proposed": total(row.get("proposed", {}) for row in own),
        "verdicts": dict(Counter(row["verdict"] for row in own if "verdict" in row)),
    }  # fmt: skip


def noise(rows: Rows) -> dict[str, Any]:
    """How far two times of one winner lie apart: |log| at the median and the most; and the median absolute deviation."""
    apart = sorted(abs(math.log(row["aa"])) for row in rows.values() if row["aa"])
    mads = [row["mad"] / min(row["us"].values()) for row in rows.values() if row["us"] and row["mad"] is not None]
    if not apart:
        return {}
    return {
        "aa_median": round(statistics.median(apart), 5), "aa_max": round(apart[-1], 5), "n": len(apart),
        "mad_median": round(statistics.median(mads), 5),
    }  # fmt: skip


def judge_errors(judged: Mapping[str, Any]) -> dict[str, str]:
    """Winners that could not be timed, or are wrong, by product."""
    found = {name: row["error"] for name, row in judged["products"].items() if "error" in row}
    for name, row in judged["products"].items():
        found |= {f"{name}: {winner[:80]}": text for winner, text in row.get("errors", {}).items()}
    return found


def show(result: Mapping[str, Any]) -> None:
    """The table, the sums and the targets; plain text, since rich may be absent where this runs."""
    shown = [mode for mode in NAMED if mode in result["modes"]]
    print(f"\n{result['gpu']}, torch {result['versions']['torch']}, {result['n']} products, {result['model']}")
    print(f"{'product':<52}" + "".join(f"{mode[:12]:>13}" for mode in shown) + "   winner of tileguard")
    for name, row in result["products"].items():
        times = "".join(f"{row['us'][mode]:>13.2f}" if mode in row["us"] else f"{'-':>13}" for mode in shown)
        print(f"{name[:51]:<52}{times}   {row['winners'].get(TILEGUARD)}")
    for mode in shown:
        found = result["modes"][mode]
        state = "".join(f"  {name}: {found[name]}" for name in ("skipped", "stopped") if name in found)
        print(
            f"{mode:<19} n {found['n']:>3}  wall {found['wall_s']:7.1f} s  choices {found['listed']}  binaries "
            f"{found['binaries']}  winners {found['winners']}  failed {found['failed']}{state}"
        )
    for mode, found in result["against"].items():
        print(f"{mode} ÷ tileguard: {found}")
    print(f"least of all ÷ tileguard: {result['least_of_all']}")
    print(f"proposers {result['proposers']}\nnoise {result['noise']}")
    for one in result["slower"]:
        print(f"slower: {one['product']} {one['max_autotune_us']} -> {one['us']} µs (MAD {one['mad_us']})")
    for name, text in (*result["disagreeing"].items(), *result["judge"]["errors"].items()):
        print("not right:", name, str(text)[-300:])
    for name, one in result["targets"].items():
        print(f"{'met ' if one['met'] else 'MISSED'} {name}: {one['value']} (at most {one['limit']})")


if __name__ == "__main__":
    main()
