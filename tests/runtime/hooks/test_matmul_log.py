"""Records of extended matrix products: from the real Inductor on a GPU that is not there (matmul_log_host.py), and made up."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import ROOT

from tileguard.features.kernels import MatmulKernel
from tileguard.runtime.hooks import matmul_log, process_log
from tileguard.runtime.hooks.matmul_log import SELECTED, TILE_NAMES, Selected, timing, wrap
from tileguard.runtime.hooks.matmul_records import NUMBERS, MatmulRecord
from tileguard.runtime.hooks.race import RaceResult
from tileguard.runtime.hooks.report import Log, read_log
from tileguard.runtime.matmul_selector import MatmulSelector, MatmulSet

from .matmul_host import PRODUCTS
from .matmul_log_host import LAUNCH_US, LOSING, SLOW, TIMES

HAS_TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("triton") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and triton")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache, logs = tmp_path_factory.mktemp("products"), tmp_path_factory.mktemp("logs")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TMPDIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.hooks.matmul_log_host", str(logs)],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result | {"stderr": done.stderr}


def numbers_of(tile: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(tile.get(name) for name in names)


@needs_torch
@pytest.mark.parametrize("case", PRODUCTS)
def test_each_raced_product_has_one_record_of_all_its_choices(found: dict[str, Any], case: str) -> None:
    place = list(PRODUCTS).index(case)
    assert len(found["raced"]["records"]) == len(PRODUCTS)
    one, listed = found["raced"]["records"][place], found["raced"]["lists"][place]
    op, (batch, m, n, k), dtype = PRODUCTS[case]
    assert (one["op"], one["batch"], one["m"], one["n"], one["k"]) == (op, batch, m, n, k)
    assert one["dtype"] == {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[dtype]
    assert (one["hardware"], one["verdict"], one["outcome"], one["reason"]) == ("h200", "no_model", "tuned", None)
    assert one["verdict_detail"] == "no model was asked for"
    assert one["select_us"] > 0 and one["bench_s"] > 0
    assert [(tile["template"], *numbers_of(tile, NUMBERS)) for tile in one["tiles"]] == [
        (choice["template"], *numbers_of(choice, TILE_NAMES)) for choice in listed
    ]
    for tile, choice in zip(one["tiles"], listed, strict=True):
        assert ("host" in tile["proposers"]) == (not choice["ours"])
        assert tile["status"] == "ok" and tile["reps"] > 0
    assert one["tiles"][0]["proposers"] == ["host"] and one["tiles"][0]["block_m"] is None


@needs_torch
def test_times_are_on_the_scale_that_the_host_is_told_and_the_gain_is_over_its_fastest(found: dict[str, Any]) -> None:
    for one in found["raced"]["records"]:
        winner = one["tiles"][one["winner"]]
        assert winner["proposers"] == one["winner_proposers"] == ["formula"]
        scale = (TIMES["added"] + LAUNCH_US) / TIMES["added"]
        assert one["tiles"][0]["us"] == pytest.approx(scale * TIMES["aten"])
        assert one["host_us"] == pytest.approx(scale * TIMES["host"])
        assert one["winner_us"] == winner["us"] == pytest.approx(scale * TIMES["added"])
        assert one["gain"] == pytest.approx(TIMES["host"] / TIMES["added"])
    (one,) = found["losing"]["records"]
    assert (one["winner"], one["winner_proposers"], one["gain"]) == (0, ["host"], 1.0)
    assert one["winner_us"] == pytest.approx(LOSING["aten"] + LAUNCH_US)


@needs_torch
@pytest.mark.parametrize(
    ("case", "outcome", "reason"),
    [
        ("far", "tuned", "far"),
        ("subprocess", "tuned", "subprocess"),
        ("cached", "cached", "cache"),
        ("race_error", "failed", "matmul_race_error"),
        ("failed", "failed", "matmul_no_choice"),
    ],
)
def test_without_a_race_the_record_says_why_and_what_is_known(
    found: dict[str, Any], case: str, outcome: str, reason: str
) -> None:
    one = found[case]["records"][-1]
    assert (one["outcome"], one["reason"]) == (outcome, reason)
    assert not any(tile["reps"] for tile in one["tiles"])
    assert (one["winner"] is None) == (outcome == "failed")
    statuses = {tile["status"] for tile in one["tiles"]}
    assert statuses == ({"launch_error"} if case == "failed" else {"ok"})
    if case == "far":  # what was added changed nothing
        assert one["gain"] == 1.0 and one["host_us"] == pytest.approx(SLOW["host"] + LAUNCH_US)
    else:
        assert one["gain"] is None and one["host_us"] is None
    assert found[case]["totals"]["untouched"] == {}
    assert len(found[case]["records"]) == (2 if case == "cached" else 1)
    assert bool(found[case]["raised"]) == (case == "failed")


@needs_torch
def test_a_log_file_has_the_same_records(found: dict[str, Any], tmp_path: Path) -> None:
    for case in ("raced", "far", "cached", "failed"):
        path = tmp_path / case
        path.write_text(found[case]["log"], encoding="utf-8")
        assert json.loads(json.dumps(read_log(path).to_dict()["records"])) == found[case]["records"]


@needs_torch
def test_a_record_that_cannot_be_made_is_counted_and_the_host_goes_on(found: dict[str, Any]) -> None:
    assert found["no_record"]["records"] == []
    assert found["no_record"]["totals"]["untouched"] == {"matmul_record_error": 1}
    assert found["no_record"]["raised"] == ""
    assert found["untuned"]["records"] == []
    assert found["untuned"]["totals"]["untouched"] == {}


@needs_torch
def test_another_signature_costs_the_records_and_not_the_race(found: dict[str, Any]) -> None:
    assert found["restored"]
    assert not found["renamed_patched"]
    assert found["renamed_raced"]
    assert found["stderr"].count("tileguard keeps no records of matrix products: TypeError") == 1


def chosen() -> MatmulSet:
    selector = MatmulSelector("h200", model=None)
    kernel = MatmulKernel(1, 512, 1024, 256, "bf16")
    host = selector.select(kernel).tiles[:1]
    return selector.select(kernel, host)


def choice(template: str, numbers: tuple[int, ...] = (), selected: Selected | None = None) -> Any:
    params = SimpleNamespace(to_kwargs=lambda: dict(zip(TILE_NAMES, numbers, strict=False)))
    made = SimpleNamespace(template=SimpleNamespace(uid=template), params=params)
    if selected is not None:
        setattr(made, SELECTED, selected)
    return Named(template, ktc=made)


class Named:
    """Hashed by what it is, as the host's choices are."""

    failed = False

    def __init__(self, name: str, **annotations: Any) -> None:
        self.name, self.annotations = name, annotations


@pytest.fixture
def log() -> Iterator[Log]:
    before = process_log.current()
    own = Log()
    process_log.use(own)
    yield own
    process_log.use(before)


def autotuned(choices: list[Any], timed: Callable[[], Any], **more: Any) -> Any:
    method = wrap(lambda cache, *given: timed(), active=lambda: True)
    return method(None, "mm", (), None, None, "key", choices, None, **more)


def three() -> tuple[Selected, list[Any]]:
    """ATen, the host's tile and the planner's second."""
    selected = Selected("mm", chosen(), frozenset({"triton::mm"}))
    host, added = selected.chosen.tiles[:2]
    return selected, [
        choice("aten::mm"), choice("triton::mm", host.sort_key), choice("triton::mm", added.sort_key, selected),
    ]  # fmt: skip


def only(log: Log) -> MatmulRecord:
    (one,) = log.report().records
    assert isinstance(one, MatmulRecord)
    return one


def test_what_the_host_made_no_choice_of_stands_behind_and_what_it_could_not_compile_is_said(log: Log) -> None:
    selected, choices = three()
    choices[1].failed = True
    unnamed = Named("cutlass_17")
    choices.append(unnamed)
    timings = {choices[0]: 0.02, choices[2]: 0.01, unnamed: 0.03}
    assert autotuned(choices, lambda: timings) is timings
    one = only(log)
    tiles = selected.chosen.tiles
    assert [tile.status for tile in one.tiles[:4]] == ["ok", "compile_error", "ok", "ok"]
    assert (one.tiles[3].template, one.tiles[3].block_m, one.tiles[3].proposers) == ("cutlass_17", None, ("host",))
    assert one.tiles[1].proposers == ("host", "formula")
    assert [tuple(getattr(tile, name) for name in NUMBERS) for tile in one.tiles[4:]] == [t.sort_key for t in tiles[2:]]
    assert {(tile.template, tile.status) for tile in one.tiles[4:]} == {("triton::mm", "not_compiled")}
    assert (one.outcome, one.reason, one.winner, one.winner_us) == ("cached", "cache", 2, 10.0)


def test_a_race_without_any_of_the_hosts_claims_no_gain(log: Log) -> None:
    _, choices = three()

    def timed() -> Any:
        seen = timing()
        seen.host_ms = {choices[0]: 0.2, choices[1]: 0.3, choices[2]: 0.01}
        seen.raced, seen.scale = choices[2:], 1e-3
        seen.result = RaceResult(0, (10.0,), (0.5,), (True,), (7,), True)
        return seen.host_ms

    autotuned(choices, timed)
    one = only(log)
    assert (one.winner, one.host_us, one.gain, one.over_budget) == (2, None, None, True)
    assert (one.tiles[2].us, one.tiles[2].us_mad, one.tiles[2].reps) == (10.0, 0.5, 7)


def test_one_product_has_one_record_however_often_the_host_asks(log: Log) -> None:
    _, choices = three()
    timings = dict.fromkeys(choices, 0.01)
    autotuned(choices, lambda: timings, hint_override=64)  # other sizes than those that were looked at
    assert log.report().records == ()
    for _ in range(2):
        autotuned(choices, lambda: timings)
    assert len(log.report().records) == 1
    autotuned(choices[:2], lambda: timings)
    assert len(log.report().records) == 1


def test_timings_that_come_later_or_not_at_all(log: Log) -> None:
    for timings, more, expected in (
        (None, {}, ("tuned", "pipelined")),
        ({}, {"is_collective": True}, ("failed", "matmul_no_choice")),
    ):
        _, choices = three()
        assert autotuned(choices, lambda given=timings: given, **more) is timings  # type: ignore[misc]
        one = log.report().records[-1]
        assert (one.outcome, one.reason, one.winner) == (*expected, None)


def test_what_the_host_raises_is_raised_and_an_interrupt_is_no_record(log: Log) -> None:
    for error, records in ((KeyboardInterrupt(), 0), (ValueError("none works"), 1)):
        _, choices = three()

        def timed(raised: BaseException = error) -> Any:
            raise raised

        with pytest.raises(type(error)) as caught:
            autotuned(choices, timed)
        assert caught.value is error
        assert len(log.report().records) == records
    assert not matmul_log.is_recorded()


def test_a_product_within_anothers_timing_does_not_speak_for_it(log: Log) -> None:
    """A choice that is a graph of its own is compiled while it is timed."""
    _, outer = three()
    _, plain = three()

    def inner() -> Any:
        timing().asked = True
        return {}

    def timed() -> Any:
        autotuned(plain[:2], inner)
        assert matmul_log.is_recorded()
        return dict.fromkeys(outer, 0.01)

    autotuned(outer, timed)
    assert only(log).reason == "cache"


def test_choices_that_are_none_of_ours_are_passed_on(log: Log) -> None:
    for choices in ([], [object()], [SimpleNamespace(annotations=None)], None):
        assert autotuned(choices, lambda: "what the host says") == "what the host says"  # type: ignore[arg-type]
    assert log.report().records == ()
    assert log.report().untouched == {}


def test_a_set_that_is_not_one_costs_a_record_and_is_counted(log: Log) -> None:
    bad: Any = None
    choices = [choice("triton::mm", (1, 2), Selected("mm", bad, frozenset()))]
    assert autotuned(choices, dict) == {}
    assert log.report().records == ()
    assert log.report().untouched == {"matmul_record_error": 1}
