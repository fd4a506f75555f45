"""A recorded corpus as a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.device_contract import DeviceContract
from tests.support import corpus_row, failed_row

from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner.corpus import Corpus, KernelSweep, read_corpus, write_corpus
from tileguard.runtime.devices.base import (
    CandidateError,
    CompileError,
    CompileTimeout,
    Device,
    OutOfResource,
    WrongResult,
)
from tileguard.runtime.devices.replay import ReplayDevice

H200 = known_hardware("h200")


class TestReplayDeviceContract(DeviceContract):
    @pytest.fixture
    def device(self, corpus: Corpus) -> Iterator[Device]:
        device = ReplayDevice(corpus.sweeps, H200, toolchain="triton 3.6")
        yield device
        device.close()

    @pytest.fixture
    def kernel(self, corpus: Corpus) -> ReductionKernel:
        return corpus.sweeps[5].kernel

    @pytest.fixture
    def tiles(self, corpus: Corpus) -> Sequence[ReductionTile]:
        return corpus.sweeps[5].tiles[:4]


def sweeps(tmp_path: Path, rows: list[dict[str, object]]) -> tuple[KernelSweep, ...]:
    write_corpus(rows, tmp_path / "c.parquet")
    return read_corpus(tmp_path / "c.parquet").sweeps


def test_every_measurement_of_the_corpus_is_repeated(corpus: Corpus) -> None:
    device = ReplayDevice(corpus.sweeps, H200)
    seen = set()
    for sweep in corpus.sweeps:
        if sweep.kernel in seen:
            continue
        seen.add(sweep.kernel)
        timings = device.bench([device.compile(sweep.kernel, tile) for tile in sweep.tiles])
        assert [t.us for t in timings] == sweep.us.tolist()
        assert tuple(timings) == sweep.timings


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("out_of_resource", OutOfResource),
        ("compile_error", CompileError),
        ("compile_timeout", CompileTimeout),
        ("wrong_result", WrongResult),
        ("not_measured", CompileError),
    ],
)
def test_a_recorded_failure_fails_the_same_way(tmp_path: Path, status: str, error: type[CandidateError]) -> None:
    rows = [corpus_row(), failed_row(status, xblock=2)]
    device = ReplayDevice(sweeps(tmp_path, rows), H200)
    with pytest.raises(error, match="X2·R256·w4"):
        device.compile(ReductionKernel(100, 1000, "fp32", 1, 1, 1, 4, 4, 8), ReductionTile(2, 256, 4))


def test_another_kernel_and_another_tile_are_unknown(corpus: Corpus) -> None:
    device, sweep = ReplayDevice(corpus.sweeps, H200), corpus.sweeps[0]
    with pytest.raises(CompileError, match="no sweep"):
        device.compile(replace(sweep.kernel, xnumel=sweep.kernel.xnumel + 1), sweep.tiles[0])
    with pytest.raises(CompileError, match="not measured"):
        device.compile(sweep.kernel, ReductionTile(3, 3, 3))


def test_of_two_sweeps_of_one_kernel_the_first_counts(tmp_path: Path) -> None:
    rows = [corpus_row(us=3.0), corpus_row(kernel_id="again", us=2.5, us_min=2.4)]
    device = ReplayDevice(sweeps(tmp_path, rows), H200)
    compiled = device.compile(ReductionKernel(100, 1000, "fp32", 1, 1, 1, 4, 4, 8), ReductionTile(1, 256, 4))
    assert [timing.us for timing in device.bench([compiled])] == [3.0]


def test_the_hardware_and_toolchain_are_those_given(corpus: Corpus) -> None:
    device = ReplayDevice(corpus.sweeps, known_hardware("h100"), toolchain="triton 3.6")
    assert (device.hardware.name, device.toolchain) == ("h100", "triton 3.6")
