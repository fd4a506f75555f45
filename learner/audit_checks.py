"""The checks of an audit: each says what is wrong with a report, from the raw data in it alone. No part of the harness."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tileguard.runtime.devices.cpu.ops import find_op

LEAST_ROUNDS = 2
BAND = 1.02
METRIC = "median over rounds of p50(A) / p50(B)"
RELATIVE = 1e-9
"""Recomputed figures may differ by this share: another order of the same float operations."""

CLOCK_SLACK_NS = 1_000_000
"""CPU time may exceed wall time by the granularity of the clocks."""

NAMED_BINARIES = ("python", "llvmlite", "numpy", "tileguard")
SIDES = ("a", "b")
TIMES = ("batch", "single")
WHOLE = "(report)"

Problems = Iterator[tuple[str, str]]
"""(case, what is wrong with it)"""


def _format(report: Mapping[str, Any]) -> Problems:
    if (report["kind"], report["version"]) != ("tileguard-ab", 1):
        yield WHOLE, f"kind {report['kind']!r}, version {report['version']!r}: not one that this audit knows"
    if not report["raw"]["cases"]:
        yield WHOLE, "no cases"
    for name in ("machine", "versions", "load_average", "date"):
        if not report["raw"][name]:
            yield WHOLE, f"no {name}"


def _raw_digest(report: Mapping[str, Any]) -> Problems:
    if report["raw_sha256"] != (found := _digest(report["raw"])):
        yield (
            WHOLE,
            f"the raw data have the digest {found[:12]}…, not {str(report['raw_sha256'])[:12]}…: they were edited",
        )


def _spec(report: Mapping[str, Any]) -> Problems:
    raw = report["raw"]
    spec = raw["spec"]
    if raw["spec_sha256"] != _digest(spec):
        yield WHOLE, "the spec is not the one that was frozen"
    if len(spec["cases"]) != len(raw["cases"]):
        yield WHOLE, f"{len(raw['cases'])} cases measured of {len(spec['cases'])} in the spec"
    for asked, case in zip(spec["cases"], raw["cases"], strict=False):
        kernel = {name: value for name, value in asked.items() if name not in (*SIDES, "name")}
        if (asked["name"], kernel) != (case["name"], case["kernel"]):
            yield case["name"], "another kernel than the spec's"
        for side in SIDES:
            if asked[side] != case[side]["tile"]:
                yield case["name"], f"{side.upper()} is another tile than the spec's"


def _binaries(report: Mapping[str, Any]) -> Problems:
    before, after = (report["raw"]["binaries"][when] for when in ("before", "after"))
    for name in NAMED_BINARIES:
        if name not in before or name not in after:
            yield WHOLE, f"no digest of {name}"
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield WHOLE, f"{name} changed during the run"
        elif not _is_digest(before[name]):
            yield WHOLE, f"{name}: {before[name]!r} is no SHA-256"


def _objects(report: Mapping[str, Any]) -> Problems:
    for case, side in _measured_sides(report):
        digests = [entry["sha256"] for entry in case[side]["compiles"]]
        if len(digests) < 2:
            yield case["name"], f"{side.upper()} was not compiled again afterwards"
        if len(set(digests)) > 1 or not all(map(_is_digest, digests)):
            yield case["name"], f"{side.upper()}'s object is not the same before and after"


def _inputs(report: Mapping[str, Any]) -> Problems:
    for case, number, blocks in _rounds(report):
        op = find_op(case["kernel"]["op"])
        a, b = (blocks[side]["inputs"] for side in SIDES)
        if a != b:
            yield case["name"], f"round {number}: A and B had differing inputs"
        if a != case["inputs"] or b != case["inputs"]:
            yield case["name"], f"round {number}: inputs are not those made from the seed"
        if set(a) != {*op.tile_inputs, *op.row_inputs} or not all(map(_is_digest, a.values())):
            yield case["name"], f"round {number}: no digest for each of {', '.join((*op.tile_inputs, *op.row_inputs))}"


def _round_count(report: Mapping[str, Any]) -> Problems:
    asked = report["raw"]["spec"]["rounds"]
    for case in report["raw"]["cases"]:
        if not _measured(case):
            if case["rounds"]:
                yield case["name"], "rounds of a case that has no result"
            continue
        if len(case["rounds"]) < LEAST_ROUNDS:
            yield case["name"], f"{len(case['rounds'])} rounds; {LEAST_ROUNDS} at least"
        if len(case["rounds"]) != asked:
            yield case["name"], f"{len(case['rounds'])} rounds of {asked} in the spec"


def _order(report: Mapping[str, Any]) -> Problems:
    ends: dict[str, int] = {}
    for case, number, blocks in _rounds(report):
        expected = list(SIDES if number % 2 == 0 else SIDES[::-1])
        if blocks["order"] != expected:
            yield case["name"], f"round {number} says {'→'.join(blocks['order']).upper()}: the order does not alternate"
        previous = ends.get(case["name"], 0)
        for side in expected:
            start, end = blocks[side]["started_ns"], blocks[side]["ended_ns"]
            if not (_is_time(start) and _is_time(end) and previous <= start < end):
                yield case["name"], f"round {number}: {side.upper()} did not run in its turn"
            previous = end
        ends[case["name"]] = previous


def _times(report: Mapping[str, Any]) -> Problems:
    counts = {"batch": report["raw"]["spec"]["samples"], "single": report["raw"]["spec"]["singles"]}
    for case, number, blocks in _rounds(report):
        for side in SIDES:
            for kind in TIMES:
                times = blocks[side][f"{kind}_ns"]
                if bad := [time for time in times if not _is_time(time)]:
                    yield case["name"], f"round {number}, {side.upper()}: {kind} time {bad[0]!r} is no time"
                if len(times) != counts[kind] or not times:
                    yield case["name"], f"round {number}, {side.upper()}: {len(times)} {kind} times, not {counts[kind]}"
    for case, side in _measured_sides(report):
        calls, milliseconds = case[side]["calls"], [entry["ms"] for entry in case[side]["compiles"]]
        if type(calls) is not int or calls < 1:
            yield case["name"], f"{side.upper()}: {calls!r} calls a batch"
        if bad := [ms for ms in milliseconds if not _is_time(ms)]:
            yield case["name"], f"{side.upper()}: compile time {bad[0]!r} is no time"


def _clock(report: Mapping[str, Any]) -> Problems:
    for case, number, blocks in _rounds(report):
        for side in SIDES:
            wall = blocks[side]["ended_ns"] - blocks[side]["started_ns"]
            if sum(blocks[side]["batch_ns"]) + sum(blocks[side]["single_ns"]) > wall + CLOCK_SLACK_NS:
                yield case["name"], f"round {number}, {side.upper()}: the times do not fit between its start and end"


def _numeric(report: Mapping[str, Any]) -> Problems:
    for case, number, blocks in _rounds(report):
        op, (rows, length) = find_op(case["kernel"]["op"]), (case["kernel"]["xnumel"], case["kernel"]["rnumel"])
        elements = rows * length if op.stores_tile else rows
        for side in SIDES:
            where = f"round {number}, {side.upper()}"
            outputs = (blocks[side].get("check") or {}).get("outputs") or {}
            if set(outputs) != set(op.outputs):
                yield case["name"], f"{where}: no numeric check of {', '.join(op.outputs)}"
            for name, output in outputs.items():
                if output["elements"] != elements:
                    yield case["name"], f"{where}: {output['elements']} of {elements} numbers of {name} were checked"
                if not (isinstance(output["worst"], int | float) and 0 <= output["worst"] < math.inf):
                    yield case["name"], f"{where}: the error of {name} is {output['worst']!r}"
                elif (output["worst"] > 1) != (output["wrong"] > 0):
                    yield (
                        case["name"],
                        f"{where}: {output['wrong']} wrong numbers of {name}, the worst {output['worst']:g}",
                    )


def _guards(report: Mapping[str, Any]) -> Problems:
    for case, number, blocks in _rounds(report):
        for side in SIDES:
            check = blocks[side].get("check") or {}
            sizes = [check.get(name) for name in ("guard_bytes", "guard_bytes_touched")]
            if not (type(sizes[0]) is int and type(sizes[1]) is int and sizes[0] > 0 and sizes[1] >= 0):
                yield case["name"], f"round {number}, {side.upper()}: no result of the guard bytes"


def _outputs(report: Mapping[str, Any]) -> Problems:
    seen: dict[tuple[str, str], Any] = {}
    for case, number, blocks in _rounds(report):
        for side in SIDES:
            digests = {name: output["sha256"] for name, output in blocks[side]["check"]["outputs"].items()}
            if not all(map(_is_digest, digests.values())):
                yield case["name"], f"round {number}, {side.upper()}: no digest of the outputs"
            if seen.setdefault((_identity(case), side), digests) != digests:
                yield case["name"], f"round {number}, {side.upper()}: other outputs than in the first round"


def _metric(report: Mapping[str, Any]) -> Problems:
    if report["metric"] != METRIC:
        yield WHOLE, f"the metric is {report['metric']!r}, not the {METRIC}"
    for case, entry in _claims(report):
        for kind in (*TIMES, "compile"):
            if entry[kind] is None or not valid(case):
                continue
            a, b = _by_round(case, kind)
            of_medians, ratio = statistics.median(a) / statistics.median(b), statistics.median(ratios(case, kind))
            if not _close(entry[kind]["speedup"], ratio) and _close(entry[kind]["speedup"], of_medians):
                yield (
                    case["name"],
                    f"{kind}: {of_medians:.4g} is the ratio of medians; that of paired rounds is {ratio:.4g}",
                )


def _speedup(report: Mapping[str, Any]) -> Problems:
    if len(report["summary"]) != len(report["raw"]["cases"]):
        yield WHOLE, f"{len(report['summary'])} cases summed up of {len(report['raw']['cases'])}"
    for case, entry in _claims(report):
        if entry["name"] != case["name"]:
            yield case["name"], f"summed up as {entry['name']!r}"
        if not valid(case):
            if any(entry[kind] is not None for kind in (*TIMES, "compile")):
                yield case["name"], "figures are claimed, but the case has no valid result"
            continue
        for kind in (*TIMES, "compile"):
            unit, (a, b), paired = "ms" if kind == "compile" else "us", _by_round(case, kind), ratios(case, kind)
            claim = entry[kind]
            if not _close(claim["speedup"], statistics.median(paired)):
                yield (
                    case["name"],
                    f"{kind}: {claim['speedup']!r} is claimed, the raw data say {statistics.median(paired):.6g}",
                )
            for name, said, found in (
                ("ratios", claim["ratios"], paired),
                ("p50 of A's rounds", claim["rounds"]["a"], a),
                ("p50 of B's rounds", claim["rounds"]["b"], b),
                ("medians", [claim[f"a_{unit}"], claim[f"b_{unit}"]], [statistics.median(a), statistics.median(b)]),
            ):
                if len(said) != len(found) or not all(map(_close, said, found)):
                    yield case["name"], f"{kind}: the {name} are not those of the raw data"


def _verdict(report: Mapping[str, Any]) -> Problems:
    for case, entry in _claims(report):
        if not valid(case):
            found = "no result"
        else:
            low, high = min(ratios(case, "batch")), max(ratios(case, "batch"))
            found = "B faster" if low > BAND else "B slower" if high < 1 / BAND else "no consistent difference"
        if entry["verdict"] != found:
            yield case["name"], f"the verdict is {entry['verdict']!r}, the raw data say {found!r}"


CHECKS: dict[str, Callable[[Mapping[str, Any]], Problems]] = {
    "format": _format, "raw digest": _raw_digest, "spec": _spec, "binaries": _binaries, "objects": _objects,
    "inputs": _inputs, "rounds": _round_count, "order": _order, "times": _times, "clock": _clock,
    "numeric check": _numeric, "guard bytes": _guards, "outputs": _outputs, "metric": _metric, "speed-up": _speedup,
    "verdict": _verdict,
}  # fmt: skip
"""By the name that a failure has in the table."""


def _claims(report: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    yield from zip(report["raw"]["cases"], report["summary"], strict=False)


def _rounds(report: Mapping[str, Any]) -> Iterator[tuple[Any, int, Any]]:
    """(case, number of the round from 0, its two blocks)."""
    for case in report["raw"]["cases"]:
        for number, blocks in enumerate(case["rounds"]):
            yield case, number, blocks


def _measured_sides(report: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    yield from ((case, side) for case in report["raw"]["cases"] if _measured(case) for side in SIDES)


def _measured(case: Mapping[str, Any]) -> bool:
    return all(case[side]["status"] == "ok" for side in SIDES)


def valid(case: Mapping[str, Any]) -> bool:
    """Whether a case may claim anything: both sides ran, and all their results are there and right."""
    checks = [blocks[side].get("check") for blocks in case["rounds"] for side in SIDES]
    return _measured(case) and bool(checks) and all(
        check and check.get("guard_bytes_touched") == 0 and check.get("outputs")
        and all(output["wrong"] == 0 for output in check["outputs"].values())
        for check in checks
    )  # fmt: skip


def _by_round(case: Mapping[str, Any], kind: str) -> tuple[list[float], list[float]]:
    """A and B by round: p50 of the times of a call in µs, or the ms of the compiles."""
    if kind == "compile":
        a, b = ([float(entry["ms"]) for entry in case[side]["compiles"]] for side in SIDES)
        return a, b
    calls = {side: case[side]["calls"] if kind == "batch" else 1 for side in SIDES}
    a, b = (
        [statistics.median(blocks[side][f"{kind}_ns"]) / (1000 * calls[side]) for blocks in case["rounds"]]
        for side in SIDES
    )
    return a, b


def ratios(case: Mapping[str, Any], kind: str) -> list[float]:
    """A / B of each round (of each compile), of the `kind` batch, single or compile."""
    a, b = _by_round(case, kind)
    return [one / other for one, other in zip(a, b, strict=True)]


def _identity(case: Mapping[str, Any]) -> str:
    return json.dumps([case["kernel"], case["a"]["tile"], case["b"]["tile"]], sort_keys=True)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _close(one: Any, other: Any) -> bool:
    return type(one) in (int, float) and math.isclose(one, other, rel_tol=RELATIVE)
