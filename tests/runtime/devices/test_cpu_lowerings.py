"""Lowerings of the CPU device: the contract of tile programs, legality, and every one through the device's contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("llvmlite")

from tests.contracts.device_contract import DeviceContract
from tests.contracts.lowering_contract import LoweringContract

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import LOWERINGS, ReductionTile
from tileguard.runtime.devices.base import CompileError, Device, OutOfResource
from tileguard.runtime.devices.cpu import (
    CPU_DTYPES,
    OPS,
    PROGRAM_OPS,
    BenchRecipe,
    CpuDevice,
    cpu_kernel,
    cpu_tiles,
    legal_lowerings,
)
from tileguard.runtime.devices.cpu.emit import emit, emit_batch
from tileguard.runtime.devices.cpu.jit import LinkedKernel, object_of
from tileguard.runtime.devices.cpu.program_emit import emit_program
from tileguard.runtime.devices.cpu.programs import Program
from tileguard.runtime.devices.cpu.vocabulary import ir

QUICK = BenchRecipe(sample_us=50.0, screen_rounds=2)
UNROLL = 2
"""Of no long extent a divisor: loops and what they leave over."""


class TestCpuLowerings(LoweringContract):
    def run(self, program: Program, lowering: str, width: int, pointers: Sequence[int]) -> None:
        module = ir.Module()
        function = emit_program(module, program, lowering=lowering, width=width, unroll=UNROLL)
        emit_batch(module, function)
        LinkedKernel(object_of(str(module))[0], len(pointers)).run(pointers)


class _LoweredContract(DeviceContract):
    op: str
    lowering: str | None

    @pytest.fixture
    def device(self) -> Iterator[Device]:
        device = CpuDevice(rounds=1, recipe=QUICK)
        yield device
        device.close()

    @pytest.fixture
    def kernel(self) -> ReductionKernel:
        return cpu_kernel(self.op, 30, 100, "fp32")

    @pytest.fixture
    def tiles(self) -> Sequence[ReductionTile]:
        return [ReductionTile(x, r, lowering=self.lowering) for x, r in ((1, 32), (4, 16))]


class TestPassesLoopContract(_LoweredContract):
    op, lowering = "softmax", "loop"


class TestPassesSnapshotContract(_LoweredContract):
    op, lowering = "softmax", "snapshot"


class TestPassesSelectContract(_LoweredContract):
    op, lowering = "softmax", "select"


class TestProgramDefaultContract(_LoweredContract):
    op, lowering = "tile_prefix", None


class TestProgramLoopContract(_LoweredContract):
    op, lowering = "tile_layernorm", "loop"


class TestProgramSnapshotContract(_LoweredContract):
    op, lowering = "tile_layernorm", "snapshot"


class TestProgramSelectContract(_LoweredContract):
    op, lowering = "tile_normdot", "select"


@pytest.fixture(scope="module")
def shared_device() -> Iterator[CpuDevice]:
    device = CpuDevice(rounds=1, recipe=QUICK)
    yield device
    device.close()


@pytest.mark.parametrize("inner", [True, False], ids=["inner", "outer"])
@pytest.mark.parametrize("op", [name for name, op in OPS.items() if len(op.passes) > 1])
def test_every_lowering_of_passes_is_right_on_ragged_sizes(shared_device: CpuDevice, op: str, inner: bool) -> None:
    for dtype in CPU_DTYPES:
        for lowering in ("snapshot", "select"):
            for shape, tile in (((37, 203), (4, 16)), ((37, 50), (3, 7)), ((5, 7), (5, 7)), ((1000, 1), (16, 1))):
                shared_device.compile(
                    cpu_kernel(op, *shape, dtype, inner=inner), ReductionTile(*tile, lowering=lowering)
                )


@pytest.mark.parametrize("inner", [True, False], ids=["inner", "outer"])
@pytest.mark.parametrize("op", PROGRAM_OPS)
def test_every_lowering_of_programs_is_right_on_ragged_sizes(shared_device: CpuDevice, op: str, inner: bool) -> None:
    for dtype in CPU_DTYPES:
        kernel = cpu_kernel(op, 19, 33, dtype, inner=inner)
        for lowering in legal_lowerings(kernel):
            shared_device.compile(kernel, ReductionTile(8, 4, lowering=lowering))


def test_a_lowering_differs_where_it_says_so_and_nowhere_else() -> None:
    for op in (*OPS, *PROGRAM_OPS):
        kernel = cpu_kernel(op, 16, 48, "fp32")
        codes = {}
        for lowering in (None, *LOWERINGS):
            try:
                codes[lowering] = emit(kernel, ReductionTile(4, 4, lowering=lowering))
            except CompileError:
                assert lowering not in legal_lowerings(kernel)
        first, *others = legal_lowerings(kernel)
        assert codes[None] == codes[first]
        assert len({codes[None], *(codes[other] for other in others)}) == 1 + len(others)
        assert all(codes[name] == codes[None] for name in codes if name not in others)


def test_a_tile_that_a_loop_carries_cannot_be_computed_anew(shared_device: CpuDevice) -> None:
    with pytest.raises(CompileError, match="loop is not legal for tile_prefix: a tile that a loop carries"):
        shared_device.compile(cpu_kernel("tile_prefix", 8, 8, "fp32"), ReductionTile(1, 1, lowering="loop"))


def test_programs_promise_nothing_about_what_overlaps_and_nothing_about_rounding() -> None:
    for op in PROGRAM_OPS:
        kernel = cpu_kernel(op, 16, 48, "fp32")
        for lowering in legal_lowerings(kernel):
            text = emit(kernel, ReductionTile(4, 4, lowering=lowering))
            assert "noalias" not in text
            assert not any(flag in text for flag in ("reassoc", "nsz", "arcp", "afn"))


def test_the_chain_of_choices_is_in_select_alone() -> None:
    kernel = cpu_kernel("tile_sum_left", 16, 48, "fp32")
    chain = {name: emit(kernel, ReductionTile(4, 4, lowering=name)).count("select") for name in LOWERINGS}
    assert chain == {"loop": 0, "snapshot": 0, "select": 47}
    arrays = {name: emit(kernel, ReductionTile(4, 4, lowering=name)).count("[48 x") for name in LOWERINGS}
    assert arrays == {"loop": 0, "snapshot": 1, "select": 0}


def test_lattices_hold_other_lowerings_beside_those_that_none_means() -> None:
    for op in (*OPS, *PROGRAM_OPS):
        for rnumel in (7, 64, 1024):
            kernel = cpu_kernel(op, 64, rnumel, "fp32")
            tiles = cpu_tiles(kernel)
            assert {tile.lowering for tile in tiles} <= {None, *legal_lowerings(kernel)[1:]}
            plain = {(tile.xblock, tile.r0_block) for tile in tiles if tile.lowering is None}
            assert {(tile.xblock, tile.r0_block) for tile in tiles} == plain
            if len(legal_lowerings(kernel)) > 2 and rnumel >= 64:
                assert "snapshot" in {tile.lowering for tile in tiles}
    softmax = {tile.lowering for tile in cpu_tiles(cpu_kernel("softmax", 64, 1024, "fp32"))}
    assert softmax == {None, "snapshot", "select"}
    assert {t.lowering for t in cpu_tiles(cpu_kernel("tile_rmsnorm", 64, 1024, "fp32"))} == {None, "snapshot"}
    assert "select" in {t.lowering for t in cpu_tiles(cpu_kernel("tile_rmsnorm", 64, 32, "fp32"))}


# The sizes at which the Tile→XIR report (§4) had no result, with a tile of each legal lowering within the budgets.
LARGE = {
    (17, 1537): ReductionTile(8, 8),
    (1024, 4096): ReductionTile(8, 8),
    (64, 16384): ReductionTile(4, 8),
}


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("lowering", ["loop", "snapshot"])
def test_sizes_that_failed_in_the_report_compile_in_under_two_seconds(
    shared_device: CpuDevice, shape: tuple[int, int], lowering: str
) -> None:
    tile = ReductionTile(LARGE[shape].xblock, LARGE[shape].r0_block, lowering=lowering)
    made = shared_device.compile(cpu_kernel("tile_rmsnorm", *shape, "fp32"), tile)  # checked against float64 in full
    assert made.compile_ms < 2000
    with pytest.raises(OutOfResource, match=r"ssa_expansion is \d+, over the limit of 32768"):
        shared_device.compile(made.kernel, ReductionTile(tile.xblock, 1, lowering="select"))
