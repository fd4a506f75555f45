"""What a person sees in the terminal: rich tables of evaluations and comparisons."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from .evaluate import Evaluation, by_regime

TIER_COLUMNS = ("lossless", "loss_5_10", "loss_10_30", "severe")
TIER_TITLES = ("≤ 5 %", "5–10 %", "10–30 %", "> 30 %")


WIDE = 145
"""Columns of a terminal that the whole table of selectors needs; a narrower one gets the columns that matter most."""
NARROW = 70
"""Columns below which each table keeps only the measures that it cannot do without."""


def selector_table(evaluation: Evaluation, *, title: str, width: int = WIDE) -> Table:
    """One row a selector: loss tiers, geomean, p95, worst, time-weighted, snap hits, tiles compiled."""
    columns = {
        **dict(zip(TIER_TITLES, TIER_COLUMNS, strict=True)),
        "geomean": "geomean", "p5": "p5", "p95": "p95", "worst": "worst", "Σ time": "time_weighted",
        "snap 1": "snap1", "snap 2": "snap2", "measured": "n_pred_mean", "tiles": "set_mean", "p95 tiles": "set_p95",
    }  # fmt: skip
    if width < WIDE:
        kept = ("≤ 5 %", "worst", "tiles") if width < NARROW else ("≤ 5 %", "> 30 %", "geomean", "worst", "tiles")
        columns = {label: key for label, key in columns.items() if label in kept}
    table = _table(title)
    table.add_column("selector", overflow="fold")
    for label in columns:
        table.add_column(label, justify="right", no_wrap=True)
    for name in evaluation.sets:
        summary = evaluation.summary(name)
        cells = [_cell(key, summary[key]) for key in columns.values()]
        table.add_row(name, *cells, style="bold" if name.startswith(("model@", "union@")) else "")
    return table


LEGEND = (
    "≤ 5 % … > 30 %: shares of kernels by how far the best tile of the set is behind the dense best; geomean, p95, worst: "
    "of that slowdown; p5: of its inverse; Σ time: chosen ÷ best over all kernels; snap 1, snap 2: shares of sets that "
    "hold the fastest tile, or one within a factor of two of it; tiles: the whole set, measured: those of it in the sweep"
)
"""What the columns mean."""


def _cell(key: str, value: Any) -> str:
    if key in TIER_COLUMNS:
        return percent(value)
    if key.startswith("snap"):
        return percent(value["hit"])
    return (
        f"{value:.0f}" if key == "set_p95" else f"{value:.1f}" if key in ("n_pred_mean", "set_mean") else f"{value:.3f}"
    )


def evaluation_notes(evaluation: Evaluation) -> list[str]:
    """Sentences under the table: superset violations, verdicts, how often the model alone loses."""
    notes = [f"superset violations: {evaluation.superset_violations}"]
    if evaluation.verdicts:
        counts = ", ".join(f"{reason} {count}" for reason, count in evaluation.verdicts.items())
        notes.append(f"verdicts over every kernel and k: {counts}")
    for name, loses in evaluation.to_json()["model_loses"].items():
        against = ", ".join(f"{other} on {percent(share)}" for other, share in loses.items())
        notes.append(f"{name} alone is over 2 % slower than {against} of kernels")
    return [*notes, LEGEND]


def compare_tables(
    a: Evaluation, b: Evaluation, models: tuple[str, str], selector: str, *, width: int = WIDE
) -> list[Table]:
    """Two evaluations of one corpus side by side: by tier, by regime, and the kernels where they differ most. The
    first table says which models A and B are."""
    tiers = _table(f"{selector}: by tier")
    tiers.add_column("measure", overflow="fold")
    names = ("A", "B")
    for name, model in zip(names, models, strict=True):
        tiers.add_column(f"{name} {escape(model)}", justify="right", overflow="fold", min_width=FIGURE)
    one, other = a.summary(selector), b.summary(selector)
    for key, label in zip(TIER_COLUMNS, TIER_TITLES, strict=True):
        tiers.add_row(label, percent(one[key]), percent(other[key]))
    for key in ("geomean", "p95", "worst", "time_weighted", "set_mean"):
        tiers.add_row(key, f"{one[key]:.3f}", f"{other[key]:.3f}")

    regimes = _table(f"{selector}: by regime of rnumel")
    measures = {"≤ 5 %": "lossless"} if width < NARROW else {"≤ 5 %": "lossless", "> 30 %": "severe"}
    for name in ("regime", "kernels", *(f"{name} {what}" for name in names for what in measures)):
        regimes.add_column(name, justify="left" if name == "regime" else "right", no_wrap=True)
    other_regimes = by_regime(b, selector)
    for name, s in by_regime(a, selector).items():
        o = other_regimes[name]
        shares = [percent(side[key]) for side in (s, o) for key in measures.values()]
        regimes.add_row(name, str(s["kernels"]), *shares)

    kernels = _table(f"{selector}: kernels where they differ most")
    for name in ("kernel", "x × r", *names, "ratio"):
        words = name in ("kernel", "x × r")
        kernels.add_column(name, justify="left" if name == "kernel" else "right", overflow="fold", no_wrap=not words)
    for row in differences(a, b, selector):
        kernels.add_row(
            escape(row["kernel_id"]), f"{row['xnumel']} × {row['rnumel']}", f"{row['a']:.3f}", f"{row['b']:.3f}",
            f"{row['ratio']:.3f}",
        )  # fmt: skip
    return [tiers, regimes, kernels]


def differences(a: Evaluation, b: Evaluation, selector: str, *, most: int = 10) -> list[dict[str, Any]]:
    """The kernels whose slowdowns differ most between two evaluations, largest ratio first; equal ones are left out."""
    one, other = a.slowdown(selector), b.slowdown(selector)
    order = sorted(range(len(one)), key=lambda i: -max(one[i] / other[i], other[i] / one[i]))
    sweeps = a.corpus.sweeps
    return [
        {
            "kernel_id": sweeps[i].kernel_id, "xnumel": sweeps[i].kernel.xnumel, "rnumel": sweeps[i].kernel.rnumel,
            "a": float(one[i]), "b": float(other[i]), "ratio": float(one[i] / other[i]),
        }
        for i in order[:most]
        if one[i] != other[i]
    ]  # fmt: skip


FIGURE = len("100.0 %")
"""Columns that a figure needs, whatever its heading."""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(title: str) -> Table:
    return Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
