"""The benchmark of matrix products starts without a GPU; its products are fresh, and its sums say what they should."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import readme, readme_matmul
from benchmarks.matmul_cases import (
    EXHAUSTIVE,
    LONGEST_US,
    MODES,
    fresh_products,
    identity,
    products_of,
    roofline_us,
    settings_of,
    space_size,
    tiny,
)
from benchmarks.matmul_h200 import load_judge, summarise
from benchmarks.pieces import load_modes, mode_file
from tests.support import ROOT, python

from tileguard.learner.inductor.matmul_problems import Problem, problems

PRODUCTS = fresh_products(24, 1000)

COMPILED = """
import json
from benchmarks.matmul_cases import fresh_products, tiny
from benchmarks.matmul_judge import caller, load_all
from benchmarks.matmul_modes import checked, run_product
from tileguard.learner.inductor.args import build_args
from tileguard.learner.inductor.matmul_capture import describe_problem

product = next(one for one in map(tiny, fresh_products(24, 1000)) if one.op == "bmm")
found = run_product(product, device="cpu", proposer=None)
modules = load_all({"p": {"w": found["code"], "broken": "import nothing_like_this"}})["p"]
out = caller(modules["w"])(*build_args(describe_problem(product)[:-1], device="cpu"), stream=None)[0]
found["again"] = checked(product, build_args(describe_problem(product)[:-1], device="cpu"), out)
print(json.dumps(found | {"broken": modules["broken"]}))
"""


def test_it_starts_as_a_file_from_anywhere(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "matmul_h200.py"
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    shown = subprocess.run(
        [sys.executable, script, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "--exhaustive" in shown.stdout


def test_products_are_fresh_short_and_of_many_families() -> None:
    corpus = {identity(one) for one in itertools.islice(problems(0), 1000)}
    assert len({identity(one) for one in PRODUCTS} - corpus) == len(PRODUCTS) == 24
    assert max(roofline_us(one.kernel) for one in PRODUCTS) <= LONGEST_US
    assert len({one.family for one in PRODUCTS}) >= 12
    assert {one.op for one in PRODUCTS} == {"mm", "bmm", "addmm"}
    assert fresh_products(24, 1000) == PRODUCTS
    assert max(one.kernel.m for one in map(tiny, PRODUCTS)) <= 48


def test_the_exhaustive_mode_has_the_first_products_cheapest_first() -> None:
    few = products_of(EXHAUSTIVE, PRODUCTS, 4)
    assert set(few) == set(PRODUCTS[:4])
    assert few == sorted(few, key=space_size)
    assert products_of("default", PRODUCTS, 4) == PRODUCTS


def test_only_max_autotune_and_its_kin_tune_products() -> None:
    tuned = {mode for mode in MODES if "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM" in settings_of(mode)}
    assert tuned == set(MODES) - {"default"}
    spaces = {mode: settings_of(mode).get("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE") for mode in MODES}
    assert spaces == {mode: "EXHAUSTIVE" if mode == EXHAUSTIVE else None for mode in MODES}


def row(winner: str, *, wall_s: float = 2.0, triton: int = 20, **more: Any) -> dict[str, Any]:
    return {
        "wall_s": wall_s, "binaries": triton, "listed": {"aten": 1, "triton": triton}, "timed": {}, "failed": 1,
        "winner": winner, "kind": winner.partition(":")[0], "agrees": True, "code": f"code of {winner}", "trouble": [],
    } | more  # fmt: skip


def pieces(products: list[Problem]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Three products: max-autotune's winner is also tileguard's, a slower one, and a faster one that only it has; the
    exhaustive mode has the last alone, and is wrong there."""
    run = {
        "date": "2026-11-30",
        "gpu": "H200",
        "cpu": "",
        "cpus": 1,
        "versions": {"torch": "2.11.0"},
        "model": "planner alone",
    }
    same, slower, faster = (product.name for product in products)
    ours = {"proposers": ["host"], "proposed": {"host": 20, "formula": 10}, "verdict": "no_model"}
    modes: dict[str, Any] = {
        "default": {name: row("aten::mm", triton=0, wall_s=0.5) for name in (same, slower)}
        | {faster: {"error": "OutOfMemoryError"}},
        "max_autotune": {name: row("triton:a") for name in (same, slower, faster)},
        "tileguard": {
            same: row("triton:a", triton=30, wall_s=3.0, **ours),
            slower: row("triton:b", triton=30, wall_s=3.0, **ours),
            faster: row("triton:c", triton=30, wall_s=3.0, **ours | {"proposers": ["formula"]}),
        },
        "exhaustive": {faster: row("triton:d", agrees=False, off=1.0)},
    }
    found = {mode: {"mode": mode, "runs": [run], "products": rows} for mode, rows in modes.items()}
    found["exhaustive"]["stopped"] = "budget of 75 s"
    found["nv_heuristics"] = {"mode": "nv_heuristics", "runs": [], "products": {}, "skipped": "not installed"}

    def times(**us: float) -> dict[str, Any]:
        named = {name.replace("_", ":"): value for name, value in us.items()}
        return {"us": {name: {"us": value, "mad": 0.1} for name, value in named.items()}, "errors": {}, "aa": 1.01}

    judged = {
        "seen": {mode: sorted(content["products"]) for mode, content in sorted(found.items())}, "gpu": "H200", "seconds": {},
        "products": {
            same: times(triton_a=10.0, aten__mm=20.0), slower: times(triton_a=10.0, triton_b=11.0, aten__mm=5.5),
            faster: times(triton_a=10.0, triton_c=5.0, triton_d=4.0),
        },
    }  # fmt: skip
    return found, judged


def test_the_summary_compares_what_both_modes_have() -> None:
    products = PRODUCTS[:3]
    modes, judged = pieces(products)
    result = json.loads(json.dumps(summarise(products, modes, judged, seed=1000), allow_nan=False))
    host = result["against"]["max_autotune"]
    assert (host["n"], host["worst"], host["worst_product"]) == (3, round(10 / 11, 4), products[1].name)
    assert host["geomean"] == pytest.approx((1.0 * 10 / 11 * 2.0) ** (1 / 3), abs=1e-4)
    assert (host["slower_5"], host["faster_2"]) == (round(1 / 3, 4), round(1 / 3, 4))
    assert (host["wall_s"], host["triton_choices"]) == ([6.0, 9.0], [60, 90])
    assert result["against"]["default"]["n"] == 2
    assert result["against"]["exhaustive"] is None and result["against"]["nv_heuristics"] is None
    assert result["least_of_all"] == {"n": 3, "geomean": pytest.approx(0.5 ** (1 / 3), abs=1e-4), "worst": 0.5}
    assert result["modes"]["default"]["failed"] == 1
    assert result["modes"]["exhaustive"]["stopped"] and result["modes"]["nv_heuristics"]["skipped"] == "not installed"
    assert result["proposers"]["won"] == {"host": 2, "formula": 1}
    assert result["proposers"]["won_alone"] == {"formula": 1}
    assert set(result["disagreeing"]) == {f"default {products[2].name}", f"exhaustive {products[2].name}"}
    assert [one["product"] for one in result["slower"]] == [products[1].name]
    assert {name: one["met"] for name, one in result["targets"].items()} == {
        "geomean time, tileguard ÷ max_autotune": True,
        "slowest product, tileguard ÷ max_autotune": False,
        "runs that do not match float64": False,
    }


def test_a_judgement_is_of_the_pieces_as_they_were(tmp_path: Path) -> None:
    modes, judged = pieces(PRODUCTS[:3])
    (tmp_path / "judge.json").write_text(json.dumps(judged))
    for mode, found in modes.items():
        mode_file(tmp_path, mode).write_text(json.dumps(found))
    assert load_judge(tmp_path, load_modes(tmp_path, modes)) == judged
    del modes["default"]["products"][PRODUCTS[0].name]
    assert load_judge(tmp_path, modes) is None


def test_the_readme_has_the_figures_of_the_results_file() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = text.split(readme.MATMUL_BEGIN)[1].split(readme.MATMUL_END)[0]
    assert shown.strip() == readme_matmul.products_block().strip()
    assert readme.with_block(text, readme.MATMUL_BEGIN, readme_matmul.products_block(), readme.MATMUL_END) == text


def test_figures_of_made_up_pieces_can_be_written() -> None:
    modes, judged = pieces(PRODUCTS[:3])
    written = readme_matmul.matmul(summarise(PRODUCTS[:3], modes, judged, seed=1000))
    assert "| max-autotune, ATen and Triton | 3 | 1.220 |" in written
    assert "nv_heuristics (not installed)" in written and "exhaustive after 1" in written


def test_a_product_is_compiled_and_its_code_loaded_again(tmp_path: Path) -> None:
    """On the CPU, where ATen alone is chosen from."""
    pytest.importorskip("torch")
    shown = python(COMPILED, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_COMPILE_THREADS="1")
    found = json.loads(shown.splitlines()[-1])
    assert (found["winner"], found["kind"], found["listed"]) == ("aten::bmm", "aten", {"aten": 1})
    assert found["agrees"] and found["again"]["agrees"] and found["trouble"] == []
    assert found["calls"] == ["extern_kernels.bmm"]
    assert "nothing_like_this" in found["broken"]
