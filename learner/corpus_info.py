"""What is in a corpus, for people and for `--json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from tileguard.features.anchor import regime

from .corpus import Corpus, KernelSweep, matmul_sweeps, read_corpus


def corpus_facts(paths: Sequence[Path], *, hardware: str | None) -> list[dict[str, Any]]:
    """One object a corpus: size, digest, hardware, families, statuses, spread of worst over best tile."""
    return [_facts(path, hardware) for path in paths]


def corpus_table(facts: dict[str, Any]) -> Table:
    """The facts of one corpus, families last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.title, table.title_justify = escape(facts["path"]), "left"
    table.add_column("fact", overflow="fold")
    table.add_column("value", overflow="fold")
    spread = facts["spread"]
    rows = {
        "kernels": f"{facts['kernels']} in {len(facts['families'])} families",
        "tiles": f"{facts['tiles']}, {facts['tiles'] / facts['kernels']:.1f} a kernel",
        "hardware": ", ".join(facts["hardware"]),
        "digest": facts["digest"],
        "status": _counts(facts["statuses"]),
        **{_TITLES[name]: _counts(facts[name]) for name in _TITLES if name in facts},
        "dtypes": _counts(facts["dtypes"]),
        "worst ÷ best tile": f"median {spread['median']:.1f}, p95 {spread['p95']:.0f}, most {spread['max']:.0f}",
        "best tile": f"{facts['best_us']['min']:.2f} to {facts['best_us']['max']:.0f} µs",
        "compile": f"median {facts['compile_ms_median']:.0f} ms a tile",
        "families": _counts(facts["families"]),
    }
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def _facts(path: Path, hardware: str | None) -> dict[str, Any]:
    corpus = read_corpus(path, hardware=hardware)
    sweeps = corpus.sweeps
    spread = np.array([_spread(sweep) for sweep in sweeps])
    best = [sweep.best_us for sweep in sweeps]
    return {
        "path": str(path),
        "digest": corpus.digest,
        "kernels": len(sweeps),
        "tiles": corpus.n_rows,
        "hardware": sorted({sweep.hardware for sweep in sweeps}),
        "families": _sorted(Counter(corpus.families)),
        **_of_family(corpus),
        "dtypes": _sorted(Counter(sweep.kernel.dtype for sweep in sweeps)),
        "statuses": _sorted(Counter(status for sweep in sweeps for status in sweep.status)),
        "spread": {
            "median": float(np.median(spread)), "p95": float(np.percentile(spread, 95)), "max": float(spread.max())
        },
        "best_us": {"min": min(best), "max": max(best)},
        "compile_ms_median": float(np.nanmedian(np.concatenate([sweep.compile_ms for sweep in sweeps]))),
    }  # fmt: skip


_TITLES = {"regimes": "regimes of rnumel", "ops": "operations", "beaten": "ATen against the best tile"}


def _of_family(corpus: Corpus) -> dict[str, Any]:
    """What is worth counting of reductions, and of matmuls."""
    if corpus.schema.family != "matmul":
        return {"regimes": _sorted(Counter(regime(sweep.kernel.rnumel) for sweep in corpus.sweeps))}
    sweeps = matmul_sweeps(corpus)
    aten = [(sweep.extra["aten_us"], sweep.best_us) for sweep in sweeps if sweep.extra["aten_us"] is not None]
    return {
        "ops": _sorted(Counter(sweep.extra["op"] for sweep in sweeps)),
        "beaten": _sorted(Counter("slower" if us > best else "as fast or faster" for us, best in aten)),
    }


def _spread(sweep: KernelSweep) -> float:
    return float(np.nanmax(sweep.us) / sweep.best_us)


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
