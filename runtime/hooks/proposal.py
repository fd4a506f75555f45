"""What the parent process says of a reduction that TorchInductor just generated: its description and a ranked list.

The list travels to the compile workers inside the kernel's own metadata, as a literal in its source text: a worker
needs neither a model nor onnxruntime, and every cache that is keyed by the source follows the list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..selector import CandidateSet
from .configs import Refused
from .payload import META_KEY, PAYLOAD_VERSION

_ANCHOR = "inductor_meta={"
_HINT = re.compile(r"\breduction_hint=([\w.]+),")

DETERMINISM_KEYS = (
    "deterministic", "batch_invariant", "are_deterministic_algorithms_enabled", "force_filter_reduction_configs",
)  # fmt: skip
"""Modes in which Inductor has filtered its list for the sake of equal results: a longer list would undo that."""


def check_eligible(heuristic: str, numels: Mapping[str, Any], triton_meta: Mapping[str, Any],
                   inductor_meta: Mapping[str, Any]) -> None:  # fmt: skip
    """Raise Refused for a kernel whose list must never be extended, with the reason that is counted."""
    if heuristic not in ("reduction", "persistent_reduction"):
        raise Refused(heuristic)
    if set(numels) != {"x", "r0_"}:
        raise Refused("tiling")
    if inductor_meta.get("num_reduction", 1) == 0:
        raise Refused("scan")  # the axis is there, but nothing is reduced over it
    if inductor_meta.get("profile_bandwidth"):
        raise Refused("profile_bandwidth")
    if triton_meta.get("native_matmul"):
        raise Refused("native_matmul")
    if "RSPLIT_SIZE" in inductor_meta:
        raise Refused("mix_order")
    if "strict_sum_rblock" in inductor_meta:
        raise Refused("strict_sum")
    if any(inductor_meta.get(key) for key in DETERMINISM_KEYS):
        raise Refused("deterministic")


def reduction_hint(source: str) -> str:
    """What Inductor wrote into the source; to work it out again takes longer. Raises Refused where it wrote none."""
    if (found := _HINT.search(source)) is None:
        raise Refused("source")
    return found[1]


def payload(chosen: CandidateSet, *, one_row: bool) -> dict[str, Any]:
    """What goes into `inductor_meta`: literals only, and nothing that differs between processes (no times).

    one_row: a program of this kernel covers just one output (Inductor's no_x_dim).
    """
    kernel = chosen.kernel
    return {
        "v": PAYLOAD_VERSION,
        "kernel": (kernel.xnumel, kernel.rnumel, kernel.dtype, kernel.persistent),
        "hardware": chosen.hardware,
        "verdict": (str(chosen.verdict.reason), chosen.verdict.detail),
        "tiles": [
            (c.tile.xblock, c.tile.r0_block, c.tile.num_warps, c.tile.num_stages, "+".join(c.proposers))
            for c in chosen.candidates
            if not one_row or c.tile.xblock == 1
        ],
    }


def insert_payload(source: str, data: dict[str, Any]) -> str:
    """The kernel's source text with the payload in its metadata. Raises Refused where that is not found once."""
    if source.count(_ANCHOR) != 1:
        raise Refused("source")
    return source.replace(_ANCHOR, f"{_ANCHOR}{META_KEY!r}: {data!r}, ")
