"""What is read from a generated kernel's source, against what its index expressions do when they are carried out."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import codes

from tileguard.features.access import CODE_FEATURES, assumed_code, code_columns
from tileguard.features.code import Access, KernelCode, read_triton
from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import ReductionKernel

LOOPED = """
def triton_red_fused_add_sum_0(in_ptr0, in_ptr1, in_ptr2, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK, R0_BLOCK):
    xnumel = 161792
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    x0 = (xindex % 8)
    x1 = ((xindex // 8) % 79)
    x2 = xindex // 632
    _tmp11 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    x4 = xindex
    tmp1 = tl.load(in_ptr2 + (x4), xmask, eviction_policy='evict_last')
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        r0_3 = r0_index
        tmp3 = tl.load(in_ptr0 + (x0 + 8*r0_3 + 1024*x1 + 80384*x2), r0_mask & xmask, other=0.0).to(tl.float32)
        tmp4 = tl.load(in_ptr1 + (x0 + 8*r0_3 + 1024*x1 + 80384*x2), r0_mask & xmask, other=0.0).to(tl.float32)
        tmp5 = tl.sigmoid(tmp3)
        tmp6 = tmp5 * tmp4
        tmp7 = tl.load(in_ptr0 + (tmp6 + 4*r0_3), r0_mask, other=0.0)
        tmp10 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
        tmp12 = _tmp11 + tmp10
        _tmp11 = tl.where(r0_mask & xmask, tmp12, _tmp11)
    tmp11 = tl.sum(_tmp11, 1)[:, None]
    tl.store(out_ptr0 + (x4), tmp11, xmask)
    tl.store(out_ptr1 + (tl.broadcast_to(x4, [XBLOCK, 1])), tmp11, xmask)
"""
BYTES = {"in_ptr0": 4, "in_ptr1": 4, "in_ptr2": 2, "out_ptr0": 4, "out_ptr1": 4}


def test_a_looped_kernel_is_read_as_a_reader_would() -> None:
    code = read_triton(LOOPED, BYTES, 161792, 128)
    strided = Access(False, 4, True, True, 1, 8, 8, 128, 8, count=2, buffers=2)
    gathered = Access(False, 4, True, True, 0, 0, 1, 1, 1, indirect=True)
    row = Access(False, 2, True, False, 1, 0, 161792, 128, 16)
    outputs = Access(True, 4, True, False, 1, 0, 161792, 128, 16, count=2, buffers=2)
    assert set(code.accesses) == {strided, gathered, row, outputs}
    assert (code.loops, code.accumulators, code.special, code.reductions) == (1, 1, 1, 1)
    assert code.arithmetic == 3  # a product, a sum, a select


@pytest.mark.parametrize(
    ("expression", "step_x", "step_r", "run_x", "run_r", "align"),
    [
        ("r0_1 + 272*x0", 272, 1, 1000, 272, 16),
        ("x0 + 1000*r0_1", 1, 1000, 1000, 272, 8),
        ("40 + r0_1 + 80*x0", 80, 1, 1000, 272, 8),
        ("x0", 1, 0, 1000, 272, 16),
        ("0", 0, 0, 1000, 272, 16),
        ("tl.full([1, 1], 0, tl.int32).broadcast_to(XBLOCK, 1)", 0, 0, 1000, 272, 16),
        ("tl.broadcast_to(3*x0, [XBLOCK, R0_BLOCK])", 3, 0, 1000, 272, 1),
        ("272*x0 + (r0_1 // 8)", 272, 0, 1000, 8, 1),
        ("((r0_1 + 272*x0) % 1088)", 272, 1, 4, 272, 16),
        ("r0_1 + ks0*x0", 1024, 1, 1000, 272, 16),
        ("(-1) + r0_1 + 272*x0", 272, 1, 1000, 272, 1),
        ("triton_helpers.div_floor_integer(r0_1,  4) + 68*x0", 68, 0, 1000, 4, 1),
    ],
)
def test_index_expressions(expression: str, step_x: int, step_r: int, run_x: int, run_r: int, align: int) -> None:
    source = f"x0 = xindex\nr0_1 = r0_index\ntmp0 = tl.load(in_ptr0 + ({expression}), None)"
    (found,) = read_triton(source, {"in_ptr0": 4}, 1000, 272).accesses
    assert (found.step_x, found.step_r, found.run_x, found.run_r, found.align) == (step_x, step_r, run_x, run_r, align)
    assert not found.indirect


@pytest.mark.parametrize(
    "expression",
    ["tmp3", "x0 + tmp2", "x9", "x0 // 0", "x0 %", "__import__('os').getcwd()", "f(x0)", "x0.real", "1.5*x0"],
)
def test_what_is_no_sum_of_indices_is_indirect_and_never_carried_out(expression: str) -> None:
    source = f"x0 = xindex\ntmp0 = tl.load(in_ptr0 + ({expression}), None)"
    (found,) = read_triton(source, {"in_ptr0": 4}, 64, 64).accesses
    assert found.indirect


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), xnumel=st.integers(2, 5000), rnumel=st.integers(2, 5000))
def test_steps_and_dependence_are_those_of_the_expression(seed: int, xnumel: int, rnumel: int) -> None:
    draw = random.Random(seed)
    inner, outer = draw.randint(1, 64), draw.randint(1, 64)
    weights = [draw.choice([0, 1, 2, draw.randint(1, 4096)]) for _ in range(4)]
    names = ["x0", "x1", "r0_2", "r0_3"]
    terms = [f"{w}*{n}" if w > 1 else n for w, n in zip(weights, names, strict=True) if w]
    source = (
        f"x0 = (xindex % {inner})\nx1 = xindex // {inner}\nr0_2 = (r0_index % {outer})\nr0_3 = r0_index // {outer}\n"
        f"tmp0 = tl.load(in_ptr0 + ({' + '.join(terms) or '0'}), None)"
    )

    def index(x: int, r: int) -> int:
        values = (x % inner, x // inner, r % outer, r // outer)
        return sum(w * v for w, v in zip(weights, values, strict=True))

    (found,) = read_triton(source, {"in_ptr0": 4}, xnumel, rnumel).accesses
    assert found.step_x == index(1, 0)
    assert found.step_r == index(0, 1)
    assert found.along_x == any(index(x, 0) for x in range(xnumel) if x < 16384)
    assert found.along_r == any(index(0, r) for r in range(rnumel) if r < 16384)
    whole = [x for x in range(1, min(xnumel, 16384)) if index(x, 0) != x * found.step_x]
    if whole:  # found at the next probed distance, half as far again at most
        assert whole[0] <= found.run_x <= xnumel
        assert found.run_x < 2 * whole[0] or found.run_x == xnumel
    else:
        assert found.run_x == xnumel


@given(codes())
def test_json_gives_the_code_back(code: KernelCode) -> None:
    assert KernelCode.from_json(code.to_json()) == code


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"accesses":[],"counts":[1]}', '{"accesses":[[1]],"counts":[0,0,0,0,0]}',
     '{"accesses":[[0,4,1,1,1,8,0,128,8,0,1,1]],"counts":[0,0,0,0,0]}',
     '{"accesses":[[0,4,2,1,1,8,8,128,8,0,1,1]],"counts":[0,0,0,0,0]}',
     '{"accesses":[],"counts":[-1,0,0,0,0]}', '{"accesses":[],"counts":[0,0,0,0,9999999]}'],
)  # fmt: skip
def test_other_json_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="code"):
        KernelCode.from_json(text)


@settings(max_examples=200, deadline=None)
@given(xnumel=st.integers(1, 1 << 40), rnumel=st.integers(1, 1 << 40), loads=st.integers(0, 9), inner=st.booleans())
def test_a_kernel_without_a_source_is_taken_to_read_each_load_once(
    xnumel: int, rnumel: int, loads: int, inner: bool
) -> None:
    kernel = ReductionKernel(xnumel, rnumel, "fp32", loads, 1, inner=inner)
    columns = dict(zip(CODE_FEATURES, code_columns(kernel, assumed_code(kernel)), strict=True))
    expected = 4.0 * loads * xnumel * rnumel + 4.0 * xnumel
    assert columns["log2_ideal_bytes"] == pytest.approx(math.log2(expected))
    assert np.isfinite(list(columns.values())).all()
    if loads and xnumel > 1 and rnumel > 1:
        assert columns["bytes_along_r" if inner else "bytes_along_x"] == 4 * loads
        assert columns["bytes_along_x" if inner else "bytes_along_r"] == 0
