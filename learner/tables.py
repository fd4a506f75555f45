"""What a person sees in the terminal: rich tables of evaluations and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from .evaluate import Evaluation, by_regime

TIER_COLUMNS = ("lossless", "loss_5_10", "loss_10_30", "severe")
TIER_TITLES = ("≤ 5 %", "5–10 %", "10–30 %", "> 30 %")


def selector_table(evaluation: Evaluation, *, title: str) -> Table:
    """One row a selector: loss tiers, geomean, p95, worst, time-weighted, snap hits, tiles compiled."""
    table = _table(title)
    table.add_column("selector", no_wrap=True)
    for name in (*TIER_TITLES, "geomean", "p5", "p95", "worst", "Σ time", "snap 1", "snap 2", "tiles", "p95 tiles"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in evaluation.sets:
        s = evaluation.summary(name)
        ours = name.startswith(("model@", "union@"))
        table.add_row(
            name, *_tiers(s), *(f"{s[key]:.3f}" for key in ("geomean", "p5", "p95", "worst", "time_weighted")),
            percent(s["snap1"]["hit"]), percent(s["snap2"]["hit"]),
            f"{s['n_pred_mean']:.1f}", f"{s['n_pred_p95']:.0f}", style="bold" if ours else "",
        )  # fmt: skip
    return table


def evaluation_notes(evaluation: Evaluation) -> list[str]:
    """Sentences under the table: superset violations, verdicts, how often the model alone loses."""
    notes = [f"superset violations: {evaluation.superset_violations}"]
    if evaluation.verdicts:
        notes.append("verdicts: " + ", ".join(f"{reason} {count}" for reason, count in evaluation.verdicts.items()))
    for name, loses in evaluation.to_json()["model_loses"].items():
        against = ", ".join(f"{other} on {percent(share)}" for other, share in loses.items())
        notes.append(f"{name} alone is over 2 % slower than {against} of kernels")
    return notes


def compare_tables(a: Evaluation, b: Evaluation, names: tuple[str, str], selector: str) -> list[Table]:
    """Two evaluations of one corpus side by side: by tier, by regime, and the kernels where they differ most."""
    tiers = _table(f"{selector}: by tier")
    tiers.add_column("measure")
    for name in names:
        tiers.add_column(name, justify="right")
    one, other = a.summary(selector), b.summary(selector)
    for key, label in zip(TIER_COLUMNS, TIER_TITLES, strict=True):
        tiers.add_row(label, percent(one[key]), percent(other[key]))
    for key in ("geomean", "p95", "worst", "time_weighted", "n_pred_mean"):
        tiers.add_row(key, f"{one[key]:.3f}", f"{other[key]:.3f}")

    regimes = _table(f"{selector}: by regime of rnumel")
    for name in ("regime", "kernels", *(f"{name} {what}" for name in names for what in ("≤ 5 %", "> 30 %"))):
        regimes.add_column(name, justify="left" if name == "regime" else "right")
    other_regimes = by_regime(b, selector)
    for name, s in by_regime(a, selector).items():
        o = other_regimes[name]
        shares = [percent(v) for v in (s["lossless"], s["severe"], o["lossless"], o["severe"])]
        regimes.add_row(name, str(s["kernels"]), *shares)

    kernels = _table(f"{selector}: kernels where they differ most")
    for name in ("kernel", "x × r", *names, "ratio"):
        kernels.add_column(name, justify="left" if name == "kernel" else "right", overflow="fold")
    for row in differences(a, b, selector):
        kernels.add_row(
            row["kernel_id"], f"{row['xnumel']} × {row['rnumel']}", f"{row['a']:.3f}", f"{row['b']:.3f}",
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


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _tiers(summary: Mapping[str, Any]) -> Sequence[str]:
    return [percent(summary[key]) for key in TIER_COLUMNS]


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
