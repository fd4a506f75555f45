"""What a kernel runs on: HardwareSpec, and the ones that tileguard knows, as data."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import InvalidInput, checked_choice, checked_int

KINDS = ("nvidia", "ascend", "cpu")


@dataclass(frozen=True, slots=True)
class MatmulUnit:
    """A matrix core's terms (BMM note §1.3, §2.1, §2.3): FLOP/s and bytes/s per core, buffers, granularity.

    flops_per_core: Q₁₆, of 16-bit floats. dtype_rates: what other dtypes run at, as multiples of it; a dtype in neither
    is not known there. align: every tile side is a multiple of it. min_burst_bytes: shortest contiguous run that moves
    at full bandwidth (dValue). min_transfer_bytes: smallest single move that does (min_TileSize). l0c_bytes holds an
    accumulator's base tile, which a core's tile may exceed. Raises InvalidInput naming the field.
    """

    flops_per_core: float
    gm_bytes_per_s_per_core: float
    l2_bytes_per_s_per_core: float
    l1_bytes: int
    l0c_bytes: int
    align: int
    min_burst_bytes: int
    min_transfer_bytes: int = 0
    dtype_rates: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for field in ("flops_per_core", "gm_bytes_per_s_per_core", "l2_bytes_per_s_per_core"):
            if not 0 < getattr(self, field) < float("inf"):
                raise InvalidInput(field, getattr(self, field), "a positive number")
        for field in ("l1_bytes", "l0c_bytes", "align", "min_burst_bytes"):
            checked_int(field, getattr(self, field), minimum=1)
        checked_int("min_transfer_bytes", self.min_transfer_bytes, minimum=0)
        if not all(0 < rate < float("inf") for _, rate in self.dtype_rates):
            raise InvalidInput("dtype_rates", self.dtype_rates, "pairs of a dtype and a positive number")

    @property
    def rates(self) -> dict[str, float]:
        """FLOP/s of one core by dtype."""
        return {name: self.flops_per_core * rate for name, rate in (("fp16", 1.0), ("bf16", 1.0), *self.dtype_rates)}


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """The limits and rates that features, lattices and formulas need.

    cores: SMs, vector cores or (for a CPU) the one core that a candidate is timed on. onchip_bytes: what one
    block may use (shared memory, unified buffer, L1 data cache); onchip_overhead: bytes really taken per byte of
    tile. warp_size 1 and zero register and thread limits mean that the notion does not exist there.
    Raises InvalidInput naming the field.
    """

    name: str
    kind: str
    cores: int
    onchip_bytes: int
    onchip_overhead: float
    l2_bytes: int
    dram_bytes_per_s: float
    warp_size: int = 1
    max_threads_per_core: int = 0
    max_threads_per_block: int = 0
    max_blocks_per_core: int = 1
    registers_per_core: int = 0
    matmul: MatmulUnit | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("name", self.name, "a hardware name")
        checked_choice("kind", self.kind, KINDS)
        for field in ("cores", "onchip_bytes", "l2_bytes", "warp_size", "max_blocks_per_core"):
            checked_int(field, getattr(self, field), minimum=1)
        for field in ("max_threads_per_core", "max_threads_per_block", "registers_per_core"):
            checked_int(field, getattr(self, field), minimum=0)
        for field in ("onchip_overhead", "dram_bytes_per_s"):
            if not getattr(self, field) > 0:
                raise InvalidInput(field, getattr(self, field), "a positive number")

    @property
    def has_warps(self) -> bool:
        """Whether num_warps is a choice there."""
        return self.warp_size > 1


def _nvidia(
    name: str, *, cores: int, l2_bytes: int, dram_bytes_per_s: float, matmul: MatmulUnit | None = None
) -> HardwareSpec:
    """A data-centre GPU of compute capability 9.0 or 10.0: what one SM holds is the same over them."""
    return HardwareSpec(
        name, "nvidia", cores=cores, onchip_bytes=227 * 1024, onchip_overhead=1.0, l2_bytes=l2_bytes,
        dram_bytes_per_s=dram_bytes_per_s, warp_size=32, max_threads_per_core=2048, max_threads_per_block=1024,
        max_blocks_per_core=32, registers_per_core=65536, matmul=matmul,
    )  # fmt: skip


_SPECS = (
    # Reduction RFC §1.2, §3.3: 40 vector cores, UB 192 KiB, double buffering counts twice. The RFC gives no
    # cache or memory rate; those two are the vendor's figures and only ever scale a feature.
    HardwareSpec(
        "ascend910b3", "ascend", cores=40, onchip_bytes=192 * 1024, onchip_overhead=2.0,
        l2_bytes=192 * 1024 * 1024, dram_bytes_per_s=1.6e12,
    ),
    # BMM note §1.3 and §2.1: 32 cube cores, 486/32 TFLOP/s bf16, 50 GB/s from GM and 5.2 TB/s / 32 from L2 a core;
    # §2.3: bursts of 256 B, moves of 16 KiB. FP8 runs at twice bf16's rate (1 PFLOP/s, the vendor's announcement of
    # September 2025); no source gives fp32. UB 256 KiB is what torch_npu reports for this family.
    HardwareSpec(
        "ascend950pr", "ascend", cores=32, onchip_bytes=256 * 1024, onchip_overhead=2.0,
        l2_bytes=128 * 1024 * 1024, dram_bytes_per_s=1.6e12,
        matmul=MatmulUnit(
            flops_per_core=486e12 / 32, gm_bytes_per_s_per_core=50e9, l2_bytes_per_s_per_core=162.5e9,
            l1_bytes=512 * 1024, l0c_bytes=256 * 1024, align=16, min_burst_bytes=256,
            min_transfer_bytes=16 * 1024, dtype_rates=(("fp8", 2.0),),
        ),
    ),
    _nvidia("h100", cores=132, l2_bytes=50 * 1024 * 1024, dram_bytes_per_s=3.35e12),
    # Data sheet of the H200 SXM, dense rates: bf16 and fp16 989 TFLOP/s, tf32 half, fp8 twice that, fp32 67 (no tensor
    # cores); HBM3e 4.8 TB/s; 227 KiB of shared memory a block; accumulators live in 256 KiB of registers. L2: no figure
    # of the vendor's; about 5.5 TB/s, for comparing tiles with one another. Memory moves in sectors of 32 B; tl.dot takes
    # sides of 16.
    _nvidia(
        "h200", cores=132, l2_bytes=60 * 1024 * 1024, dram_bytes_per_s=4.8e12,
        matmul=MatmulUnit(
            flops_per_core=989e12 / 132, gm_bytes_per_s_per_core=4.8e12 / 132, l2_bytes_per_s_per_core=5.5e12 / 132,
            l1_bytes=227 * 1024, l0c_bytes=256 * 1024, align=16, min_burst_bytes=32,
            dtype_rates=(("tf32", 0.5), ("fp8", 2.0), ("fp32", 67 / 989)),
        ),
    ),
)  # fmt: skip

KNOWN: dict[str, HardwareSpec] = {spec.name: spec for spec in _SPECS}


def known_hardware(name: str) -> HardwareSpec:
    """A known hardware by name; `cpu` is this machine's. Raises InvalidInput listing the known names.

    The name of another machine's CPU (`cpu-…`, as its corpora say) gives this machine's cache sizes under that name:
    enough to read its data, while a guard still sees that the machine differs.
    """
    if name == "cpu":
        return host_cpu()
    if name.startswith("cpu-"):
        return replace(host_cpu(), name=name)
    if name not in KNOWN:
        raise InvalidInput("hardware", name, "one of " + ", ".join([*KNOWN, "cpu"]))
    return KNOWN[name]


def host_cpu() -> HardwareSpec:
    """This machine's CPU, seen as one core (candidates are timed on one thread), named after its model.

    Cache sizes come from sysfs; where that says nothing, 32 KiB of L1 and 1 MiB of L2 are assumed.
    """
    return HardwareSpec(
        name=f"cpu-{_cpu_model()}", kind="cpu", cores=1, onchip_bytes=_cache_bytes(1, 32 * 1024), onchip_overhead=1.0,
        l2_bytes=_cache_bytes(2, 1024 * 1024), dram_bytes_per_s=1e10,
    )  # fmt: skip


def _cpu_model() -> str:
    """Name, family and model number: virtual machines give generations of CPUs one name."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = found.get("model name") or platform.processor() or platform.machine()
    text = " ".join([name, found.get("cpu family", ""), found.get("model", "")])
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split()) or "unknown"


def _cache_bytes(level: int, default: int) -> int:
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(root.glob("index*")):
        try:
            if int((index / "level").read_text()) != level or (index / "type").read_text().strip() == "Instruction":
                continue
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if text[:-1].isdigit() and text[-1] in "KM":
            return int(text[:-1]) * (1024 if text[-1] == "K" else 1024 * 1024)
    return default


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
