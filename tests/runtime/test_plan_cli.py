"""`tileguard plan`: the decision and its reasons for people and machines, the pictures, and one line on bad input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.runtime import plan_cli
from tileguard.runtime.plan_figure import plan_figure
from tileguard.runtime.tail import TailPlan, plan_tail

Run = Callable[..., tuple[int, str, str]]

ASCEND = known_hardware("ascend950pr")
BOUNDARY = "--batch 7 --m 1280 --k 8192 --n 256 --dtype bf16 --hardware ascend950pr"
DECODE = "--batch 100 --m 64 --k 512 --n 3328 --main-tile 64x832 --bandwidth 162.5"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit status, standard output, standard error) of `tileguard plan`."""

    def command(arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["plan", *arguments.split()])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return command


def shown(item: Any, *, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(item)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_the_decision_its_reasons_and_every_strategy_are_printed(run: Run) -> None:
    code, out, err = run(f"{DECODE} --geometry area")
    assert (code, err) == (0, "")
    assert out.startswith(
        "A1b (tail cut anew): 70.78 µs on ascend950pr; tile 64 x 832, tail 64 x 416; 3.6 % less than A0"
    )
    for part in (
        "5: ruled by loads",
        "MTE2 rules, by perimeter",
        "162.5 GB/s a core (as given)",
        "ρ = 0.5,",
        "interval I",
    ):
        assert part in out
    for strategy in ("A0 nothing", "A1a tail", "A1b tail", "B everything", "B1 everything"):
        assert strategy in out


def test_what_the_area_promises_and_no_rectangles_give_is_said(run: Run) -> None:
    assert "counted by area, A1b would take 178.3 µs with a tail of 320 x 224" in run(BOUNDARY)[1]
    assert "counted by area" not in run(DECODE)[1]


def test_json_has_the_documented_keys(run: Run) -> None:
    code, out, _ = run(f"{BOUNDARY} --geometry area --json")
    found = json.loads(out)
    assert code == 0
    assert found["version"] == 1
    assert (found["strategy"], found["rule"], found["geometry"]) == ("A1b", 5, "area")
    assert set(found["latency_us"]) == {"A0", "A1a", "A1b", "B", "B1"}
    assert found["latency_us"]["A1b"] == pytest.approx(178.26, rel=0.005)
    assert found["latency_us"]["A1a"] is None
    assert set(found["terms_us"]) == {"mmad", "mte2", "fix"}
    assert (found["main_tile"], found["tail_tile"]) == ([320, 256], [320, 224])
    assert (found["n_blk"], found["n_wave"], found["r"], found["rho"]) == (28, 1, 28, 0.875)
    assert found["rho_dv"] == 0.25
    assert found["g"] == pytest.approx(32 / 28)
    assert found["strategies"]["A1b"]["tail_blocks"] == 32
    documented = (Path(__file__).parents[2] / "docs" / "tail.md").read_text(encoding="utf-8")
    for key in (*found, *found["strategies"]["A1b"]):
        assert f'"{key}"' in documented, key


def test_options_reach_the_planner(run: Run) -> None:
    found = json.loads(
        run(f"{BOUNDARY} --first fill --bandwidth 100 --min-utilisation 0.9 --b-transposed --out-dtype fp32 --json")[1]
    )
    assert (found["first"], found["bandwidth_gb_s"], found["bandwidth_source"]) == ("fill", 100.0, "given")
    assert found["first_tile"] == [256, 256]
    assert found["kernel"]["b_transposed"] is True
    assert found["kernel"]["out_dtype"] == "fp32"
    assert found["rho_dv"] == 0.0


def test_a_picture_is_drawn(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    code, out, _ = run(f"{DECODE} --draw {path}")
    assert code == 0
    assert str(path) in out.replace("\n", "")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("--m 0 --k 1 --n 1", "m:"),
        ("--m 1 --k 99999999999999999999 --n 1", "k:"),
        ("--m 1 --k 1 --n 1 --batch -3", "batch:"),
        ("--m 1099511627776 --k 1 --n 1099511627776", "batch*m*n:"),
        ("--m 1 --k 1 --n 1 --dtype fp32", "dtype:"),
        ("--m 1 --k 1 --n 1 --hardware h100x", "hardware:"),
        ("--m 1 --k 1 --n 1 --hardware ascend910b3", "hardware:"),
        ("--m 1 --k 1 --n 1 --main-tile 16", "main-tile:"),
        ("--m 1 --k 1 --n 1 --main-tile 17x16", "main_tile:"),
        ("--m 1 --k 1 --n 1 --bandwidth 0", "bandwidth:"),
        ("--m 1 --k 1 --n 1 --geometry round", "geometry:"),
        ("--m 1 --k 1 --n 1 --first last", "first:"),
        ("--m 1 --k 1 --n 1 --draw plan.pdf", "draw:"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field(run: Run, arguments: str, field: str) -> None:
    code, out, err = run(arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"tileguard: {field}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["256x256", "256 × 256", "256,256"])
def test_a_tile_is_read_in_any_usual_spelling(text: str) -> None:
    assert plan_cli.tile_option(text) == (256, 256)


def test_no_tile_is_read_from_nonsense() -> None:
    for text in ("", "x", "1x2x3", "-1x2", "9" * 30 + "x1"):
        with pytest.raises(InvalidInput):
            plan_cli.tile_option(text)


def plans() -> dict[str, TailPlan]:
    return {
        "one round": plan_tail(MatmulKernel(7, 1280, 256, 8192, "bf16"), ASCEND),
        "l": plan_tail(MatmulKernel(3, 1000, 2304, 2048, "bf16"), ASCEND, first="joint"),
        "decode": plan_tail(MatmulKernel(100, 64, 3328, 512, "bf16"), ASCEND, main_tile=(64, 832), bandwidth=162.5e9),
        "no tail": plan_tail(MatmulKernel(1, 4096, 4096, 4096, "bf16"), ASCEND, main_tile=(256, 256)),
        "huge": plan_tail(MatmulKernel(1, 1 << 31, 1 << 31, 1, "bf16"), ASCEND),
        "tiny": plan_tail(MatmulKernel(1, 1, 1, 1, "fp8"), ASCEND),
        "area": plan_tail(MatmulKernel(7, 1280, 256, 8192, "bf16"), ASCEND, geometry="area"),
    }


@pytest.mark.parametrize("name", plans())
def test_every_plan_can_be_shown_at_every_width_and_drawn(name: str) -> None:
    plan = plans()[name]
    for width in (60, 80, 160):
        for item in (
            plan_cli.headline(plan), plan_cli.reasons(plan), plan_cli.strategy_table(plan, width=width),
            plan_cli.round_picture(plan, plan.chosen, width=width),
        ):  # fmt: skip
            text = shown(item, width=width)
            assert max(map(len, text.splitlines())) <= width
    table = shown(plan_cli.strategy_table(plan, width=80), width=80)
    assert "…" not in table
    assert len(plan_figure(plan).axes) >= sum(cut is not None for cut in plan.cuts.values())


def test_the_picture_of_the_rounds_has_a_cell_a_core() -> None:
    found = plans()
    assert shown(plan_cli.round_picture(found["one round"], found["one round"].main, width=160)).count("·") == 4
    text = shown(plan_cli.round_picture(found["decode"], found["decode"].chosen, width=160))
    assert text.count("█") == 64
    assert text.count("▒") == 32
    assert "10 more" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00051234, "0.000512 µs"), (188.743, "188.7 µs"), (21990232.6, "21.99 s"), (54321.0, "54.32 ms")],
)
def test_times_have_four_figures(value: float, text: str) -> None:
    assert plan_cli.us(value) == text


def test_on_a_gpu_triton_tiles_come_with_the_plan(run: Run) -> None:
    problem = "--batch 7 --m 1280 --k 8192 --n 256 --dtype bf16"
    code, out, err = run(f"{problem} --hardware h200")
    assert (code, err) == (0, "")
    assert "on h200; tile" in out
    assert "Triton tiles to try" in out
    tiles = json.loads(run(f"{problem} --hardware h200 --json")[1])["triton_tiles"]
    assert 5 <= len(tiles) <= 12
    assert set(tiles[0]) == {"block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "us"}
    assert [tile["us"] for tile in tiles] == sorted(tile["us"] for tile in tiles)
    assert json.loads(run(f"{problem} --hardware ascend950pr --json")[1])["triton_tiles"] is None
    assert run("--m 1 --n 1 --k 1 --hardware h200 --dtype fp32")[0] == 0
    assert run("--m 1 --n 1 --k 1 --hardware h200 --dtype fp64")[::2] == (
        2, "tileguard: dtype: 'fp64' is not allowed; expected one whose rate on h200 is known: fp16, bf16, tf32, fp8, fp32\n",
    )  # fmt: skip
