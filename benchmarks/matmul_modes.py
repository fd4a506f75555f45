"""One way of choosing the kernels of matrix products, in a process of its own: what each took, what won, and whether it
is right.

benchmarks/matmul_h200.py starts it. Wall time is that of the first call: tracing, code generation, compiling all choices
and timing them, to the device's last kernel. The pool of compile workers is up before, and one product that is not
counted has been compiled.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import matmul_nv
from benchmarks.inductor_modes import cubins, machine, synchronize, warm_up
from benchmarks.matmul_cases import NV, TILEGUARD
from benchmarks.pieces import write
from tileguard.features.kernels import MatmulKernel
from tileguard.learner.inductor.args import build_args
from tileguard.learner.inductor.matmul_capture import describe_problem
from tileguard.learner.inductor.matmul_problems import Problem, problem

TOLERANCES = {"bf16": 1.6e-2, "fp16": 2e-3, "tf32": 2e-3, "fp32": 1e-5}
"""‖product - exact‖ ÷ ‖exact‖, at most; or twice what eager is off by."""

ATEN, TRITON, OTHER = "aten", "triton", "other"
"""Kinds of choices; other: the host's split of a long K, a graph of two kernels."""

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "mm": lambda a, b: torch.mm(a, b),
    "bmm": lambda a, b: torch.bmm(a, b),
    "addmm": lambda bias, a, b: torch.addmm(bias, a, b),
}

QUIET = ("torch._inductor.select_algorithm", "torch._inductor.runtime.triton_heuristics")
"""Loggers that write a traceback for every choice that does not fit."""


@dataclass
class Heard:
    """What the host's algorithm selector said of one product. listed: its choices; timings: ms of each that it timed,
    infinite where that failed; sources: of graphs, the product's own last; chosen: tileguard's set; trouble: what could
    not be heard."""

    listed: list[Any] = field(default_factory=list)
    timings: dict[Any, float] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    chosen: Any = None
    trouble: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def careful(self) -> Iterator[None]:
        """What fails here is noted: it is no part of compiling."""
        try:
            yield
        except Exception as error:
            self.trouble.append(f"{type(error).__name__}: {error}"[:200])


@contextlib.contextmanager
def listening(op: str) -> Iterator[Heard]:
    """Hear what is chosen for one product of this operation."""
    from torch._inductor import select_algorithm
    from torch._inductor.graph import GraphLowering

    heard = Heard()
    lowering: Any = GraphLowering
    before = lowering.save_output_code

    def listed(choices: list[Any]) -> list[Any]:
        if not heard.listed:  # the first is the product; what comes while it is timed are parts of a split K
            heard.listed = list(choices)
        return choices

    def timed(timings: Mapping[Any, float], name: str, *rest: Any) -> None:
        with heard.careful():
            if name == op:
                heard.timings.update({choice: float(ms) for choice, ms in timings.items()})

    with heard.careful():
        select_algorithm.add_preprocessing_fn(listed)
        select_algorithm.add_feedback_saver(timed)
        lowering.save_output_code = heard.sources.append
    try:
        with hearing_selections(heard):
            yield heard
    finally:
        lowering.save_output_code = before
        with heard.careful():
            select_algorithm.clear_feedback_savers()
            select_algorithm.clear_preprocessing_fns()


@contextlib.contextmanager
def hearing_selections(heard: Heard) -> Iterator[None]:
    """Keep the set that tileguard makes; there is none in other modes."""
    from tileguard.runtime.matmul_selector import MatmulSelector

    original = MatmulSelector.select

    def select(self: Any, *args: Any, **kwargs: Any) -> Any:
        heard.chosen = original(self, *args, **kwargs)
        return heard.chosen

    MatmulSelector.select = select  # type: ignore[method-assign]
    try:
        yield
    finally:
        MatmulSelector.select = original  # type: ignore[method-assign]


def run_mode(
    mode: str, products: Sequence[Problem], path: Path, *, device: str, budget_s: float | None, model: str
) -> None:
    """Compile and check the products that `path` lacks; the file is whole after each of them."""
    result: dict[str, Any] = {"mode": mode, "runs": [], "products": {}}
    if path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
    result.pop("stopped", None)
    nv_version = matmul_nv.version() if mode == NV else None
    if mode == NV and nv_version is None:
        write(path, result | {"skipped": "not installed"})
        print(mode, "not installed", flush=True)
        return
    result.pop("skipped", None)
    began = time.perf_counter()
    run: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()), **machine(device)}
    if mode == TILEGUARD:
        run["model"] = install_tileguard(model)
    proposer = matmul_nv.Proposer() if mode == NV else None
    if proposer is not None:
        run["nvMatmulHeuristics"] = nv_version
    hush()
    run["pool_ready"] = warm_up(device)
    run["warm_up"] = uncounted(device)
    run["warm_up_s"] = round(time.perf_counter() - began, 2)
    result["runs"].append(run)
    started = time.perf_counter()
    try:
        for product in products:
            if product.name in result["products"]:
                continue
            if budget_s is not None and time.perf_counter() - started > budget_s:
                result["stopped"] = f"budget of {budget_s:g} s"
                print(mode, "stopped by its budget", flush=True)
                break
            try:
                found = run_product(product, device=device, proposer=proposer)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"[:500], "where": traceback.format_exc()[-1500:]}
            result["products"][product.name] = found
            print(
                mode, product.name, found.get("wall_s"), found.get("winner"), found.get("agrees", "failed"), flush=True
            )
            write(path, result)
            release(device)
    finally:
        if proposer is not None:
            proposer.close()
    run["seconds"] = round(time.perf_counter() - started, 1)
    if mode == TILEGUARD:
        import tileguard

        run["untouched"] = dict(tileguard.report().untouched)
    write(path, result)


def install_tileguard(model: str) -> str:
    """Hook reductions and products; what proposes for products beside the planner. Exits where that is impossible."""
    import tileguard
    from tileguard import models
    from tileguard.runtime.feature_space import MATMUL

    if not tileguard.install(model=None if model == "none" else model, matmul=True):
        raise SystemExit("tileguard could not be installed")
    if model == "none":
        return "planner alone"
    if model != "champion":
        return Path(model).name
    folder = models.model_path(MATMUL, "h200")
    return folder.name if folder else "planner alone"


def hush() -> None:
    """No table of timings and no traceback a choice."""
    import logging

    from torch._inductor import config

    config.autotune_num_choices_displayed = 0
    config.max_autotune_report_choices_stats = False
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def uncounted(device: str) -> str:
    """Compile one product that no result holds, over the host's default space; what went wrong."""
    from torch._inductor import config

    product = problem("uncounted", "mm", MatmulKernel(1, 192, 320, 256, "bf16"))
    try:
        with config.patch(max_autotune_gemm_search_space="DEFAULT"):
            run_product(product, device=device, proposer=None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "ok"


def run_product(product: Problem, *, device: str, proposer: matmul_nv.Proposer | None) -> dict[str, Any]:
    """The timed first call, what was chosen, and how far the product is off."""
    torch._dynamo.reset()
    torch.backends.cuda.matmul.allow_tf32 = product.allow_tf32
    args = build_args(describe_problem(product)[:-1], device=device)
    before = cubins()
    with contextlib.ExitStack() as stack:
        heard = stack.enter_context(listening(product.op))
        stack.enter_context(torch.no_grad())
        compiled = torch.compile(FUNCTIONS[product.op], dynamic=False)
        synchronize(device)
        began = time.perf_counter()
        if proposer is not None:
            stack.enter_context(matmul_nv.proposing(product.kernel, proposer.tiles(product.kernel)))
        out = compiled(*args)
        synchronize(device)
        wall_s = time.perf_counter() - began
    source = heard.sources[-1] if heard.sources else ""
    found: dict[str, Any] = {
        "wall_s": round(wall_s, 3),
        "binaries": sum((cubins() - before).values()),
        **checked(product, args, out),
        "calls": calls_in(source),
    }
    with heard.careful():
        found |= described(heard)
    library = {call.startswith("extern_kernels.") for call in found["calls"]}
    if found.get("kind") in (ATEN, TRITON) and library != {found["kind"] == ATEN}:
        heard.trouble.append(f"the code calls {', '.join(found['calls'])}, yet the winner was {found['winner']}")
        found["winner"] = found["kind"] = None
    return found | {"trouble": heard.trouble, "code": source}


def checked(product: Problem, args: Sequence[Tensor], out: Tensor) -> dict[str, Any]:
    """Errors of the product and of eager's against float64, and whether the first is as it should be."""
    with torch.no_grad():
        exact = FUNCTIONS[product.op](*(one.double() for one in args))
        error = off_by(out, exact)
        eager = off_by(FUNCTIONS[product.op](*args), exact)
    limit = max(TOLERANCES[product.kernel.dtype], 2 * eager if math.isfinite(eager) else 0.0)
    shown = {"off": error, "eager_off": eager}
    return {name: rounded(value) for name, value in shown.items()} | {"agrees": error <= limit}


def off_by(out: Tensor, exact: Tensor) -> float:
    if out.shape != exact.shape:
        return math.inf
    return float((out.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def rounded(value: float) -> float | None:
    """To four digits; JSON knows no infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def described(heard: Heard) -> dict[str, Any]:
    """Choices by kind: listed, timed, failed; the winner, who proposed it, and the host's own times, ms."""
    finite = {choice: ms for choice, ms in heard.timings.items() if math.isfinite(ms)}
    kinds = [kind_of(choice) for choice in finite]
    winner = min(finite, key=finite.__getitem__, default=None)
    if winner is None and len(heard.listed) == 1:  # nothing to choose from, nothing timed
        winner = heard.listed[0]
    listed = Counter(map(kind_of, heard.listed))
    best = {kind: min(ms for choice, ms in finite.items() if kind_of(choice) == kind) for kind in sorted(set(kinds))}
    found: dict[str, Any] = {
        "listed": dict(listed), "timed": dict(Counter(kinds)), "failed": max(0, len(heard.listed) - len(finite)) if finite else 0,
        "best_ms": {kind: rounded(ms) for kind, ms in best.items()},
        "winner": None if winner is None else text_of(winner), "kind": None if winner is None else kind_of(winner),
    }  # fmt: skip
    if heard.chosen is not None:
        found |= proposed(heard.chosen, winner)
    return found


def proposed(chosen: Any, winner: Any) -> dict[str, Any]:
    """Of tileguard's set: tiles by proposer, the guard's verdict, and who proposed the winner (ATen: nobody)."""
    by = {who: len(chosen.proposed_by(who)) for who in ("host", "formula", "model")}
    tile = tile_of(winner)
    who = [one for one in by if tile is not None and any(t.sort_key == tile for t in chosen.proposed_by(one))]
    verdict = "trusted" if chosen.verdict.trusted else str(chosen.verdict.reason)
    return {"proposed": by, "verdict": verdict, "proposers": who}


def kind_of(choice: Any) -> str:
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    return (
        ATEN
        if isinstance(choice, ExternKernelCaller)
        else TRITON
        if isinstance(choice, TritonTemplateCaller)
        else OTHER
    )


def arguments_of(choice: Any) -> tuple[str, dict[str, Any]]:
    """A choice's template and the template's arguments."""
    ktc = (getattr(choice, "annotations", None) or {}).get("ktc")
    if ktc is None:
        return str(choice.name), {}
    return str(ktc.template.uid), dict(ktc.params.to_kwargs())


def tile_of(choice: Any) -> tuple[int, ...] | None:
    """A plain tile as MatmulTile.sort_key has it, None of what has none."""
    from tileguard.runtime.hooks.matmul_log import TILE_NAMES

    if choice is None:
        return None
    _, arguments = arguments_of(choice)
    return tuple(int(arguments[name]) for name in TILE_NAMES) if set(TILE_NAMES) <= arguments.keys() else None


def text_of(choice: Any) -> str:
    """`triton::mm 128 128 64 w8 s3 g8`, `aten::mm`, or a template with its numbers; the same for equal choices."""
    uid, arguments = arguments_of(choice)
    tile = tile_of(choice)
    if tile is not None:
        return "{} {} {} {} w{} s{} g{}".format(uid, *tile)
    numbers = {name: value for name, value in arguments.items() if isinstance(value, int | str)}
    more = " ".join(f"{name}={numbers[name]}" for name in sorted(numbers))
    return f"{uid} {more}".strip() if arguments else f"{uid} {getattr(choice, 'description', '')}".strip()


def calls_in(source: str) -> list[str]:
    """What a graph's generated code launches: ATen's functions, and Triton kernels by name."""
    return sorted(
        set(re.findall(r"extern_kernels\.\w+", source) + re.findall(r"async_compile\.triton\('(\w+)'", source))
    )


def release(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
