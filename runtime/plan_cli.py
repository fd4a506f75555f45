"""`tileguard plan`: how to cut a batched matmul's outputs so that the last round of cores is not wasted, and why."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import KNOWN, HardwareSpec, known_hardware
from tileguard.features.kernels import MatmulKernel
from tileguard.features.matmul_time import predicted_us

from .cli import JSON_VERSION, Json, app, console, print_json
from .matmul_tiles import planner_tiles
from .tail.closed import LEAST_UTILISATION
from .tail.cuts import COUNTED, EXACT, GEOMETRIES, Cut
from .tail.plan import FIRST_WAVES, FIRSTS, TailPlan, plan_tail
from .tail.rules import A0, A1A, A1B, B1, B
from .tail.terms import as_dict

NAMES = {
    A0: "nothing cut anew", A1A: "tail blocks in equal parts", A1B: "tail cut anew", B: "everything cut anew",
    B1: "everything, whole rounds",
}  # fmt: skip

SOURCE = {"l2": "inputs fit in L2", "gm": "inputs larger than L2", "given": "as given"}
FIRST = {"waves": "least n_wave·T", "fill": "cores filled", "joint": "least with its tail", "given": "as given"}

_GIGA = 1e9
_SHOWN_ROUNDS = 2
"""Full rounds drawn at the start; the rest of them are one line."""

MAIN_CELL, TAIL_CELL, IDLE_CELL = "█", "▒", "·"


@app.command("plan")
def plan_command(
    m: Annotated[int, typer.Option(help="Rows of the output.")],
    k: Annotated[int, typer.Option(help="Length of the axis that is summed over.")],
    n: Annotated[int, typer.Option(help="Columns of the output.")],
    batch: Annotated[int, typer.Option(help="Products in the batch.")] = 1,
    dtype: Annotated[str, typer.Option(help="Type of both inputs: bf16, fp16, fp8, …")] = "bf16",
    out_dtype: Annotated[str | None, typer.Option(help="Type of the output, where it is another.")] = None,
    a_transposed: Annotated[bool, typer.Option("--a-transposed", help="A is stored as K x M.")] = False,
    b_transposed: Annotated[bool, typer.Option("--b-transposed", help="B is stored as N x K.")] = False,
    hardware: Annotated[
        str, typer.Option(help=", ".join(name for name, spec in KNOWN.items() if spec.matmul is not None))
    ] = "ascend950pr",
    main_tile: Annotated[str | None, typer.Option(help="The first split's tile, as 256x256; left out, found.")] = None,
    first: Annotated[str, typer.Option(help=f"How it is found: {', '.join(FIRSTS)}.")] = FIRST_WAVES,
    geometry: Annotated[
        str, typer.Option(help=f"{', '.join(GEOMETRIES)} (tiles counted by area, as the note).")
    ] = EXACT,
    bandwidth: Annotated[
        float | None, typer.Option(help="GB/s that one core loads at, whatever the working set.")
    ] = None,
    min_utilisation: Annotated[float, typer.Option(help="Share of the cores that B keeps busy.")] = LEAST_UTILISATION,
    draw: Annotated[Path | None, typer.Option(help="Draw the rounds and the tail's tiles into this .png.")] = None,
    as_json: Json = False,
) -> None:
    """The tail of a batched matmul: which cut is fastest on paper, by which rule, and what every other would take."""
    if draw is not None and draw.suffix.lower() != ".png":
        raise InvalidInput("draw", str(draw), "a file ending in .png")
    if bandwidth is not None and not bandwidth > 0:
        raise InvalidInput("bandwidth", bandwidth, "GB/s above 0")
    kernel = MatmulKernel(batch, m, n, k, dtype, out_dtype, a_transposed, b_transposed)
    spec = known_hardware(hardware)
    plan = plan_tail(
        kernel, spec, geometry=geometry, bandwidth=None if bandwidth is None else bandwidth * _GIGA,
        min_utilisation=min_utilisation, main_tile=None if main_tile is None else tile_option(main_tile), first=first,
    )  # fmt: skip
    if draw is not None:
        from .plan_figure import save_plan

        save_plan(plan, draw)
    if as_json:
        print_json(plan_json(plan) | {"triton_tiles": triton_json(kernel, spec)})
        return
    by_area = None
    if plan.geometry == EXACT:
        by_area = plan_tail(
            kernel, spec, geometry=COUNTED, bandwidth=plan.rates.load_bytes_per_s, min_utilisation=min_utilisation,
            main_tile=plan.main.main_tile,
        )  # fmt: skip
    out = console()
    out.print(headline(plan))
    out.print(reasons(plan))
    out.print(strategy_table(plan, width=out.width))
    out.print(round_picture(plan, plan.chosen, width=out.width))
    if (triton := triton_json(kernel, spec)) is not None:
        out.print(triton_table(triton) if triton else "no Triton tile suits this product")
        out.print(
            "strategies take the hardware's peak rates and know no registers; Triton tiles are what can be launched, "
            "their times a ranking more than a prediction",
            style="dim",
        )
    if by_area is not None and by_area["A1b"].us * 1.001 < plan["A1b"].us:
        out.print(
            f"counted by area, A1b would take {us(by_area['A1b'].us)} with a tail of "
            f"{tile_text(by_area['A1b'].tail_tile)}; no rectangles of that size cover the tail with {plan.cores} cores",
            style="dim",
        )
    if draw is not None:
        out.print(Text(f"drawn: {draw}", style="dim"))


def tile_option(text: str) -> tuple[int, int]:
    """`--main-tile 256x256`."""
    found = re.fullmatch(r"\s*(\d{1,18})\s*[x×,]\s*(\d{1,18})\s*", text)
    if found is None:
        raise InvalidInput("main-tile", text, "rows x columns, as 256x256")
    return int(found[1]), int(found[2])


def plan_json(plan: TailPlan) -> dict[str, Any]:
    """`plan --json`: the decision and what it rests on; times in µs, null for a strategy that does not exist.

    main_tile and tail_tile are the chosen strategy's (tail_tile null where the tail is not cut anew); terms, n_blk to
    b1_applies are of the first split.
    """
    chosen, main = plan.chosen, plan.main
    return {
        "version": JSON_VERSION,
        "kernel": dataclasses.asdict(plan.kernel),
        "hardware": plan.hardware,
        "geometry": plan.geometry,
        "first": plan.first,
        "strategy": plan.strategy,
        "us": plan.us,
        "rule": plan.rule.number,
        "rule_condition": plan.rule.condition,
        "rule_strategies": list(plan.rule.strategies),
        "rule_us": plan.rule_us,
        "latency_us": plan.latency_us,
        "terms_us": dict(as_dict(plan.terms)),
        "dominant": plan.terms.dominant,
        "bandwidth_gb_s": plan.rates.load_bytes_per_s / _GIGA,
        "bandwidth_source": plan.rates.source,
        "main_tile": list(chosen.main_tile),
        "tail_tile": list(chosen.tail_tile) if chosen.new_tail else None,
        "first_tile": list(main.main_tile),
        "n_blk": main.n_blk,
        "n_wave": main.n_wave,
        "r": main.r,
        "rho": plan.rho,
        "rho_dv": plan.rho_dv,
        "rho_flip": plan.rho_flip,
        "g": plan.g,
        "interval": plan.interval,
        "b0": plan.b0,
        "b1_applies": plan.b1_applies,
        "critical_tile": plan.critical_tile,
        "critical_k": plan.critical_k,
        "strategies": {name: None if cut is None else cut_json(cut, plan.cores) for name, cut in plan.cuts.items()},
    }


def cut_json(cut: Cut, cores: int) -> dict[str, Any]:
    """One strategy's cut."""
    return {
        "us": cut.us,
        "main_tile": list(cut.main_tile),
        "split": list(cut.split),
        "n_blk": cut.n_blk,
        "n_wave": cut.n_wave,
        "r": cut.r,
        "block_us": cut.block.block,
        "tail_tile": list(cut.tail_tile) if cut.new_tail else None,
        "tail_blocks": cut.tail_blocks,
        "tail_us": cut.tail.block,
        "tail_dominant": cut.tail.dominant,
        "utilisation": cut.utilisation(cores),
    }


def triton_json(kernel: MatmulKernel, spec: HardwareSpec) -> list[dict[str, Any]] | None:
    """Triton tiles for a GPU, the likeliest first, each with its predicted µs; None on other hardware."""
    if spec.kind != "nvidia":
        return None
    tiles = planner_tiles(kernel, spec)
    times = predicted_us(kernel, tiles, spec).tolist()
    return [{**dataclasses.asdict(tile), "us": time} for tile, time in zip(tiles, times, strict=True)]


def triton_table(tiles: list[dict[str, Any]]) -> Table:
    """The same as a table, a row a tile."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Triton tiles to try", title_justify="left")
    for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "warps", "stages", "GROUP_M", "predicted"):
        table.add_column(name, justify="right", overflow="fold")
    for tile in tiles:
        *numbers, time = tile.values()
        table.add_row(*map(str, numbers), us(time))
    return table


def headline(plan: TailPlan) -> Text:
    """The decision in one line."""
    chosen = plan.chosen
    line = Text.assemble(
        (plan.strategy, "bold green"), f" ({NAMES[plan.strategy]}): ", (us(plan.us), "bold"),
        f" on {plan.hardware}; tile {tile_text(chosen.main_tile)}",
    )  # fmt: skip
    if chosen.new_tail:
        line.append(f", tail {tile_text(chosen.tail_tile)}")
    if (saved := 1 - plan.us / plan.main.us) > 0.0005 and plan.strategy != A0:
        line.append(f"; {100 * saved:.1f} % less than A0")
    return line


def reasons(plan: TailPlan) -> Table:
    """Why: the rule, the terms, the tail's numbers, label and sentence side by side."""
    main, terms, rule = plan.main, plan.terms, plan.rule
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    picks = " or ".join(rule.strategies)
    verdict = "" if plan.strategy in rule.strategies else f"; enumerated, {plan.strategy} is fastest"
    load = f"{plan.rates.load_bytes_per_s / _GIGA:.4g} GB/s a core ({SOURCE[plan.rates.source]})"
    tail = f"ρ = {plan.rho:.4g}, ρ_dv = {plan.rho_dv:.4g}, ρ_flip = {plan.rho_flip:.4g}, g = {plan.g:.4g}"
    ruling = f"{terms.dominant.upper()} rules, by {terms.kind}; loads at {load}"
    split = f"{tile_text(main.main_tile)}, {main.split[0]} x {main.split[1]} a batch"
    blocks = f"{main.n_blk} blocks in {rounds(main.n_wave)} of {plan.cores}, r = {main.r}"
    rows = (
        ("rule", f"{rule.number}: {rule.condition} → {picks}, {rule.formula} = {us(plan.rule_us)}{verdict}"),
        ("terms", f"MMAD {us(terms.mmad)}, MTE2 {us(terms.mte2)}, FIX {us(terms.fix)}: {ruling}"),
        ("first split", f"{FIRST[plan.first]}: {split}; {blocks}"),
        ("tail", tail + (f"; interval {plan.interval}" if plan.interval else "")),
        ("B0, B1", f"B0 takes {plan.b0}; B1's threshold {'holds' if plan.b1_applies else 'does not hold'}"),
    )
    for label, sentence in rows:
        grid.add_row(label, Text(sentence))
    return grid


WIDE = 130
"""Columns of a terminal from which the table says what the strategies are, and of their blocks and rounds how many."""


def strategy_table(plan: TailPlan, *, width: int = WIDE) -> Table:
    """One row a strategy, the chosen one in bold."""
    wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("strategy", "tile", "tail tile"):
        table.add_column(name, no_wrap=True)
    for name in (*(("blocks", "busy", "rounds") if wide else ()), "last round", "time", "÷ best"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, cut in plan.cuts.items():
        label = f"{name} {NAMES[name]}" if wide else name
        if cut is None:
            table.add_row(Text(label, "dim"), Text("none here", "dim"))
            continue
        busy = f"{100 * cut.utilisation(plan.cores):.0f} %"
        figures = (str(cut.n_blk), busy, str(cut.n_wave)) if wide else ()
        table.add_row(
            label, tile_text(cut.main_tile), tile_text(cut.tail_tile) if cut.new_tail else "", *figures,
            f"{cut.tail_blocks if cut.r else plan.cores}/{plan.cores}", us(cut.us), f"{cut.us / plan.us:.3f}",
            style="bold" if name == plan.strategy else "",
        )  # fmt: skip
    return table


def round_picture(plan: TailPlan, cut: Cut, *, width: int) -> Table:
    """The rounds of one strategy: a row a round, a cell a core (or a few cores, where the terminal is narrow)."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    cells = min(plan.cores, max(width - 44, 8))
    full = cut.n_wave - 1 if cut.r else cut.n_wave
    shown = min(full, _SHOWN_ROUNDS if full > _SHOWN_ROUNDS + 1 else full)
    for index in range(shown):
        grid.add_row(
            f"round {index + 1}", Text(MAIN_CELL * cells, "blue"), f"{us(cut.block.block)}  {tile_text(cut.main_tile)}"
        )
    if full > shown:
        grid.add_row(f"{full - shown} more", Text("⋮", "blue"), us((full - shown) * cut.block.block))
    if cut.r:
        busy = -(-cut.tail_blocks * cells // plan.cores)
        cell, colour = (TAIL_CELL, "yellow") if cut.new_tail else (MAIN_CELL, "blue")
        row = Text.assemble((cell * busy, colour), (IDLE_CELL * (cells - busy), "dim"))
        idle = f", {plan.cores - cut.tail_blocks} idle" if cut.tail_blocks < plan.cores else ""
        grid.add_row(f"round {cut.n_wave}", row, f"{us(cut.tail.block)}  {tile_text(cut.tail_tile)}{idle}")
    return grid


def rounds(count: int) -> str:
    return f"{count} round" + ("" if count == 1 else "s")


def tile_text(tile: tuple[int, int]) -> str:
    return f"{tile[0]} x {tile[1]}"


def us(value: float) -> str:
    """A time as people read it: four figures of µs, ms or s."""
    if value < 1e-3:
        return f"{value:.3g} µs"
    for unit, size in (("µs", 1.0), ("ms", 1e3)):
        if value < 1e4 * size:
            return f"{value / size:.4g} {unit}"
    return f"{value / 1e6:.4g} s"
