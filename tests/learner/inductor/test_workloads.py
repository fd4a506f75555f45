"""The stream of programs is the same for a seed, balanced over its families, and computes finite numbers in eager."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tileguard.features.pow2 import is_pow2
from tileguard.learner.inductor import workloads as inductor_workloads
from tileguard.learner.inductor.families.draws import CHANNELS_LAST, LINES, MIN_REDUCED_LOG2, PLANES, Case, Draw, Input
from tileguard.learner.inductor.families.fusion import fused, turned
from tileguard.learner.inductor.workloads import (
    FAMILIES,
    MAX_INPUT_BYTES,
    Program,
    Workload,
    draw_program,
    workloads,
)

TINY_LOG2 = 9.0
TURNS = 8
"""Programs of each family that are run in eager."""


def prefix(seed: int, count: int, **options: float) -> list[Workload]:
    return list(islice(workloads(seed, **options), count))


def call(program: Program) -> tuple[tuple[Any, ...], list[Any]]:
    """The outputs in eager on the CPU, and the gradients that came."""
    torch.manual_seed(0)
    inputs = [one.build("cpu") for one in program.case.inputs]
    outputs = program.case.function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [one for one in outputs if one.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.ones_like(one) for one in wanted])
    return outputs, [one.grad for one in inputs if one.grad is not None]


def all_finite(tensors: Any) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in tensors if one.is_floating_point())


def test_there_are_forty_eight_families_and_more_each_under_its_own_name() -> None:
    assert len({family.__name__ for family in FAMILIES}) == len(FAMILIES) >= 48


def test_names_are_distinct_and_the_same_for_a_seed() -> None:
    count = 3 * len(FAMILIES)
    names = [one.name for one in prefix(7, count)]
    assert len(set(names)) == count
    assert names == [one.name for one in prefix(7, count)]
    assert set(names).isdisjoint(one.name for one in prefix(8, 10))
    assert all(one.name.startswith(f"{one.family}:") for one in prefix(7, count))


def test_a_program_is_the_same_whatever_was_drawn_before() -> None:
    family = FAMILIES[-1]
    one, two = draw_program(family, 3, 5), draw_program(family, 3, 5)
    assert one.case.inputs == two.case.inputs
    assert one.looped == two.looped


@pytest.mark.parametrize("count", [1, 50, 700])
def test_every_prefix_is_balanced(count: int) -> None:
    seen = Counter(one.family for one in prefix(0, count))
    assert max(seen.values()) - min(seen.get(family.__name__, 0) for family in FAMILIES) <= 1


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_family_gives_finite_numbers(family: Any) -> None:
    for turn in range(TURNS):
        program = draw_program(family, 0, turn, max_log2=TINY_LOG2)
        outputs, gradients = call(program)
        assert outputs
        assert all_finite(outputs), turn
        assert all_finite(gradients), turn


def test_every_second_product_of_axes_is_no_power_of_two_and_sizes_are_spread() -> None:
    draw = Draw(Random(0))
    kept, gone = [], []
    for _ in range(3000):
        shape, dims = draw.layout(*PLANES[:-1])
        gone.append(math.prod(size for axis, size in enumerate(shape) if axis in dims))
        kept.append(math.prod(shape) // gone[-1])
    for sizes in (kept, gone):
        assert 0.42 < sum(not is_pow2(size) for size in sizes) / len(sizes) < 0.58
        assert sum(size > 2**14 for size in sizes) > 100
    assert min(kept) == 1
    assert max(kept) > 2**21
    assert max(gone) > 2**21
    assert max(x * r for x, r in zip(kept, gone, strict=True)) <= 2**26


def test_a_size_is_ragged_every_second_time_and_then_odd_or_a_multiple_of_eight() -> None:
    draw = Draw(Random(1))
    sizes = [draw.size(3, 12) for _ in range(2000)]
    ragged = [size for size in sizes if not is_pow2(size)]
    assert 0.45 < len(ragged) / 2000 < 0.55
    assert 0.2 < sum(size % 2 for size in ragged) / len(ragged) < 0.5
    assert 0.4 < sum(size % 8 == 0 for size in ragged) / len(ragged) < 0.65
    assert max(sizes) <= 2**12 + 8


def test_a_layout_keeps_to_its_pattern_and_ranges() -> None:
    draw = Draw(Random(2))
    for _ in range(300):
        shape, dims = draw.layout("xrx", outer=(4, 10), reduced=(5, 8))
        assert dims == (1,)
        assert 2**4 / 2 <= shape[0] * shape[2] <= 2**10 * 2
        assert 2**5 / 2 <= shape[1] <= 2**8 * 2
    assert all(math.prod(draw.layout("r")[0]) >= 2**MIN_REDUCED_LOG2 / 2 for _ in range(100))
    assert {len(draw.layout(*LINES)[1]) for _ in range(50)} == {1}


def test_inputs_are_bounded_and_of_many_dtypes_and_a_quarter_is_looped() -> None:
    programs = [draw_program(family, 0, turn) for turn in range(6) for family in FAMILIES]
    inputs = [one for program in programs for one in program.case.inputs]
    assert max(one.elements for one in inputs) <= 2**26
    assert max(sum(one.bytes for one in program.case.inputs) for program in programs) <= MAX_INPUT_BYTES
    assert {str(one.dtype).removeprefix("torch.") for one in inputs} >= {
        "float32", "bfloat16", "float16", "float64", "bool", "uint8", "int8", "int32", "int64",
    }  # fmt: skip
    assert 0.2 < sum(program.looped for program in programs) / len(programs) < 0.3
    assert 0.25 < sum(program.case.backward for program in programs) / len(programs) < 0.6
    assert max(len(program.case.inputs) for program in programs) >= 10


@pytest.mark.parametrize("shape", [(7,), (3, 8), (2, 3, 9), (2, 4, 3, 5)])
def test_what_is_fused_keeps_the_first_inputs_shape_and_dtype(shape: tuple[int, ...]) -> None:
    seen: list[Any] = []
    reduce = watched(seen)
    extra = set()
    for seed in range(60):
        draw = Draw(Random(seed))
        case = fused(turned(Case(reduce, (draw.real(*shape),)), draw), draw)
        outputs, gradients = call(Program(case, looped=False))
        assert all_finite([*outputs, *gradients])
        assert seen[-1].shape == shape
        assert seen[-1].dtype == draw.dtype
        extra |= {one.dtype for one in case.inputs[1:]}
    assert {torch.bool, torch.uint8, torch.int8, torch.float32, torch.bfloat16} <= extra


def watched(seen: list[Any]) -> Callable[[Any], Any]:
    def reduce(x: Any) -> Any:
        seen.append(x)
        return x - x.mean()

    return reduce


def test_an_input_lies_in_memory_in_its_order() -> None:
    assert Input((2, 3, 4, 5), torch.float32, order=CHANNELS_LAST).build("cpu").stride() == (60, 1, 15, 3)
    assert Input((2, 3, 4), torch.int64, "integer", 5).build("cpu").stride() == (12, 4, 1)


@pytest.mark.parametrize(
    ("changes", "telling"),
    [
        ({"fill": "zeros"}, "fill"),
        ({"dtype": torch.bool, "fill": "mask", "grad": True}, "gradient"),
        ({"order": (0, 0)}, "order"),
        ({"order": (0, 1, 2)}, "order"),
    ],
)
def test_a_wrong_input_is_refused(changes: dict[str, Any], telling: str) -> None:
    with pytest.raises(ValueError, match=telling):
        Input(**({"shape": (2, 3), "dtype": torch.float32} | changes))


def test_a_run_compiles_forward_and_backward_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    calls: list[tuple[str, bool]] = []

    def compile_(function: Any, **options: Any) -> Any:
        assert options == {"dynamic": False, "fullgraph": True}

        def run(*inputs: Any) -> Any:
            calls.append(("forward", config.triton.persistent_reductions))
            inputs[0].register_hook(lambda gradient: calls.append(("backward", gradient.shape == (3, 40))))
            return function(*inputs)

        return run

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(inductor_workloads, "DEVICE", "cpu")
    before = config.triton.persistent_reductions
    case = Case(lambda x: (x.softmax(-1), x.argmax(-1)), (Input((3, 40), torch.float32, grad=True),))
    inductor_workloads._run(Program(case, looped=True))
    assert calls == [("forward", False), ("backward", True)]
    assert config.triton.persistent_reductions == before
