"""Which hardware a GPU is taken for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tileguard.features.hardware import known_hardware
from tileguard.runtime.hooks.gpu import gpu_hardware


def properties(name: str, cores: int) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, multi_processor_count=cores, warp_size=32, L2_cache_size=50 << 20, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, shared_memory_per_block_optin=232448,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200 NVL", "h200")]
)
def test_a_whole_known_gpu_is_the_known_hardware(name: str, known: str) -> None:
    assert gpu_hardware(properties(name, 132)) == known_hardware(known)


@pytest.mark.parametrize(
    ("name", "cores"),
    [
        ("NVIDIA H200 MIG 1g.18gb", 16),
        ("NVIDIA H100 PCIe", 114),
        ("NVIDIA GH200 480GB", 132),
        ("AMD Instinct MI300X", 304),
    ],
)
def test_a_slice_a_board_and_an_unknown_gpu_are_no_hardware_that_a_model_was_trained_on(name: str, cores: int) -> None:
    spec = gpu_hardware(properties(name, cores))
    assert spec.name not in ("h100", "h200")
    assert (spec.kind, spec.cores) == ("nvidia", cores)


def test_a_driver_that_says_little_still_gives_a_spec() -> None:
    spec = gpu_hardware(SimpleNamespace(name="", multi_processor_count=8))
    assert (spec.name, spec.max_threads_per_block) == ("gpu", 1024)
