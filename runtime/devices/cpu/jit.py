"""LLVM through llvmlite: IR to a relocatable object (in a child process, see worker.py), object to code here."""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.optional import require

from .emit import emit

llvm: Any = require("llvmlite.binding")

PHASES = ("emit", "parse", "opt", "codegen")
OPT_LEVEL = 3

_serial = itertools.count()


def toolchain(target: str | None = None) -> str:
    """Versions of llvmlite and LLVM, and the CPU that code is generated for."""
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"llvmlite {require('llvmlite').__version__}, LLVM {version}, {target or llvm.get_host_cpu_name()}"


def compile_object(
    kernel: ReductionKernel, tile: ReductionTile, target: str | None = None
) -> tuple[bytes, dict[str, float]]:
    """A relocatable object of one candidate, and CPU ms by phase (PHASES). target: LLVM's name of the CPU that it is for;
    None is this one.

    Raises CompileError for a lowering that is not generated; LLVM's own refusals come as RuntimeError. On code that
    is too much for it LLVM may also abort the process or not return: call it in a process that may die.
    """
    start = time.process_time()
    text = emit(kernel, tile)
    emitted = (time.process_time() - start) * 1e3
    image, phases = object_of(text, target)
    return image, {"emit": emitted, **phases}


def object_of(text: str, target: str | None = None) -> tuple[bytes, dict[str, float]]:
    """A relocatable object of LLVM IR, and CPU ms by phase. target: as compile_object."""
    clock = [time.process_time()]
    # A context of its own: types and constants of the global one are never freed.
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context)
    clock.append(time.process_time())
    machine = _emitting_machine(target)
    options = llvm.create_pipeline_tuning_options(speed_level=OPT_LEVEL)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    clock.append(time.process_time())
    image = bytes(machine.emit_object(module))
    clock.append(time.process_time())
    module.close()
    times = ((end - start) * 1e3 for start, end in itertools.pairwise(clock))
    return image, dict(zip(PHASES[1:], times, strict=True))


class LinkedKernel:
    """Code of a candidate in this process. Owns it: when collected, the code is unmapped."""

    def __init__(self, image: bytes, pointers: int) -> None:
        """`image` from compile_object, for a kernel of that many operands and outputs. RuntimeError if unlinkable."""
        builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process().export_symbol("batch")
        # A library's name cannot be used twice in a process.
        self._library = builder.link(_linker(), f"tileguard-{next(_serial)}")
        arguments = [ctypes.c_void_p] * pointers + [ctypes.c_int64]
        self._batch = ctypes.CFUNCTYPE(None, *arguments)(self._library["batch"])
        self._types = arguments

    def run(self, pointers: Sequence[int], calls: int = 1) -> None:
        """Call the kernel `calls` times on these addresses, without Python in between."""
        self._batch(*pointers, calls)

    def bind(self, pointers: Sequence[int]) -> Callable[[], None]:
        """One call of the kernel on these addresses: converting arguments takes longer than a short kernel. The result
        keeps the code mapped; other threads run meanwhile."""
        values = [make(value) for make, value in zip(self._types, (*pointers, 1), strict=True)]
        call = functools.partial(ctypes.CFUNCTYPE(None)(self._library["batch"]), *values)
        call.kernel = self  # type: ignore[attr-defined]  # owns the code
        return call


def _machine(target: str | None = None) -> Any:
    """A machine for this CPU, with what its flags say it has; or for a named one, with what LLVM knows that to have."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = (target, "") if target else (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=OPT_LEVEL, jit=True)


@cache
def _emitting_machine(target: str | None) -> Any:
    return _machine(target)


@cache
def _linker() -> Any:
    # A machine of its own: the JIT takes it over and frees it.
    return llvm.create_lljit_compiler(_machine())
