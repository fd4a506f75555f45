"""The hook on the real npu_triton_heuristics of torch_npu, loaded without a device.

Every `case_…` runs in one interpreter of its own (npu_modules), takes the module, and leaves it as it was.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.hooks import npu_modules
from tests.support import python

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.formula import select_candidates
from tileguard.runtime.hooks import npu
from tileguard.runtime.hooks.proposal import DETERMINISM_KEYS

FLOAT_SUM = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "r0_numel": "i32"}
PAIRS = ((8, 256), (16, 128), (4, 512))
"""Blocks of the better tier: 2048 elements each."""


class Fixed:
    """A selector that answers with the same tiles, or raises."""

    def __init__(self, *pairs: tuple[int, int], error: Exception | None = None) -> None:
        self.tiles = tuple(ReductionTile(x, r) for x, r in pairs)
        self.error = error
        self.kernels: list[ReductionKernel] = []

    def select(self, kernel: ReductionKernel) -> Any:
        self.kernels.append(kernel)
        if self.error:
            raise self.error
        return self

    def __call__(self, hardware: str) -> Any:
        self.hardware = hardware
        return self


@contextlib.contextmanager
def recorded(heuristics: Any, choosers: Any, hardware: str | None = None) -> Iterator[list[SimpleNamespace]]:
    """The hook around a `cached_autotune` that only keeps what it is called with."""
    original, calls = heuristics.cached_autotune, []

    @functools.wraps(original)
    def recorder(
        size_hints: Any, configs: Any, triton_meta: Any, heuristic_type: Any, filename: Any = None,
        inductor_meta: Any = None, custom_kernel: Any = False,
    ) -> None:  # fmt: skip
        calls.append(SimpleNamespace(configs=configs, type=heuristic_type.name, meta=inductor_meta))

    heuristics.cached_autotune = recorder
    npu.counts.kernels.clear()
    npu.counts.tiles.clear()
    try:
        assert npu.install(choosers, hardware=hardware)
        yield calls
    finally:
        npu.uninstall()
        assert heuristics.cached_autotune is recorder
        heuristics.cached_autotune = original


def reduce(heuristics: Any, x: int = 2048, r: int = 768, *, cc: Any = "Ascend910B3", how: str = "reduction",
           triton_meta: dict[str, Any] | None = None, **meta: Any) -> None:  # fmt: skip
    """What a generated kernel's decorator calls."""
    hints = importlib.import_module("torch._inductor.runtime.hints")
    device = hints.DeviceProperties(type="npu", index=0, multi_processor_count=40, cc=cc)
    getattr(heuristics, how)(
        {"x": x, "r0_": r}, reduction_hint=hints.ReductionHint.INNER, filename=__file__,
        triton_meta={"signature": FLOAT_SUM, "device": device, "constants": {}} | (triton_meta or {}),
        inductor_meta={"num_load": 6, "num_reduction": 2} | meta,
    )  # fmt: skip


def pairs(configs: Any) -> list[tuple[int, int | None]]:
    return [(config.kwargs["XBLOCK"], config.kwargs.get("R0_BLOCK")) for config in configs]


def host_list(heuristics: Any, call: Callable[[], None]) -> list[tuple[int, int | None]]:
    """The list without us: with a selector that fails."""
    with recorded(heuristics, Fixed(error=RuntimeError("none"))) as calls:
        call()
    return pairs(calls[0].configs)


def case_the_hosts_configs_come_first_as_the_same_objects_and_ours_behind_them(heuristics: Any) -> None:
    hints = importlib.import_module("torch._inductor.runtime.hints")
    host = [heuristics.npu_triton_config_reduction({"x": 2048, "r0_": 768}, x, r) for x, r in PAIRS]
    chooser = Fixed((4, 512), (32, 64), (2, 768), (32, 64))
    with recorded(heuristics, chooser, "ascend910b3") as calls:
        heuristics.cached_autotune(
            {"x": 2048, "r0_": 768}, host, triton_meta={"signature": FLOAT_SUM},
            heuristic_type=hints.HeuristicType.REDUCTION, filename="k.py", inductor_meta={"num_load": 1},
        )  # fmt: skip
    united = calls[0].configs
    assert all(a is b for a, b in zip(united, host, strict=False))
    assert pairs(united) == [*PAIRS, (32, 64), (2, 768)]
    assert len(host) == 3
    assert [npu.is_added(config) for config in united] == [False] * 3 + [True] * 2
    assert [(c.num_warps, c.num_stages) for c in united[3:]] == [(16, 1), (16, 1)]  # as the host derives them
    assert calls[0].meta[npu.META_KEY] == {
        "outcome": "extended",
        "hardware": "ascend910b3",
        "added": [{"XBLOCK": 32, "R0_BLOCK": 64}, {"XBLOCK": 2, "R0_BLOCK": 768}],
        "left_out": {},
    }
    assert npu.counts.kernels == {"extended": 1}


def case_the_kernel_is_described_by_exact_numels_and_its_pointers(heuristics: Any) -> None:
    chooser = Fixed()
    signature = {"in_ptr0": "*bf16", "in_ptr1": "*bf16", "in_out_ptr0": "*fp32", "out_ptr1": "*i32", "xnumel": "i32"}
    with recorded(heuristics, chooser):
        reduce(heuristics, 1000, 5000, triton_meta={"signature": signature})
    assert chooser.kernels == [
        ReductionKernel(1000, 5000, "bf16", 6, 2, 2, min_ptr_elem_bytes=2, max_ptr_elem_bytes=4,
                        total_ptr_elem_bytes=12, inner=True)
    ]  # fmt: skip
    assert chooser.hardware == "ascend910b3"


def case_on_the_hosts_default_path_our_formula_adds_nothing(heuristics: Any) -> None:
    with recorded(heuristics, functools.partial(npu.shared_selector, model=None)) as calls:
        reduce(heuristics)
    assert len(calls[0].configs) == 27
    assert npu.counts.kernels == {"nothing_new": 1}


def case_on_the_hosts_exhaustive_path_the_formula_joins_it(heuristics: Any) -> None:
    torch_config = importlib.import_module("torch._inductor.config")
    with torch_config.patch(max_autotune=True):
        host = host_list(heuristics, lambda: reduce(heuristics))
        with recorded(heuristics, npu.shared_selector) as calls:
            reduce(heuristics)
    united = pairs(calls[0].configs)
    new = [pair for pair in select_candidates(2048, 768, "fp32", 6, 2) if pair not in host]
    assert united[: len(host)] == host
    assert united[len(host) :] == [(x, r) for x, r in new if x * r >= 512]
    assert npu.counts.kernels == {"extended": 1}
    assert npu.counts.tiles == {"fallback_tier": sum(x * r < 512 for x, r in new)}


def case_a_permute_gather_and_a_pin_keep_their_one_config(heuristics: Any) -> None:
    chooser = Fixed(*PAIRS)
    with recorded(heuristics, chooser) as calls:
        reduce(heuristics, triton_meta={"npu_permute_gather": {"XBLOCK": 16, "R0_BLOCK": 64}})
        with heuristics.ncfg.patch(pin_xr="32,128"):
            reduce(heuristics)
    assert [pairs(call.configs) for call in calls] == [[(16, 64)], [(32, 128)]]
    assert npu.counts.kernels == {"permute_gather": 1, "pin_xr": 1}
    assert not chooser.kernels


def case_modes_and_kernels_that_must_not_be_extended_are_counted_by_reason(heuristics: Any) -> None:
    hints = importlib.import_module("torch._inductor.runtime.hints")
    with recorded(heuristics, Fixed(*PAIRS)) as calls:
        for key in DETERMINISM_KEYS:
            modes: dict[str, Any] = {key: True}
            reduce(heuristics, **modes)
        reduce(heuristics, autotune_pointwise=False)
        reduce(heuristics, strict_sum_rblock=64)
        reduce(heuristics, RSPLIT_SIZE=64)
        reduce(heuristics, triton_meta={"native_matmul": True})
        kind = hints.HeuristicType
        for size_hints, heuristic, filename, custom in (
            ({"x": 8}, kind.POINTWISE, "k.py", False),
            (None, kind.REDUCTION, "k.py", False),
            ({"x": 8, "r0_": 8, "r1_": 8}, kind.REDUCTION, "k.py", False),
            ({"x": 8, "y": 8}, kind.REDUCTION, "k.py", False),
            ({"x": 8, "r0_": 8}, kind.REDUCTION, None, False),
            ({"x": 8, "r0_": 8}, kind.REDUCTION, "k.py", True),
        ):
            given = [heuristics.npu_triton_config_reduction({"x": 8, "r0_": 8}, 8, 8)]
            heuristics.cached_autotune(
                size_hints, given, {"signature": FLOAT_SUM}, heuristic, filename, {"num_load": 1}, custom
            )
            assert calls[-1].configs is given
        given[0].kwargs["RSPLIT"] = 4
        heuristics.cached_autotune(
            {"x": 8, "r0_": 8}, given, {"signature": FLOAT_SUM, "device": SimpleNamespace(cc="Ascend910B3")},
            kind.REDUCTION, "k.py", {},
        )  # fmt: skip
        assert calls[-1].configs is given
    assert npu.counts.kernels == {
        "deterministic": 4, "autotuning_off": 1, "strict_sum": 1, "mix_order": 1, "native_matmul": 1,
        "pointwise": 1, "tiling": 3, "custom": 2, "config_kind": 1,
    }  # fmt: skip
    assert not any(npu.is_added(config) for call in calls for config in call.configs)


def case_the_drivers_name_of_the_device_decides_and_an_unknown_one_extends_nothing(heuristics: Any) -> None:
    names = ("Ascend910B3", "Ascend950PR_9579", "Ascend910B1", "Ascend910_9391", "Ascend950DT_9571", 90, None)
    assert [npu.npu_hardware(name) for name in names] == ["ascend910b3", "ascend950pr", *[None] * 5]
    chooser = Fixed((32, 64))
    with recorded(heuristics, chooser):
        for name in names[1:3]:
            reduce(heuristics, cc=name)
        assert chooser.hardware == "ascend950pr"
    assert npu.counts.kernels["hardware"] == 1
    with recorded(heuristics, chooser, "ascend910b3"):
        reduce(heuristics, cc=None)
    assert chooser.hardware == "ascend910b3"


def case_a_tile_of_the_fallback_tier_is_left_out_unless_the_host_has_no_other(heuristics: Any) -> None:
    chooser = Fixed((1, 96), (2, 255), (64, 16), (1, 48))
    with recorded(heuristics, chooser) as calls:
        reduce(heuristics)
        assert npu.counts.tiles == {"fallback_tier": 3}
        assert [pair for pair in pairs(calls[0].configs) if pair == (64, 16)] == [(64, 16)]
        reduce(heuristics, 2, 60)
    partition = heuristics.NPUCachingAutotuner._partition_configs_by_tier
    assert partition(None, [c for c in calls[1].configs if not npu.is_added(c)])[0] == []
    assert (1, 48) in pairs(c for c in calls[1].configs if npu.is_added(c))


def case_a_tile_that_the_host_cannot_build_as_asked_is_left_out(heuristics: Any) -> None:
    with recorded(heuristics, Fixed((8192, 8), (32, 64))) as calls:
        reduce(heuristics, 1 << 20)
    assert npu.counts.tiles == {"not_built": 1}
    assert 8192 not in {x for x, _ in pairs(calls[0].configs)}
    with recorded(heuristics, Fixed((1, 1024), (64, 32))) as calls:
        reduce(heuristics, (1 << 31) - 5)
    assert npu.counts.tiles == {"rescaled": 1}


def case_a_persistent_kernels_tiles_have_no_r0_block(heuristics: Any) -> None:
    with recorded(heuristics, Fixed((32, 300), (1, 300), (1024, 300))) as calls:
        reduce(heuristics, 4096, 300, how="persistent_reduction")
    assert calls[0].type == "PERSISTENT_REDUCTION"
    assert all(set(config.kwargs) == {"XBLOCK"} for config in calls[0].configs)
    assert [c.kwargs["XBLOCK"] for c in calls[0].configs if npu.is_added(c)] == [32, 1024]


def case_a_selector_that_fails_leaves_the_hosts_list_and_is_logged_once(heuristics: Any) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    logging.getLogger("tileguard").addHandler(handler)
    host = host_list(heuristics, lambda: reduce(heuristics))
    records.clear()
    with recorded(heuristics, Fixed(error=RuntimeError("out of order"))) as calls:
        reduce(heuristics)
        reduce(heuristics)
        reduce(heuristics, triton_meta={"signature": {"in_ptr0": "*fp3"}})
        reduce(heuristics, triton_meta={"signature": None})
    logging.getLogger("tileguard").removeHandler(handler)
    assert [pairs(call.configs) for call in calls[:2]] == [host, host]
    assert len(calls) == 4
    assert npu.counts.kernels == {"error": 4}
    assert len(records) == 1
    assert "out of order" in records[0].getMessage()


def case_the_environments_switch_turns_it_off(heuristics: Any) -> None:
    os.environ["TILEGUARD"] = "0"
    try:
        with recorded(heuristics, Fixed((32, 64))) as calls:
            reduce(heuristics, 1000, 5000)
    finally:
        del os.environ["TILEGUARD"]
    assert not any(npu.is_added(config) for config in calls[0].configs)
    assert not npu.counts.kernels


def case_uninstalling_restores_both_names_by_identity(heuristics: Any) -> None:
    def state() -> tuple[Any, Any]:
        return heuristics.cached_autotune, vars(heuristics.NPUCachingAutotuner)["_precompile_worker"]

    before = state()
    for _ in range(2):
        assert npu.install(Fixed(*PAIRS))
        hooked = state()
        assert npu.install(Fixed(*PAIRS))
        assert state() == hooked
        assert not {*hooked} & {*before}
        npu.uninstall()
        npu.uninstall()
        assert state() == before

    assert npu.install(Fixed(*PAIRS), hardware="ascend910b3")
    ours = heuristics.cached_autotune
    other = heuristics.cached_autotune = lambda *args, **kwargs: ours(*args, **kwargs)
    npu.uninstall()
    assert heuristics.cached_autotune is other  # someone else's wrapper stays, and ours does nothing any more
    npu.counts.kernels.clear()
    reduce(heuristics)
    assert not npu.counts.kernels
    heuristics.cached_autotune = before[0]
    assert state() == before


def case_a_module_that_looks_otherwise_is_left_alone(heuristics: Any) -> None:
    original = heuristics.cached_autotune
    other = heuristics.cached_autotune = lambda configs, **kwargs: None
    assert not npu.install(Fixed(*PAIRS))
    assert heuristics.cached_autotune is other
    heuristics.cached_autotune = original
    worker = heuristics.NPUCachingAutotuner._precompile_worker
    del heuristics.NPUCachingAutotuner._precompile_worker
    assert not npu.install(Fixed(*PAIRS))
    heuristics.NPUCachingAutotuner._precompile_worker = worker
    assert heuristics.cached_autotune is original


def case_a_worker_is_hooked_where_a_kernels_source_imports_the_backend(heuristics: Any) -> None:
    module = sys.modules.pop(npu.MODULE)
    try:
        assert not npu.install(Fixed(*PAIRS))
        assert not npu.enable_worker("import torch", Fixed(*PAIRS))
        assert npu.MODULE not in sys.modules
        assert npu.enable_worker(kernel_source(), Fixed(*PAIRS))
        assert sys.modules[npu.MODULE].cached_autotune.__wrapped__
    finally:
        npu.uninstall()
        sys.modules[npu.MODULE] = module
        vars(sys.modules[npu_modules.PACKAGE])["npu_triton_heuristics"] = module
    chooser = pickle.loads(pickle.dumps(functools.partial(npu.shared_selector, model=None)))
    assert chooser("ascend910b3") is npu.shared_selector("ascend910b3", model=None)


def kernel_source(given: tuple[tuple[int, int], ...] = PAIRS) -> str:
    """A generated kernel's file, for a GPU that upstream Triton compiles for, with a host list of these blocks."""
    return f"""
import triton
import triton.language as tl
from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
from torch_npu._inductor.triton_experimental import npu_triton_heuristics

size_hints = {{"x": 64, "r0_": 2048}}

@npu_triton_heuristics.cached_autotune(
    size_hints,
    [npu_triton_heuristics.npu_triton_config_reduction(size_hints, x, r) for x, r in {given!r}],
    triton_meta={{
        "signature": {FLOAT_SUM | {"XBLOCK": "constexpr", "R0_BLOCK": "constexpr"}!r},
        "device": DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32),
        "constants": {{}}, "configs": [{{}}],
    }},
    heuristic_type=HeuristicType.REDUCTION,
    filename=__file__,
    inductor_meta={{"num_load": 1, "num_reduction": 1, "kernel_name": "row_sum", "force_disable_caches": True}},
)
@triton.jit
def row_sum(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    total = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for offset in range(0, r0_numel, R0_BLOCK):
        r = offset + tl.arange(0, R0_BLOCK)[None, :]
        total += tl.load(in_ptr0 + x * r0_numel + r, (x < xnumel) & (r < r0_numel), other=0.0)
    tl.store(out_ptr0 + x, tl.sum(total, 1)[:, None], x < xnumel)
"""


def compiled(choosers: Any, given: tuple[tuple[int, int], ...]) -> Any:
    """The autotuner of such a kernel after its precompilation, hooked."""
    codecache = importlib.import_module("torch._inductor.codecache")
    npu_modules.compile_through_upstream()
    npu.counts.tiles.clear()
    assert npu.install(choosers, hardware="ascend910b3")
    try:
        codecache.PyCodeCache.cache_clear()
        kernel = codecache.PyCodeCache.load(kernel_source(given)).row_sum
        kernel._precompile_worker()
    finally:
        npu.uninstall()
    return kernel


def compiled_pairs(kernel: Any) -> set[tuple[int, int | None]]:
    assert kernel.configs is None
    assert all(result.kernel.asm["cubin"] for result in kernel.compile_results)
    return set(pairs(result.config for result in kernel.compile_results))


def case_of_four_given_two_compile_and_one_of_ours_joins_them(heuristics: Any) -> None:
    given = ((8, 128), (16, 64), (2, 64), (1, 128))
    kernel = compiled(Fixed((4, 256), (1, 256)), given)
    assert compiled_pairs(kernel) == {(8, 128), (16, 64), (4, 256)}
    assert npu.counts.tiles == {"fallback_tier": 1, "compile_failed": 0}
    assert not any(npu.is_added(result.config) for result in kernel.compile_results[:2])
    kernel.prepare_for_pickle()
    assert len(pickle.loads(pickle.dumps(kernel)).compile_results) == 3


def case_a_candidate_of_ours_that_does_not_compile_is_dropped(heuristics: Any) -> None:
    kernel = compiled(Fixed((4, 300), (4, 256)), ((8, 128), (16, 64)))  # 300 is no length of an arange here
    assert compiled_pairs(kernel) == {(8, 128), (16, 64), (4, 256)}
    assert npu.counts.tiles == {"compile_failed": 1}


def case_an_error_that_the_host_would_raise_costs_our_candidates_only(heuristics: Any) -> None:
    autotuner = heuristics.NPUCachingAutotuner
    original = autotuner._precompile_config

    def fails(self: Any, config: Any) -> Any:
        if npu.is_added(config):
            raise RuntimeError("a defect")
        return original(self, config)

    autotuner._precompile_config = fails
    try:
        kernel = compiled(Fixed((4, 256), (2, 512)), ((8, 128), (16, 64)))
    finally:
        autotuner._precompile_config = original
    assert compiled_pairs(kernel) == {(8, 128), (16, 64)}
    assert npu.counts.tiles == {"compile_failed": 2}


def case_the_hosts_own_fallbacks_run_as_without_us(heuristics: Any) -> None:
    kernel = compiled(Fixed((4, 256)), ((4, 300), (1, 128)))  # its better tier fails, so its other one is compiled
    assert compiled_pairs(kernel) == {(1, 128), (4, 256)}


CASES = sorted(name for name in globals() if name.startswith("case_"))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return npu_modules.run_cases(__name__, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.removeprefix("case_"))
def test_the_hook(case: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[case], outcomes[case]


def print_unions(path: str) -> None:
    """The unions of a few kernels, on standard output; run in an interpreter of its own."""
    from pathlib import Path

    heuristics = npu_modules.load(Path(path))
    torch_config = importlib.import_module("torch._inductor.config")
    with torch_config.patch(max_autotune=True), recorded(heuristics, npu.shared_selector) as calls:
        for x, r in ((2048, 768), (64, 401408), (65536, 49), (1, 1000003)):
            reduce(heuristics, x, r)
    print(json.dumps([[(*pair, npu.is_added(c)) for pair, c in zip(pairs(call.configs), call.configs, strict=True)]
                      for call in calls]))  # fmt: skip


def test_two_processes_make_the_same_lists() -> None:
    path = str(npu_modules.require())
    code = "import sys; from tests.runtime.hooks.test_npu import print_unions; print_unions(sys.argv[1])"
    first, second = (
        python(code, path, timeout=300.0, PYTHONHASHSEED=seed, **npu_modules.ENVIRONMENT).splitlines()[-1]
        for seed in ("1", "2")
    )
    assert first == second
    assert any(added for union in json.loads(first) for _, _, added in union)


def test_without_torch_npu_there_is_nothing_to_hook() -> None:
    assert not npu.install()
    npu.uninstall()
