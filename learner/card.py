"""The model card: what a reader must know before trusting a model, from the same figures as the manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tileguard.runtime.manifest import Manifest

from .decision import Decision
from .regimes import TITLES

CARD_FILE = "card.md"

_PROMOTION = "## Promotion"

_TIERS = ("lossless", "loss_5_10", "loss_10_30", "severe")
_HEAD = "≤ 5 % | 5–10 % | 10–30 % | > 30 % | geomean | p95 | worst | tiles"


def model_card(manifest: Manifest) -> str:
    """Markdown: use, data, held-out quality by selector, regime and family, guard, limits."""
    held_out, of_cpu = manifest.metrics["held_out"], manifest.hardware.startswith("cpu-")
    words = _WORDS[manifest.family]
    lines = [
        f"# {manifest.family} ranker for {manifest.hardware}",
        "",
        f"LightGBM LambdaRank, {manifest.parameters['rounds']} trees of {manifest.parameters['num_leaves']} leaves, as "
        f"ONNX (ai.onnx.ml 5 TreeEnsemble, double; bit-equal to LightGBM). Made {manifest.created} by tileguard "
        f"{manifest.tileguard_version} with `{manifest.command}`, seed {manifest.seed}; "
        + ", ".join(f"{name} {version}" for name, version in manifest.libraries.items())
        + ".",
        "",
        f"**Use.** {words['use']} Alone it gives no guarantee.",
        "",
        "**Data.** " + "; ".join(f"`{name}` ({digest[:12]}…)" for name, digest in manifest.corpora.items()) + ": "
        f"{held_out['kernels']} kernels, {held_out['rows']} tiles, {held_out['families']} workload families.",
        "",
        (
            f"**Held out.** {held_out['folds']} folds by workload family (GroupKFold): every kernel is judged by a model "
            "that saw no kernel of its family. Slowdown is the best time in the set ÷ the dense best, from one run of the "
            "corpus; how far two runs lie apart, which bounds small k, is in corpora/README.md. Of a large lattice a sample "
            "may have been measured: the best is then the best of those."
        ),
        "",
        f"| selector | {_HEAD} |",
        "|---|" + "---|" * 8,
        *(_row(name, summary) for name, summary in held_out["selectors"].items()),
        "",
        f"Superset violations: {held_out['superset_violations']}. "
        + " ".join(
            f"{name} alone loses by over 2 % to the formula on {_percent(loses['formula'])} and to the host's default on "
            f"{_percent(loses['host_default'])} of kernels."
            if "host_default" in loses
            else f"{name} alone loses by over 2 % to the formula on {_percent(loses['formula'])} of kernels."
            for name, loses in held_out["model_loses"].items()
        ),
        "",
    ]
    lines += _by_calls(held_out.get("by_calls", {}))
    lines += _against(held_out.get("against", {}))
    for title, key in ((TITLES[manifest.family], "by_regime"), ("family, left out with its fold", "by_family")):
        lines += [f"| {title} (model@8) | kernels | {_HEAD} |", "|---|---|" + "---|" * 8]
        lines += [_row(name, s, str(s["kernels"])) for name, s in held_out[key].items()]
        lines.append("")
    lines += [
        "**Calibration.** Per k, on how many held-out kernels the k tiles alone lost over 5 %, and the share that holds "
        "with 95 % confidence for kernels of this kind: "
        + ", ".join(f"k={c['k']}: {c['misses']}/{c['kernels']}, {_percent(c['upper'])}" for c in manifest.calibration)
        + '. `top_k="calibrated"` takes the smallest k that keeps to a given share.',
        "",
        (
            "**Guard.** Listened to only on its hardware, with its feature schema and digest. For a kernel outside the "
            "trained range of a feature (by over a quarter of its width) its tiles are added, not trusted"
            + ("." if of_cpu else words["unsure"])
        ),
        "",
        (
            "**Limits.** One machine, synthetic operators; "
            + ("one thread. " if of_cpu else words["limits"])
            + "Kernels of published model collections were not used for training or tuning."
        ),
        "",
    ]
    return "\n".join(lines)


_WORDS: Mapping[str, Mapping[str, str]] = {
    "reduction": {
        "use": "Ranks the tiles of a reduction kernel inside `tileguard.runtime.Selector`, which unites its best k "
        "with the formula's and the compiler's own list.",
        "unsure": ": the formula then stands with every warp count beside them.",
        "limits": "num_stages is always 1. ",
    },
    "matmul": {
        "use": "Ranks the tiles of a matrix product inside `tileguard.runtime.matmul_selector.MatmulSelector`, which unites "
        "its best k with the planner's (`formula` below) and the compiler's own list.",
        "unsure": ".",
        "limits": "GROUP_M of a tile that it chooses is always 8. ",
    },
}  # fmt: skip
"""What a card says of a family alone."""


def _against(against: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Against what a host takes without us: the fastest of ATen's ways, and the least of that and of its own list."""
    if not against:
        return []
    return [
        "| other time ÷ best time in the set | other | kernels | geomean | p5 | over 2 % slower |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {other} | {found['kernels']:.0f} | {found['geomean']:.3f} | {found['p5']:.3f} | "
            f"{_percent(found['slower'])} |"
            for name, others in against.items()
            for other, found in others.items()
        ),
        "",
        (
            "aten: ATen's fastest way. host: the least of that and of the compiler's own list, as max-autotune picks, against "
            "a set with ATen beside it too."
        ),
        "",
    ]


def _by_calls(by_calls: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Held-out quality where compiling counts: least cost in the set ÷ least of all, by number of calls."""
    if not by_calls:
        return []
    shown = ("formula", "model@1", "model@4", "model@8", "union@8")
    return [
        f"| T_compile + N · T_run, N | selector | {_HEAD} |",
        "|---|---|" + "---|" * 8,
        *(
            _row(f"{float(calls):,.0f}", found["selectors"][name], name)
            for calls, found in by_calls.items()
            for name in shown
            if name in found["selectors"]
        ),
        "",
        "Superset violations over these: " + str(sum(f["superset_violations"] for f in by_calls.values())) + ".",
        "",
    ]


def with_promotion(card: str, decision: Decision) -> str:
    """The card with the gate's decision as its last section, in place of an earlier one."""
    head = card.partition(f"{_PROMOTION}\n")[0].rstrip()
    lines = [
        _PROMOTION, "",
        f"**{decision.verdict.capitalize()}** {decision.made[:10]} by `tileguard promote` of tileguard "
        f"{decision.tileguard_version}, against {_named(decision.champion.onnx_sha256)}, on {decision.held_out}"
        + ("." if decision.judged else "; an early check failed, the rest was not judged."),
        "",
        "| check | passed | limit | found |", "|---|---|---|---|",
        *(
            f"| {check.name} | {'yes' if check.passed else '**no**'} | {check.limit} | {_cell(check.words)} |"
            for check in decision.checks
        ),
        "",
    ]  # fmt: skip
    if decision.paired:
        lines += [
            "| paired by kernel | ≤ 5 % | champion | > 30 % | champion | better : equal : worse | lossless in one alone | p |",
            "|---|" + "---|" * 7,
            *(
                f"| {p.selector} | {_percent(p.lossless[0])} | {_percent(p.lossless[1])} | {_percent(p.severe[0])} | "
                f"{_percent(p.severe[1])} | {p.better} : {p.equal} : {p.worse} | {p.only_challenger} : "
                f"{p.only_champion} | {p.p:.2g} |"
                for p in decision.paired
            ),
            "",
            (
                "better, worse: over 2 % faster or slower than the champion. Lossless in one alone: this model : champion; "
                "p: exact McNemar."
            ),
            "",
        ]  # fmt: skip
    lines += [f"{_cell(note)}." for note in decision.notes] + ([""] if decision.notes else [])
    return "\n".join(([head, ""] if head else []) + lines)


def _named(onnx_sha256: str) -> str:
    return f"the champion {onnx_sha256[:12]}…" if onnx_sha256 else "no champion"


def _cell(text: str) -> str:
    """A text that may hold names from data, as part of one line of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _row(name: str, summary: Mapping[str, Any], *columns: str) -> str:
    shares = [_percent(summary[tier]) for tier in _TIERS]
    # A set without a measured tile has no time: infinite here, null in a manifest's JSON.
    figures = (summary[key] for key in ("geomean", "p95", "worst"))
    rest = ["none" if figure is None or math.isinf(figure) else f"{figure:.3f}" for figure in figures]
    return "| " + " | ".join([name, *columns, *shares, *rest, f"{summary['set_mean']:.1f}"]) + " |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
