"""The stopwatch around launches, with a device that only keeps a list of what it was told to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tileguard.runtime.hooks.stopwatch import spills, stopwatch


class Device:
    """A device interface; each launch takes as long as its launcher says, and `done` says what happened in what order."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.now = 0.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = device.now

            def elapsed_time(self, end: Event) -> float:
                return float(end.at - self.at)

        self.Event = Event

    def current_device(self) -> int:
        return 0

    def get_raw_stream(self, device: int) -> int:
        return 17

    def synchronize(self) -> None:
        self.done.append("synchronize")


def launcher(device: Device, name: str, ms: float, *, n_spills: int | None = 0, error: str = "") -> Callable[..., None]:
    def launch(*args: Any, stream: int) -> None:
        assert stream == 17
        if error:
            raise RuntimeError(error)
        device.done.append((name, args))
        device.now += ms

    launch.n_spills = n_spills  # type: ignore[attr-defined]
    return launch


def autotuner(device: Device, *, mutated: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        get_device_interface=lambda: device, device_props=SimpleNamespace(type="cpu"), inductor_meta={},
        mutated_arg_names=mutated, reset_to_zero_arg_names=[], copy_args_to_cpu_if_needed=lambda *a, **k: {},
        maybe_clone_args=lambda copies, *args, **kwargs: ([f"copy of {a}" for a in args], kwargs),
        reset_to_zero_args=lambda *a, **k: None, restore_args_from_cpu=lambda copies: None,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=4096))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)


def test_each_is_timed_once_in_the_order_asked_in_microseconds() -> None:
    device = Device()
    launchers = [launcher(device, name, ms) for name, ms in (("a", 0.003), ("b", 0.005), ("c", 0.004))]
    measure = stopwatch(autotuner(device), launchers, ["x"], {}, host=[0])
    measure([0, 1, 2])
    device.done.clear()
    assert measure([2, 0]) == pytest.approx([4.0, 3.0])
    assert device.done == [("c", ("x",)), ("a", ("x",)), "synchronize"]


def test_inputs_that_a_kernel_writes_over_are_copies() -> None:
    device = Device()
    measure = stopwatch(autotuner(device, mutated=("x",)), [launcher(device, "a", 0.003)], ["x"], {}, host=[0])
    measure([0])
    assert {entry for entry in device.done if entry != "synchronize"} == {("a", ("copy of x",))}


def test_what_spills_or_cannot_be_launched_is_infinite_but_the_hosts_own_failure_is_raised() -> None:
    device = Device()
    launchers = [
        launcher(device, "fine", 0.003, n_spills=None),
        launcher(device, "spills", 0.001, n_spills=17),
        launcher(device, "fails", 0.001, error="too many resources requested for launch"),
        launcher(device, "impossible", 0.001, error="Triton Error [CUDA]: invalid configuration argument"),
    ]
    tuner = autotuner(device)
    assert [spills(tuner, one) for one in launchers] == [False, True, False, False]
    measure = stopwatch(tuner, launchers, [], {}, host=[0, 3])
    assert measure([0, 1, 2, 3]) == [pytest.approx(3.0), math.inf, math.inf, math.inf]
    assert not any(entry[0] == "spills" for entry in device.done if entry != "synchronize")
    with pytest.raises(RuntimeError, match="too many resources"):
        stopwatch(tuner, launchers, [], {}, host=[0, 2])([0, 1, 2])
