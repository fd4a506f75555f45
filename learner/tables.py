"""What a person sees in the terminal: rich tables of evaluations, comparisons and recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from tileguard.runtime.guard import Reason

from .compare import REGIMES, Column
from .corpus_schema import REDUCTION
from .evaluate import Evaluation, by_regime
from .regimes import TITLES

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
    "hold the fastest tile, or one within a factor of two of it; tiles: the whole set, measured: those of it in the sweep; "
    "inf: no tile of some kernel's set was measured"
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
        if not evaluation.verdicts.keys() <= {Reason.TRUST, Reason.OUT_OF_RANGE}:
            notes.append(
                "where the guard did not ask the model, union@k holds none of the tiles that model@k is judged by"
            )
    for name, loses in evaluation.to_json()["model_loses"].items():
        against = ", ".join(f"{other} on {percent(share)}" for other, share in loses.items())
        notes.append(f"{name} alone is over 2 % slower than {against} of kernels")
    for name, others in evaluation.against().items():
        if name == "host_default" or name.startswith("union@"):
            notes += [f"{name} against {other}: {_against(found)}" for other, found in others.items()]
    return [*notes, LEGEND]


def _against(found: Mapping[str, float]) -> str:
    return (
        f"{found['geomean']:.3f}x as fast (geomean of {found['kernels']:.0f} kernels), p5 {found['p5']:.3f}, over 2 % slower "
        f"on {percent(found['slower'])}"
    )


def compare_tables(
    a: Evaluation, b: Evaluation, models: tuple[str, str], selector: str, *, width: int = WIDE
) -> list[Table]:
    """Two evaluations of one corpus side by side: by tier, by regime, and the kernels where they differ most. The
    first table says which models A and B are."""
    devices = ", ".join(sorted({sweep.hardware for sweep in a.corpus.sweeps}))
    tiers = _table(f"{selector} on {devices}: by tier")
    tiers.add_column("measure", overflow="fold")
    names = ("A", "B")
    for name, model in zip(names, models, strict=True):
        tiers.add_column(f"{name} {escape(model)}", justify="right", overflow="fold", min_width=FIGURE)
    one, other = a.summary(selector), b.summary(selector)
    for key, label in zip(TIER_COLUMNS, TIER_TITLES, strict=True):
        tiers.add_row(label, percent(one[key]), percent(other[key]))
    for key in ("geomean", "p95", "worst", "time_weighted", "n_pred_mean", "set_mean"):
        tiers.add_row(key, f"{one[key]:.3f}", f"{other[key]:.3f}")

    regimes = _table(f"{selector}: by {TITLES[a.corpus.family]}")
    measures = {"≤ 5 %": "lossless"} if width < NARROW else {"≤ 5 %": "lossless", "> 30 %": "severe"}
    for name in ("regime", "kernels", *(f"{name} {what}" for name in names for what in measures)):
        regimes.add_column(name, justify="left" if name == "regime" else "right", no_wrap=True)
    other_regimes = by_regime(b, selector)
    for name, s in by_regime(a, selector).items():
        o = other_regimes[name]
        shares = [percent(side[key]) for side in (s, o) for key in measures.values()]
        regimes.add_row(name, str(s["kernels"]), *shares)

    kernels = _table(f"{selector}: kernels where they differ most")
    sizes = a.corpus.schema.sizes
    size = "x × r" if sizes == REDUCTION.sizes else " × ".join(sizes)
    for name in ("kernel", size, *names, "ratio"):
        words = name in ("kernel", size)
        kernels.add_column(name, justify="left" if name == "kernel" else "right", overflow="fold", no_wrap=not words)
    for row in differences(a, b, selector):
        kernels.add_row(
            escape(row["kernel_id"]), " × ".join(str(row[name]) for name in sizes), f"{row['a']:.3f}", f"{row['b']:.3f}",
            f"{row['ratio']:.3f}",
        )  # fmt: skip
    return [tiers, regimes, kernels]


def side_tables(columns: Sequence[Column], k: int, *, width: int = WIDE) -> list[Table]:
    """Any number of columns side by side: what each is, tiers and tiles, regimes, curve. What does not fit beside each
    other stands below."""
    most = max(1, (width - LABEL) // (FIGURE + 6))
    return [
        table
        for start in range(0, len(columns), most)
        for table in _side_tables(columns[start : start + most], k)
    ]  # fmt: skip


def _side_tables(columns: Sequence[Column], k: int) -> list[Table]:
    union = f"union@{k}"

    def of(selector: str | None, key: str, form: Callable[[float], str]) -> list[str]:
        """One cell a column; selector None is the column's own."""
        return [_known(column.value(selector or column.selector(k), key), form) for column in columns]

    facts = _side_table("side by side", columns)
    facts.add_row("kind", *(column.kind for column in columns))
    facts.add_row("device", *(escape(column.hardware) for column in columns))
    facts.add_row("kernels", *(_known(column.totals.get("kernels"), _whole) for column in columns))
    facts.add_row("families", *(_known(column.totals.get("families"), _whole) for column in columns))
    facts.add_row("set", *(column.selector(k) for column in columns), style="bold")
    for key, label in zip(TIER_COLUMNS, TIER_TITLES, strict=True):
        facts.add_row(label, *of(None, key, percent))
    for key in ("geomean", "p95", "worst", "time_weighted"):
        facts.add_row(key, *of(None, key, _ratio))
    for key, label in (("n_pred_mean", "measured"), ("set_mean", "tiles"), ("set_p95", "p95 tiles")):
        facts.add_row(label, *of(None, key, _tenth))
    for other in ("formula", "host_default"):
        facts.add_row(f"loses to {other}", *of(None, f"loses_to_{other}", percent))
    for key, label, form in (
        ("lossless", "≤ 5 %", percent),
        ("severe", "> 30 %", percent),
        ("set_mean", "tiles", _tenth),
    ):
        facts.add_row(f"{union} {label}", *of(union, key, form))
    for baseline in ("formula", "host_default"):
        facts.add_row(f"{baseline} ≤ 5 %", *of(baseline, "lossless", percent), style="dim")

    regimes = _side_table("by regime", columns)
    for regime in REGIMES:
        if any(regime in column.regime_kernels for column in columns):
            regimes.add_row(
                f"{regime}: kernels", *(_known(column.regime_kernels.get(regime), _whole) for column in columns)
            )
            for key, label in (("lossless", "≤ 5 %"), ("severe", "> 30 %")):
                regimes.add_row(f"{regime}: {label}", *of(None, f"{regime}/{key}", percent))

    curve = curve_table(columns, title="by number of tiles compiled: ≤ 5 % / > 30 %")
    return [facts, *(table for table in (regimes, curve) if table.row_count)]


def curve_table(columns: Sequence[Column], *, title: str) -> Table:
    """One row a k: shares of kernels up to 5 % and over 30 % behind the dense best."""
    table = _side_table(title, columns)
    for step in sorted({step for column in columns for step in column.curve}):
        points = [column.curve.get(step, {}) for column in columns]
        table.add_row(
            f"k = {step}",
            *(f"{_known(point.get('lossless'), percent)} / {_known(point.get('severe'), percent)}" for point in points),
        )
    return table


def runs_table(rows: Sequence[dict[str, Any]], *, title: str, width: int = WIDE) -> Table:
    """Recorded runs as `list_runs` gives them: what each is about, its tiers and tiles, the union at k=8."""
    model, union, about = "model_at_8", "union_at_8", "judged"
    measures: dict[str, tuple[str, str, Callable[[float], str]]] = {
        "kernels": ("", "kernels", _whole),
        "m@8 ≤ 5 %": (model, "/lossless", percent), "m@8 > 30 %": (model, "/severe", percent),
        "u@8 ≤ 5 %": (union, "/lossless", percent), "u@8 tiles": (union, "/set_mean", _tenth),
        "set ≤ 5 %": (about, "/lossless", percent), "set > 30 %": (about, "/severe", percent),
        "set tiles": (about, "/set_mean", _tenth),
    }  # fmt: skip
    words = {"kind": "kind", "name": "name", "device": "hardware", "status": "status"}
    if width < WIDE:
        kept = ("m@8 ≤ 5 %",) if width < NARROW else ("kernels", "m@8 ≤ 5 %", "m@8 > 30 %", "u@8 ≤ 5 %")
        measures = {label: entry for label, entry in measures.items() if label in kept}
        words = {label: key for label, key in words.items() if label in ("kind", "name", "device")}
    table = _table(title)
    for label in ("run", *words):
        table.add_column(label, overflow="fold", no_wrap=label == "run")
    for label in measures:
        table.add_column(label, justify="right", overflow="fold")
    for row in rows:
        # Runs of before 0.2 are all about model@8, and do not say so.
        old = {about: model} if row["judged"] is None else {}
        cells = [
            _known(row["metrics"].get(old.get(selector, selector) + key), form)
            for selector, key, form in measures.values()
        ]
        table.add_row(row["run_id"][:8], *(escape(str(row[key] or UNKNOWN)) for key in words.values()), *cells)
    return table


def _side_table(title: str, columns: Sequence[Column]) -> Table:
    table = _table(title)
    table.add_column("", overflow="fold")
    for column in columns:
        table.add_column(escape(column.name), justify="right", overflow="fold", min_width=FIGURE)
    return table


def _known(value: float | None, form: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else form(value)


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _tenth(value: float) -> str:
    return f"{value:.1f}"


def differences(a: Evaluation, b: Evaluation, selector: str, *, most: int = 10) -> list[dict[str, Any]]:
    """The kernels whose slowdowns differ most between two evaluations, largest ratio first; equal ones are left out."""
    one, other = a.slowdown(selector), b.slowdown(selector)
    order = sorted(range(len(one)), key=lambda i: -max(one[i] / other[i], other[i] / one[i]))
    sweeps, sizes = a.corpus.sweeps, a.corpus.schema.sizes
    return [
        {
            "kernel_id": sweeps[i].kernel_id, **{name: getattr(sweeps[i].kernel, name) for name in sizes},
            "a": float(one[i]), "b": float(other[i]), "ratio": float(one[i] / other[i]),
        }
        for i in order[:most]
        if one[i] != other[i]
    ]  # fmt: skip


FIGURE = len("100.0 %")
"""Columns that a figure needs, whatever its heading."""
LABEL = len("loses to host_default ")
"""Columns of a measure's name beside any number of figures."""
UNKNOWN = "–"
"""In place of what was not recorded."""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(title: str) -> Table:
    return Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
