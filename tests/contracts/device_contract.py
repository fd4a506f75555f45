"""What every Device must do. Subclass DeviceContract in a test module and give the fixtures.

class TestMyDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Iterator[Device]: ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import NOT_MEASURED, OK, STATUSES, CandidateError, Compiled, Device


class DeviceContract:
    """Fixtures to give: `device` (a fresh one, closed afterwards), `kernel`, `tiles` (two or more that compile)."""

    @pytest.fixture
    def device(self) -> Iterator[Device]:
        raise NotImplementedError

    @pytest.fixture
    def kernel(self) -> ReductionKernel:
        raise NotImplementedError

    @pytest.fixture
    def tiles(self) -> Sequence[ReductionTile]:
        raise NotImplementedError

    @pytest.fixture
    def failing_tile(self) -> ReductionTile:
        """One that no device can take; override where the device knows a more telling one."""
        return ReductionTile(1 << 40, 1 << 40)

    def test_hardware_and_toolchain_are_named_and_stable(self, device: Device) -> None:
        hardware, toolchain = device.hardware, device.toolchain
        assert isinstance(hardware, HardwareSpec)
        assert hardware.name
        assert isinstance(toolchain, str)
        assert toolchain.strip()
        assert device.hardware == hardware
        assert device.toolchain == toolchain

    def test_a_compiled_candidate_says_what_it_is(
        self, device: Device, kernel: ReductionKernel, tiles: Sequence[ReductionTile]
    ) -> None:
        for tile in tiles:
            compiled = device.compile(kernel, tile)
            assert isinstance(compiled, Compiled)
            assert compiled.kernel == kernel
            assert compiled.tile == tile
            assert math.isfinite(compiled.compile_ms)
            assert compiled.compile_ms > 0

    def test_every_candidate_gets_a_plausible_timing(
        self, device: Device, kernel: ReductionKernel, tiles: Sequence[ReductionTile]
    ) -> None:
        timings = device.bench([device.compile(kernel, tile) for tile in tiles])
        assert isinstance(timings, list)
        assert len(timings) == len(tiles)
        for timing in timings:
            assert 0 < timing.us_min <= timing.us_median < math.inf
            assert timing.us_min <= timing.us <= timing.us_median
            assert 0 <= timing.us_mad < math.inf
            assert timing.reps >= 1

    def test_one_candidate_may_be_timed_alone_and_twice(
        self, device: Device, kernel: ReductionKernel, tiles: Sequence[ReductionTile]
    ) -> None:
        compiled = device.compile(kernel, tiles[0])
        assert len(device.bench([compiled])) == 1
        assert len(device.bench([compiled, compiled])) == 2

    def test_nothing_to_time_gives_no_timings(self, device: Device) -> None:
        assert device.bench([]) == []

    def test_a_failure_is_a_candidate_error_with_a_known_status(
        self, device: Device, kernel: ReductionKernel, failing_tile: ReductionTile
    ) -> None:
        with pytest.raises(CandidateError) as caught:
            device.compile(kernel, failing_tile)
        assert caught.value.status in STATUSES
        assert caught.value.status not in (OK, NOT_MEASURED)
        assert str(caught.value)

    def test_a_failure_does_not_touch_the_candidates_around_it(
        self,
        device: Device,
        kernel: ReductionKernel,
        tiles: Sequence[ReductionTile],
        failing_tile: ReductionTile,
    ) -> None:
        before = device.compile(kernel, tiles[0])
        for _ in range(2):
            with pytest.raises(CandidateError):
                device.compile(kernel, failing_tile)
        after = device.compile(kernel, tiles[-1])
        assert len(device.bench([before, after])) == 2

    def test_close_may_be_called_again(
        self, device: Device, kernel: ReductionKernel, tiles: Sequence[ReductionTile]
    ) -> None:
        device.compile(kernel, tiles[0])
        device.close()
        device.close()

    def test_an_unused_device_may_be_closed(self, device: Device) -> None:
        device.close()
