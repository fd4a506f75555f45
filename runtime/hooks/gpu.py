"""Which HardwareSpec a GPU is, from what its driver says of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tileguard.features.hardware import HardwareSpec, known_hardware

KNOWN_GPUS = {"H200": "h200", "H100": "h100"}
"""Part of a device's name -> the hardware that models and corpora call by."""


def gpu_hardware(properties: Any) -> HardwareSpec:
    """The spec of a CUDA or HIP device, from torch's `get_device_properties`.

    A known name with another number of cores (a slice of a GPU, another board) is not that hardware: it gets the name
    of its own, which no model was trained on, and so does every unknown GPU.
    """
    name, cores = str(properties.name), int(properties.multi_processor_count)
    for part, known in KNOWN_GPUS.items():
        if re.search(rf"\b{part}\b", name):
            spec = known_hardware(known)
            return spec if spec.cores == cores else replace(spec, name=f"{known}-{cores}sm", cores=cores)
    return HardwareSpec(
        name="-".join(re.findall(r"[a-z0-9]+", name.lower())) or "gpu", kind="nvidia", cores=cores,
        onchip_bytes=_property(properties, "shared_memory_per_block_optin", 48 * 1024), onchip_overhead=1.0,
        l2_bytes=_property(properties, "L2_cache_size", 32 << 20),
        # Drivers of today no longer say; it only shapes features that no model of this hardware will see.
        dram_bytes_per_s=1e12,
        warp_size=_property(properties, "warp_size", 32),
        max_threads_per_core=_property(properties, "max_threads_per_multi_processor", 2048),
        max_threads_per_block=_property(properties, "max_threads_per_block", 1024), max_blocks_per_core=32,
        registers_per_core=_property(properties, "regs_per_multiprocessor", 65536),
    )  # fmt: skip


def _property(properties: Any, name: str, default: int) -> int:
    value = getattr(properties, name, None)
    return value if isinstance(value, int) and value > 0 else default
