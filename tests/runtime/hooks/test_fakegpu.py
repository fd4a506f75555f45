"""The fake GPU carries the unhooked Inductor through every path that the hook's tests take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import RunHost

Report = dict[str, Any]
GRAPHS = ("softmax", "sum0", "cross_entropy")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="module")
def first(run_host: RunHost, cache: Path) -> Report:
    """Three graphs and a backward graph, compiled in their process."""
    return run_host(cache, *GRAPHS)


def kernel(report: Report, part: str) -> dict[str, Any]:
    (found,) = (each for each in report["kernels"] if part in each["name"])
    return dict(found)


def test_cubins_are_real_and_for_an_h200(first: Report, cache: Path) -> None:
    cubins = list(cache.glob("triton/**/*.cubin"))
    assert len(cubins) == first["cubins"] == sum(len(each["configs"]) for each in first["kernels"])
    for cubin in cubins:
        assert cubin.read_bytes()[:4] == b"\x7fELF"
        assert ".target sm_90a" in cubin.with_suffix(".ptx").read_text()


def test_forward_and_backward_kernels_were_compiled_and_launched(first: Report) -> None:
    names = " ".join(each["name"] for each in first["kernels"])
    assert all(part in names for part in ("red_fused__softmax", "red_fused_sum_0", "per_fused_sum_1", "loss_backward"))
    assert all(each["launches"] > each["benches"] for each in first["kernels"])
    assert all(each["static"] and each["compiled_by"] is None for each in first["kernels"])


def test_the_host_benches_its_configs_and_takes_the_fastest(first: Report) -> None:
    from tests.fakegpu import simulated_ms

    softmax = kernel(first, "red_fused__softmax")
    assert softmax["state"] == "miss"
    assert softmax["benches"] == len(softmax["configs"]) > 1
    assert softmax["winner"] == min(softmax["configs"], key=lambda config: simulated_ms(softmax["name"], config))


def test_a_second_process_compiles_and_benches_nothing(first: Report, run_host: RunHost, cache: Path) -> None:
    second = run_host(cache, *GRAPHS)
    assert second["cubins"] == second["benches"] == 0
    assert second["cache"]["fxgraph_cache_hit"] == first["cache"]["fxgraph_cache_miss"] == 4
    assert kernel(second, "red_fused__softmax")["state"] == "hit"
    winners = [[each["winner"] for each in report["kernels"]] for report in (first, second)]
    assert winners[0] == winners[1]


def test_max_autotune_has_more_configs_and_a_graph_of_its_own(first: Report, run_host: RunHost, cache: Path) -> None:
    wider = run_host(cache, "sum0", "--config", '{"max_autotune_pointwise": true}')
    assert wider["cache"]["fxgraph_cache_miss"] == 1
    assert len(kernel(first, "red_fused_sum_0")["configs"]) == 1 < len(kernel(wider, "red_fused_sum_0")["configs"])
    assert wider["benches"] > 1


@pytest.mark.parametrize(
    ("start", "arguments"),
    [
        ("subprocess", ("softmax", "sum0", "--dynamic", "both", "--at-once", "2")),
        ("fork", ("layer_norm", "--no-static")),
        ("spawn", ("softmax",)),
    ],
)
def test_workers_compile_for_the_same_gpu(
    first: Report, run_host: RunHost, tmp_path: Path, start: str, arguments: tuple[str, ...]
) -> None:
    report = run_host(tmp_path, *arguments, "--threads", "2", "--start", start)
    assert report["kernels"]
    assert report["cubins"] >= sum(len(each["configs"]) for each in report["kernels"]) > 0
    for each in report["kernels"]:
        assert each["compiled_by"] not in (None, report["pid"])
        assert each["static"] is ("--no-static" not in arguments)
    if "softmax" in arguments:  # dynamic sizes make another kernel, a worker does not
        sources = [kernel(which, "red_fused__softmax")["source"] for which in (first, report)]
        assert (sources[0] != sources[1]) is ("--dynamic" in arguments)
