"""Hardware specs: what is known, what is refused, and by which words."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tileguard.features.errors import InvalidInput, TileguardError
from tileguard.features.hardware import KNOWN, host_cpu, known_hardware, usable_cpus

H200 = KNOWN["h200"]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("ascend910b3", {"kind": "ascend", "cores": 40, "onchip_bytes": 196608, "onchip_overhead": 2.0}),
        ("ascend950pr", {"kind": "ascend", "cores": 32, "onchip_bytes": 262144, "onchip_overhead": 2.0}),
        ("h100", {"kind": "nvidia", "cores": 132, "l2_bytes": 50 << 20, "dram_bytes_per_s": 3.35e12}),
        (
            "h200",
            {
                "kind": "nvidia", "cores": 132, "l2_bytes": 60 << 20, "dram_bytes_per_s": 4.8e12, "warp_size": 32,
                "registers_per_core": 65536, "max_threads_per_core": 2048, "max_threads_per_block": 1024,
                "onchip_bytes": 227 * 1024,
            },
        ),
    ],
)  # fmt: skip
def test_known_hardware_has_the_figures_of_its_source(name: str, facts: dict[str, Any]) -> None:
    spec = known_hardware(name)
    assert spec.name == name
    assert {field: getattr(spec, field) for field in facts} == facts


def test_warps_are_a_choice_on_nvidia_only() -> None:
    assert {name for name, spec in KNOWN.items() if spec.has_warps} == {
        name for name, spec in KNOWN.items() if spec.kind == "nvidia"
    }


def test_the_bmm_notes_matrix_unit_adds_up_to_its_totals() -> None:
    unit = known_hardware("ascend950pr").matmul
    assert unit is not None
    assert unit.flops_per_core * 32 == pytest.approx(486e12)
    assert unit.l2_bytes_per_s_per_core * 32 == pytest.approx(5.2e12)
    assert unit.gm_bytes_per_s_per_core == 50e9


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput) as caught:
        known_hardware("h300")
    assert (caught.value.field, caught.value.value) == ("hardware", "h300")
    for name in (*KNOWN, "cpu"):
        assert name in caught.value.allowed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("kind", "amd"),
        ("kind", None),
        ("cores", 0),
        ("cores", -1),
        ("cores", 1.0),
        ("cores", True),
        ("cores", "132"),
        ("onchip_bytes", 0),
        ("l2_bytes", 0),
        ("warp_size", 0),
        ("max_blocks_per_core", 0),
        ("max_threads_per_core", -1),
        ("max_threads_per_block", -1),
        ("registers_per_core", -1),
        ("onchip_overhead", 0.0),
        ("onchip_overhead", float("nan")),
        ("dram_bytes_per_s", -1.0),
    ],
)
def test_a_bad_field_is_refused_by_name_and_value(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(H200, **{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.value is value
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


def test_invalid_input_is_both_a_tileguard_error_and_a_value_error() -> None:
    with pytest.raises(TileguardError):
        known_hardware("")
    with pytest.raises(ValueError, match="expected one of"):
        known_hardware("")


def test_this_machines_cpu_is_one_core_without_warps_and_stable() -> None:
    spec = host_cpu()
    assert (spec.kind, spec.cores, spec.has_warps) == ("cpu", 1, False)
    assert spec.name.startswith("cpu-")
    assert set(spec.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert known_hardware("cpu") == spec


def test_cache_sizes_come_from_sysfs_and_instruction_caches_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, (level, kind, size) in enumerate(
        [("1", "Instruction", "64K"), ("1", "Data", "48K"), ("2", "Unified", "2M")]
    ):
        index = tmp_path / f"index{i}"
        index.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(text + "\n")
    module = importlib.import_module("tileguard.features.hardware")  # the package's attribute is the function
    monkeypatch.setattr(module, "Path", lambda _: tmp_path)
    assert module._cache_bytes(1, 7) == 48 * 1024
    assert module._cache_bytes(2, 7) == 2 << 20
    assert module._cache_bytes(3, 7) == 7


def test_at_least_one_cpu_is_usable() -> None:
    assert usable_cpus() >= 1
