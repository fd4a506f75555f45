"""The benchmark's graphs run in eager on a CPU at a tiny size; its checks and sums say what they should."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.inductor_graphs import GRAPHS, TINY, Graph, gradients_for, materialise, select, step, tiny
from benchmarks.inductor_h200 import slower, summarise
from benchmarks.inductor_modes import MODES, agreement


def test_there_are_twenty_four_of_distinct_names() -> None:
    assert len({graph.name for graph in GRAPHS}) == len(GRAPHS) == 24


def test_they_cover_dtypes_families_directions_and_odd_sizes() -> None:
    assert {graph.dtype for graph in GRAPHS} == {"bf16", "fp16", "fp32"}
    assert {graph.family for graph in GRAPHS} >= {"norm", "softmax", "loss", "attention", "conv", "mlp"}
    assert {graph.backward for graph in GRAPHS} == {True, False}
    assert any(size % 2 for graph in GRAPHS for size in graph.dims.values() if size > TINY)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_a_tiny_one_runs_in_eager(graph: Graph) -> None:
    small = tiny(graph)
    inputs = materialise(small, device="cpu")
    gradients = gradients_for(graph.call(*inputs)) if graph.backward else None
    found = step(graph.call, inputs, gradients)
    outputs = len(found) - sum(one.requires_grad for one in inputs)
    assert outputs >= 1
    assert all(bool(torch.isfinite(one.float()).all()) for one in found)
    assert [tuple(one.shape) for one in found[outputs:]] == [tuple(one.shape) for one in inputs if one.requires_grad]
    again = step(graph.call, materialise(small, device="cpu"), gradients)
    assert all(torch.equal(one, two) for one, two in zip(found, again, strict=True))


def test_names_select_graphs() -> None:
    assert [graph.name for graph in select(["softmax_577", "layer_norm"])] == ["layer_norm", "softmax_577"]
    assert select(None) is GRAPHS
    with pytest.raises(ValueError, match="no such graph: nothing"):
        select(["nothing"])


def test_a_graph_says_which_dimension_has_no_size() -> None:
    with pytest.raises(ValueError, match="dimensions without a size: c"):
        Graph(
            name="g",
            family="f",
            dtype="fp32",
            call=torch.sum,
            dims={"n": 1},
            inputs=(GRAPHS[0].inputs[0],),
        )


def test_outputs_agree_within_their_dtypes_tolerance() -> None:
    exact = torch.linspace(1.0, 2.0, 1000)
    half = exact.half()
    assert agreement([half], [half], [exact])["match"]
    assert not agreement([half * 1.01], [half], [exact])["match"]
    assert not agreement([exact], [half], [exact])["match"], "another dtype"
    assert not agreement([half * float("nan")], [half], [exact])["match"]
    assert not agreement([half], [half, half], [exact, exact])["match"]
    one_off = half.clone()
    one_off[7] *= 1.1
    assert not agreement([one_off], [half], [exact])["match"]


def test_where_eager_rounds_more_the_precise_one_decides() -> None:
    exact = torch.linspace(1.0, 2.0, 1000)
    found = agreement([exact.half()], [exact.half() * 1.01], [exact])
    assert found["match"] and found["eager_off"] == 1


def test_integers_agree_only_when_equal() -> None:
    places = torch.arange(5)
    assert agreement([places], [places], [places])["match"]
    assert not agreement([places], [places + 1], [places])["match"]


def test_a_kernel_that_a_mode_lacks_is_in_no_sum() -> None:
    def kernel(key: str, warps: int) -> dict[str, Any]:
        return {"key": key, "launches": 2, "config": {"XBLOCK": 1, "num_warps": warps, "num_stages": 1}}

    run = {"date": "", "gpu": "", "cpu": "", "cpus": 1, "versions": {}}
    modes = {
        mode: {
            "runs": [run],
            "graphs": {
                "g": {
                    "wall_s": 1.0 if mode == "tileguard" else 2.0,
                    "agreement": {"match": mode != "default"},
                    "kernels": [kernel("a", 4 if mode == "tileguard" else 8)]
                    + ([] if mode == "coordinate_descent" else [kernel("b", 4)]),
                }
            },
        }
        for mode in MODES
    }
    us = {"XBLOCK=1 num_stages=1 num_warps=8": [10.0, 0.1, 51], "XBLOCK=1 num_stages=1 num_warps=4": [9.0, 0.1, 51]}
    judged = {
        "graphs": ["g"],
        "kernels": [{"graph": "g", "name": key, "key": key, "launches": 2, "us": us, "aa": 1.0} for key in ("a", "b")],
        "failed": {},
        "seconds": {},
        "gpu": "",
    }
    result = summarise(modes, judged)
    assert (result["n_kernels"], result["n_matched"]) == (2, 1)
    assert {mode: found["reduction_us"] for mode, found in result["modes"].items()} == {
        mode: 18.0 if mode == "tileguard" else 20.0 for mode in MODES
    }
    lacking = result["modes"]["coordinate_descent"]
    assert (lacking["unmatched"], lacking["unmatched_default_us"]) == (1, 18.0)
    values = {name: (one["value"], one["met"]) for name, one in result["targets"].items()}
    assert values["reduction time, tileguard ÷ coordinate_descent"] == (0.9, True)
    assert values["wall, tileguard ÷ coordinate_descent"] == (0.5, True)
    assert values["graph runs that do not match eager"] == (1.0, False)


def test_a_slower_kernel_is_sure_only_beyond_what_its_times_err_by() -> None:
    def kernel(us: float, mad: float) -> dict[str, Any]:
        modes = {"default": 1.0, "tileguard": us}
        return {
            "graph": "g", "name": f"{us}", "us": modes,
            "mad": dict.fromkeys(modes, mad), "rounds": dict.fromkeys(modes, 50),
        }  # fmt: skip

    kernels = [kernel(1.049, 0.0), kernel(1.06, 0.0), kernel(1.06, 0.05), kernel(1.2, 0.05)]
    found = slower(kernels, "tileguard")
    assert [(one["us"], one["sure"]) for one in found] == [(1.06, True), (1.06, False), (1.2, True)]
