"""Workloads are the same for a seed, spread over what the device can do, and read from files with telling errors."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import host_cpu
from tileguard.features.pow2 import is_pow2
from tileguard.learner.workloads import (
    BENCH_KERNELS,
    OP_SETS,
    REPORT_KERNELS,
    Workload,
    cpu_workload,
    cpu_workloads,
    parse_workloads,
)
from tileguard.runtime.devices.cpu import CPU_DTYPES, OPS, PROGRAM_OPS, cpu_kernel
from tileguard.runtime.lattice import lattice

ENTRY = {"op": "sum", "xnumel": 3, "rnumel": 100, "dtype": "fp32", "inner": False}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_equal_seeds_give_equal_workloads_and_other_seeds_others() -> None:
    assert cpu_workloads(60, 1) == cpu_workloads(60, 1)
    assert set(cpu_workloads(60, 1)).isdisjoint(cpu_workloads(60, 2)[:20])


def test_these_are_the_workloads_of_seed_1() -> None:
    assert [one.workload for one in cpu_workloads(4, 1)] == [
        "sum:256x4765:fp64", "max:3x8949:fp16", "meanvar:29x512:fp64:outer", "rmsnorm:128x128:fp32:outer",
    ]  # fmt: skip


def test_a_smaller_count_is_the_beginning_of_a_larger_one() -> None:
    assert cpu_workloads(100, 3)[:37] == cpu_workloads(37, 3)


@pytest.mark.parametrize("seed", [0, 1, 2, 12345])
def test_drawn_workloads_cover_operations_dtypes_layouts_and_ragged_sizes(seed: int) -> None:
    workloads = cpu_workloads(720, seed)
    kernels = [one.kernel for one in workloads]
    assert len(set(kernels)) == len({one.workload for one in workloads}) == 720
    variants = Counter((k.op, k.dtype, k.inner) for k in kernels)
    assert set(variants.values()) == {10}
    assert len(variants) == len(OPS) * len(CPU_DTYPES) * 2
    # Of each operation, dtype and layout half: none is learned from powers of two alone.
    ragged = Counter((k.op, k.dtype, k.inner) for k in kernels if not (is_pow2(k.xnumel) and is_pow2(k.rnumel)))
    assert set(ragged.values()) == {5}
    assert set(ragged) == set(variants)
    sizes = [k.xnumel * k.rnumel for k in kernels]
    assert 2**10 < min(sizes) < 2**13 < 2**21 < max(sizes) < 2**24
    assert all(k.rnumel >= 4 and (k.inner or k.xnumel >= 4) for k in kernels)


@pytest.mark.parametrize("ops", [OP_SETS["programs"], OP_SETS["all"]])
def test_every_operation_is_drawn_ragged_and_not(ops: tuple[str, ...]) -> None:
    drawn = Counter(
        (one.kernel.op, is_pow2(one.kernel.xnumel) and is_pow2(one.kernel.rnumel))
        for one in cpu_workloads(16 * len(ops), 4, ops=ops)
    )
    assert drawn == Counter({(op, even): 8 for op in ops for even in (True, False)})


def test_more_kernels_than_a_range_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="count: 20000 is not allowed; expected fewer: no "):
        cpu_workloads(20_000, 0, min_log2=21.9)


def test_tile_programs_are_drawn_where_they_are_asked_for() -> None:
    drawn = cpu_workloads(16, 1, ops=tuple(PROGRAM_OPS))
    assert [one.kernel.op for one in drawn[:8]] == list(PROGRAM_OPS)
    assert not {one.kernel.op for one in cpu_workloads(90, 1)} & set(PROGRAM_OPS)


def test_a_program_is_of_the_family_of_what_it_computes() -> None:
    families = {one.kernel.op: one.family for one in cpu_workloads(17, 1, ops=OP_SETS["all"])}
    assert {op: family for op, family in families.items() if op in OPS} == {op: op for op in OPS}
    assert [families[op] for op in PROGRAM_OPS] == [
        "rmsnorm", "layernorm", "masked_softmax", "swiglu", "prefix", "normdot", "sum", "sum",
    ]  # fmt: skip


@pytest.mark.parametrize("least", [4.0, 7.0, 20.0])
def test_element_counts_begin_where_they_are_asked_to(least: float) -> None:
    sizes = [one.kernel.xnumel * one.kernel.rnumel for one in cpu_workloads(200, 2, min_log2=least)]
    assert 2 ** (least - 2) < min(sizes) < 2 ** (least + 2)
    with pytest.raises(InvalidInput, match="min_log2"):
        cpu_workloads(1, 0, min_log2=22.0)


def test_the_reports_kernels_are_its_seven_reductions_and_its_control() -> None:
    assert len({one.workload for one in REPORT_KERNELS}) == 8
    assert all(one.kernel.dtype == "fp32" and one.kernel.inner for one in REPORT_KERNELS)
    assert REPORT_KERNELS[-1].workload == "tile_swiglu:17x65:fp32"


def test_names_state_the_kernel_and_families_are_operations() -> None:
    for one in (*cpu_workloads(90, 5), *BENCH_KERNELS):
        op, shape, dtype, *outer = one.workload.split(":")
        xnumel, rnumel = map(int, shape.split("x"))
        assert outer in ([], ["outer"])
        assert one.kernel == cpu_kernel(op, xnumel, rnumel, dtype, inner=not outer)
        assert one.family == op == one.kernel.op


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_below_one_is_refused(count: Any) -> None:
    with pytest.raises(InvalidInput, match="count"):
        cpu_workloads(count, 0)


def test_the_benchmark_has_twelve_kernels_over_all_operations_dtypes_and_layouts() -> None:
    kernels = [one.kernel for one in BENCH_KERNELS]
    assert len(set(kernels)) == 12
    assert {k.op for k in kernels} == set(OPS)
    assert {k.dtype for k in kernels} == set(CPU_DTYPES)
    assert {k.inner for k in kernels} == {True, False}
    assert sum(not (is_pow2(k.xnumel) and is_pow2(k.rnumel)) for k in kernels) >= 6
    assert all(len(lattice(k, host_cpu())) > 10 for k in kernels)


def test_a_workload_needs_a_name_and_a_family() -> None:
    with pytest.raises(InvalidInput, match="family"):
        Workload(cpu_kernel("sum", 4, 4, "fp32"), "sum", "")


def test_a_file_is_read_in_order_and_inner_may_be_left_out(tmp_path: Path) -> None:
    short = {"op": "max", "xnumel": 1, "rnumel": 5, "dtype": "float64"}
    parsed = parse_workloads(write(tmp_path / "w.json", [ENTRY, short]))
    assert parsed == (cpu_workload("sum", 3, 100, "fp32", inner=False), cpu_workload("max", 1, 5, "fp64"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"op": "argmax"}, "op"),
        ({"op": None}, "op"),
        ({"xnumel": 0}, "xnumel"),
        ({"xnumel": "3"}, "xnumel"),
        ({"rnumel": 1.5}, "rnumel"),
        ({"rnumel": True}, "rnumel"),
        ({"rnumel": 2**63}, "rnumel"),
        ({"dtype": "i8"}, "dtype"),
        ({"dtype": 4}, "dtype"),
        ({"inner": 1}, "inner"),
        ({"shape": 1}, "shape"),
    ],
)
def test_a_wrong_value_is_named_by_entry_and_field(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    path = write(tmp_path / "w.json", [ENTRY, {**ENTRY, "xnumel": 4, **changes}])
    with pytest.raises(InvalidInput) as caught:
        parse_workloads(path)
    assert caught.value.field == f"workloads[1].{field}"


@pytest.mark.parametrize("field", ["op", "xnumel", "rnumel", "dtype"])
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    path = write(tmp_path / "w.json", [{name: value for name, value in ENTRY.items() if name != field}])
    with pytest.raises(InvalidInput, match=rf"workloads\[0\]\.{field}.*missing"):
        parse_workloads(path)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "3", "null"])
def test_a_file_without_a_list_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidInput, match=r"w\.json"):
        parse_workloads(write(tmp_path / "w.json", content))


def test_an_entry_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"workloads\[1\]"):
        parse_workloads(write(tmp_path / "w.json", [ENTRY, "sum"]))


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.json"):
        parse_workloads(tmp_path / "absent.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"b\.json"):
        parse_workloads(tmp_path / "b.json")


def test_the_same_workload_twice_is_refused(tmp_path: Path) -> None:
    alias = {**ENTRY, "dtype": "f32"}
    with pytest.raises(InvalidInput, match=r"workloads\[1\]"):
        parse_workloads(write(tmp_path / "w.json", [ENTRY, alias]))
