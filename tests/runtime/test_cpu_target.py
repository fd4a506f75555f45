"""Code for another CPU than this one: what may be asked for, and that it is really generated, run and checked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import host_cpu
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu import CpuDevice, cpu_kernel, jit
from tileguard.runtime.devices.cpu.compiler import ChildCompiler
from tileguard.runtime.devices.cpu.targets import LEVELS, checked_target, host_targets
from tileguard.runtime.optional import require

TARGET = "x86-64-v3"
KERNEL = cpu_kernel("softmax", 64, 1024, "fp32")
TILE = ReductionTile(4, 64)

needs_avx2 = pytest.mark.skipif(TARGET not in host_targets(), reason=f"this machine is no {TARGET}")


@pytest.mark.parametrize("target", ["nonsense", "", "help", "x86-64-v9", "znver99"])
def test_an_unknown_target_is_refused_by_name(target: str) -> None:
    with pytest.raises(InvalidInput, match="target") as refused:
        CpuDevice(target=target)
    assert refused.value.value == target


def test_a_target_with_more_than_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = require("llvmlite.binding")
    monkeypatch.setattr(binding, "get_default_triple", lambda: "x86_64-unknown-linux-gnu")
    has = dict.fromkeys([*LEVELS["x86-64"], *LEVELS["x86-64-v2"]], True) | {"avx2": True}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: has)
    assert host_targets() == ("x86-64", "x86-64-v2")
    with pytest.raises(InvalidInput, match="one of x86-64, x86-64-v2"):
        checked_target(TARGET)


def test_no_target_is_taken_where_the_machine_is_no_x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require("llvmlite.binding"), "get_default_triple", lambda: "aarch64-unknown-linux-gnu")
    with pytest.raises(InvalidInput, match="no x86-64"):
        checked_target("x86-64")
    assert checked_target(None) is None


@needs_avx2
def test_llvm_knows_every_level() -> None:
    code = """
import llvmlite.binding as llvm
llvm.initialize_native_target()
llvm.Target.from_default_triple().create_target_machine(cpu="help")
"""
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert set(LEVELS) <= {line.split()[0] for line in listed.splitlines() if line.startswith("  ")}


@needs_avx2
def test_code_for_a_target_is_compiled_and_checked_here() -> None:
    device = CpuDevice(target=TARGET, rounds=3)
    try:
        compiled = device.compile(KERNEL, TILE)
        (timing,) = device.bench([compiled])
    finally:
        device.close()
    assert compiled.compile_ms > 0
    assert timing.us > 0
    assert device.hardware.name == f"{host_cpu().name}-{TARGET}"
    assert device.hardware.l2_bytes == host_cpu().l2_bytes
    assert device.toolchain.endswith(f", {TARGET}")


@needs_avx2
def test_the_child_generates_what_the_target_says() -> None:
    images = {}
    for target in (None, TARGET, "x86-64"):
        compiler = ChildCompiler(timeout_s=60.0, target=target)
        try:
            images[target] = compiler.compile(KERNEL, TILE).image
        finally:
            compiler.close()
    assert images[TARGET] == jit.compile_object(KERNEL, TILE, TARGET)[0]
    assert images["x86-64"] != images[TARGET]
    assert images[None] == jit.compile_object(KERNEL, TILE)[0]


@needs_avx2
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
def test_code_for_a_target_uses_its_registers_and_no_wider_ones(tmp_path: Path) -> None:
    path = tmp_path / "kernel.o"
    path.write_bytes(jit.compile_object(KERNEL, TILE, TARGET)[0])
    text = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    assert "%ymm" in text
    assert "%zmm" not in text
