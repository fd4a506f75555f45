"""The pruner under Triton's own autotuner: what it adds, what it never touches, and that it never fails."""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import ROOT, FakeRanker, kernels, manifest_for, pseudo_scores, python

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import KNOWN
from tileguard.features.kernels import ReductionKernel
from tileguard.features.pow2 import is_pow2, pow2_ceil
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.formula import FITTED
from tileguard.runtime.hooks import triton as hook
from tileguard.runtime.lattice import is_legal, lattice
from tileguard.runtime.selector import MODEL, Selector

triton = pytest.importorskip("triton")

H200 = KNOWN["h200"]
KERNEL = ReductionKernel(4096, 768, "fp16", 1, 2)
GRID: Callable[[Mapping[str, Any]], tuple[int]] = lambda meta: (4096 // meta.get("XBLOCK", 1),)
PAIRS = ((8, 256, 8), (4, 512, 4), (1, 1024, 4))


def configs(*tiles: tuple[int, int, int], **more: Any) -> list[Any]:
    """Declared configs of (XBLOCK, R0_BLOCK, num_warps)."""
    return [triton.Config({"XBLOCK": x, "R0_BLOCK": r}, num_warps=w, num_stages=1, **more) for x, r, w in tiles]


def pruner(**options: Any) -> Callable[..., list[Any]]:
    """A pruner for KERNEL on an H200 by a model whose scores have no pattern."""
    defaults: dict[str, Any] = {
        "kernel_of": lambda args, **launch: KERNEL,
        "hardware": "h200",
        "model": FakeRanker(manifest_for("h200")),
    }
    return hook.prune(**(defaults | options))


def tile(config: Any) -> ReductionTile:
    return ReductionTile(config.kwargs["XBLOCK"], config.kwargs["R0_BLOCK"], config.num_warps, config.num_stages)


def same(found: list[Any], declared: list[Any]) -> bool:
    """Whether these are the very same configs."""
    return list(map(id, found)) == list(map(id, declared))


class Kernel:
    """What an Autotuner needs of a JITFunction; notes the configs that it was launched with."""

    arg_names = ("x", "n_rows", "n_cols")
    __name__ = "kernel"

    def __init__(self) -> None:
        self.launched: list[dict[str, Any]] = []
        self.fn = lambda x, n_rows, n_cols: None

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.launched.append(kwargs)

    warmup = run


def config_of(kernel_call: Callable[[], None]) -> Any:
    return inspect.getclosurevars(kernel_call).nonlocals["config"]


def small_wins(kernel_call: Callable[[], None], quantiles: object) -> list[float]:
    """A benchmark in which the smallest tile is the fastest."""
    kernel_call()
    config = config_of(kernel_call)
    return [config.kwargs["XBLOCK"] * config.kwargs["R0_BLOCK"] + config.num_warps / 100.0] * 3


def autotuner(prune: Callable[..., list[Any]], declared: list[Any], **more: Any) -> tuple[Any, Kernel]:
    kernel = Kernel()
    wrap = triton.autotune(
        configs=declared, key=["n_rows"], prune_configs_by={"early_config_prune": prune}, do_bench=small_wins, **more
    )
    return wrap(kernel), kernel


def test_triton_times_the_declared_configs_first_and_launches_an_added_winner() -> None:
    declared = configs(*PAIRS)
    tuner, kernel = autotuner(pruner(), declared)
    tuner[GRID](None, 4096, 768)
    timed = list(tuner.configs_timings)
    assert same(timed[: len(declared)], declared)
    assert 0 < len(timed) - len(declared) <= hook.DEFAULT_MAX_EXTRA
    assert tuner.best_config not in declared
    assert tuner.best_config is min(timed, key=lambda c: tuner.configs_timings[c][0])
    assert kernel.launched[-1] == {"grid": GRID, "warmup": False, **tuner.best_config.all_kwargs()}
    assert len(kernel.launched) == len(timed) + 1
    tuner[GRID](None, 4096, 768)
    assert len(kernel.launched) == len(timed) + 2, "a known key is neither pruned nor timed again"


def test_a_single_config_is_triton_s_own_business() -> None:
    tuner, kernel = autotuner(lambda *a, **k: pytest.fail("called"), configs(PAIRS[0]))
    tuner[GRID](None, 4096, 768)
    assert kernel.launched == [{"grid": GRID, "warmup": False, "XBLOCK": 8, "R0_BLOCK": 256,
                                "num_warps": 8, "num_ctas": 1, "num_stages": 1}]  # fmt: skip


def test_warming_up_compiles_the_whole_union() -> None:
    tuner, kernel = autotuner(pruner(), configs(*PAIRS))
    tuner.warmup(None, 4096, 768, grid=(1,))
    assert len(kernel.launched) > len(PAIRS)


def test_one_call_is_one_batch_score_and_no_declared_config_changes(caplog: pytest.LogCaptureFixture) -> None:
    ranker = FakeRanker(manifest_for("h200"))
    declared = configs(*PAIRS)
    before = json.dumps([vars(config) for config in declared])
    found = pruner(model=ranker)(declared, {})
    assert ranker.calls == 1
    assert same(found[:3], declared)
    assert json.dumps([vars(config) for config in declared]) == before
    assert len(declared) == 3, "the decorator's own list stays as long as it was"
    assert not caplog.records


def test_the_model_s_tiles_come_first_among_the_added_then_the_best_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FITTED, "h200")  # the rules' tiles are all of the lattice

    def scores(tiles: Sequence[ReductionTile]) -> Any:
        # Best of all are tiles of the formula that the lattice, and so the model's choice, lacks.
        return pseudo_scores(tiles) + np.array([0.0 if t in lattice(KERNEL, H200).position else 1e10 for t in tiles])

    ranker = FakeRanker(manifest_for("h200"), scores)
    found = [tile(c) for c in pruner(model=ranker, top_k=4, max_extra=7)(configs(*PAIRS), {})[3:]]
    everything = [tile(c) for c in pruner(model=ranker, top_k=4, max_extra=None)(configs(*PAIRS), {})[3:]]
    assert set(found[:4]) == set(Selector(H200, model=ranker, top_k=4).select(KERNEL).proposed_by(MODEL))
    assert scores(found)[4] > scores(found)[0]
    assert everything[:7] == found
    for part in (found[:4], everything[4:]):
        assert list(scores(part)) == sorted(scores(part), reverse=True)
    assert set(everything) >= set(formula_tiles(KERNEL, H200))


def test_the_model_chooses_among_what_can_be_added_only() -> None:
    kernel = ReductionKernel(100_000, 32, "fp16", 1, 1)
    declared = [triton.Config({"R0_BLOCK": r}, num_warps=1, num_stages=1) for r in (8, 16)]
    found = pruner(kernel_of=lambda a, **k: kernel, top_k=2, max_extra=2)(declared, {})
    space = [t for t in lattice(kernel, H200) if t.xblock == 1]
    selector = Selector(H200, model=FakeRanker(manifest_for("h200")), top_k=2)
    chosen = selector.select(kernel, space=space).proposed_by(MODEL)
    assert {(c.kwargs["R0_BLOCK"], c.num_warps) for c in found[2:]} >= {
        (t.r0_block, t.num_warps) for t in chosen if (t.r0_block, t.num_warps) not in {(8, 1), (16, 1)}
    }


def test_without_a_model_the_formula_alone_is_added_and_spread_evenly_where_cut_short() -> None:
    found = [tile(c) for c in pruner(model=None, max_extra=6)(configs(*PAIRS), {})[3:]]
    own = {ReductionTile(*pair) for pair in PAIRS}
    formula = [t for t in formula_tiles(KERNEL, H200) if t not in own]
    assert len(formula) > 12
    assert found == [formula[place * len(formula) // 6] for place in range(6)]


def test_a_new_config_copies_every_other_entry_of_the_first_declared_one() -> None:
    hook_of_theirs = lambda nargs: None
    first = triton.Config(
        {"EVEN": True, "R0_BLOCK": 256, "XBLOCK": 8}, num_warps=8, num_stages=2, num_ctas=2, maxnreg=128,
        pre_hook=hook_of_theirs,
    )  # fmt: skip
    found = pruner()([first, *configs(*PAIRS)], {})
    assert len(found) > 4
    for config in found[4:]:
        assert list(config.kwargs) == ["EVEN", "R0_BLOCK", "XBLOCK"]
        assert (config.kwargs["EVEN"], config.num_ctas, config.maxnreg) == (True, 2, 128)
        assert config.pre_hook is hook_of_theirs
        assert vars(config).keys() == vars(first).keys()


def test_a_declared_config_is_not_added_again() -> None:
    everything = pruner(max_extra=None)(configs(*PAIRS), {})
    again = pruner(max_extra=None)(everything, {})
    assert same(again, everything)


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("theirs")


FAILURES: dict[str, tuple[dict[str, Any], hook.Outcome]] = {
    "kernel_of raises": ({"kernel_of": broken}, hook.Outcome.KERNEL_OF_FAILED),
    "kernel_of returns rubbish": ({"kernel_of": lambda a, **k: (4096, 768)}, hook.Outcome.KERNEL_OF_FAILED),
    "kernel_of returns wrong fields": ({"kernel_of": lambda a, **k: {"rows": 1}}, hook.Outcome.KERNEL_OF_FAILED),
    "kernel_of returns bad values": (
        {"kernel_of": lambda a, **k: {"xnumel": 0, "rnumel": 1, "dtype": "fp16", "num_load": 1, "num_reduction": 1}},
        hook.Outcome.KERNEL_OF_FAILED,
    ),
    "kernel_of declines": ({"kernel_of": lambda a, **k: None}, hook.Outcome.NO_KERNEL),
    "no config has such blocks": ({"block_names": {"xblock": "BLOCK_M"}}, hook.Outcome.NOT_TUNABLE),
    "nobody says R0_BLOCK": ({"block_names": {"xblock": "XBLOCK"}}, hook.Outcome.NOT_TUNABLE),
    "unsure which to drop": ({"keep": "declared", "model": None, "top_k": 1}, hook.Outcome.UNSURE),
}


@pytest.mark.parametrize("name", FAILURES)
def test_whatever_fails_the_declared_list_stands_is_counted_and_told_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    options, outcome = FAILURES[name]
    declared = configs(*PAIRS)
    prune = pruner(**options)
    before = hook.counts().get(outcome, 0)
    with caplog.at_level(logging.WARNING, logger="tileguard"):
        for _ in range(3):
            assert same(prune(declared, {"x": None}, grid=GRID), declared)
    assert hook.counts()[outcome] == before + 3
    told = [r for r in caplog.records if "leaves the declared configs" in r.getMessage()]
    assert len(told) == (0 if outcome is hook.Outcome.NO_KERNEL else 1)
    tuner, _ = autotuner(prune, declared)
    tuner[GRID](None, 4096, 768)
    assert same(list(tuner.configs_timings), declared)


@pytest.mark.parametrize(
    ("backend", "arch", "outcome"),
    [("npu", "Ascend910B3", "union"), ("npu", "Ascend310P", "unknown_hardware"), ("cuda", 90, "union")],
)
def test_the_hardware_is_that_of_triton_s_device(
    backend: str, arch: object, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(
        get_current_target=lambda: SimpleNamespace(backend=backend, arch=arch), get_current_device=lambda: 0
    )
    torch = SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(name="X", multi_processor_count=9))
    libraries = {
        "triton": SimpleNamespace(runtime=SimpleNamespace(driver=SimpleNamespace(active=device))),
        "torch": SimpleNamespace(cuda=torch),
    }
    monkeypatch.setattr(hook, "require", libraries.__getitem__)
    before = hook.counts().get(outcome, 0)
    found = pruner(hardware=None, model="champion")(configs(*PAIRS), {})
    assert hook.counts()[outcome] == before + 1
    assert (len(found) > 3) == (outcome == "union")


def test_without_any_device_the_declared_list_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "require", broken)
    declared = configs(*PAIRS)
    assert same(pruner(hardware=None)(declared, {}), declared)


@pytest.mark.parametrize("part", ["_launch", "_with_new", "_in_order", "lattice"])
def test_an_error_of_ours_leaves_the_declared_list(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, part, broken)
    declared = configs(*PAIRS)
    before = hook.counts().get("error", 0)
    assert same(pruner()(declared, {}), declared)
    assert hook.counts()["error"] == before + 1


def test_an_error_of_the_selector_or_an_empty_union_leaves_the_declared_list(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = configs(*PAIRS)
    with monkeypatch.context() as patch:
        patch.setattr(Selector, "select", broken)
        assert same(pruner()(declared, {}), declared)
    monkeypatch.setattr(hook, "_with_new", lambda *a: [])
    assert same(pruner()(declared, {}), declared)


@pytest.mark.parametrize("behave", [broken, lambda tiles: [float("nan")] * len(tiles)], ids=["raises", "nan"])
def test_a_broken_model_leaves_the_formula(behave: Callable[..., Any]) -> None:
    declared = configs(*PAIRS)
    found = pruner(model=FakeRanker(manifest_for("h200"), behave))(declared, {})
    assert same(found[:3], declared)
    assert {tile(c) for c in found[3:]} <= set(formula_tiles(KERNEL, H200, all_warps=True))


def test_the_switch_gives_the_declared_list_without_asking_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGUARD", "0")
    declared = configs(*PAIRS)
    assert same(pruner(kernel_of=lambda a, **k: pytest.fail("asked"))(declared, {}), declared)


def test_kernel_of_sees_the_arguments_by_name_and_cannot_change_them() -> None:
    seen: dict[str, Any] = {}

    def describe(args: dict[str, Any], **launch: Any) -> dict[str, Any]:
        seen.update(args=dict(args), launch=launch)
        args.clear()
        return {"xnumel": 4096, "rnumel": 768, "dtype": "fp16", "num_load": 1, "num_reduction": 2}

    tuner, _ = autotuner(pruner(kernel_of=describe), configs(*PAIRS))
    tuner[GRID](None, 4096, n_cols=768)
    assert seen == {
        "args": {"x": None, "n_rows": 4096},
        "launch": {"n_cols": 768, "grid": GRID, "warmup": False},
    }
    assert len(tuner.configs_timings) > 3
    own = {"x": None}
    pruner(kernel_of=describe)(configs(*PAIRS), own)
    assert own == {"x": None}


def test_arguments_named_like_the_pruner_s_own_do_no_harm() -> None:
    assert len(pruner()(configs(*PAIRS), {}, configs=1, named_args=2)) > 3


def test_a_kernel_of_one_row_a_program_keeps_one_row_and_its_block_covers_the_row() -> None:
    kernel = replace(KERNEL, rnumel=700, persistent=True)
    declared = [triton.Config({"BLOCK": 1024}, num_warps=w, num_stages=1) for w in (4, 8)]
    found = pruner(kernel_of=lambda a, **k: kernel, block_names={"r0_block": "BLOCK"})(declared, {})
    assert {c.kwargs["BLOCK"] for c in found} == {1024}
    assert sorted(c.num_warps for c in found) == [1, 2, 4, 8, 16], "32 warps are for several rows"


def test_no_tile_is_added_that_the_hardware_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [ReductionTile(8192, 16, 4), ReductionTile(1, 512, 64), ReductionTile(1, 512, 3), ReductionTile(3, 512, 4)]
    monkeypatch.setattr(hook, "lattice", lambda *a: bad)
    found = pruner(max_extra=None)(configs(*PAIRS), {})
    assert {tile(c) for c in found}.isdisjoint(bad)


def test_a_block_that_the_launch_sets_stays_as_it_is() -> None:
    declared = [triton.Config({"XBLOCK": x}, num_warps=4, num_stages=1) for x in (1, 8)]
    found = pruner()(declared, {}, R0_BLOCK=512, grid=GRID)
    assert len(found) > 2
    assert all(list(c.kwargs) == ["XBLOCK"] for c in found)
    of_512 = {*lattice(KERNEL, H200), *formula_tiles(KERNEL, H200)}
    assert {(c.kwargs["XBLOCK"], c.num_warps) for c in found[2:]} <= {
        (t.xblock, t.num_warps) for t in of_512 if t.r0_block == 512
    }


def test_a_block_shorter_than_the_row_is_added_only_where_one_is_declared() -> None:
    covering = configs((1, 1024, 4), (2, 1024, 8))
    found = pruner(max_extra=None)(covering, {})
    assert len(found) > 2
    assert min(c.kwargs["R0_BLOCK"] for c in found) >= KERNEL.rnumel
    looping = pruner(max_extra=None)([*covering, *configs((4, 256, 4))], {})
    assert min(c.kwargs["R0_BLOCK"] for c in looping) < KERNEL.rnumel


def test_under_a_grid_of_plain_numbers_no_new_xblock_is_added() -> None:
    found = pruner(max_extra=None)(configs((4, 256, 4), (4, 512, 4)), {}, grid=(1024,))
    assert len(found) > 2
    assert {c.kwargs["XBLOCK"] for c in found} == {4}


def test_pruning_the_declared_keeps_the_best_scored_the_first_and_what_cannot_be_scored() -> None:
    odd = triton.Config({"XBLOCK": 4}, num_warps=4)
    grid = configs(*((1 << x, 64 << r, 4) for x in range(4) for r in range(4)))
    *best, worst = sorted(grid, key=lambda c: -pseudo_scores([tile(c)])[0])
    best = best[:5]
    declared = [worst, *(c for c in grid if c is not worst), odd]
    found = pruner(keep="declared", top_k=5)(declared, {})
    assert {id(c) for c in found} == {id(worst), id(odd), *map(id, best)}
    assert found == [c for c in declared if any(c is kept for kept in found)]
    assert same(pruner(keep="declared", top_k=17)(declared, {}), declared)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_of": None}, {"hardware": "rtx"}, {"hardware": "cpu"}, {"hardware": 3}, {"top_k": 0}, {"keep": "all"},
        {"max_extra": -1}, {"block_names": {}}, {"block_names": {"y": "Y"}}, {"block_names": {"xblock": 1}},
        {"block_names": {"xblock": "B", "r0_block": "B"}},
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        pruner(**options)


TILES = st.tuples(
    st.integers(0, 6).map(lambda e: 1 << e) | st.integers(1, 99),
    st.integers(0, 12).map(lambda e: 1 << e) | st.integers(1, 5000),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
)


@settings(max_examples=300, deadline=None)
@given(
    kernel=kernels(), declared=st.lists(TILES, min_size=1, max_size=5), hardware=st.sampled_from(sorted(KNOWN)),
    model=st.booleans(), limit=st.none() | st.integers(0, 20), grid=st.sampled_from([GRID, (64,), None]),
)  # fmt: skip
def test_for_any_kernel_the_union_starts_with_the_declared_and_adds_only_what_is_legal(
    kernel: ReductionKernel, declared: list[tuple[int, int, int]], hardware: str, model: bool, limit: int | None,
    grid: object,
) -> None:  # fmt: skip
    own = configs(*declared)
    options: dict[str, Any] = {
        "kernel_of": lambda a, **k: kernel, "hardware": hardware, "max_extra": limit,
        "model": FakeRanker(manifest_for(hardware)) if model else None,
    }  # fmt: skip
    before = hook.counts()
    found = pruner(**options)(own, {}, grid=grid)
    assert hook.counts().get("union", 0) == before.get("union", 0) + 1, "no failure hides in here"
    assert same(found[: len(own)], own)
    added = found[len(own) :]
    assert limit is None or len(added) <= limit
    as_text = [str(config) for config in added]
    assert len({*as_text, *map(str, own)}) == len(as_text) + len(set(map(str, own)))
    for config in added:
        x, r0 = config.kwargs["XBLOCK"], config.kwargs["R0_BLOCK"]
        assert is_pow2(x) and is_pow2(r0) and x * r0 <= hook.MAX_TILE_NUMEL
        warps = config.num_warps if KNOWN[hardware].has_warps else None
        assert is_legal(ReductionTile(x, r0, warps, config.num_stages), kernel, KNOWN[hardware])
        assert not (kernel.persistent and r0 != pow2_ceil(kernel.rnumel))
        assert callable(grid) or grid is None or x in {pair[0] for pair in declared}
    assert [str(c) for c in pruner(**options)(own, {}, grid=grid)] == [str(c) for c in found]


def test_two_processes_come_to_the_same_list() -> None:
    code = """
import sys, triton, tileguard.triton
prune = tileguard.triton.prune(
    kernel_of=lambda a, **k: dict(xnumel=4096, rnumel=768, dtype="fp16", num_load=1, num_reduction=2), hardware="h200"
)
own = [triton.Config({"XBLOCK": x, "R0_BLOCK": 256}, num_warps=4, num_stages=1) for x in (8, 4)]
print(*prune(own, {}), sep="\\n")
"""
    first, second = (python(code, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second
    assert first.count("\n") == 2 + hook.DEFAULT_MAX_EXTRA


def test_importing_it_loads_neither_triton_nor_torch_nor_onnxruntime() -> None:
    code = "import sys, tileguard.triton as t; t.prune; print(*{'triton', 'torch', 'onnxruntime'} & set(sys.modules))"
    assert python(code).strip() == ""


FAKE_H200 = """
from inspect import getclosurevars
from tests import fakegpu

def bench(kernel_call, quantiles):
    config = getclosurevars(kernel_call).nonlocals["config"]
    block_m, block_n = config.kwargs.values()
    return [block_m * block_n + config.num_warps / 100.0] * 3

fakegpu.install()
fakegpu.FakeDriver.get_benchmarker = lambda driver: bench
"""
"""A device to compile for, on which the smallest tile is the fastest and a launch does nothing."""


def example() -> str:
    """The example of docs/triton.md, for a machine without a GPU; triton.jit reads its source from a file."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "triton.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(code).replace('device="cuda", ', "")


def test_the_example_of_the_docs_runs_and_an_added_config_wins_and_launches(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(
        f"{FAKE_H200}\n{example()}\n"
        "declared = row_sums.configs\n"
        "assert list(row_sums.configs_timings)[:2] == declared and row_sums.best_config not in declared\n"
        "print(len(row_sums.configs_timings), dict(fakegpu.launches))\n",
        encoding="utf-8",
    )
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    told, figures = python(code, TRITON_CACHE_DIR=str(tmp_path / "cache")).splitlines()
    assert "{'union': 1}" in told
    assert figures == f"{2 + hook.DEFAULT_MAX_EXTRA} {{'row_sums': 1}}"


@pytest.mark.slow
def test_under_torch_compile_the_declared_configs_stand_without_a_graph_break(tmp_path: Path) -> None:
    script = tmp_path / "traced.py"
    script.write_text(
        f"{FAKE_H200}\n{example()}\n"
        """
import contextlib, torch.utils._triton
torch.utils._triton.has_triton = lambda: True
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

def backend(graph, inputs):
    kernels = list(kernel_side_table.id_to_kernel.values())
    print([[str(c) for c in k.configs] == [str(c) for c in row_sums.configs] for k in kernels], tileguard.triton.counts())
    return lambda *args: (out,)
def host(x):
    row_sums[lambda meta: (triton.cdiv(4096, meta["BLOCK_M"]),)](x, out, 4096, 700)
    return out
with contextlib.suppress(Exception):  # once the backend has its graph: there is no device to run it on
    torch.compile(host, backend=backend, fullgraph=True)(x)
""",
        encoding="utf-8",
    )
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    lines = python(code, TRITON_CACHE_DIR=str(tmp_path / "cache")).splitlines()
    assert lines[1:] == ["[True, True] {'union': 1}"]
