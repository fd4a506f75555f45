"""The CPU device as a whole: the contract, and right results over operations, dtypes, layouts and ragged sizes."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from tests.contracts.device_contract import DeviceContract

import tileguard
from tileguard.features.errors import InvalidInput, TileguardError
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import LOWERINGS, ReductionTile
from tileguard.runtime.devices.base import CompileError, Device, OutOfResource, WrongResult
from tileguard.runtime.devices.cpu import CPU_DTYPES, OPS, BenchRecipe, CpuBudgets, CpuDevice, cpu_kernel
from tileguard.runtime.devices.cpu.jit import LinkedKernel, compile_object
from tileguard.runtime.devices.cpu.workspace import Workspace

QUICK = BenchRecipe(sample_us=50.0, screen_rounds=2)

# Sizes that no power of two divides, a single row, a single column, and less than a vector; tiles that leave a
# remainder on either axis, on both, on none, and one that is no power of two itself.
RAGGED: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (37, 203): ((4, 16), (16, 4), (3, 5)),
    (1, 1000): ((1, 16),),
    (1000, 1): ((16, 1),),
    (5, 7): ((1, 1), (4, 4), (5, 7)),
}


@pytest.fixture(scope="module")
def shared_device() -> Iterator[CpuDevice]:
    device = CpuDevice(rounds=1, recipe=QUICK)
    yield device
    device.close()


class TestCpuDeviceContract(DeviceContract):
    @pytest.fixture
    def device(self) -> Iterator[Device]:
        device = CpuDevice(rounds=1, recipe=QUICK)
        yield device
        device.close()

    @pytest.fixture
    def kernel(self) -> ReductionKernel:
        return cpu_kernel("softmax", 30, 100, "fp32")

    @pytest.fixture
    def tiles(self) -> Sequence[ReductionTile]:
        return [ReductionTile(1, 32), ReductionTile(4, 16), ReductionTile(2, 64)]


@pytest.mark.parametrize("inner", [True, False], ids=["inner", "outer"])
@pytest.mark.parametrize("dtype", CPU_DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_operation_is_right_on_ragged_sizes(shared_device: CpuDevice, op: str, dtype: str, inner: bool) -> None:
    for (xnumel, rnumel), tiles in RAGGED.items():
        kernel = cpu_kernel(op, xnumel, rnumel, dtype, inner=inner)
        for tile in tiles:
            shared_device.compile(kernel, ReductionTile(*tile))  # WrongResult if it is not


def _run(kernel: ReductionKernel, tile: ReductionTile, **operands: np.ndarray) -> Workspace:
    """A checked run on operands of one's own."""
    workspace = Workspace(kernel, operands=operands)
    workspace.poison()
    _linked(kernel, tile, workspace).run(workspace.pointers)
    workspace.check(tile)
    return workspace


def _linked(kernel: ReductionKernel, tile: ReductionTile, workspace: Workspace) -> LinkedKernel:
    return LinkedKernel(compile_object(kernel, tile)[0], len(workspace.pointers))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_maximum_that_runs_past_its_buffers_is_seen(dtype: str) -> None:
    """It reads the guard behind the input and writes a maximum of that: into another guard, of another byte."""
    one_more = cpu_kernel("max", 65, 64, dtype)
    workspace = Workspace(cpu_kernel("max", 64, 64, dtype))
    workspace.poison()
    _linked(one_more, ReductionTile(1, 16), workspace).run(workspace.pointers)
    with pytest.raises(WrongResult, match="wrote outside"):
        workspace.check(ReductionTile(1, 16))


def test_threads_that_compile_one_kernel_do_not_disturb_each_other() -> None:
    kernel, device = cpu_kernel("softmax", 256, 1000, "fp32"), CpuDevice()
    tiles = [ReductionTile(x, r) for x in (1, 2, 4) for r in (16, 32, 64)]
    try:
        with ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda tile: device.compile(kernel, tile), tiles))
    finally:
        device.close()
    assert [one.tile for one in made] == tiles


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0])
def test_a_time_to_compile_for_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="compile_again_ms"):
        CpuDevice(compile_again_ms=value)


def test_a_bound_call_is_one_run_and_keeps_its_code() -> None:
    kernel, tile = cpu_kernel("softmax", 5, 40, "fp32"), ReductionTile(1, 8)
    workspace = Workspace(kernel)
    call = _linked(kernel, tile, workspace).bind(workspace.pointers)
    gc.collect()  # nothing but the call holds the code now
    workspace.poison()
    call()
    workspace.check(tile)


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize(("mean", "tolerance"), [(100.0, 1e-5), (1e4, 1e-3)])
def test_variance_survives_a_mean_far_from_zero(mean: float, tolerance: float, inner: bool) -> None:
    x = np.random.default_rng(1).normal(mean, 1.0, (9, 1500)).astype(np.float32)
    kernel = cpu_kernel("meanvar", 9, 1500, "fp32", inner=inner)
    for tile in (ReductionTile(1, 128), ReductionTile(4, 16), ReductionTile(1, 1)):  # the last adds one by one
        ran = _run(kernel, tile, x=x)
        np.testing.assert_allclose(ran.output(0), x.astype(np.float64).mean(axis=1), rtol=5e-6)
        np.testing.assert_allclose(ran.output(1), x.astype(np.float64).var(axis=1), rtol=tolerance)


def test_layernorm_survives_a_mean_far_from_zero() -> None:
    random = np.random.default_rng(2)
    x = random.normal(100.0, 1.0, (9, 1500)).astype(np.float32)
    weight, bias = random.normal(size=(2, 1500)).astype(np.float32)
    ran = _run(cpu_kernel("layernorm", 9, 1500, "fp32"), ReductionTile(2, 64), x=x, weight=weight, bias=bias)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(ran.output(0), expected * weight + bias, atol=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_softmax_survives_values_whose_exponential_overflows(dtype: str) -> None:
    x = np.random.default_rng(3).normal(0, 200.0, (7, 333)).astype(np.float32) + 1e4
    x[2] = 3e38
    x[3, 5:] = -np.inf
    got = _run(cpu_kernel("softmax", 7, 333, dtype), ReductionTile(2, 64), x=x).output(0)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(got[2], 1 / 333, rtol=1e-6)
    assert (got[3, 5:] == 0).all()


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_a_row_that_the_mask_empties_gives_zeros(dtype: str, inner: bool) -> None:
    x = np.random.default_rng(4).normal(size=(6, 77)).astype(np.float32)
    x[1] = -1e4
    mask = np.random.default_rng(5).random((6, 77)) < 0.5
    mask[2] = False
    mask[3] = False
    mask[3, 70] = True
    kernel = cpu_kernel("masked_softmax", 6, 77, dtype, inner=inner)
    got = _run(kernel, ReductionTile(2, 16), x=x, mask=mask).output(0)
    assert (got[~mask] == 0).all()
    assert (got[2] == 0).all()
    assert got[3, 70] == 1
    np.testing.assert_allclose(np.delete(got, 2, axis=0).sum(axis=1), 1.0, rtol=2e-2)


def test_swiglu_survives_gates_whose_exponential_overflows() -> None:
    gate = np.array([[-1e30, -200.0, -100.0, -1.0, 0.0, 1.0, 100.0, 1e30]], dtype=np.float32)
    got = _run(cpu_kernel("swiglu", 1, 8, "fp32"), ReductionTile(1, 4), gate=gate, up=np.ones_like(gate)).output(0)
    np.testing.assert_allclose(got[0], [0, 0, 0, -0.26894142, 0, 0.73105858, 100, 1e30], rtol=1e-6, atol=1e-37)


def test_the_fp32_exponential_is_within_one_unit_in_the_last_place() -> None:
    # Two elements a row, the first 0 and the largest: their quotient in the softmax is e^x and nothing else.
    x = np.zeros((20_000, 2), dtype=np.float32)
    x[:, 1] = np.linspace(-80.0, 0.0, 20_000)
    got = _run(cpu_kernel("softmax", 20_000, 2, "fp32"), ReductionTile(16, 2), x=x).output(0)
    error = np.abs(got[:, 1] / got[:, 0] / np.exp(x[:, 1].astype(np.float64)) - 1)
    assert error.max() < 4 * 2.0**-24  # that of the exponential, and a rounding of either number


def test_a_difference_cannot_hide() -> None:
    kernel, tile = cpu_kernel("rmsnorm", 6, 50, "bf16", inner=False), ReductionTile(2, 8)
    workspace = Workspace(kernel)
    linked = _linked(kernel, tile, workspace)
    workspace.poison()
    with pytest.raises(WrongResult, match="300 of 300 numbers of out"):  # nothing ran yet
        workspace.check(tile)
    linked.run(workspace.pointers)
    workspace.check(tile)
    workspace._outputs[0][17, 3] ^= 1 << 3  # one mantissa bit, eight units in the last place
    with pytest.raises(WrongResult, match=r"1 of 300 numbers .* worst \[3, 17\] is "):
        workspace.check(tile)


@pytest.mark.parametrize("op", ["sum", "max", "meanvar", "softmax"])
def test_one_element_left_out_is_seen(op: str) -> None:
    kernel, short = cpu_kernel(op, 8, 1000, "fp32"), cpu_kernel(op, 8, 999, "fp32")
    tile = ReductionTile(1, 8)
    workspace = Workspace(kernel)
    workspace.poison()
    _linked(short, tile, workspace).run(workspace.pointers)
    with pytest.raises(WrongResult, match="wrong; worst"):
        workspace.check(tile)


@pytest.mark.parametrize(("operand", "side"), [(0, -1), (0, 1), (1, -1), (1, 1), (2, -1), (2, 1)])
def test_a_write_outside_any_buffer_is_seen(operand: int, side: int) -> None:
    kernel, tile = cpu_kernel("rmsnorm", 4, 33, "fp32"), ReductionTile(2, 8)
    workspace = Workspace(kernel)
    linked = _linked(kernel, tile, workspace)
    workspace.poison()
    linked.run(workspace.pointers)
    workspace.check(tile)
    view = [*workspace._inputs, *workspace._outputs][operand]
    start = view.ctypes.data - workspace._arena.ctypes.data
    workspace._arena[start - 1 if side < 0 else start + view.nbytes] ^= 1
    with pytest.raises(WrongResult, match="wrote outside its buffers, 1 bytes"):
        workspace.check(tile)


def test_a_kernel_that_overruns_is_seen() -> None:
    workspace = Workspace(cpu_kernel("swiglu", 4, 33, "fp32"))
    larger, tile = cpu_kernel("swiglu", 5, 33, "fp32"), ReductionTile(1, 8)
    workspace.poison()
    _linked(larger, tile, workspace).run(workspace.pointers)
    with pytest.raises(WrongResult, match="wrote outside its buffers, 132 bytes"):
        workspace.check(tile)


def test_wrong_code_fails_its_candidate_only(monkeypatch: pytest.MonkeyPatch, shared_device: CpuDevice) -> None:
    kernel = cpu_kernel("sum", 12, 90, "fp32")
    with monkeypatch.context() as patch:
        right = shared_device._compiler.compile
        patch.setattr(
            shared_device._compiler, "compile", lambda k, t: right(cpu_kernel("sum", 12, 90, "fp32", inner=False), t)
        )
        with pytest.raises(WrongResult, match="sum fp32 12x90"):
            shared_device.compile(kernel, ReductionTile(1, 8))
    shared_device.compile(kernel, ReductionTile(1, 8))


def test_calls_of_a_batch_are_all_made(shared_device: CpuDevice) -> None:
    # The number of calls as the code itself counts it: no clock, hence no luck.
    from llvmlite import ir

    from tileguard.runtime.devices.cpu import emit, jit

    module = ir.Module()
    counter = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType()]), "kernel")
    counter.attributes.add("noinline")
    builder = ir.IRBuilder(counter.append_basic_block())
    (place,) = counter.args
    builder.store(builder.add(builder.load(place, typ=ir.IntType(64)), ir.IntType(64)(1)), place)
    builder.ret_void()
    emit.emit_batch(module, counter)
    counted = np.zeros(1, dtype=np.int64)
    linked = LinkedKernel(jit.object_of(str(module))[0], 1)
    for calls, total in ((1, 1), (0, 1), (1000, 1001)):
        linked.run([counted.ctypes.data], calls)
        assert counted[0] == total


def test_twice_the_calls_take_about_twice_the_time(shared_device: CpuDevice) -> None:
    from tileguard.runtime.devices.cpu.timing import cpu_us

    run = shared_device.compile(cpu_kernel("sum", 8, 256, "fp32"), ReductionTile(1, 64)).handle.run
    run(1000)
    once, twice = (min(cpu_us(run, calls) for _ in range(7)) for calls in (2000, 4000))
    assert 1.2 < twice / once < 4  # 1 if a call were hoisted, and the bounds are loose for a busy machine


@pytest.mark.parametrize(
    ("op", "tile", "budget"),
    [
        ("sum", (1 << 17, 1), "xblock is 131072, over the limit of 65536"),
        ("sum", (1, 1 << 17), "r0_block is 131072, over the limit of 65536"),
        ("sum", (1, 1 << 14), "lanes is 16384, over the limit of 8192"),
        ("sum", (8, 1 << 12), "accumulator_bytes is 131072, over the limit of 65536"),
        ("softmax", (1 << 12, 1), "instructions is 217088, over the limit of 32768"),
        ("softmax", (2, 64, "snapshot"), "max_local_bytes is 524288, over the limit of 262144"),
        ("softmax", (1, 1, "select"), "ssa_expansion is 262144, over the limit of 32768"),
        ("tile_rmsnorm", (2, 1, "snapshot"), "max_local_bytes is 524288, over the limit of 262144"),
        ("tile_rmsnorm", (1, 8192), r"ssa_expansion is \d+, over the limit of 32768"),
        ("tile_rmsnorm", (1, 1, "select"), r"ssa_expansion is \d+, over the limit of 32768"),
        ("tile_swiglu", (1 << 14, 1), "lanes is 16384, over the limit of 8192"),
    ],
)
def test_a_tile_out_of_budget_says_which_and_by_how_much(
    shared_device: CpuDevice, op: str, tile: tuple[Any, ...], budget: str
) -> None:
    xblock, r0_block, *lowering = tile
    asked = ReductionTile(xblock, r0_block, lowering=lowering[0] if lowering else None)
    with pytest.raises(OutOfResource, match=budget):
        shared_device.compile(cpu_kernel(op, 1 << 16, 1 << 16, "fp32"), asked)


def test_a_kernel_too_large_for_memory_is_out_of_resource() -> None:
    device = CpuDevice(budgets=CpuBudgets(workspace_bytes=1000))
    with pytest.raises(OutOfResource, match=r"workspace_bytes is 4\d\d\d, over the limit of 1000"):
        device.compile(cpu_kernel("sum", 10, 100, "fp32"), ReductionTile(1, 1))
    device.close()


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (ReductionKernel(8, 8, "fp32", 1, 1), "op: None is not allowed"),
        (ReductionKernel(8, 8, "fp32", 1, 1, op="argmax"), "op: 'argmax' is not allowed"),
        (ReductionKernel(8, 8, "i32", 1, 1, op="sum"), "no dtype i32"),
        (ReductionKernel(8, 8, "fp32", 3, 1, op="sum"), r"sum has .*\(1, 1, 1\), the kernel says \(3, 1, 1\)"),
    ],
)
def test_a_kernel_that_is_not_its_own_is_refused(
    shared_device: CpuDevice, kernel: ReductionKernel, reason: str
) -> None:
    with pytest.raises(CompileError, match=reason):
        shared_device.compile(kernel, ReductionTile(1, 1))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_lowering_is_compiled_as_asked(shared_device: CpuDevice, lowering: str) -> None:
    made = shared_device.compile(cpu_kernel("softmax", 8, 64, "fp32"), ReductionTile(1, 8, lowering=lowering))
    assert made.tile.lowering == lowering


def test_candidates_share_their_buffers_and_free_them_with_the_last(shared_device: CpuDevice) -> None:
    kernel = cpu_kernel("sum", 16, 64, "fp32")
    first, second = (shared_device.compile(kernel, ReductionTile(1, r)) for r in (8, 16))
    assert first.handle.workspace is second.handle.workspace
    del first, second
    shared_device.compile(cpu_kernel("sum", 16, 65, "fp32"), ReductionTile(1, 8))
    assert kernel not in shared_device._workspaces


def test_a_closed_device_says_so() -> None:
    device = CpuDevice()
    device.close()
    with pytest.raises(TileguardError, match="closed"):
        device.compile(cpu_kernel("sum", 4, 4, "fp32"), ReductionTile(1, 1))
    with pytest.raises(TileguardError, match="closed"):
        device.bench([])


def _python(program: str) -> str:
    """Run a program given on standard input; its output."""
    environment = {"PYTHONPATH": str(Path(tileguard.__file__).parent.parent), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-"], input=program, text=True, capture_output=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_it_works_from_a_program_on_standard_input() -> None:
    assert _python(
        "from tileguard.runtime.devices.cpu import CpuDevice, cpu_kernel, cpu_tiles\n"
        "device, kernel = CpuDevice(rounds=1), cpu_kernel('max', 4, 4, 'fp16')\n"
        "print(len(device.bench([device.compile(kernel, tile) for tile in cpu_tiles(kernel)])))\n"
    ).split() == ["9"]  # and closes itself: nothing is left running, nothing on standard error


def test_without_llvmlite_all_but_the_device_works() -> None:
    out = _python(
        "import sys; sys.modules['llvmlite'] = None\n"
        "from tileguard.runtime.devices.cpu import CpuDevice, cpu_kernel, cpu_tiles\n"
        "print(len(cpu_tiles(cpu_kernel('sum', 4, 4, 'fp32'))))\n"
        "try: CpuDevice()\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    assert out.startswith("9\nMissingDependency ")
    assert "tileguard[cpu]" in out


def test_importing_it_does_not_import_llvmlite() -> None:
    out = _python("import sys, tileguard.runtime.devices.cpu as cpu; print(any('llvmlite' in m for m in sys.modules))")
    assert out.split() == ["False"]
