"""A decision as a person sees it in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from .champions import Replaced
from .decision import Decision
from .tables import percent

LEGEND = (
    "pairs are challenger | champion; better, worse: kernels over 2 % faster or slower than the champion's; in one alone: "
    "kernels lossless with that one only, and p, how likely so uneven a split is between equals (McNemar)"
)


def checks_table(decision: Decision) -> Table:
    """One row a check: whether it passed, its limit, what was found."""
    against = decision.champion.onnx_sha256[:12]
    table = _table(
        f"Challenger {decision.challenger.onnx_sha256[:12]}… against " + (f"champion {against}…" if against else "none")
    )
    table.add_column("check", no_wrap=True)
    table.add_column("passed", no_wrap=True)
    table.add_column("limit", overflow="fold", ratio=2)
    table.add_column("found", overflow="fold", ratio=3)
    for check in decision.checks:
        style, passed = ("", "yes") if check.passed else ("bold red", "no")
        table.add_row(check.name, passed, escape(check.limit), escape(check.words), style=style)
    return table


def paired_table(decision: Decision) -> Table:
    """One row a selector: both models' shares on the same kernels, and on how many they differ."""
    table = _table(f"Paired by kernel: {decision.kernels} kernels")
    for name in ("selector", "≤ 5 %", "> 30 %", "worst", "better", "worse", "in one alone", "p"):
        table.add_column(name, justify="left" if name == "selector" else "right", no_wrap=True)
    for p in decision.paired:
        table.add_row(
            p.selector, " | ".join(map(percent, p.lossless)), " | ".join(map(percent, p.severe)),
            " | ".join(f"{worst:.2f}" for worst in p.worst), str(p.better), str(p.worse),
            f"{p.only_challenger} | {p.only_champion}", f"{p.p:.2g}",
        )  # fmt: skip
    return table


def former_table(folder: str, former: Sequence[Replaced]) -> Table:
    """One row a former champion, newest first."""
    table = _table(f"Former champions of {folder}")
    table.add_column("model", no_wrap=True)
    table.add_column("replaced (UTC)", no_wrap=True)
    table.add_column("kept in", overflow="fold")
    for one in former:
        table.add_row(one.onnx12, one.replaced, escape(str(one.folder)))
    return table


def _table(title: str) -> Table:
    return Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
