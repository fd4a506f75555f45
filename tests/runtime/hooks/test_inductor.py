"""The hook in the real Inductor, on a GPU that is not there (tests/fakegpu.py): lists, caches, faults, switches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import python

from .conftest import RunHost

Report = dict[str, Any]
GRAPHS = ("short_softmax", "layer_norm:64x3000")
QUICK = {"kernel_budget_s": 0.0}
"""The host's list and the two best-ranked tiles: enough to tell the lists apart, and soon compiled."""


def on(**settings: Any) -> tuple[str, ...]:
    return ("--tileguard", json.dumps(QUICK | settings))


def by_name(report: Report) -> dict[str, dict[str, Any]]:
    return {kernel["name"]: kernel for kernel in report["kernels"]}


def records(report: Report) -> dict[str, dict[str, Any]]:
    return {record["kernel"]: record for record in report["tileguard"]["records"]}


def tile(config: dict[str, Any]) -> tuple[int, int | None, int, int]:
    return config.get("XBLOCK", 1), config.get("R0_BLOCK"), config["num_warps"], config["num_stages"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="module")
def off(run_host: RunHost, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Without tileguard, in a cache of its own."""
    return run_host(tmp_path_factory.mktemp("off"), *GRAPHS)


@pytest.fixture(scope="module")
def first(run_host: RunHost, cache: Path) -> Report:
    """With tileguard, the whole union of a softmax, compiled in two workers; forward and backward graphs."""
    return run_host(cache, *GRAPHS, *on(kernel_budget_s=60.0), "--threads", "2")


def test_the_hosts_list_is_kept_first_and_the_rest_is_the_formulas_and_the_models(off: Report, first: Report) -> None:
    found, host = by_name(first), by_name(off)
    assert set(found) == set(host)
    assert len(found) == 4
    for name, kernel in found.items():
        assert kernel["autotuner"] == "TileguardAutotuner"
        ours, theirs = [tile(c) for c in kernel["configs"]], [tile(c) for c in host[name]["configs"]]
        assert ours[: len(theirs)] == theirs
        assert len(set(ours)) == len(ours) > len(theirs)
        proposers = {p for record in records(first).values() for t in record["tiles"] for p in t["proposers"]}
        assert proposers == {"host", "formula", "model"}


def test_the_fastest_of_the_union_wins_and_the_report_says_who_proposed_it(first: Report) -> None:
    from tests.fakegpu import simulated_ms

    assert len(first["kernels"]) == len(records(first)) == 4
    for kernel in first["kernels"]:
        record = records(first)[kernel["name"]]
        assert kernel["winner"] == min(kernel["configs"], key=lambda config: simulated_ms(kernel["name"], config))
        won = record["tiles"][record["winner"]]
        assert (won["xblock"], won["num_warps"]) == (kernel["winner"]["XBLOCK"], kernel["winner"]["num_warps"])
        assert record["outcome"] == "tuned"
        assert record["verdict"] == "trust"
        assert record["winner_us"] <= record["host_us"]
        assert record["select_us"] > 0
        assert record["compile_s"] > 0
        assert {t["status"] for t in record["tiles"]} <= {"ok", "spilled"}
        assert all(t["compile_ms"] > 0 for t in record["tiles"])
        assert all((t["us"] is not None) == (t["status"] == "ok") for t in record["tiles"])


def test_candidates_compile_in_the_workers_which_load_no_model(first: Report) -> None:
    for kernel in first["kernels"]:
        assert kernel["compiled_by"] not in (None, first["pid"])
        assert kernel["worker_imports"] == []


def test_a_second_process_compiles_and_times_nothing(first: Report, run_host: RunHost, cache: Path) -> None:
    second = run_host(cache, *GRAPHS, *on(kernel_budget_s=60.0), "--threads", "2")
    assert second["cubins"] == second["benches"] == 0
    assert second["cache"]["fxgraph_cache_hit"] == first["cache"]["fxgraph_cache_miss"] == 3
    for name, kernel in by_name(second).items():
        assert kernel["state"] == "hit"
        assert kernel["winner"] == by_name(first)[name]["winner"]
        assert records(second)[name]["outcome"] == "cached"
        assert records(second)[name]["compile_s"] == 0


def test_off_and_on_again_never_serve_each_others_winner(
    first: Report, off: Report, run_host: RunHost, cache: Path
) -> None:
    without = run_host(cache, *GRAPHS)
    assert without["cache"].get("fxgraph_cache_hit", 0) == 0
    for name, kernel in by_name(without).items():
        assert kernel["autotuner"] == "CachingAutotuner"
        assert kernel["source"] != by_name(first)[name]["source"]
        assert kernel["winner"] == by_name(off)[name]["winner"]
    again = run_host(cache, *GRAPHS, *on(kernel_budget_s=60.0))
    assert again["cubins"] == again["benches"] == 0
    assert [k["winner"] for k in again["kernels"]] == [k["winner"] for k in first["kernels"]]


def test_the_graph_caches_key_follows_model_and_settings_and_nothing_else(
    run_host: RunHost, tmp_path: Path, model_dir: Path
) -> None:
    graph = "sum0:40x200"

    def misses(**settings: Any) -> int:
        return int(run_host(tmp_path / "cache", graph, *on(**settings))["cache"].get("fxgraph_cache_miss", 0))

    assert misses() == 1
    assert misses(log=str(tmp_path / "log.jsonl"), kernel_budget_s=1.0, process_budget_s=5.0) == 0
    assert misses(top_k=3) == 1
    assert misses(model=str(model_dir)) == 1
    assert misses(model=None) == 1
    assert misses(model=None) == 0


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("--threads", "2", "--start", "fork", "--no-static"), {}),
        (("--threads", "2", "--start", "spawn"), {}),
        (("--threads", "2", "--at-once", "2"), {}),
        (("--dynamic", "both"), {}),
    ],
    ids=["fork", "spawn", "two threads at once", "dynamic"],
)
def test_every_way_of_starting_workers_gets_the_union(
    run_host: RunHost, tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    report = run_host(tmp_path, "sum0:40x200", "short_softmax:64x100", *on(), *arguments, **environment)
    assert {kernel["autotuner"] for kernel in report["kernels"]} == {"TileguardAutotuner"}
    assert all(len(kernel["configs"]) > 1 for kernel in report["kernels"])
    again = run_host(tmp_path, "sum0:40x200", "short_softmax:64x100", *on(), *arguments, **environment)
    assert again["cubins"] == again["benches"] == 0


def test_past_the_budget_the_hosts_list_and_the_best_ranked_run(run_host: RunHost, tmp_path: Path) -> None:
    report = run_host(tmp_path, "short_softmax:64x100", *on())
    (record,) = records(report).values()
    assert record["over_budget"]
    ranked = [t["status"] for t in record["tiles"] if "host" not in t["proposers"]]
    assert ranked == ["ok", "ok", *["over_budget"] * (len(ranked) - 2)]
    assert len(ranked) > 2
    assert {t["status"] for t in record["tiles"] if "host" in t["proposers"]} == {"ok"}


_BREAK_MODEL = """
from tileguard.runtime.ranker import OnnxRanker
import time
def score(self, kernel, tiles):
    {how}
OnnxRanker.score = score
"""
_BREAK_COMPILER = """
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, InductorConfig
compile_config = CachingAutotuner._precompile_config
def fails(self, config):
    if any(config is other for other in self.configs[self.inductor_meta["tileguard"]["host"] :]):
        raise RuntimeError("PassManager::run failed")
    return compile_config(self, config)
CachingAutotuner._precompile_config = fails
"""


@pytest.mark.parametrize(
    ("settings", "before", "verdict"),
    [
        ({"model": "{tmp}/nowhere"}, "", "no_model"),
        ({"model": "{tmp}/corrupt"}, "", "digest_mismatch"),
        ({"model": "{tmp}/empty"}, "", "unreadable"),
        ({}, _BREAK_MODEL.format(how="raise MemoryError('ranker')"), "scorer_error"),
        ({}, _BREAK_MODEL.format(how="time.sleep(1000)"), "over_budget"),
        ({"log": "/dev/full"}, "", "trust"),
        ({"log": "{tmp}/file/log.jsonl"}, "", "trust"),
    ],
    ids=["missing", "corrupt", "empty folder", "raises", "hangs", "full disk", "impossible path"],
)
def test_whatever_fails_torch_compiles_and_the_host_list_is_there(
    run_host: RunHost, tmp_path: Path, model_dir: Path, settings: Report, before: str, verdict: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "corrupt").mkdir()
    for file in model_dir.iterdir():
        (tmp_path / "corrupt" / file.name).write_bytes(file.read_bytes() + b" " * (file.suffix == ".onnx"))
    settings = {k: v.format(tmp=tmp_path) if isinstance(v, str) else v for k, v in settings.items()}
    report = run_host(tmp_path / "cache", "short_softmax:64x100", *on(**settings), "--before", before)
    (kernel,), (record,) = report["kernels"], records(report).values()
    assert kernel["launches"] >= 1
    assert "host" in record["tiles"][0]["proposers"]
    assert record["verdict"] == verdict
    assert record["outcome"] == "tuned"


def test_a_tile_that_breaks_the_compiler_costs_one_candidate(run_host: RunHost, tmp_path: Path) -> None:
    """And the winner is found again, although what the graph cache holds is not the whole set."""
    arguments = ("short_softmax:64x100", *on(kernel_budget_s=60.0), "--before", _BREAK_COMPILER)
    report = run_host(tmp_path, *arguments)
    (kernel,), (record,) = report["kernels"], records(report).values()
    added = [t for t in record["tiles"] if "host" not in t["proposers"]]
    assert added
    assert {t["status"] for t in added} == {"compile_error"}
    assert len(kernel["configs"]) == len(record["tiles"]) - len(added)
    (again,) = run_host(tmp_path, *arguments)["kernels"]
    assert again["winner"] == kernel["winner"]
    assert again["benches"] == 0


def test_what_failed_beside_others_is_compiled_again_alone(run_host: RunHost, tmp_path: Path) -> None:
    before = """
import threading
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
compile_config = CachingAutotuner._precompile_config
def fails(self, config):
    if threading.current_thread().name == "tileguard-compile":
        raise SystemError("AST constructor recursion depth mismatch")
    return compile_config(self, config)
CachingAutotuner._precompile_config = fails
"""
    report = run_host(tmp_path, "short_softmax:64x100", *on(), "--before", before)
    (kernel,), (record,) = report["kernels"], records(report).values()
    statuses = {("host" in t["proposers"], t["status"]) for t in record["tiles"] if t["status"] != "over_budget"}
    assert statuses == {(True, "ok"), (False, "compile_error")}
    assert kernel["launches"] > 0


def test_a_race_that_breaks_is_left_to_the_host(run_host: RunHost, tmp_path: Path) -> None:
    before = """
from tileguard.runtime.hooks import autotuner
def broken(*arguments):
    raise RuntimeError("no stopwatch")
autotuner.stopwatch = broken
"""
    report = run_host(tmp_path, "short_softmax:64x100", *on(), "--before", before)
    (kernel,) = report["kernels"]
    (record,) = report["tileguard"]["records"]
    assert record["outcome"] == "failed"
    own = [t for t in record["tiles"] if "host" in t["proposers"]]
    assert kernel["benches"] == len(own) > 1
    assert kernel["winner"] in kernel["configs"][: len(own)]


def test_where_the_host_times_nothing_a_race_that_breaks_costs_nothing(run_host: RunHost, tmp_path: Path) -> None:
    """A single configuration is neither timed nor are its arguments copied: so it stays."""
    before = """
from tileguard.runtime.hooks import autotuner
def broken(*arguments):
    raise MemoryError("clone")
autotuner.stopwatch = broken
"""
    report = run_host(tmp_path, "sum0:40x200", *on(), "--config", '{"dynamic_scale_rblock": false}', "--before", before)
    (kernel,) = report["kernels"]
    assert kernel["benches"] == 0
    assert kernel["winner"] == kernel["configs"][0]


_HASHES = """
from torch._inductor.runtime import triton_heuristics
run = triton_heuristics.CachingAutotuner.run
seen = {}
def watched(self, *arguments, **keywords):
    result = run(self, *arguments, **keywords)
    (launcher,) = self.launchers
    config = launcher.config
    code = str(launcher.cache_hash)
    other = seen.setdefault((self.fn.__name__, code), (sorted(config.kwargs.items()), config.num_warps))
    assert other == (sorted(config.kwargs.items()), config.num_warps)
    import os
    with open(os.environ["HASHES"], "a") as file:
        print(self.fn.__name__, code, sorted(config.kwargs.items()), config.num_warps, file=file)
    return result
triton_heuristics.CachingAutotuner.run = watched
"""


def test_no_process_launches_one_tiles_code_as_anothers(run_host: RunHost, tmp_path: Path) -> None:
    """The graph cache holds what one process had time to compile; the winner may be another process's."""
    arguments = ("layer_norm:64x3000", *on(), "--config", '{"coordinate_descent_tuning": true}', "--before", _HASHES)
    for _ in range(2):
        run_host(tmp_path / "cache", *arguments, HASHES=str(tmp_path / "hashes"))
    launched = set((tmp_path / "hashes").read_text().splitlines())
    code_of = [line.split(" ", 2)[:2] for line in launched]
    assert launched
    assert len({tuple(pair) for pair in code_of}) == len(launched), "one code, two tiles"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--config", '{"deterministic": true}'), "deterministic"),
        (("--config", '{"triton.force_cooperative_reductions": true}'), "cooperative_reduction"),
        (("--config", '{"autotune_lookup_table": {"nobody": {"XBLOCK": 1}}}'), "lookup_table"),
    ],
)
def test_a_list_that_must_not_grow_stays_and_the_reason_is_counted(
    run_host: RunHost, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    report = run_host(tmp_path, "sum0:40x200", *on(), *arguments)
    assert {kernel["autotuner"] for kernel in report["kernels"]} == {"CachingAutotuner"}
    assert report["tileguard"]["untouched"] == {reason: len(report["kernels"])}


def test_the_switch_works_before_and_after_install(run_host: RunHost, tmp_path: Path) -> None:
    before = run_host(tmp_path / "a", "sum0:40x200", *on(), TILEGUARD="0")
    after = run_host(tmp_path / "b", "sum0:40x200", *on(), "--before", "import os; os.environ['TILEGUARD'] = '0'")
    for report in (before, after):
        assert {kernel["autotuner"] for kernel in report["kernels"]} == {"CachingAutotuner"}
        assert not report["tileguard"]["records"]


_IDENTITY = """
import json, logging
import tileguard, triton
from torch._inductor import async_compile, codecache
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime import triton_heuristics

def state():
    return [vars(TritonKernel)["codegen_kernel"], vars(codecache.FxGraphHashDetails)["__init__"],
            vars(triton_heuristics.CachingAutotuner)["benchmark_all_configs"], triton_heuristics.cached_autotune,
            async_compile._load_triton_kernel_from_source, codecache._load_triton_kernel_from_source,
            triton.runtime.jit.JITFunction.parse]

def same(a, b):
    return all(x is y for x, y in zip(a, b))

before = state()
answers = [same(state(), before)]
assert tileguard.install(model=None)
inside = state()
answers.append(not same(inside, before))
assert tileguard.install(top_k=3)
tileguard.uninstall()
answers.append(same(state(), before))
with tileguard.enabled(model=None) as on:
    answers.append(on and not same(state(), before))
    with tileguard.enabled(top_k=2):
        pass
    answers.append(triton_heuristics.cached_autotune is not before[3])
answers.append(same(state(), before))
tileguard.uninstall()
answers.append(same(state(), before))
print(json.dumps(answers))
"""


def test_uninstall_restores_every_patched_name_itself() -> None:
    assert all(json.loads(python(_IDENTITY)))


@pytest.mark.parametrize(
    "change",
    [
        "triton_heuristics.cached_autotune = lambda configs: None",
        "TritonKernel.codegen_kernel = lambda self, name, more: ''",
        "async_compile._load_triton_kernel_from_source = lambda source: None",
        "del codecache.FxGraphHashDetails",
        "del triton_heuristics.CachingAutotuner",
        "import sys; sys.modules['triton.runtime.jit'] = None",
    ],
)
def test_a_torch_that_is_not_as_expected_is_left_alone_and_said_once(change: str) -> None:
    code = f"""
import json, logging
from torch._inductor import async_compile, codecache
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime import triton_heuristics
{change}
said = []
class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("tileguard").addHandler(Listener())
before = vars(triton_heuristics).get("cached_autotune"), vars(TritonKernel)["codegen_kernel"]
import tileguard
installed = tileguard.install()
after = vars(triton_heuristics).get("cached_autotune"), vars(TritonKernel)["codegen_kernel"]
print(json.dumps([installed, before[0] is after[0], before[1] is after[1], len(said), said[0]]))
"""
    installed, *untouched, times, said = json.loads(python(code))
    assert (installed, untouched, times) == (False, [True, True], 1)
    assert "not installed" in said


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"top_k": 0}, "top_k"),
        ({"hardware": "h201"}, "hardware"),
        ({"model": 3}, "model"),
        ({"kernel_budget_s": -1}, "kernel_budget_s"),
        ({"log": 3}, "log"),
        ({"policy": 3}, "policy"),
        ({"hardware": ["h200"]}, "hardware"),
    ],
)
def test_bad_settings_are_named(settings: Report, field: str) -> None:
    import tileguard
    from tileguard.features.errors import InvalidInput

    with pytest.raises(InvalidInput) as caught:
        tileguard.install(**settings)
    assert caught.value.field == field


_RANKS = """
import json, random, sys
from tileguard.features.kernels import ReductionKernel
from tileguard.runtime.hooks.proposal import insert_payload, payload
from tileguard.runtime.selector import Selector
draw, selector = random.Random(7), Selector("h200", model=sys.argv[1])
texts = []
for _ in range(25):
    kernel = ReductionKernel(draw.randint(1, 1 << 15), draw.randint(2, 1 << 13), draw.choice(["fp32", "bf16"]),
                             draw.randint(1, 5), draw.randint(1, 3), inner=draw.random() < 0.5)
    texts.append(insert_payload("inductor_meta={}", payload(selector.select(kernel), one_row=False)))
print(json.dumps(texts))
"""


def test_eight_ranks_write_the_same_lists_into_their_sources(model_dir: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        ranks = list(pool.map(lambda rank: python(_RANKS, str(model_dir), RANK=str(rank)), range(8)))
    assert len(json.loads(ranks[0])) == 25
    assert len(set(ranks)) == 1
