"""Every reduction kernel that TorchInductor generates for given work, as plain data: source, arguments, the host's lists.

Work runs in forked processes. Of every kernel the host's first config alone is compiled and launched, so values that
later kernels index by are right; nothing is benchmarked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tileguard.features.errors import InvalidInput
from tileguard.features.inductor import reduction_kernel
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.hooks.configs import Refused
from tileguard.runtime.hooks.proposal import check_eligible
from tileguard.runtime.optional import require

from .args import describe_args
from .cuda_fork import allow_cuda
from .swept import Row, SweptKernel

HEURISTICS = {"REDUCTION": "reduction", "PERSISTENT_REDUCTION": "persistent_reduction"}
"""Name of TorchInductor's heuristic -> name of the decorator in its generated source."""

HOPELESS = 4.0
"""As SweptKernel says: of reductions, whose times are short and so uncertain."""

HOST_LISTS = {"default": False, "max_autotune": True}
"""Name of a host's list -> whether max_autotune is on."""


class Named(Protocol):
    """Work to capture kernels from, with its family, the unit of splits."""

    @property
    def family(self) -> str: ...
    @property
    def name(self) -> str: ...


class Workload(Named, Protocol):
    """What a file of workloads yields: work whose inputs `run` makes on the GPU."""

    @property
    def run(self) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class CapturedKernel:
    """One generated reduction. The fields are those of a raw sweep (docs/corpus.md), and of its line's further keys.

    key: of source, numels and signature. label: `family:name` of the first workload that had it. head: what stands
    before `src` in the generated file. args: as `describe_args` gives them. arg_names: of the kernel function, block
    sizes included. minimums: smallest blocks that the generated code allows, by name.
    """

    key: str
    label: str
    kernel: str
    heuristic: str
    size_hints: dict[str, int]
    numels: dict[str, int]
    signature: dict[str, str]
    inductor_meta: dict[str, Any]
    baselines: dict[str, Any]
    head: str
    src: str
    arg_names: tuple[str, ...]
    args: tuple[Any, ...]
    minimums: dict[str, int] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return self.label.partition(":")[0]

    @property
    def persistent(self) -> bool:
        return self.heuristic == "PERSISTENT_REDUCTION"

    @property
    def described(self) -> ReductionKernel:
        """As features know it. Raises InvalidInput for an unknown dtype."""
        return reduction_kernel(
            self.numels["xnumel"], self.numels["r0_numel"], self.signature, self.inductor_meta,
            reduction_hint=self.inductor_meta.get("reduction_hint"), persistent=self.persistent, source=self.src,
        )  # fmt: skip

    @property
    def hopeless(self) -> float:
        return HOPELESS

    def code(self, tile: ReductionTile) -> str:
        """One file for all tiles."""
        return self.head + self.src

    def config(self, tile: ReductionTile) -> Any:
        from torch._inductor.runtime.triton_heuristics import InductorConfig

        blocks = {"XBLOCK": tile.xblock, "R0_BLOCK": tile.r0_block}
        kwargs = {name: size for name, size in blocks.items() if name in self.arg_names}
        return InductorConfig(kwargs, num_warps=tile.num_warps, num_stages=tile.num_stages, dynamic_scale_rblock=False)

    def grid(self, tile: ReductionTile) -> tuple[int, ...]:
        return ()

    def row(self, tile: ReductionTile) -> Row:
        r0_block = None if self.persistent else tile.r0_block
        return {"X": tile.xblock, "R": r0_block, "w": tile.num_warps, "st": tile.num_stages}

    def tile(self, row: Row) -> ReductionTile:
        """The tile of a raw sweep's row."""
        fixed = 1 << (self.numels["r0_numel"] - 1).bit_length()
        return ReductionTile(row["X"], row["R"] or fixed, row["w"], row["st"])

    def twin(self, tile: ReductionTile) -> Hashable:
        return tile.xblock, tile.r0_block, tile.num_warps

    def references(self) -> dict[str, Callable[..., None]]:
        return {}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any], *, where: str) -> CapturedKernel:
        """Keys of other things are ignored. Raises InvalidInput for a missing one."""
        given = known_fields(cls, data, where=where)
        return cls(**given | {"arg_names": tuple(given["arg_names"]), "args": tuple(given["args"])})


def known_fields(cls: type, data: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Of a raw sweep's line, what a dataclass of captured kernels names. Raises InvalidInput for what is missing."""
    names = [one.name for one in fields(cls)]
    missing = [name for name in names if name not in data]
    if missing:
        raise InvalidInput(where, f"no {missing[0]}", "a line that `collect --device inductor` wrote")
    return {name: data[name] for name in names}


@dataclass(frozen=True, slots=True)
class Capture:
    """What one workload gave. skipped: kernels that no list of ours may be put into, by reason."""

    kernels: tuple[SweptKernel, ...]
    skipped: dict[str, int]
    seconds: float


def load_workloads(path: Path | None, *, seed: int, most: int, min_log2: float = 0.0) -> list[Workload]:
    """The first workloads of a Python file (left out: the registry that ships, which never ends), in order.

    min_log2: what the registry is asked for. The file defines `workloads(seed)`, an iterable of objects with `family`,
    `name` and `run`. Raises InvalidInput where it does not, where a family holds a colon, or for two workloads of one
    name.
    """
    module = _module(path)
    make = getattr(module, "workloads", None)
    if not callable(make):
        raise InvalidInput("workloads", str(path), "a Python file that defines workloads(seed)")
    stream = make(seed, min_log2=min_log2) if path is None else make(seed)
    found: list[Workload] = list(itertools.islice(stream, most))
    seen: set[tuple[str, str]] = set()
    for one in found:
        if not (isinstance(getattr(one, "family", None), str) and isinstance(getattr(one, "name", None), str)):
            raise InvalidInput("workloads", one, "objects with family, name and run")
        if not one.family or ":" in one.family or (one.family, one.name) in seen:
            raise InvalidInput("workloads", f"{one.family}:{one.name}", "distinct names, and families without a colon")
        seen.add((one.family, one.name))
    if not found:
        raise InvalidInput("workloads", str(path), "a Python file that yields one workload or more")
    if require("torch").cuda.is_initialized():
        raise InvalidInput("workloads", str(path), "a file that uses the GPU in run() alone")
    return found


def _module(path: Path | None) -> ModuleType:
    if path is None:
        return importlib.import_module("tileguard.learner.inductor.workloads")
    if not path.is_file():
        raise InvalidInput("workloads", str(path), "an existing Python file")
    spec = importlib.util.spec_from_file_location("tileguard_workloads", path)
    if spec is None or spec.loader is None:
        raise InvalidInput("workloads", str(path), "a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def capturer(workloads: Sequence[Workload]) -> Callable[[int], Capture]:
    """What turns the index of a workload into what it gave; for a process of its own."""
    torch = require("torch")
    require("torch._dynamo")
    allow_cuda()
    # A default config that is compiled here must be compiled again, and its time taken, by the sweep.
    if "TRITON_CACHE_DIR" in os.environ:
        os.environ["TRITON_CACHE_DIR"] += "-capture"

    def capture(index: int) -> Capture:
        began = time.perf_counter()
        one = workloads[index]
        torch._dynamo.reset()
        with capturing(label_of(one)) as (kernels, skipped):
            one.run()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        return Capture(tuple(kernels.values()), dict(skipped), time.perf_counter() - began)

    return capture


def label_of(workload: Named) -> str:
    """`family:name`; a name that begins so stands for itself."""
    name = workload.name
    return name if name.startswith(f"{workload.family}:") else f"{workload.family}:{name}"


@contextmanager
def capturing(label: str) -> Iterator[tuple[dict[str, CapturedKernel], Counter[str]]]:
    """Watch `CachingAutotuner`, in every thread of this process: a backward runs in another one.

    Gives the kernels by key, and how many were skipped by reason; both fill up.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernels: dict[str, CapturedKernel] = {}
    skipped: Counter[str] = Counter()
    names = ("run", "precompile", "_dynamic_scale_rblock")
    originals = {name: CachingAutotuner.__dict__[name] for name in names}
    seen: dict[int, Any] = {}  # held, since a freed object's id comes again

    def run(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        if autotuner.heuristic_type.name in HEURISTICS and id(autotuner) not in seen:
            seen[id(autotuner)] = autotuner
            try:
                kernel = describe_kernel(autotuner, args, label=label)
                kernels.setdefault(kernel.key, kernel)
            except Refused as reason:
                skipped[str(reason)] += 1
            except Exception as error:
                skipped[f"{type(error).__name__}: {error}"[:200]] += 1
        return originals["run"](autotuner, *args, **kwargs)

    def precompile(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's first config alone; where that one does not compile, all of them."""
        configs = autotuner.configs
        if not configs or len(configs) == 1:
            return originals["precompile"](autotuner, *args, **kwargs)
        autotuner.configs = configs[:1]
        try:
            return originals["precompile"](autotuner, *args, **kwargs)
        except Exception:
            autotuner.configs, autotuner.compile_results, autotuner.launchers = configs, [], []
            return originals["precompile"](autotuner, *args, **kwargs)

    replacements = {"run": run, "precompile": precompile, "_dynamic_scale_rblock": lambda autotuner: None}
    for name, replacement in replacements.items():
        setattr(CachingAutotuner, name, replacement)
    try:
        yield kernels, skipped
    finally:
        for name, original in originals.items():
            setattr(CachingAutotuner, name, original)


def describe_kernel(autotuner: Any, args: Sequence[Any], *, label: str) -> CapturedKernel:
    """A kernel as plain data, before its first launch. Raises Refused for one that the hook would leave alone,
    InvalidInput for one that features cannot describe."""
    meta, names = autotuner.inductor_meta, tuple(autotuner.fn.arg_names)
    heuristic = autotuner.heuristic_type.name
    check_eligible(HEURISTICS[heuristic], autotuner.size_hints or {"combo": 0}, autotuner.triton_meta, meta)
    known = {"XBLOCK", "R0_BLOCK"}
    if not {name for name in names if name.isupper()} <= known:
        raise Refused("config_kind")
    if len(args) > len(names) or any(name in known for name in names[: len(args)]):
        raise Refused("arguments")
    src = autotuner.fn.src
    text = Path(autotuner.filename).read_text(encoding="utf-8")
    head, _, tail = text.partition(src)
    if tail.strip() or not head:
        raise Refused("source")
    numels = _numels(src, dict(zip(names, args, strict=False)), autotuner.triton_meta)
    signature = {name: str(kind) for name, kind in autotuner.triton_meta["signature"].items()}
    plain = {k: v for k, v in meta.items() if isinstance(v, int | float | str | bool) or v is None}
    plain["reduction_hint"] = str(meta.get("reduction_hint"))
    minimums = dict(meta.get("tma_min_block_sizes") or {})
    for name, key in (("XBLOCK", "min_xblock"), ("R0_BLOCK", "min_rblock")):
        minimums[name] = max(minimums.get(name, 1), meta.get(key) or 1)
    kernel = CapturedKernel(
        key=kernel_key(src, numels, signature), label=label, kernel=autotuner.fn.__name__, heuristic=heuristic,
        size_hints=dict(autotuner.size_hints), numels=numels, signature=signature, inductor_meta=plain,
        baselines=host_lists(autotuner, numels["r0_numel"]), head=head, src=src, arg_names=names,
        args=tuple(describe_args(names, args)), minimums=minimums,
    )  # fmt: skip
    _ = kernel.described
    return kernel


def kernel_key(src: str, numels: dict[str, int], signature: dict[str, str]) -> str:
    """16 hex digits, equal for kernels that differ in nothing but their names."""
    parts = [re.sub(r"\btriton_\w+", "K", src), sorted(numels.items()), sorted(signature.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def host_lists(autotuner: Any, rnumel: int) -> dict[str, Any]:
    """`default` and `max_autotune`: Inductor's own lists as (X, R0, num_warps, num_stages), or an error's text."""
    from torch._inductor.runtime import triton_heuristics

    make = getattr(triton_heuristics, HEURISTICS[autotuner.heuristic_type.name])
    lists: dict[str, Any] = {}
    for name, tune in HOST_LISTS.items():
        meta = {**autotuner.inductor_meta, "max_autotune": tune, "max_autotune_pointwise": tune}
        try:
            configs = make(
                dict(autotuner.size_hints), meta.get("reduction_hint"),
                triton_meta={**autotuner.triton_meta, "device": autotuner.device_props},
                filename=autotuner.filename, inductor_meta=meta, return_configs=True,
            )  # fmt: skip
            whole = 1 << (rnumel - 1).bit_length()
            lists[name] = [
                [c.kwargs.get("XBLOCK", 1), c.kwargs.get("R0_BLOCK", whole), c.num_warps, c.num_stages]
                for c in triton_heuristics.unique_configs(configs)
            ]
        except Exception as error:
            lists[name] = f"{type(error).__name__}: {error}"[:200]
    return lists


def _numels(src: str, args: dict[str, Any], triton_meta: dict[str, Any]) -> dict[str, int]:
    """xnumel and r0_numel: constants of the source where sizes are static, arguments where they are not."""
    found = {}
    for name in ("xnumel", "r0_numel"):
        constant = re.search(rf"^\s*{name} = (\d+)\s*$", src, re.MULTILINE)
        value = int(constant[1]) if constant else args.get(name, triton_meta.get("constants", {}).get(name, 1))
        if not isinstance(value, int):
            raise Refused("numels")
        found[name] = value
    return found
