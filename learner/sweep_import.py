"""Raw sweeps of compiler-generated kernels (`.jsonl`, `.jsonl.xz`, one kernel a line) -> corpus rows."""

from __future__ import annotations

import json
import logging
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput, checked_int
from tileguard.features.hardware import known_hardware
from tileguard.features.inductor import reduction_kernel
from tileguard.features.pow2 import pow2_ceil
from tileguard.runtime.devices.base import NOT_MEASURED, OK, CompileError, CompileTimeout, OutOfResource

from .corpus_check import check_fields, check_rows
from .corpus_schema import CorpusError
from .inductor.matmul_kernel import ROW_KEYS, TEMPLATE

logger = logging.getLogger("tileguard")

_NAMES = ("label", "kernel", "heuristic")
_REQUIRED = (*_NAMES, "numels", "signature", "inductor_meta", "baselines", "rows")
_MATMUL_REQUIRED = (
    *_NAMES, "op", "batch", "m", "n", "k", "dtype", "a_transposed", "b_transposed", "allow_tf32", "decompose_k",
    "baselines", "rows",
)  # fmt: skip
_DESCRIBED = (
    "xnumel", "rnumel", "dtype", "num_load", "num_store", "num_reduction",
    "min_ptr_elem_bytes", "max_ptr_elem_bytes", "total_ptr_elem_bytes", "inner", "persistent",
)  # fmt: skip


def read_sweep(*paths: Path, hardware: str) -> list[dict[str, Any]]:
    """Corpus rows of every kernel in raw sweeps measured on `hardware`, of one family; errors name line and key.

    Of a kernel that was swept more than once (equal `key`) the sweep with the most timed tiles counts, whole: times of
    two runs are not mixed.
    """
    known_hardware(hardware)
    rows: list[dict[str, Any]] = []
    ids: Counter[str] = Counter()
    first: str | None = None
    for path, number, record in _best_records(paths):
        is_matmul = record.get("heuristic") == TEMPLATE
        for key in _MATMUL_REQUIRED if is_matmul else _REQUIRED:
            if key not in record:
                raise CorpusError(path, key, "(missing)", "a value in every line", number)
        for key in _NAMES:
            if not isinstance(record[key], str):
                raise CorpusError(path, key, record[key], "a string", number)
        first = first or record["heuristic"]
        if is_matmul != (first == TEMPLATE):
            raise CorpusError(path, "heuristic", record["heuristic"], f"kernels of one family, as {first}", number)
        try:
            make_rows = _matmul_rows if is_matmul else _kernel_rows
            kernel_rows = list(make_rows(record, hardware=hardware, ids=ids))
        except InvalidInput as error:
            raise CorpusError(path, error.field, error.value, error.allowed, number) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise CorpusError(path, "rows", f"{type(error).__name__}: {error}", "the sweep format", number) from None
        if any(row["status"] == OK for row in kernel_rows):
            check_rows(path, kernel_rows, line=number)
            rows.extend(kernel_rows)
        else:
            check_fields(path, kernel_rows, line=number)
            logger.warning("%s, line %d: no tile of %s worked; it is left out", path, number, record["kernel"])
    return rows


def _best_records(paths: Sequence[Path]) -> list[tuple[Path, int, dict[str, Any]]]:
    found: dict[object, tuple[Path, int, dict[str, Any]]] = {}
    for path in paths:
        for number, record in _records(path):
            key = record.get("key")
            identity = key if isinstance(key, str) else (path, number)
            if identity not in found or _timed(record) > _timed(found[identity][2]):
                found[identity] = path, number, record
    return list(found.values())


def _timed(record: Mapping[str, Any]) -> int:
    rows = record.get("rows")
    return sum(isinstance(row, dict) and row.get("us") is not None for row in rows) if isinstance(rows, list) else 0


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opener = lzma.open if path.name.endswith(".xz") else open
    try:
        with opener(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise CorpusError(path, "(line)", str(error), "one JSON object a line", number) from None
                if not isinstance(record, dict):
                    raise CorpusError(path, "(line)", type(record).__name__, "one JSON object a line", number)
                yield number, record
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise CorpusError(path, "(file)", str(error), "an intact .jsonl or .jsonl.xz file") from None


def _kernel_rows(record: dict[str, Any], *, hardware: str, ids: Counter[str]) -> Iterator[dict[str, Any]]:
    meta = record["inductor_meta"]
    xnumel, rnumel = record["numels"].get("xnumel", 1), checked_int("r0_numel", record["numels"]["r0_numel"], minimum=1)
    persistent = record["heuristic"] == "PERSISTENT_REDUCTION"
    source = record.get("src")
    described = reduction_kernel(
        xnumel,
        rnumel,
        record["signature"],
        meta,
        reduction_hint=meta.get("reduction_hint"),
        persistent=persistent,
        source=source if isinstance(source, str) else None,
    )
    name = f"{record['label']}/{record['kernel']}/{xnumel}x{rnumel}"
    kernel = {
        **_names(record, name, hardware=hardware, ids=ids), "op": None,
        **{field: getattr(described, field) for field in _DESCRIBED},
        "code": described.code.to_json() if described.code is not None else None, "source": record.get("src"),
    }  # fmt: skip
    hosts = {key: _host_ranks(key, record["baselines"].get(key)) for key in ("default", "max_autotune")}
    fixed_r = pow2_ceil(rnumel)
    seen = set()
    for row in record["rows"]:
        tile: tuple[int, ...] = (row["X"], row["R"] if row["R"] is not None else fixed_r, row["w"], row["st"])
        seen.add(tile)
        yield kernel | _tile(tile, hosts) | _result(row)
    for tile in dict.fromkeys(tile for ranks in hosts.values() for tile in ranks if tile not in seen):
        yield kernel | _tile(tile, hosts) | _result(None)


def _matmul_rows(record: dict[str, Any], *, hardware: str, ids: Counter[str]) -> Iterator[dict[str, Any]]:
    """Of the host's DEFAULT list tiles that were not measured are rows too; EXHAUSTIVE ranks those that were."""
    times = [row["us"] for row in (record.get("references") or {}).values() if row.get("us") is not None]
    sources = record.get("sources") or {}
    kernel = {
        **_names(record, f"{record['label']}/{record['kernel']}", hardware=hardware, ids=ids),
        **{field: record[field] for field in _MATMUL_REQUIRED[3:-2]},
        "out_dtype": None, "aten_us": min(times, default=None),
        "source": next(iter(sources.values()), None),
    }  # fmt: skip
    ranks = {host: _host_ranks(host, tiles, ROW_KEYS) for host, tiles in record["baselines"].items()}
    default, exhaustive = ranks.get("default", {}), ranks.get("max_autotune", {})

    def columns(tile: tuple[int, ...]) -> dict[str, Any]:
        block_m, block_n, block_k, num_warps, num_stages, group_m = tile
        return {
            "block_m": block_m, "block_n": block_n, "block_k": block_k, "num_warps": num_warps,
            "num_stages": num_stages, "group_m": group_m, "even_k": record["k"] % block_k == 0,
            "host_default_rank": default.get(tile), "host_max_autotune_rank": exhaustive.get(tile),
        }  # fmt: skip

    tiles = [tuple(row[key] for key in ROW_KEYS) for row in record["rows"]]
    for tile, row in zip(tiles, record["rows"], strict=True):
        yield kernel | columns(tile) | _result(row)
    for tile in sorted(default.keys() - set(tiles), key=default.__getitem__):
        yield kernel | columns(tile) | _result(None)


def _names(record: dict[str, Any], name: str, *, hardware: str, ids: Counter[str]) -> dict[str, Any]:
    ids[name] += 1
    return {
        "kernel_id": name if ids[name] == 1 else f"{name}/{ids[name]}",
        "workload": record["label"], "family": record["label"].split(":")[0], "hardware": hardware,
    }  # fmt: skip


def _host_ranks(host: str, tiles: object, keys: Sequence[str] = ("X", "R", "w", "st")) -> dict[tuple[int, ...], int]:
    if not isinstance(tiles, list):  # the sweep keeps an error's text where the host's list could not be made
        return {}
    for tile in tiles:
        if not (isinstance(tile, list) and len(tile) == len(keys) and all(type(number) is int for number in tile)):
            raise InvalidInput(f"baselines.{host}", tile, f"tiles of {len(keys)} integers: {', '.join(keys)}")
    return {tuple(tile): rank for rank, tile in reversed(list(enumerate(tiles)))}


def _tile(tile: tuple[int, ...], hosts: dict[str, dict[tuple[int, ...], int]]) -> dict[str, Any]:
    return {
        "xblock": tile[0], "r0_block": tile[1], "num_warps": tile[2], "num_stages": tile[3], "lowering": None,
        "host_default_rank": hosts["default"].get(tile), "host_max_autotune_rank": hosts["max_autotune"].get(tile),
    }  # fmt: skip


def _result(row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None:
        row, status = {"error": "in the host's list, not in the sweep"}, NOT_MEASURED
    elif row.get("error"):
        status = next(
            (kind.status for kind in (OutOfResource, CompileTimeout) if kind.__name__ in str(row["error"])),
            CompileError.status,
        )
    elif row.get("us") is None:
        status = NOT_MEASURED
    else:
        status = OK
    measured = row if status == OK else {}
    return {
        "status": status, "error": row.get("error"), "compile_ms": row.get("compile_ms"),
        "us": measured.get("us"), "us_median": measured.get("us_median", measured.get("us")), "us_min": measured.get("us_min"),
        "us_mad": measured.get("mad"), "reps": measured.get("reps"),
        "n_regs": row.get("regs"), "n_spills": row.get("spills"), "shared": row.get("shared"),
    }  # fmt: skip
