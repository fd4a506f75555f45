"""What TorchInductor's templates say of matrix products, without a GPU being asked for more than its name.

A graph of one product is lowered; where the host would list its choices, its own two lists and two sources are taken,
and ATen alone is left to it. Nothing is compiled or launched.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import MatmulKernel
from tileguard.runtime.optional import require

from .capture import Capture
from .cuda_fork import allow_cuda
from .matmul_kernel import EVEN, RAGGED, CapturedMatmul
from .matmul_problems import Problem

SPACES = {"default": "DEFAULT", "max_autotune": "EXHAUSTIVE"}
"""Name of a host's list -> its search space."""

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


@dataclass(slots=True)
class _Seen:
    """What the host's choices handler came by. lists: template arguments by name of list; sources: as CapturedMatmul."""

    lists: dict[str, list[dict[str, Any]]]
    sources: dict[str, str]
    kernel: str
    decompose_k: bool


def matmul_capturer(problems: Sequence[Problem]) -> Callable[[int], Capture]:
    """What turns the index of a problem into what it gave; for a process of its own."""
    allow_cuda()

    def capture(index: int) -> Capture:
        began = time.perf_counter()
        kernel = capture_matmul(problems[index])
        return Capture((kernel,), {}, time.perf_counter() - began)

    return capture


def capture_matmul(problem: Problem) -> CapturedMatmul:
    """The host's template for a problem. Raises InvalidInput where the host lists no Triton template for it."""
    seen = _lower(problem)
    if not seen:
        raise InvalidInput("problem", problem.name, "a product that TorchInductor has a Triton template for")
    found = seen[0]
    as_tf32 = all("ALLOW_TF32 : tl.constexpr = True" in source for source in found.sources.values())
    kernel = replace(problem.kernel, dtype="fp32") if problem.allow_tf32 and not as_tf32 else problem.kernel
    baselines = {name: [_numbers(one) for one in choices] for name, choices in found.lists.items()}
    sizes = [problem.op, kernel.batch, kernel.m, kernel.n, kernel.k, problem.kernel.dtype]
    identity = json.dumps([*sizes, kernel.a_transposed, kernel.b_transposed, sorted(found.sources.items())])
    return CapturedMatmul(
        key=hashlib.sha256(identity.encode()).hexdigest()[:16], label=problem.name, kernel=found.kernel, op=problem.op,
        batch=kernel.batch, m=kernel.m, n=kernel.n, k=kernel.k, dtype=kernel.dtype,
        a_transposed=kernel.a_transposed, b_transposed=kernel.b_transposed, allow_tf32=problem.allow_tf32,
        decompose_k=found.decompose_k,
        baselines=baselines, sources=found.sources, args=tuple(describe_problem(problem)),
    )  # fmt: skip


def describe_problem(problem: Problem) -> list[dict[str, Any]]:
    """The kernel's arguments, as `describe_args` would give them: of addmm the vector first, then A, B, the product."""
    kernel, batched = problem.kernel, problem.op == "bmm"
    dtype = TORCH_DTYPES[kernel.dtype]
    tensors: list[tuple[list[int], list[int]]] = [([kernel.n], [1])] if problem.op == "addmm" else []
    for rows, columns, transposed in (
        (kernel.m, kernel.k, kernel.a_transposed), (kernel.k, kernel.n, kernel.b_transposed), (kernel.m, kernel.n, False),
    ):  # fmt: skip
        stride = [1, rows] if transposed else [columns, 1]
        tensors.append(([kernel.batch] * batched + [rows, columns], [rows * columns] * batched + stride))
    return [
        {"shape": shape, "stride": stride, "offset": 0, "dtype": dtype, "storage": number}
        for number, (shape, stride) in enumerate(tensors)
    ]


def _numbers(choice: dict[str, Any]) -> list[int]:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M")
    return [int(choice[name]) for name in names]


def _lower(problem: Problem) -> list[_Seen]:
    """Lower a graph of one product, watching the host's choices."""
    torch = require("torch")
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode

    target = getattr(torch.ops.aten, problem.op).default
    fake = FakeTensorMode()
    graph = torch.fx.Graph()
    with fake:
        inputs = [
            torch.empty_strided(one["shape"], one["stride"], dtype=getattr(torch, one["dtype"]), device="cuda")
            for one in describe_problem(problem)[:-1]
        ]
        nodes = [graph.placeholder(f"arg{number}_1") for number in range(len(inputs))]
        product = graph.call_function(target, tuple(nodes))
        for node, value in zip((*nodes, product), (*inputs, target(*inputs)), strict=True):
            node.meta["val"] = value
    graph.output((product,))
    seen: list[_Seen] = []
    lowering = GraphLowering(torch.fx.GraphModule(torch.nn.Module(), graph), example_inputs=inputs)
    with (
        _precision(problem.kernel),
        _tuning("DEFAULT"),
        V.set_graph_handler(lowering),
        V.set_fake_mode(fake),
        V.set_choices_handler(_watcher(problem, seen)),
    ):
        lowering.run(*inputs)
    return seen


def _watcher(problem: Problem, seen: list[_Seen]) -> Any:
    """A choices handler that takes the template's lists and sources, and leaves the host nothing but ATen."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.kernel.bmm import bmm_template
    from torch._inductor.kernel.mm import mm_template

    template = bmm_template if problem.op == "bmm" else mm_template

    class Watcher(InductorChoices):  # type: ignore[misc]
        def _finalize_template_configs(
            self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *rest: Any, **more: Any
        ) -> list[Any]:
            offered = [one.uid for one in templates]
            # mm lists everything at once, and may leave the template out; addmm, from torch 2.13 on, kind by kind.
            if not seen and (template.uid in offered or op_name == "mm"):
                seen.append(self._look(kernel_inputs, op_name, template.uid in offered))
            aten = [uid for uid in template_choices if uid.startswith("aten::")]
            return [choice for uid in aten[:1] for choice in template_choices[uid]]

        def _look(self, kernel_inputs: Any, op_name: str, offered: bool) -> _Seen:
            choices = {}
            for name, space in SPACES.items():
                with _tuning(space):
                    choices[name] = list(self.get_ktc(kernel_inputs, template, op_name))
            sources = {}
            for choice in (one for listed in choices.values() for one in listed):
                which = EVEN if problem.kernel.k % choice.params.to_kwargs()["BLOCK_K"] == 0 else RAGGED
                if which not in sources:
                    sources[which], kernel = _source(choice, kernel_inputs)
            lists = {name: [one.params.to_kwargs() for one in listed] for name, listed in choices.items()}
            if not sources:
                raise InvalidInput("problem", problem.name, "a product for which TorchInductor lists tiles")
            return _Seen(lists, sources, kernel, not offered)

    return Watcher()


def _source(choice: Any, kernel_inputs: Any) -> tuple[str, str]:
    """The file that the host writes for a choice, and its kernel's name."""
    choice.layout = kernel_inputs.output_layout(flexible=False)
    request = choice.choice.bmreq
    return Path(request.module_path).read_text(encoding="utf-8"), request.kernel_name


@contextmanager
def _tuning(space: str) -> Iterator[None]:
    """The host as it tunes over a search space, its Triton template and ATen alone."""
    from torch._inductor import config

    with config.patch(
        max_autotune_gemm=True, max_autotune_gemm_backends="ATEN,TRITON", max_autotune_gemm_search_space=space
    ):
        yield


@contextmanager
def _precision(kernel: MatmulKernel) -> Iterator[None]:
    """fp32 as tf32, or not: the template's source says which."""
    matmul = require("torch").backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = kernel.dtype == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
