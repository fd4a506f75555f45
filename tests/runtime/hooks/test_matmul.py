"""The union of matrix products in the real Inductor's lists, on a GPU that is not there (matmul_host.py)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support import ROOT

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.runtime.hooks.inductor import Settings
from tileguard.runtime.hooks.matmul import MatmulSettings, matmul_settings
from tileguard.runtime.hooks.matmul_log import TILE_NAMES
from tileguard.runtime.matmul_tiles import MOST, matmul_lattice, planner_tiles

from .matmul_host import PRODUCTS

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and triton")
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache: Path = tmp_path_factory.mktemp("products")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TMPDIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.hooks.matmul_host"],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result | {"stderr": done.stderr}


def tile_of(choice: dict[str, Any]) -> tuple[int, ...]:
    return tuple(choice[name] for name in TILE_NAMES)


@needs_torch
@pytest.mark.parametrize("case", PRODUCTS)
def test_the_hosts_choices_come_first_and_behind_them_the_planners_tiles(found: dict[str, Any], case: str) -> None:
    off, on = found["off"][case], found["on"][case]
    assert on[: len(off)] == off
    assert off[0]["template"].startswith("aten::")
    added, host = on[len(off) :], [tile_of(choice) for choice in off if "BLOCK_M" in choice]
    op, (batch, m, n, k), dtype = PRODUCTS[case]
    planned = planner_tiles(MatmulKernel(batch, m, n, k, DTYPES[dtype]), known_hardware("h200"))
    assert [tile_of(choice) for choice in added] == [tile.sort_key for tile in planned if tile.sort_key not in host]
    assert 0 < len(added) <= MOST
    assert {choice["template"] for choice in added} == {"triton::bmm" if op == "bmm" else "triton::mm"}
    assert all(choice["ours"] for choice in added)
    assert not any(choice["ours"] for choice in off)


@needs_torch
@pytest.mark.parametrize("case", PRODUCTS)
def test_even_k_is_worked_out_for_each_tile(found: dict[str, Any], case: str) -> None:
    k = PRODUCTS[case][1][3]
    tuned = [choice for choice in found["on"][case] if "BLOCK_K" in choice]
    assert all(choice["EVEN_K"] == (k % choice["BLOCK_K"] == 0) for choice in tuned)
    others = [
        {name: value for name, value in choice.items() if name not in (*TILE_NAMES, "EVEN_K", "ours")}
        for choice in tuned
    ]
    assert all(other == others[0] for other in others)
    if case == "bmm":
        assert {choice["EVEN_K"] for choice in tuned if choice["ours"]} == {True, False}


@needs_torch
def test_of_a_k_that_may_be_any_no_block_is_known_to_divide_it(found: dict[str, Any]) -> None:
    assert found["dynamic"][: len(found["dynamic_off"])] == found["dynamic_off"]
    added = found["dynamic"][len(found["dynamic_off"]) :]
    assert added
    assert not any(choice["EVEN_K"] for choice in added)


@needs_torch
def test_where_the_host_tunes_no_tile_its_list_stands(found: dict[str, Any]) -> None:
    assert [choice["template"] for choice in found["untuned"]] == ["aten::mm"]
    assert [choice["template"] for choice in found["aten_only"]] == ["aten::mm"]
    off = found["off"]["mm"]
    assert found["deterministic"] == found["switched_off"] == found["after"] == off
    assert [choice for choice in found["no_aten"] if not choice["ours"]] == off[1:]
    assert any(choice["ours"] for choice in found["no_aten"])
    assert found["reasons"] == {"matmul_deterministic": 1}
    assert found["huge"][0]["template"] == "aten::mm"
    assert found["huge"][-1]["ours"]


@needs_torch
def test_a_planner_that_fails_leaves_the_hosts_list_and_is_counted(found: dict[str, Any]) -> None:
    assert found["planner_fails"] == found["off"]
    assert found["planner_reasons"] == {"matmul_error": len(PRODUCTS)}
    assert found["like_fails"] == found["source_fails"] == found["off"]["mm"]
    assert found["stderr"].count("ZeroDivisionError: broken on purpose (told once)") == 1


@needs_torch
def test_the_host_is_patched_only_if_asked_and_gets_its_own_method_back(found: dict[str, Any]) -> None:
    assert found["installed"]
    assert found["patched"]
    assert found["restored"]
    assert not found["default_patched"]


@needs_torch
def test_another_signature_leaves_products_alone_and_hooks_the_rest(found: dict[str, Any]) -> None:
    assert found["renamed_installed"]
    assert not found["renamed_patched"]
    assert found["stderr"].count("tileguard leaves matrix products as they are: TypeError") == 1


@needs_torch
def test_the_graph_caches_key_follows_the_setting(found: dict[str, Any]) -> None:
    assert found["salt"] != found["salt_off"]


def test_the_uuid_follows_settings_and_the_models_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGUARD_MODELS", str(tmp_path))
    uuids = {MatmulSettings(mode=mode).uuid for mode in ("union", "prune")}
    uuids |= {MatmulSettings(None).uuid, MatmulSettings(top_k=3).uuid, MatmulSettings(tmp_path).uuid}
    assert len(uuids) == 5
    for folder, text, changes in (
        ("reduction-h200", "{}", False), ("matmul-h200", "{}", True), ("matmul-h200", "[]", True),
    ):  # fmt: skip
        before = MatmulSettings().uuid
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "manifest.json").write_text(text)
        assert (MatmulSettings().uuid != before) == changes


@needs_torch
def test_without_a_champion_the_list_is_the_planners(found: dict[str, Any]) -> None:
    assert found["no_champion"] == found["on"]["mm"]
    assert "no_model: none is shipped for matmuls on h200" in found["stderr"]


@needs_torch
def test_the_shipped_champion_adds_tiles_to_the_hosts_and_the_planners(found: dict[str, Any]) -> None:
    off, on = found["off"]["mm"], found["champion"]
    assert on[: len(off)] == off
    planned, tiles = ({tile_of(choice) for choice in one if "BLOCK_M" in choice} for one in (found["on"]["mm"], on))
    assert planned < tiles
    assert len(tiles) <= len(planned) + 8


@needs_torch
def test_a_rankers_tile_comes_before_the_planners(found: dict[str, Any]) -> None:
    off, union = found["off"]["mm"], found["ranked"]["union"]
    first = matmul_lattice(MatmulKernel(1, 512, 1024, 256, "bf16"), known_hardware("h200"))[0]
    assert union[: len(off)] == off
    assert tile_of(union[len(off)]) == first.sort_key
    planned = {tile_of(choice) for choice in found["on"]["mm"][len(off) :]}
    assert {tile_of(choice) for choice in union[len(off) :]} == planned | {first.sort_key}
    assert first.sort_key not in planned


@needs_torch
def test_pruning_never_drops_aten_nor_the_hosts_first_tile(found: dict[str, Any]) -> None:
    off, pruned = found["off"]["mm"], found["ranked"]["prune"]
    assert [choice for choice in pruned if not choice["ours"]] == [
        choice for choice in off if "BLOCK_M" not in choice
    ] + [next(choice for choice in off if "BLOCK_M" in choice)]
    assert sum(choice["ours"] for choice in pruned) == sum(choice["ours"] for choice in found["ranked"]["union"])


def test_settings_are_checked() -> None:
    assert matmul_settings(False) is None
    assert matmul_settings(True) == matmul_settings("union") == MatmulSettings()
    for bad in ("drop", "yes", None, 2):
        with pytest.raises(InvalidInput, match="matmul"):
            Settings(matmul=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="matmul"):
        MatmulSettings(mode="drop")
    with pytest.raises(InvalidInput, match="top_k"):
        MatmulSettings(top_k=0)
    assert matmul_settings("prune") == MatmulSettings(mode="prune")
