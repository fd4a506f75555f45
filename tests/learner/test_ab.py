"""The A/B harness: what it refuses to begin with, what it keeps, and that a wrong or changed candidate claims nothing."""

from __future__ import annotations

import ctypes
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.features.tiles import ReductionTile
from tileguard.learner import ab, ab_measure
from tileguard.learner.ab_binaries import BinariesChanged, binary_digests, changed, package_digest
from tileguard.learner.ab_buffers import AbBuffers, make_operands
from tileguard.learner.ab_report import (
    EQUAL,
    FAILED,
    FASTER,
    METRIC,
    SLOWER,
    paired,
    report_table,
    verdict,
    write_report,
)
from tileguard.learner.ab_spec import AbSpec, Case, digest_of, read_cases
from tileguard.learner.audit import audit
from tileguard.runtime.devices.cpu import CPU_DTYPES, OPS, PROGRAM_OPS, CpuDevice, cpu_kernel
from tileguard.runtime.devices.cpu.jit import LinkedKernel

KERNEL = {"op": "softmax", "xnumel": 9, "rnumel": 33, "dtype": "fp32"}
A, B = {"xblock": 1, "r0_block": 8}, {"xblock": 4, "r0_block": 8, "lowering": "snapshot"}
CASE = Case(cpu_kernel("softmax", 9, 33, "fp32"), ReductionTile(1, 8), ReductionTile(4, 8, lowering="snapshot"))
QUICK = AbSpec((CASE,), rounds=3, samples=3, singles=3, sample_us=20.0)


def file_of(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests that cost nothing: a test's process has mapped half a gigabyte of libraries."""
    names = ("python", "llvmlite", "numpy", "tileguard")
    monkeypatch.setattr(ab, "binary_digests", lambda: {name: digest_of(name) for name in names})


def test_cases_come_from_one_file_or_from_two_of_candidates(tmp_path: Path) -> None:
    both = file_of(tmp_path / "cases.json", [{**KERNEL, "a": A, "b": B}])
    a, b = (
        file_of(tmp_path / f"{name}.json", {**KERNEL, "inner": True, "device": "cpu", "tile": tile})
        for name, tile in (("a", A), ("b", B))
    )
    assert read_cases(both) == read_cases(a, b) == (CASE,)
    again = file_of(tmp_path / "again.json", CASE.to_json())
    assert read_cases(again) == (CASE,)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ([], "spec"),
        (3, "[0]"),
        ({**KERNEL, "a": A}, "[0].b"),
        ({**KERNEL, "a": A, "b": B, "speed": 2}, "[0].speed"),
        ({**KERNEL, "op": "conv", "a": A, "b": B}, "[0].op"),
        ({**KERNEL, "xnumel": 0, "a": A, "b": B}, "[0].xnumel"),
        ({**KERNEL, "inner": 1, "a": A, "b": B}, "[0].inner"),
        ({**KERNEL, "device": "h200", "a": A, "b": B}, "[0].device"),
        ({**KERNEL, "a": A, "b": {"xblock": 1}}, "[0].b.r0_block"),
        ({**KERNEL, "a": A, "b": {**B, "lowering": "magic"}}, "[0].b.lowering"),
        ({**KERNEL, "a": A, "b": {**B, "xblock": "4"}}, "[0].b.xblock"),
    ],
)
def test_a_spec_that_cannot_be_used_is_named_by_its_field(entry: object, field: str, tmp_path: Path) -> None:
    path = file_of(tmp_path / "cases.json", entry)
    with pytest.raises(InvalidInput) as raised:
        read_cases(path)
    assert raised.value.field.endswith(field)


def test_a_and_b_must_be_of_the_same_kernels(tmp_path: Path) -> None:
    a = file_of(tmp_path / "a.json", {**KERNEL, "tile": A})
    other = file_of(tmp_path / "b.json", {**KERNEL, "rnumel": 34, "tile": B})
    with pytest.raises(InvalidInput, match="A's kernel"):
        read_cases(a, other)
    with pytest.raises(InvalidInput, match="as many for A as for B"):
        read_cases(a, file_of(tmp_path / "two.json", [{**KERNEL, "tile": B}] * 2))


@pytest.mark.parametrize("change", [{"rounds": 1}, {"cases": ()}, {"samples": 0}, {"sample_us": float("nan")}])
def test_a_recipe_that_proves_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        replace(QUICK, **change)


def test_ratios_are_paired_and_not_those_of_medians() -> None:
    found = paired([1.0, 4.0, 4.0], [2.0, 1.0, 4.0])
    assert found["ratios"] == [0.5, 4.0, 1.0]
    assert found["speedup"] == 1.0
    assert found["a_us"] / found["b_us"] == 2.0


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([1.03, 2.0], FASTER),
        ([0.97, 0.5], SLOWER),
        ([1.01, 2.0], EQUAL),
        ([0.5, 2.0], EQUAL),
        ([1.0, 1.0], EQUAL),
    ],
)
def test_a_verdict_needs_every_round(ratios: Sequence[float], words: str) -> None:
    assert verdict(ratios) == words


def test_a_run_keeps_everything_and_passes_its_audit(steady: None) -> None:
    report = ab.run_ab(QUICK)
    (case,), (entry,) = report["raw"]["cases"], report["summary"]
    assert [blocks["order"] for blocks in case["rounds"]] == [["a", "b"], ["b", "a"], ["a", "b"]]
    for blocks in case["rounds"]:
        for side in "ab":
            assert len(blocks[side]["batch_ns"]) == len(blocks[side]["single_ns"]) == 3
            assert blocks[side]["inputs"] == case["inputs"]
            assert blocks[side]["check"]["outputs"]["out"]["elements"] == 9 * 33
            assert 0 < blocks[side]["check"]["outputs"]["out"]["worst"] <= 1
            assert blocks[side]["check"]["guard_bytes"] > 8192
    assert [len(case[side]["compiles"]) for side in "ab"] == [2, 2]
    assert entry["verdict"] in (FASTER, SLOWER, EQUAL)
    assert report["metric"] == METRIC
    assert report["raw_sha256"] == digest_of(report["raw"])
    assert report["raw"]["spec"]["cases"] == [CASE.to_json()]
    assert report["raw"]["machine"]["hardware"]["name"]
    assert audit(json.loads(json.dumps(report))).ok


def test_b_that_is_slower_or_cannot_be_compiled_stays_in_the_report(steady: None) -> None:
    """By a verdict of its own, whichever of the two it is on this machine; a failure by its status and words."""
    failing = replace(CASE, b=ReductionTile(1, 1 << 20))
    report = ab.run_ab(replace(QUICK, cases=(failing, CASE, replace(CASE, a=CASE.b, b=CASE.a)), rounds=2))
    failed, one, other = report["summary"]
    assert failed == {"name": CASE.name, "verdict": FAILED, "batch": None, "single": None, "compile": None}
    side = report["raw"]["cases"][0]["b"]
    assert side["status"] == "out_of_resource"
    assert "r0_block" in side["error"]
    assert one["batch"]["speedup"] > 0 and other["batch"]["speedup"] > 0
    assert report_table(report).row_count == 3
    assert audit(report).ok


class Broken:
    """A candidate's code that goes wrong in a way of its own at the n-th run of a single call."""

    def __init__(self, harm: Callable[[Sequence[int]], None], at: int) -> None:
        self._harm, self._left = harm, at

    def link(self, image: bytes, pointers: int) -> Any:
        linked = LinkedKernel(image, pointers)
        outer = self

        class Code:
            def run(self, addresses: Sequence[int], calls: int = 1) -> None:
                linked.run(addresses, calls)
                outer._left -= 1
                if outer._left <= 0:
                    outer._harm(addresses)

        return Code()


def _skip_last(addresses: Sequence[int]) -> None:
    ctypes.memset(addresses[-1] + 4 * (9 * 33 - 1), 0xFF, 4)


def _write_before(addresses: Sequence[int]) -> None:
    ctypes.memset(addresses[-1] - 1, 0, 1)


@pytest.mark.parametrize(("harm", "words"), [(_skip_last, "1 of 297 numbers"), (_write_before, "1 bytes outside")])
def test_a_wrong_candidate_is_not_timed(
    harm: Callable[[Sequence[int]], None], words: str, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ab_measure, "LinkedKernel", Broken(harm, at=1).link)
    report = ab.run_ab(QUICK)
    (case,), (entry,) = report["raw"]["cases"], report["summary"]
    assert case["a"]["status"] == "wrong_result"
    assert words in case["a"]["error"]
    assert case["rounds"] == []
    assert (entry["verdict"], entry["batch"]) == (FAILED, None)


@pytest.mark.parametrize("harm", [_skip_last, _write_before])
def test_a_candidate_that_goes_wrong_in_a_later_round_claims_nothing(
    harm: Callable[[Sequence[int]], None], steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ab_measure.CaseRun._block

    def block(self: Any, side: str, run: Callable[[int], None], buffers: AbBuffers, origin_ns: int) -> dict[str, Any]:
        def wrong(calls: int) -> None:
            run(calls)
            harm(buffers.pointers)

        last = len(self.raw["rounds"]) == 2 and side == "b"
        return real(self, side, wrong if last else run, buffers, origin_ns)

    monkeypatch.setattr(ab_measure.CaseRun, "_block", block)
    report = ab.run_ab(QUICK)
    assert report["summary"][0]["verdict"] == FAILED
    assert len(report["raw"]["cases"][0]["rounds"]) == 3
    result = audit(report)
    assert result.recomputed == ((CASE.name, None),)
    assert set(result.failed) <= {"outputs"}  # the last round's are not those of the first


def test_code_that_changes_under_a_run_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = iter(({"lib": "1", "gone": "1"}, {"lib": "2", "new": "1"}))
    monkeypatch.setattr(ab, "binary_digests", lambda: next(versions))
    spec = file_of(tmp_path / "cases.json", {**KERNEL, "a": A, "b": B})
    out = tmp_path / "REPORT.json"
    with pytest.raises(SystemExit) as ended:
        main(["ab", str(spec), "--out", str(out), "--rounds", "2", "--samples", "3", "--sample-us", "20"])
    assert ended.value.code == 1
    assert not out.exists()


def test_the_command_prints_a_table_that_stays_whole(
    steady: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [{**KERNEL, "a": A, "b": B}, {**KERNEL, "a": A, "b": {"xblock": 1, "r0_block": 1 << 20}}]
    spec, out = file_of(tmp_path / "cases.json", entries), tmp_path / "new" / "REPORT.json"
    with pytest.raises(SystemExit) as ended:
        main(["ab", str(spec), "--out", str(out), "--rounds", "2", "--samples", "3", "--sample-us", "20"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert CASE.name in text and FAILED in text and METRIC in text
    report = json.loads(out.read_text())
    assert audit(report).ok
    for width in (60, 80, 120, 160):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        console.print(report_table(report, width=width))
        shown = cast(io.StringIO, console.file).getvalue()
        assert "…" not in shown
        assert f"{report['summary'][0]['batch']['speedup']:.3f}×" in shown


def test_an_object_that_comes_out_otherwise_is_refused(steady: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: ab_measure.CaseRun) -> None:
        self.raw["b"]["compiles"].append({"ms": 1.0, "phases_ms": {}, "sha256": digest_of("other")})

    monkeypatch.setattr(ab_measure.CaseRun, "compile_again", other)
    with pytest.raises(BinariesChanged, match=r"object of softmax:9x33:fp32 B"):
        ab.run_ab(QUICK)


def test_digests_name_what_takes_part_and_notice_every_change(tmp_path: Path) -> None:
    assert changed({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == ["b", "c", "d"]
    (tmp_path / "real").mkdir()
    module = tmp_path / "real" / "m.py"
    module.write_text("x = 1\n")
    package = tmp_path / "package"
    package.mkdir()
    (package / "linked").symlink_to(tmp_path / "real")
    before = package_digest(package)
    (package / "notes.txt").touch()
    assert package_digest(package) == before
    module.write_text("x = 2\n")
    assert package_digest(package) != before


def test_a_report_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "REPORT.json"
    write_report({"a": 1.5}, path)
    assert json.loads(path.read_text()) == {"a": 1.5}
    with pytest.raises(ValueError):
        write_report({"a": float("nan")}, path)
    assert json.loads(path.read_text()) == {"a": 1.5}
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("op", [*OPS, *PROGRAM_OPS])
def test_every_operation_is_right_by_the_harness_own_check(op: str, inner: bool) -> None:
    """Against the code that the device makes of it; what was never written is wrong throughout."""
    dtype = CPU_DTYPES[(len(op) + inner) % len(CPU_DTYPES)]
    kernel, tile = cpu_kernel(op, 5, 12, dtype, inner=inner), ReductionTile(2, 4)
    buffers = AbBuffers(kernel, seed=3)
    inputs = buffers.input_digests()
    linked = _code(kernel, tile, len(buffers.pointers))
    buffers.poison()
    assert all(output["wrong"] == output["elements"] for output in buffers.check(tile)["outputs"].values())
    linked.run(buffers.pointers, 1)
    check = buffers.check(tile)
    assert check["guard_bytes_touched"] == 0
    for output in check["outputs"].values():
        assert output["wrong"] == 0
        assert output["worst"] <= 1
    assert buffers.input_digests() == inputs
    ctypes.memset(buffers.pointers[-1] - 1, 0, 1)
    assert buffers.check(tile)["guard_bytes_touched"] == 1


def _code(kernel: Any, tile: ReductionTile, pointers: int) -> LinkedKernel:
    from tileguard.runtime.devices.cpu.jit import compile_object

    return LinkedKernel(compile_object(kernel, tile)[0], pointers)


def test_operands_follow_from_the_seed() -> None:
    kernel = cpu_kernel("masked_softmax", 4, 6, "fp16")
    one, same, other = (make_operands(kernel, seed) for seed in (1, 1, 2))
    assert list(one) == ["x", "mask"]
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["x"], other["x"])


def test_the_real_digests_hold_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of named binaries: the mapped ones of a test's process are too many."""
    from tileguard.learner import ab_binaries

    CpuDevice().close()  # llvmlite is there
    monkeypatch.setattr(ab_binaries, "MAPS", Path("/nowhere"))
    digests = binary_digests()
    assert sorted(digests) == ["llvmlite", "numpy", "python", "tileguard"]
    assert all(len(digest) == 64 for digest in digests.values())


def test_what_a_process_has_mapped_as_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tileguard.learner import ab_binaries

    library, maps = tmp_path / "a library.so", tmp_path / "maps"
    library.write_bytes(b"code")
    known = f"7f00-7f01 r-xp 0000 fd:00 1    {library}\n7f02-7f03 r--p 0000 fd:00 2    /data\n7f04-7f05 r-xp 0000 00:00 0 \n"
    maps.write_text(known + "7f06-7f07 r-xp 0000 00:01 3    /memfd:libffi (deleted)\n7f08-7f09 r-xp 0 0:0 0  [vdso]\n")
    monkeypatch.setattr(ab_binaries, "MAPS", maps)
    before = binary_digests()
    assert sorted(set(before) - {"llvmlite", "numpy", "python", "tileguard"}) == [str(library)]
    library.write_bytes(b"edoc")
    assert changed(before, binary_digests()) == [str(library)]
    for line in (
        "7f06-7f07 r-xp 0000 fd:00 3    /lib/old.so (deleted)\n",
        "7f06-7f07 r-xp 0000 fd:00 3    /lib/gone.so\n",
    ):
        maps.write_text(known + line)
        with pytest.raises(BinariesChanged, match=r"/lib/(old|gone)\.so"):
            binary_digests()
