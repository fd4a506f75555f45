"""Programs whose reductions TorchInductor is watched compiling on a GPU: an endless stream of families in turn.

None is a model's or has a model's sizes. A family is the unit of every split: its forward and backward, its layouts,
dtypes and looped variants stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any

import torch

from .families import (
    attention,
    gradients,
    losses,
    norms,
    pooling,
    statistics,
)
from .families.draws import MAX_ELEMENTS_LOG2, Case, Draw, Family
from .families.fusion import fused, turned

DEVICE = "cuda"
"""Where `Workload.run` builds its inputs."""

MAX_INPUT_BYTES = 1_500_000_000
FUSED_SHARE = 0.45
TURNED_SHARE = 0.1
LOOPED_SHARE = 0.25

FAMILIES: tuple[Family, ...] = (
    *norms.FAMILIES, *attention.FAMILIES, *losses.FAMILIES, *pooling.FAMILIES,
    *statistics.FAMILIES, *gradients.FAMILIES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """A program of a family under a name of its own. run: builds its inputs, compiles it, runs it once, frees all.

    Forward, and backward where an input wants a gradient. `run` raises what the compiler or the device raises.
    """

    family: str
    name: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A case, and whether its persistent reductions are compiled as loops."""

    case: Case
    looped: bool


def workloads(seed: int, *, max_log2: float = MAX_ELEMENTS_LOG2, min_log2: float = 0.0) -> Iterator[Workload]:
    """Workloads without end, one of every family and then the next of every family; the same for the same seed.

    max_log2: log2 of the most elements of a tensor. min_log2: of the fewest of what is reduced, where the family allows
    as many.
    """
    for turn in count():
        for family in FAMILIES:
            program = draw_program(family, seed, turn, max_log2=max_log2, min_log2=min_log2)
            yield Workload(family.__name__, _name(family, turn, program), partial(_run, program))


def draw_program(
    family: Family, seed: int, turn: int, *, max_log2: float = MAX_ELEMENTS_LOG2, min_log2: float = 0.0
) -> Program:
    """A family's program of one turn. Drawn again until no input has over 2^max_log2 elements, nor all too many bytes.

    No other family's draws bear on it.
    """
    random = Random(f"{seed}:{family.__name__}:{turn}")
    while True:
        draw = Draw(random, max_log2, min_log2)
        case = family(draw)
        if case.inputs[0].fill == "normal" and not case.bare:
            case = turned(case, draw) if draw.coin(TURNED_SHARE) else case
            case = fused(case, draw) if draw.coin(FUSED_SHARE) else case
        looped = draw.coin(LOOPED_SHARE)
        largest = max(one.elements for one in case.inputs)
        if largest <= 2 ** max(max_log2, 16.0) and sum(one.bytes for one in case.inputs) <= MAX_INPUT_BYTES:
            return Program(case, looped)


def _name(family: Family, turn: int, program: Program) -> str:
    first = program.case.inputs[0]
    parts = [family.__name__, str(turn), "x".join(map(str, first.shape)), str(first.dtype).removeprefix("torch.")]
    parts += ["backward"] * program.case.backward + ["looped"] * program.looped
    return ":".join(parts)


def _run(program: Program) -> None:
    # Programs share code objects, of which Dynamo compiles only so many variants before it runs one uncompiled.
    torch._dynamo.reset()
    try:
        _compile_and_call(program)
    finally:
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _compile_and_call(program: Program) -> None:
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    # From torch 2.13 on a configuration is a thread's own, and autograd's thread would compile a backward by another.
    with (
        inductor_config.patch({"triton.persistent_reductions": not program.looped}),
        functorch_config.patch(force_non_lazy_backward_lowering=True),
    ):
        inputs = [one.build(DEVICE) for one in program.case.inputs]
        outputs: Any = torch.compile(program.case.function, dynamic=False, fullgraph=True)(*inputs)
        found = [one for one in (outputs if isinstance(outputs, tuple) else (outputs,)) if one.requires_grad]
        if found:
            torch.autograd.backward(found, [torch.randn_like(one) for one in found])
