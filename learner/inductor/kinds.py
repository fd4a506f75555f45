"""The families of kernels that the collector knows: how each is captured, planned, and read from a line again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec

from .capture import Capture, CapturedKernel, Named, capturer, load_workloads
from .matmul_capture import matmul_capturer
from .matmul_kernel import TEMPLATE, CapturedMatmul
from .matmul_plan import plan_matmul
from .matmul_problems import problems
from .plan import MODEL_SHARE, Plan, plan_tiles
from .sweep import Load

if TYPE_CHECKING:
    from .collect import Settings

SCORE_BUDGET_S = 5.0
"""For the model, in place of a compiler's patience: every core is busy."""

MATMUL_CAPTURERS = 4
"""Processes that capture products: each takes longer to begin than tens of products take."""


@dataclass(frozen=True, slots=True)
class Kind:
    """workloads: what to capture from; capturer: as `capture_workloads` takes it, in `capturers` processes at most;
    load: from a line of a raw sweep; planner: what plans a kernel's tiles."""

    workloads: Callable[[Settings], Sequence[Named]]
    capturer: Callable[[Sequence[Any]], Callable[[int], Capture]]
    capturers: int | None
    load: Load
    planner: Callable[[Settings, HardwareSpec], Callable[[Any], Plan]]


def _reduction_workloads(settings: Settings) -> Sequence[Named]:
    return load_workloads(
        settings.workloads, seed=settings.seed, most=settings.programs, min_log2=settings.min_log2
    )  # fmt: skip


def _reduction_planner(settings: Settings, hardware: HardwareSpec) -> Callable[[CapturedKernel], Plan]:
    from tileguard.runtime.guard import GuardPolicy
    from tileguard.runtime.selector import Selector

    selector = Selector(
        hardware, model=settings.model, top_k=max(1, (settings.tiles or MODEL_SHARE) // MODEL_SHARE),
        policy=GuardPolicy(score_budget_s=SCORE_BUDGET_S, load_budget_s=SCORE_BUDGET_S),
    )  # fmt: skip

    def plan(kernel: CapturedKernel) -> Plan:
        return plan_tiles(kernel, selector, most=settings.tiles, stages=settings.stages, seed=settings.seed)

    return plan


def _matmul_workloads(settings: Settings) -> Sequence[Named]:
    """One product a workload: as many as kernels are wanted."""
    return list(itertools.islice(problems(settings.seed), settings.count or settings.programs))


def _matmul_planner(settings: Settings, hardware: HardwareSpec) -> Callable[[CapturedMatmul], Plan]:
    def plan(kernel: CapturedMatmul) -> Plan:
        return plan_matmul(kernel, hardware, most=settings.tiles, seed=settings.seed)

    return plan


KINDS = {
    "reduction": Kind(_reduction_workloads, capturer, None, CapturedKernel.from_json, _reduction_planner),
    "matmul": Kind(_matmul_workloads, matmul_capturer, MATMUL_CAPTURERS, CapturedMatmul.from_json, _matmul_planner),
}


def kind_of(record: dict[str, Any]) -> Kind:
    """Of a raw sweep's line."""
    return KINDS["matmul" if record.get("heuristic") == TEMPLATE else "reduction"]


def check_same_kind(records: Sequence[dict[str, Any]], kind: Kind, where: object) -> None:
    """Raises InvalidInput where a line is of another family."""
    if any(kind_of(record) is not kind for record in records):
        raise InvalidInput("out", str(where), "a sweep of the same family of kernels; collect into another file")
