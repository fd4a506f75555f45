"""The audit, by mutation of a real report: every way to spoil it is refused by the check that is there for it."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import ROOT, python

from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.learner.ab_report import BAND, METRIC
from tileguard.learner.ab_spec import digest_of
from tileguard.learner.audit import audit, read_report
from tileguard.learner.audit_checks import BAND as BAND_AGAIN
from tileguard.learner.audit_checks import CHECKS
from tileguard.learner.audit_checks import METRIC as METRIC_AGAIN

CASES = [
    {"op": "softmax", "xnumel": 9, "rnumel": 33, "dtype": "fp32", "a": {"xblock": 1, "r0_block": 8},
     "b": {"xblock": 4, "r0_block": 8, "lowering": "snapshot"}},
    {"op": "meanvar", "xnumel": 16, "rnumel": 20, "dtype": "bf16", "inner": False, "a": {"xblock": 8, "r0_block": 1},
     "b": {"xblock": 1, "r0_block": 1}},
    {"op": "sum", "xnumel": 4, "rnumel": 8, "dtype": "fp64", "a": {"xblock": 1, "r0_block": 8},
     "b": {"xblock": 1, "r0_block": 1048576}},
]  # fmt: skip
"""The last one's B is over a budget: a case without a result."""

COMMAND = "import sys; from tileguard.__main__ import main; main(sys.argv[1:])"
OTHER = digest_of("other")

Report = dict[str, Any]
Mutate = Callable[[Report], None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command wrote, in a process of its own: its binaries are those of a user's run."""
    folder = tmp_path_factory.mktemp("ab")
    (folder / "cases.json").write_text(json.dumps(CASES))
    recipe = ("--rounds", "3", "--samples", "3", "--singles", "4", "--sample-us", "30")
    places = ("--out", str(folder / "REPORT.json"), "--tensors", str(folder / "tensors"))
    out = python(COMMAND, "ab", str(folder / "cases.json"), *places, "--json", *recipe)
    assert json.loads(out)["report"] == str(folder / "REPORT.json")
    return folder / "REPORT.json"


@pytest.fixture
def report(written: Path) -> Report:
    """A copy to spoil."""
    return read_report(written)


def case(report: Report, number: int = 0) -> Any:
    return report["raw"]["cases"][number]


def block(report: Report, number: int = 1, side: str = "a") -> Any:
    return case(report)["rounds"][number][side]


def seal(report: Report) -> Report:
    """Give edited raw data their own digest, as whoever forges them would."""
    report["raw_sha256"] = digest_of(report["raw"])
    return report


def forge_speedup(report: Report) -> None:
    report["summary"][0]["batch"]["speedup"] *= 1.05


def ratio_of_medians(report: Report) -> None:
    """Rounds whose ratios are 2, 2 and 1/2, and whose medians are equal: a claim of 1, where the raw data say 2."""
    for number, (a, b) in enumerate(((2000, 1000), (8000, 4000), (4000, 8000))):
        one = case(report)
        block(report, number, "a")["batch_ns"] = [a * one["a"]["calls"]] * 3
        block(report, number, "b")["batch_ns"] = [b * one["b"]["calls"]] * 3
        for side in "ab":
            block(report, number, side)["ended_ns"] += 10**12 * (2 * number + 1)
            block(report, number, side)["started_ns"] += 10**12 * 2 * number
    entry = report["summary"][0]["batch"]
    entry["rounds"] = {"a": [2.0, 8.0, 4.0], "b": [1.0, 4.0, 8.0]}
    entry["ratios"] = [2.0, 2.0, 0.5]
    entry["a_us"] = entry["b_us"] = 4.0
    entry["speedup"] = 1.0


def too_few_rounds(report: Report) -> None:
    del case(report)["rounds"][1:]


def fewer_rounds_than_asked(report: Report) -> None:
    del case(report)["rounds"][-1]


def no_numeric_check(report: Report) -> None:
    del block(report)["check"]


def a_part_checked(report: Report) -> None:
    block(report)["check"]["outputs"]["out"]["elements"] -= 1


def one_output_unchecked(report: Report) -> None:
    del case(report, 1)["rounds"][0]["b"]["check"]["outputs"]["var"]


def an_error_of_nan(report: Report) -> None:
    block(report)["check"]["outputs"]["out"]["worst"] = float("nan")


def wrong_numbers_hidden(report: Report) -> None:
    block(report)["check"]["outputs"]["out"]["worst"] = 17.0


def wrong_numbers_with_a_claim(report: Report) -> None:
    block(report)["check"]["outputs"]["out"] |= {"worst": 17.0, "wrong": 3}


def guards_touched_with_a_claim(report: Report) -> None:
    block(report)["check"]["guard_bytes_touched"] = 1


def no_guard_result(report: Report) -> None:
    del block(report)["check"]["guard_bytes_touched"]


def no_guards(report: Report) -> None:
    block(report)["check"]["guard_bytes"] = 0


def inputs_of_b_differ(report: Report) -> None:
    block(report, 1, "b")["inputs"]["x"] = OTHER


def inputs_of_a_round_differ(report: Report) -> None:
    for side in "ab":
        block(report, 2, side)["inputs"]["x"] = OTHER


def no_inputs(report: Report) -> None:
    case(report)["inputs"] = {}
    for number in range(3):
        for side in "ab":
            block(report, number, side)["inputs"] = {}


def library_changed(report: Report) -> None:
    report["raw"]["binaries"]["after"]["llvmlite"] = OTHER


def library_appeared(report: Report) -> None:
    report["raw"]["binaries"]["after"]["/lib/other.so"] = OTHER


def package_unknown(report: Report) -> None:
    for when in ("before", "after"):
        del report["raw"]["binaries"][when]["tileguard"]


def digest_of_nothing(report: Report) -> None:
    for when in ("before", "after"):
        report["raw"]["binaries"][when]["numpy"] = "unchanged"


def object_changed(report: Report) -> None:
    case(report)["b"]["compiles"][1]["sha256"] = OTHER


def not_compiled_again(report: Report) -> None:
    del case(report)["b"]["compiles"][1]


def order_repeats(report: Report) -> None:
    case(report)["rounds"][1]["order"] = ["a", "b"]


def order_only_said(report: Report) -> None:
    one, other = block(report, 1, "a"), block(report, 1, "b")
    for name in ("started_ns", "ended_ns"):
        one[name], other[name] = other[name], one[name]


def outputs_differ(report: Report) -> None:
    block(report)["check"]["outputs"]["out"]["sha256"] = OTHER


def fewer_samples(report: Report) -> None:
    block(report)["batch_ns"].pop()


def no_single_calls(report: Report) -> None:
    block(report)["single_ns"] = []


def times_longer_than_the_round(report: Report) -> None:
    block(report)["batch_ns"] = [10**12] * 3


def another_kernel(report: Report) -> None:
    case(report)["kernel"]["rnumel"] = 34


def another_tile(report: Report) -> None:
    case(report)["a"]["tile"]["r0_block"] = 16


def spec_rewritten(report: Report) -> None:
    report["raw"]["spec"]["rounds"] = 2
    for entry in report["raw"]["cases"]:
        del entry["rounds"][2:]


def case_left_out(report: Report) -> None:
    del report["raw"]["cases"][1], report["summary"][1]


def summary_left_out(report: Report) -> None:
    del report["summary"][0]


def verdict_turned(report: Report) -> None:
    entry = report["summary"][0]
    entry["verdict"] = "B faster" if entry["verdict"] != "B faster" else "B slower"


def claim_without_a_result(report: Report) -> None:
    report["summary"][2]["batch"] = copy.deepcopy(report["summary"][0]["batch"])


def metric_renamed(report: Report) -> None:
    report["metric"] = "best of all rounds"


def a_round_misquoted(report: Report) -> None:
    report["summary"][0]["single"]["rounds"]["a"][0] *= 2


def compile_times_forged(report: Report) -> None:
    report["summary"][0]["compile"]["speedup"] *= 2


def another_kind(report: Report) -> None:
    report["kind"] = "something else"


def no_machine(report: Report) -> None:
    report["raw"]["machine"] = {}


def load_forgotten(report: Report) -> None:
    del report["raw"]["load_average"]


def nothing_measured(report: Report) -> None:
    report["raw"]["cases"], report["summary"] = [], []


MUTATIONS: list[tuple[Mutate, str]] = [
    (metric_renamed, "metric"), (ratio_of_medians, "metric"), (ratio_of_medians, "speed-up"),
    (forge_speedup, "speed-up"), (a_round_misquoted, "speed-up"), (compile_times_forged, "speed-up"),
    (claim_without_a_result, "speed-up"), (summary_left_out, "speed-up"), (verdict_turned, "verdict"),
    (no_numeric_check, "numeric check"), (no_numeric_check, "speed-up"), (a_part_checked, "numeric check"),
    (one_output_unchecked, "numeric check"), (an_error_of_nan, "numeric check"), (wrong_numbers_hidden, "numeric check"),
    (wrong_numbers_with_a_claim, "speed-up"), (guards_touched_with_a_claim, "speed-up"),
    (no_guard_result, "guard bytes"), (no_guards, "guard bytes"),
    (inputs_of_b_differ, "inputs"), (inputs_of_a_round_differ, "inputs"), (no_inputs, "inputs"),
    (library_changed, "binaries"), (library_appeared, "binaries"), (package_unknown, "binaries"),
    (digest_of_nothing, "binaries"), (object_changed, "objects"), (not_compiled_again, "objects"),
    (too_few_rounds, "rounds"), (fewer_rounds_than_asked, "rounds"), (order_repeats, "order"), (order_only_said, "order"),
    (outputs_differ, "outputs"), (fewer_samples, "times"), (no_single_calls, "times"),
    (times_longer_than_the_round, "clock"), (another_kernel, "spec"), (another_tile, "spec"), (spec_rewritten, "spec"),
    (case_left_out, "spec"), (another_kind, "format"), (no_machine, "format"), (load_forgotten, "format"),
    (nothing_measured, "format"),
]  # fmt: skip


def test_a_real_report_holds(report: Report) -> None:
    result = audit(report)
    assert result.failures == ()
    assert result.cases == 3
    assert [name for name, _ in result.recomputed] == [entry["name"] for entry in report["summary"]]
    for (_, speedup), entry in zip(result.recomputed, report["summary"], strict=True):
        assert speedup == (pytest.approx(entry["batch"]["speedup"]) if entry["batch"] else None)
    assert result.recomputed[2][1] is None


@pytest.mark.parametrize(("mutate", "check"), MUTATIONS, ids=[f"{m.__name__}-{check}" for m, check in MUTATIONS])
def test_a_spoilt_report_is_refused_though_its_digest_fits(mutate: Mutate, check: str, report: Report) -> None:
    mutate(report)
    result = audit(seal(report))
    assert not result.ok
    assert check in result.failed
    assert "raw digest" not in result.failed


def test_every_check_has_a_mutation_that_only_it_or_few_others_catch() -> None:
    assert {check for _, check in MUTATIONS} | {"raw digest"} == set(CHECKS)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -5, 0, "12", None, True])
@pytest.mark.parametrize("kind", ["batch_ns", "single_ns"])
def test_what_is_no_time_is_refused(kind: str, time: object, report: Report) -> None:
    block(report)[kind][1] = time
    assert "times" in audit(seal(report)).failed


@pytest.mark.parametrize("time", [float("nan"), -1.0])
def test_what_is_no_compile_time_is_refused(time: float, report: Report) -> None:
    case(report)["a"]["compiles"][0]["ms"] = time
    assert "times" in audit(seal(report)).failed


@pytest.mark.parametrize("speedup", [float("nan"), float("inf"), "2", None, True])
def test_what_is_no_speedup_is_refused(speedup: object, report: Report) -> None:
    report["summary"][0]["batch"]["speedup"] = speedup
    assert "speed-up" in audit(report).failed


def test_an_edited_time_is_refused_by_the_digest_and_by_what_follows_from_it(report: Report) -> None:
    times = [block(report, number, "b")["batch_ns"] for number in range(3)]
    for sample in times:
        sample[:] = [max(1, time // 2) for time in sample]
    assert {"raw digest", "speed-up"} <= set(audit(report).failed)
    assert "speed-up" in audit(seal(report)).failed


def test_one_edited_time_that_moves_no_median_is_refused_by_the_digest(report: Report) -> None:
    times = block(report)["batch_ns"]
    slowest = times.index(max(times))
    middle = statistics.median(times)
    times[slowest] += 1
    assert statistics.median(times) == middle
    assert "raw digest" in audit(report).failed


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"raw": None}, {"raw": {"cases": 3}}, {"raw": {"cases": [None]}}, {"raw": {"cases": [{"rounds": {}}]}},
        {"kind": [], "version": {}, "raw": [], "summary": "x", "metric": 3, "raw_sha256": None},
    ],
)  # fmt: skip
def test_anything_else_is_refused_and_no_crash(broken: Report) -> None:
    result = audit(broken)
    assert {"format", "spec", "binaries"} <= set(result.failed)
    assert result.recomputed == ()


def test_a_report_with_any_part_missing_is_refused(report: Report) -> None:
    """Every key of the report, of its raw data, of a case, a side, a round, a block and a check."""
    places: list[tuple[str, Callable[[Report], Any]]] = [
        ("report", lambda r: r), ("raw", lambda r: r["raw"]), ("spec", lambda r: r["raw"]["spec"]), ("case", case),
        ("side", lambda r: case(r)["a"]), ("round", lambda r: case(r)["rounds"][1]), ("block", block),
        ("check", lambda r: block(r)["check"]), ("output", lambda r: block(r)["check"]["outputs"]["out"]),
        ("summary", lambda r: r["summary"][0]), ("batch", lambda r: r["summary"][0]["batch"]),
    ]  # fmt: skip
    facts = {"seconds", "object_bytes", "seed", "sample_us"}
    for where, place in places:
        for key in set(place(report)) - facts:
            spoilt = copy.deepcopy(report)
            del place(spoilt)[key]
            if where != "report":
                seal(spoilt)
            if where == "spec":
                spoilt["raw"]["spec_sha256"] = digest_of(spoilt["raw"]["spec"])
                seal(spoilt)
            assert not audit(spoilt).ok, f"{key} of {where}"


def test_the_audit_imports_nothing_of_the_harness() -> None:
    for path in (ROOT / "learner").glob("audit*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            last = [name.split(".")[-1] for name in names]
            assert not [name for name in last if name.startswith(("ab_", "jit", "compiler")) or name == "ab"], path.name
    loaded = python(
        "import sys, tileguard.learner.audit; print([n for n in sys.modules if 'learner.ab' in n or 'llvmlite' in n])"
    )
    assert loaded.strip() == "[]"


def test_both_sides_of_the_wall_say_the_same() -> None:
    assert (BAND_AGAIN, METRIC_AGAIN) == (BAND, METRIC)


def test_the_command_says_what_holds_or_fails(
    written: Path, report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge_speedup(report)
    (tmp_path / "forged.json").write_text(json.dumps(report))
    seen = []
    for path in (written, tmp_path / "forged.json"):
        for flags in ([], ["--json"]):
            with pytest.raises(SystemExit) as ended:
                main(["audit", str(path), *flags])
            seen.append((ended.value.code, capsys.readouterr().out))
    assert [code for code, _ in seen] == [0, 0, 1, 1]
    assert "16 checks hold for 3 cases" in " ".join(seen[0][1].split())
    assert json.loads(seen[1][1])["ok"] is True
    assert "speed-up" in seen[2][1] and "refused" in seen[2][1]
    found = json.loads(seen[3][1])
    assert found["ok"] is False
    assert {failure["check"] for failure in found["failures"]} == {"speed-up"}


def test_saved_tensors_are_computed_again(written: Path, report: Report, tmp_path: Path) -> None:
    tensors = written.parent / "tensors"
    result = audit(report, tensors)
    assert result.failures == ()
    assert result.checks[-1] == "tensors"
    assert sorted(path.name for path in tensors.iterdir()) == ["0.npz", "1.npz"]  # the third case has no result
    copied = Path(shutil.copytree(tensors, tmp_path / "tensors"))
    with np.load(copied / "1.npz") as file:
        arrays = {name: file[name] for name in file.files}
    for name, values in arrays.items():
        np.savez(copied / "1.npz", **{**arrays, name: values * 0})
        assert audit(report, copied).failed == ("tensors",), name
    np.savez(copied / "1.npz", **{name: arrays[name] for name in arrays if name != "b:var"})
    assert audit(report, copied).failed == ("tensors",)
    (copied / "1.npz").write_bytes(b"PK")
    assert audit(report, copied).failed == ("tensors",)
    (copied / "1.npz").unlink()
    assert audit(report, copied).failed == ("tensors",)


def test_a_wrong_output_is_found_whatever_the_report_says_of_it(written: Path, report: Report, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(written.parent / "tensors", tmp_path / "tensors"))
    with np.load(copied / "0.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["a:out"][8, 32] *= np.float32(1.001)
    np.savez(copied / "0.npz", **arrays)
    digest = hashlib.sha256(arrays["a:out"].tobytes()).hexdigest()
    for number in range(3):
        block(report, number)["check"]["outputs"]["out"]["sha256"] = digest
    (failure,) = audit(seal(report), copied).failures
    assert failure.finding == "A: 1 of 297 numbers of out are wrong"


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_report_is_bad_input(text: str, tmp_path: Path) -> None:
    path = tmp_path / "REPORT.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        read_report(path)
    with pytest.raises(InvalidInput):
        read_report(tmp_path / "absent.json")


def test_the_audit_runs_where_nothing_can_be_compiled(written: Path) -> None:
    """In a process that may not import llvmlite or any part of the harness."""
    code = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] == 'llvmlite' or name.startswith('tileguard.learner.ab'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "from pathlib import Path\n"
        "from tileguard.learner.audit import audit, read_report\n"
        "print(audit(read_report(Path(sys.argv[1]))).ok)"
    )
    assert python(code, str(written)).strip() == "True"
