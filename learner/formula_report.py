"""The report of a fitted formula, in markdown: what was found, how well it does held out, what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileguard.features.anchor import ASCEND_910B3
from tileguard.features.hardware import HardwareSpec
from tileguard.features.lanes import LaneRule

from .evaluate import Evaluation
from .fit_formula import ClassFit, FitConfig, FormulaFit
from .formula_facts import Gap, Line
from .formula_judge import (
    DENSE,
    EXTENTS,
    FORMULA,
    RFC,
    RFC_REFITTED,
    Judged,
    absent,
    by_class,
    dense_sweeps,
    same_kernels,
)

SHOWN = {
    "host_default": "the compiler's default", "host_max_autotune": "its max-autotune list",
    RFC: "RFC, Ascend constants", RFC_REFITTED: "RFC's form, constants fitted", FORMULA: "rules, fitted",
}  # fmt: skip


def formula_facts(fit: FormulaFit, judged: Judged, hardware: HardwareSpec, config: FitConfig) -> dict[str, Any]:
    """The figures of a fit as JSON has them: what the report says, for machines."""
    evaluation = judged.evaluation
    dense = dense_sweeps(evaluation.corpus)
    names = [name for name in SHOWN if name in evaluation.sets]
    return {
        "hardware": hardware.name,
        "tiles": config.tiles,
        "kernels": len(evaluation.corpus.sweeps),
        "families": len(set(evaluation.corpus.families)),
        "held_out": {name: evaluation.summary(name) for name in names},
        "held_out_dense": {name: evaluation.summary(name, dense) for name in names} if dense else {},
        "dense_kernels": len(dense),
        "same_kernels": same_kernels(evaluation.corpus, hardware, fit).summary(FORMULA),
        "by_class": by_class(evaluation),
        "folds": [
            {"families": list(fold.families), "kernels": len(fold.test), **evaluation.summary(FORMULA, fold.test)}
            for fold in judged.folds
        ],
        "absent": absent(evaluation),
        "perturbed": [
            {"coefficient": p.coefficient, "factor": p.factor, "lossless": p.lossless, "severe": p.severe, "n_pred": p.n_pred}
            for p in judged.perturbed
        ],
        "constants": {
            "rn_small": fit.params.rn_small, "rn_hole": fit.params.rn_hole, "p_narrow": fit.params.p_narrow,
            "p_wide": fit.params.p_wide, "split_intercept": fit.params.split_intercept,
            "split_slope": fit.params.split_slope, "split_r2": fit.facts.split.r2 if fit.facts.split else None,
        },
    }  # fmt: skip


def formula_report(fit: FormulaFit, facts: dict[str, Any]) -> str:
    """Markdown: regimes, P*, the split, the classes' rules, held-out quality, perturbation, limits."""
    parts = [
        f"# The formula fitted to {facts['hardware']}",
        (
            f"{facts['kernels']} kernels of {facts['families']} workload families, {facts['tiles']:g} tiles a kernel asked "
            "for. Held out: every kernel is judged by a formula fitted without its workload family. Slowdown is the best "
            "time in the set ÷ the best of the sweep."
        ),
        _quality(facts), _regimes(fit), _products(fit), *(_class(one) for one in fit.classes),
        *(_lanes(rule) for rule in fit.params.lanes), _perturbed(facts), _limits(facts),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _quality(facts: dict[str, Any]) -> str:
    head = ["tiles proposed", "≤ 5 %", "5–10 %", "10–30 %", "> 30 %", "p95", "worst", "tiles (mean)", "tiles (p95)"]
    rows = [[SHOWN[name], *_cells(summary)] for name, summary in facts["held_out"].items()]
    rows += [
        [f"{SHOWN[name]}; dense sweeps", *_cells(summary)] for name, summary in facts["held_out_dense"].items()
        if name in (RFC, RFC_REFITTED, FORMULA)
    ]  # fmt: skip
    rows.append(["rules, judged on the kernels fitted to (as the RFC did)", *_cells(facts["same_kernels"])])
    rows += [[f"rules: {name}, {s['kernels']} kernels", *_cells(s)] for name, s in facts["by_class"].items()]
    rows += [[f"rules: fold {number}, {s['kernels']} kernels", *_cells(s)] for number, s in enumerate(facts["folds"])]
    return (
        "## Held-out quality\n\n"
        + _table(head, rows)
        + f"\n\nDense sweeps: the {facts['dense_kernels']} kernels of which "
        f"more than {DENSE} tiles were measured. Of the rules' tiles {_percent(facts['absent'])} were not measured; they "
        "count as compiled and as no gain."
    )


def _regimes(fit: FormulaFit) -> str:
    params, found, rfc = fit.params, fit.facts, ASCEND_910B3
    middle = (
        f"R0 = whole axis on {found.fills}, at most a quarter of the anchor's on {found.shorts}, X = whole axis with "
        f"R0 ≤ 8 on {found.wides}"
    )
    correlation = "too few kernels" if found.hole_correlation is None else f"{found.hole_correlation:.2f}"
    rows = [
        ["SMALL", f"rnumel ≤ {params.rn_small} (RFC {rfc.rn_small})", str(found.by_regime["small"]),
         f"R0 covers the axis on {_percent(found.small_fills)}", _gap(found.small_gap)],
        ["MID", "between", str(found.by_regime["mid"]), middle, ""],
        ["HOLE", f"rnumel ≥ {params.rn_hole} (RFC {rfc.rn_hole})", str(found.by_regime["hole"]),
         f"correlation of log2 R0 with log2 rnumel: {correlation}; R0 {_numbers(params.hole_r)}, X {_numbers(params.hole_x)}",
         _gap(found.hole_gap)],
    ]  # fmt: skip
    gaps = "; ".join(_gap(gap) for gap in found.gaps)
    return (
        "## Regimes of rnumel (winners of kernels whose R0 is a choice)\n\n"
        + _table(["regime", "condition", "n", "winners", "dead zone at the threshold"], rows)
        + f"\n\nWidest gaps without a kernel: {gaps or 'none'}."
    )


def _products(fit: FormulaFit) -> str:
    found, params = fit.facts, fit.params
    widths = "; ".join(
        f"{'at most two bytes' if name == 'p_narrow' else 'wider'}: {getattr(params, name)} (median 2^{median:.1f}, "
        f"n = {n})"
        for name, (median, n) in found.product_by_width.items()
    )
    split = "too few kernels" if found.split is None else _line("log2(X/R0)", ("log2(xnumel/rnumel)",), found.split)
    return (
        "## P* and the split, in the RFC's form\n\n"
        f"X·R0 of winners is a power of two on {_percent(found.pow2_products)}; most frequent: "
        + ", ".join(f"{product} ({n})" for product, n in found.products)
        + f". P* in MID by element width: {widths or 'too few kernels'}. Small R0 besides the anchor: "
        f"{_numbers(params.small_r)}; FILL up to X = {params.fill_max_x}.\n\n{split} (RFC: −2.06 + 0.59·, R² = 0.62)."
    )


def _class(one: ClassFit) -> str:
    lines = [_line("log2 P*", ("[≤ 2 bytes]", "log2(xnumel·rnumel)"), one.product)]
    if one.split is not None:
        lines.append(_line("log2(X/R0)", ("log2(xnumel/rnumel)",), one.split))
    if one.warps is not None:
        lines.append(_line("log2 num_warps", ("log2(X·R0)",), one.warps) + _elements(one))
    offsets = [[o.anchor, f"{o.x:+d}", _r(o.anchor, o.r), f"{o.warps:+d}"] for o in one.rule.offsets]
    columns = ["anchor", "X, doublings", "R0", "warps, doublings"]
    return (
        f"## {one.name.capitalize()}: {one.kernels} kernels, {len(offsets)} offsets\n\n"
        + "\n".join(f"- {line}" for line in lines)
        + "\n\n"
        + _table(["", *columns], [[str(place), *row] for place, row in enumerate(offsets, start=1)])
    )


def _lanes(rule: LaneRule) -> str:
    kind = "Tile programs" if rule.program else "Operations of passes"
    rows = [
        [str(place), str(1 << tile.bytes_log2), str(1 << tile.beside_log2), tile.lowering or "(the device's first)"]
        for place, tile in enumerate(rule.tiles, start=1)
    ]
    return (
        f"## {kind}, the {'reduced' if rule.inner else 'other'} axis contiguous: {len(rows)} tiles\n\n"
        + _table(["", "bytes of a vector", "side by side", "lowering"], rows)
        + "\n\nWhere the kernel's lattice has no such tile, the largest that exceeds it in neither."
    )


def _elements(one: ClassFit) -> str:
    """Elements a warp at two sizes: the RFC has 128 at every size."""
    start, slope = one.rule.warp_intercept, one.rule.warp_slope
    small, large = (2.0 ** (size - max(start + slope * size, 0.0)) for size in (8, 13))
    return f"; elements a warp: {small:.0f} in a tile of 256, {large:.0f} in one of 8192 (RFC: 128)"


def _perturbed(facts: dict[str, Any]) -> str:
    rows = [
        [p["coefficient"], f"× {p['factor']:g}", _percent(p["lossless"]), _percent(p["severe"]), f"{p['n_pred']:.1f}"]
        for p in facts["perturbed"]
    ]
    table = _table(["coefficient", "factor", "≤ 5 %", "> 30 %", "tiles"], rows)
    if facts["perturbed"][0]["coefficient"] in EXTENTS:
        return f"## Perturbation: one extent of every tile halved or doubled, held out\n\n{table}"
    return (
        f"## Perturbation: one coefficient ±50 % in every class at once, held out\n\n{table}"
        "\n\nThe offsets stay as they were found. The RFC's own formula kept 86–90 % of its 95 %."
    )


def _limits(facts: dict[str, Any]) -> str:
    held, same = facts["held_out"][FORMULA], facts["same_kernels"]
    classes = facts["by_class"]
    lost = {name: s["kernels"] * (1 - s["lossless"]) for name, s in classes.items()}
    worst = max(lost, key=lambda name: lost[name])
    share = lost[worst] / max(sum(lost.values()), 1e-9)
    text = (
        f"## What limits it\n\nHolding families out costs {100 * (same['lossless'] - held['lossless']):.1f} points against "
        f"judging on the kernels fitted to. {worst.capitalize()} kernels are {_percent(share)} of those that lose over "
        f"5 %, at {classes[worst]['set_mean']:.0f} tiles each."
    )
    if facts["held_out_dense"]:
        dense = facts["held_out_dense"][FORMULA]
        text += (
            f" Where the sweep is dense, the best tile is better than a capped sweep knows: {_percent(dense['lossless'])} "
            f"lossless, {_percent(dense['severe'])} severe at {dense['set_mean']:.0f} tiles."
        )
    return text


def worst_kernels(evaluation: Evaluation, n: int = 10) -> list[dict[str, Any]]:
    """The kernels that the fitted formula serves worst."""
    slowdown = evaluation.slowdown(FORMULA)
    order = np.argsort(-slowdown, kind="stable")[:n]
    sweeps = evaluation.corpus.sweeps
    return [
        {"kernel": sweeps[i].kernel_id, "workload": sweeps[i].workload, "slowdown": float(slowdown[i])} for i in order
    ]


def _cells(summary: dict[str, Any]) -> list[str]:
    return [
        *(_percent(summary[key]) for key in ("lossless", "loss_5_10", "loss_10_30", "severe")),
        f"{summary['p95']:.3f}", f"{summary['worst']:.2f}", f"{summary['set_mean']:.1f}", f"{summary['set_p95']:.0f}",
    ]  # fmt: skip


def _line(left: str, terms: Sequence[str], line: Line) -> str:
    first, *others = line.coefficients
    text = f"{left} = {first:g}" + "".join(f" {value:+g}·{term}" for value, term in zip(others, terms, strict=True))
    return f"{text}, R² = {line.r2:.2f}, n = {line.n}"


def _r(anchor: str, r: int) -> str:
    return f"{r:+d} doublings" if anchor == "split" else "the axis" if anchor == "fill" else str(1 << r)


def _gap(gap: Gap | None) -> str:
    return "none" if gap is None else f"{gap.below} to {gap.above} ({gap.doublings:.2f} doublings)"


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
