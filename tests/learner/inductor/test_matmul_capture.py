"""Templates are captured once, and put together for any tile as TorchInductor itself writes them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from tests.learner.inductor.matmul_host import COMPILED
from tests.support import ROOT

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.tiles import MatmulTile
from tileguard.learner.inductor.matmul_kernel import CapturedMatmul, matmul_tile, render
from tileguard.runtime.matmul_tiles import fits

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and triton")
H200 = known_hardware("h200")


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.learner.inductor.matmul_host"],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def kernel_of(one: dict[str, Any]) -> CapturedMatmul:
    return CapturedMatmul.from_json(one["captured"], where="test")


def tile_of(choice: dict[str, Any]) -> MatmulTile:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M")
    return matmul_tile([choice[name] for name in names])


@needs_torch
def test_a_tiles_file_is_the_hosts_own_to_the_letter(found: list[dict[str, Any]]) -> None:
    variants = set()
    for one in found:
        kernel = kernel_of(one)
        assert one["own"]
        for choice, source in one["own"]:
            assert kernel.code(tile_of(choice)) == source
            variants.add((kernel.op, choice["EVEN_K"]))
    assert variants >= {("mm", True), ("mm", False), ("bmm", False), ("addmm", True)}


@needs_torch
def test_the_hosts_two_lists_are_kept_in_order(found: list[dict[str, Any]]) -> None:
    for one in found:
        baselines = one["captured"]["baselines"]
        own = [list(tile_of(choice).sort_key) for choice, _ in one["own"]]
        count = min(len(baselines["default"]), 10)
        assert baselines["default"][:count] == own[:count]
        assert {tile[5] for tile in baselines["max_autotune"]} == {8}
        assert len(baselines["max_autotune"]) > len(baselines["default"]) or one["captured"]["m"] <= 16


@needs_torch
def test_arguments_are_in_the_kernels_order(found: list[dict[str, Any]]) -> None:
    dtypes = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    for one in found:
        kernel = kernel_of(one)
        source = next(iter(kernel.sources.values()))
        signature = re.search(r"'signature': \{(.*?)\}", source)
        assert signature is not None
        named = re.findall(r"'(\w+)': '\*(\w+)'", signature[1])
        assert [dtypes[dtype] for _, dtype in named] == [arg["dtype"] for arg in kernel.args]
        names = ["in_ptr0"] * (kernel.op == "addmm") + ["arg_A", "arg_B", "out_ptr0"]
        assert [name for name, _ in named] == names
        for name, letter, argument in (("a", "A", -3), ("b", "B", -2)):
            inner = {"a": "m k", "b": "k n"}[name].split()
            strides = [int(re.findall(rf"stride_{name}{axis} = (\d+)", source)[0]) for axis in inner]
            assert kernel.args[argument]["stride"][-2:] == strides, letter


@needs_torch
def test_dtype_says_what_the_template_multiplies(found: list[dict[str, Any]]) -> None:
    for one in found:
        kernel = kernel_of(one)
        for source in kernel.sources.values():
            assert f"ALLOW_TF32 : tl.constexpr = {kernel.dtype == 'tf32'}" in source
    allowed = [kernel_of(one) for one in found if one["captured"]["allow_tf32"]]
    assert len(allowed) == 2
    assert "tf32" in {kernel.dtype for kernel in allowed}


@needs_torch
def test_tiles_compile_to_as_many_buffers_as_the_plan_counts(found: list[dict[str, Any]]) -> None:
    """Bytes that `fits` counts are what the compiler takes, where K is not shorter than the pipeline."""
    kernel = kernel_of(found[-1])
    seen = found[-1]["compiled"]
    assert len(seen) == len(COMPILED)
    for numbers in COMPILED:
        tile = matmul_tile(list(numbers))
        step = (tile.block_m + tile.block_n) * tile.block_k * 2
        shared = seen[",".join(map(str, numbers))]
        buffers = tile.num_stages if tile.block_m >= 64 else tile.num_stages - 1
        assert shared >= step * max(1, buffers)
        assert shared < step * (max(1, buffers) + 1) or tile.num_stages == 1
        assert fits(tile, kernel.described, H200)


def test_a_template_that_has_changed_is_refused() -> None:
    tile = MatmulTile(64, 64, 32, 4, 3)
    with pytest.raises(InvalidInput, match="BLOCK_M in 0 places"):
        render("def kernel(): pass", tile)


def test_what_is_no_tile_is_refused() -> None:
    with pytest.raises(InvalidInput, match="six integers"):
        matmul_tile([1, 2, 3])
