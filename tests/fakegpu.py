"""One NVIDIA H200 that is not there, for the real Triton and the real Inductor (torch 2.11 to 2.14, Triton 3.6 to 3.8).

Kernels are compiled to cubins for sm_90 by the real compiler and ptxas, here and in Inductor's compile workers. Loading
reads their true registers and stack, launching does nothing, benchmarking says `simulated_ms`. So outputs are never
computed: test plumbing with it, not numerics.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import torch
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia

H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32, total_memory=150_754_820_096,
    regs_per_multiprocessor=65_536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=49_152, shared_memory_per_block_optin=232_448, shared_memory_per_multiprocessor=233_472,
    L2_cache_size=62_914_560, gcnArchName="",
)  # fmt: skip
"""What `torch.cuda.get_device_properties` says of an H200."""

HEAVY = frozenset({"lightgbm", "mlflow", "onnxruntime", "pandas", "sklearn"})
"""What a compile worker has no need of."""

launches: Counter[str] = Counter()
"""Launches in this process by kernel name, those of benchmarks included."""

_functions: list[str] = []  # names of loaded kernels; a handle is the place here, plus one


def simulated_ms(kernel: str, config: Mapping[str, Any]) -> float:
    """Time of a launch, 1 to 2 ms: the same in every process, without a pattern. Of no kernel in `describe`'s terms."""
    return 1.0 + crc32(repr((kernel, sorted(config.items()))).encode()) / 2**32


def describe(config: Any) -> dict[str, Any]:
    """The blocks, num_warps and num_stages of a `triton.Config`."""
    return {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def bench(autotuner: Any, launcher: Any, *args: Any, **kwargs: Any) -> float:
    """Stands in for `CachingAutotuner.bench`, in ms: one launch, and `simulated_ms` unless registers are spilled.

    The autotuner's attribute `benches` counts the calls.
    """
    autotuner.benches = getattr(autotuner, "benches", 0) + 1
    if launcher.n_spills > autotuner.inductor_meta.get("spill_threshold", 16):
        return float("inf")
    launcher(*args, **kwargs, stream=0)
    return simulated_ms(autotuner.inductor_meta["kernel_name"], describe(launcher.config))


def install() -> None:
    """Put the GPU into this process, and into the compile workers it starts. To be called before anything compiles."""
    from torch._inductor import async_compile
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    _install_driver()
    _install_device()
    CachingAutotuner.bench = bench
    async_compile._worker_compile_triton = compile_in_worker


def compile_in_worker(*job: Any) -> Any:
    """Inductor's job of a compile worker. It is pickled by name: a worker imports this module, and has the driver.

    The kernel's attribute `compiled_by` is the worker's process id, `worker_imports` which of HEAVY it had imported.
    """
    from torch._inductor.runtime.compile_tasks import _worker_compile_triton

    _install_driver()
    kernel, elapsed_us = _worker_compile_triton(*job)
    kernel.compiled_by, kernel.worker_imports = os.getpid(), sorted(HEAVY & sys.modules.keys())
    return kernel, elapsed_us


def _install_driver() -> None:
    """Let Triton find the fake driver where it looks for the real one."""
    backends["nvidia"] = dataclasses.replace(backends["nvidia"], driver=FakeDriver)


def _install_device() -> None:
    """Answer what Inductor, Dynamo and generated code ask of torch.cuda.

    All but whether CUDA is available: a yes would have torch save the random state of a device it cannot open.
    """
    from torch._dynamo.device_interface import CudaInterface

    answers: dict[str, Callable[..., Any]] = {
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: H200,
        "get_device_capability": lambda device=None: (H200.major, H200.minor),
        "is_bf16_supported": lambda including_emulation=True: True,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        setattr(CudaInterface, name.removeprefix("_"), staticmethod(answer))
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.get_raw_stream = staticmethod(_stream)
    CudaInterface.Worker.get_device_properties = staticmethod(answers["get_device_properties"])
    torch._C._ensureCUDADeviceGuardSet()  # FakeTensorMode does this too; what it sets must not die with a later thread
    torch._C._cuda_getCurrentRawStream = _stream
    torch._C._StaticCudaLauncher = FakeStaticLauncher
    torch._C._FastCudaLauncher = lambda function, *kernel: partial(_launch, function)
    torch._C._dynamo.guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype
    )


def _stream(device: int = 0) -> int:
    return 0


def _load(name: str, cubin: bytes) -> tuple[int, int, int, int]:
    """Module, function, registers a thread and spilled words a thread of a cubin."""
    registers, stack_bytes = _resources(cubin)
    _functions.append(name)
    return len(_functions), len(_functions), registers, stack_bytes // 4


@cache
def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and bytes of stack a thread."""
    program = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found is not None, shown
    return int(found[1]), int(found[2])


def _launch(function: int, *rest: Any) -> None:
    launches[_functions[function - 1]] += 1


class FakeDriver(nvidia.CudaDriver):  # type: ignore[misc]
    """Triton's CUDA driver without libcuda and without a C compiler."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=lambda name, cubin, shared, device: (*_load(name, cubin), H200.max_threads_per_block),
            unload_module=lambda module: None,
            get_device_properties=lambda device: {"max_shared_mem": H200.shared_memory_per_block_optin},
        )
        self.launcher_cls = lambda source, metadata: lambda x, y, z, stream, function, *rest: _launch(function)
        self.get_current_device = lambda: 0
        self.get_current_stream = _stream
        self.get_device_capability = lambda device=0: (H200.major, H200.minor)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * H200.major + H200.minor, H200.warp_size)


class FakeStaticLauncher:
    """Inductor's own launcher of cubins, `torch._C._StaticCudaLauncher`."""

    @staticmethod
    def _load_kernel(path: str, name: str, shared: int, device: int) -> tuple[int, ...]:
        from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel

        if shared > H200.shared_memory_per_block_optin:
            raise torch.cuda.OutOfMemoryError(f"out of resource: {name} needs {shared} bytes of shared memory")
        loaded = _load(name, Path(path).read_bytes())
        return loaded if hasattr(StaticallyLaunchedCudaKernel, "close") else loaded[1:]  # 2.11 and 2.12 know no modules

    @staticmethod
    def _unload_kernel(module: int) -> None:
        pass

    _launch_kernel = staticmethod(_launch)
