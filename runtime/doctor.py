"""`tileguard doctor`: what is installed, which devices and models are usable, and why not."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tileguard import __version__, models
from tileguard.features.errors import TileguardError
from tileguard.features.hardware import HardwareSpec, host_cpu, known_hardware, usable_cpus
from tileguard.features.kernels import MatmulKernel, ReductionKernel

from .guard import GuardPolicy, check_fit
from .matmul_selector import SELECTORS
from .optional import EXTRA_OF
from .selector import Selector, load_champion

_RUNTIME = ("numpy", "onnxruntime")
_DISTRIBUTION = {"sklearn": "scikit-learn"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. area: libraries, devices, models, environment; ok: None where it is only a fact."""

    area: str
    name: str
    ok: bool | None
    detail: str


def diagnose() -> tuple[Finding, ...]:
    """Everything worth knowing when something does not work; never raises."""
    findings: list[Finding] = [
        Finding("environment", "tileguard", None, f"{__version__}, Python {platform.python_version()}"),
        Finding("environment", "machine", None, f"{host_cpu().name}, {usable_cpus()} usable CPUs, {platform.system()}"),
        _switch(),
        *(_library(name, "base") for name in _RUNTIME),
        *(_library(name, extra) for name, extra in EXTRA_OF.items()),
        _check("devices", "replay", lambda: "any corpus, no hardware needed"),
        _check("devices", "cpu", _cpu),
        _check("devices", "cuda", _cuda),
    ]
    return (*findings, *model_findings())


def model_findings() -> tuple[Finding, ...]:
    """Every shipped model, every one in the user's models folder under its path, and what this CPU gets."""
    findings = [_check("models", path.name, functools.partial(_model, path)) for path in models.shipped()]
    if not findings:
        findings.append(Finding("models", "(none)", False, f"no model under {models.ROOT}; the formula works without"))
    findings += [_check("models", str(path), functools.partial(_model, path)) for path in models.own()]
    return (*findings, _check("models", f"champion of {host_cpu().name}", _own_champion))


def _switch() -> Finding:
    if os.environ.get("TILEGUARD") == "0":
        return Finding("environment", "TILEGUARD", False, "0: models are off, the fallbacks stay")
    return Finding("environment", "TILEGUARD", None, "unset or on; 0 turns models off")


def _library(name: str, extra: str) -> Finding:
    try:
        return Finding(
            "libraries", name, True, f"{importlib.metadata.version(_DISTRIBUTION.get(name, name))} ({extra})"
        )
    except importlib.metadata.PackageNotFoundError:
        cure = "pip install tileguard" if extra == "base" else f"pip install 'tileguard[{extra}]'"
        return Finding("libraries", name, False, f"not installed; {cure}")


def _check(area: str, name: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(area, name, True, probe())
    except Exception as error:
        detail = str(error) if isinstance(error, TileguardError) else f"{type(error).__name__}: {error}"
        return Finding(area, name, False, " ".join(detail.split()))


def _cpu() -> str:
    from .devices.cpu import CpuDevice, cpu_kernel, cpu_tiles

    kernel = cpu_kernel("sum", 16, 64, "fp32")
    device = CpuDevice()
    try:
        compiled = device.compile(kernel, cpu_tiles(kernel)[-1])
        (timing,) = device.bench([compiled])
        return f"{device.toolchain}: compiled in {compiled.compile_ms:.0f} ms, ran in {timing.us:.2f} µs"
    finally:
        device.close()


def _cuda() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        raise TileguardError("no host compiler has loaded torch; tuning on a GPU happens inside one")
    if not torch.cuda.is_available():
        raise TileguardError("torch is loaded, but sees no CUDA device")
    return str(torch.cuda.get_device_name())


def _own_champion() -> str:
    """Where the model of this machine's CPU is from."""
    hardware = host_cpu()
    check_fit(load_champion(hardware).manifest, family="reduction", hardware=hardware)
    return str(models.model_path("reduction", hardware.name))


def _model(path: Path) -> str:
    family, _, name = path.name.partition("-")
    hardware = known_hardware(name)
    kind = SELECTORS.get(family, Selector)
    selector = kind(hardware, model=path, policy=GuardPolicy(range_slack=float("inf")))
    result = selector.select(_kernel(hardware) if kind is Selector else MatmulKernel(1, 1024, 1024, 1024, "bf16"))
    if not result.verdict.trusted or selector.guard.ranker is None:
        raise TileguardError(str(result.verdict))
    manifest = selector.guard.ranker.manifest
    trees = manifest.parameters.get("rounds", "?")
    return f"{family} on {manifest.hardware}, made {manifest.created}, {trees} trees; scores"


def _kernel(hardware: HardwareSpec) -> ReductionKernel:
    """One that the hardware's device takes."""
    if hardware.kind == "cpu":
        from .devices.cpu import cpu_kernel

        return cpu_kernel("softmax", 384, 1000, "fp32")
    return ReductionKernel(2048, 768, "fp32", 2, 1)
