"""Matrix products lowered by TorchInductor on the fake GPU, with and without the hook: one JSON object on stdout.

Nothing is compiled or timed: each product's choices are taken where the host would begin to.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PRODUCTS: Mapping[str, tuple[str, tuple[int, int, int, int], str]] = {
    "mm": ("mm", (1, 512, 1024, 256), "bfloat16"),
    "ragged": ("mm", (1, 300, 1000, 100), "float16"),
    "bmm": ("bmm", (8, 256, 128, 672), "float16"),
    "addmm": ("addmm", (1, 512, 512, 1024), "bfloat16"),
    "fp32": ("mm", (1, 512, 512, 512), "float32"),
}
"""Name -> operation, (batch, m, n, k), dtype."""

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M")


def main() -> None:
    for name in [name for name in os.environ if name.startswith(("TORCHINDUCTOR_", "TRITON_"))]:
        del os.environ[name]
    from tests import fakegpu

    fakegpu.install()
    torch: Any = importlib.import_module("torch")
    choices: Any = importlib.import_module("torch._inductor.choices")
    hooks: Any = importlib.import_module("tileguard.runtime.hooks.inductor")
    product: Any = importlib.import_module("tileguard.runtime.hooks.matmul")
    tileguard: Any = importlib.import_module("tileguard")
    kind, name = choices.InductorChoices, "_finalize_template_configs"
    original = vars(kind)[name]
    found: dict[str, Any] = {"torch": torch.__version__}

    def everything(**tuning: Any) -> dict[str, Any]:
        return {case: lowered(*given, **tuning) for case, given in PRODUCTS.items()}

    found["off"] = everything()
    with tileguard.enabled(model=None):
        found["default_patched"] = vars(kind)[name] is not original
    with tileguard.enabled(model=None, matmul=True) as installed:
        found["installed"], found["patched"] = installed, vars(kind)[name] is not original
        found["on"] = everything()
        found["untuned"] = lowered(*PRODUCTS["mm"], max_autotune_gemm=False)
        found["aten_only"] = lowered(*PRODUCTS["mm"], max_autotune_gemm_backends="ATEN")
        found["no_aten"] = lowered(*PRODUCTS["mm"], max_autotune_gemm_backends="TRITON")
        found["deterministic"] = lowered(*PRODUCTS["mm"], deterministic=True)
        found["huge"] = lowered("mm", (1, 1 << 20, 16, 1 << 20), "float16")
        found["dynamic"] = lowered(*PRODUCTS["mm"], dynamic=True)
        found["dynamic_off"] = with_environment({"TILEGUARD": "0"}, *PRODUCTS["mm"], dynamic=True)
        found["switched_off"] = with_environment({"TILEGUARD": "0"}, *PRODUCTS["mm"])
        found["reasons"] = dict(tileguard.report().untouched)
        found["salt"] = hooks._ACTIVE.salt()
    found["restored"] = vars(kind)[name] is original
    with tileguard.enabled(model=None):
        found["salt_off"] = hooks._ACTIVE.salt()
    found["after"] = lowered(*PRODUCTS["mm"])

    chooser: Any = importlib.import_module("tileguard.runtime.matmul_selector")
    with tileguard.enabled(model=None, matmul=True), broken(chooser, "planner_tiles", ZeroDivisionError):
        found["planner_fails"] = everything()
        found["planner_reasons"] = dict(tileguard.report().untouched)
    with tileguard.enabled(model=None, matmul=True), broken(product, "_like", RuntimeError):
        found["like_fails"] = lowered(*PRODUCTS["mm"])
    # Code that cannot be generated for one of our tiles is that tile's end, not the graph's.
    with tileguard.enabled(model=None, matmul=True), failing_sources(found["off"]["mm"]):
        found["source_fails"] = lowered(*PRODUCTS["mm"])

    def renamed(self: Any, template_choices: Any, something_else: Any) -> list[Any]:
        return []

    setattr(kind, name, renamed)
    try:
        with tileguard.enabled(model=None, matmul=True) as installed:
            found["renamed_installed"], found["renamed_patched"] = installed, vars(kind)[name] is not renamed
    finally:
        setattr(kind, name, original)
    with tileguard.enabled(matmul=True):
        found["champion"] = lowered(*PRODUCTS["mm"])
    models: Any = importlib.import_module("tileguard.models")
    with tileguard.enabled(matmul=True), missing(models):
        found["no_champion"] = lowered(*PRODUCTS["mm"])
    found["ranked"] = {mode: ranked(product, mode) for mode in ("union", "prune")}
    print(json.dumps(found))


def lowered(
    op: str, sizes: tuple[int, int, int, int], dtype: str, *, dynamic: bool = False, whole: bool = False, **tuning: Any
) -> list[dict[str, Any]]:
    """The choices that the host would have timed, or with `whole` does time: name and arguments of each, in order."""
    torch: Any = importlib.import_module("torch")
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    batch, m, n, k = sizes
    shapes: list[tuple[int, ...]] = [(n,)] if op == "addmm" else []
    shapes += [(batch, m, k), (batch, k, n)] if op == "bmm" else [(m, k), (k, n)]
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment)
    graph = torch.fx.Graph()
    target = getattr(torch.ops.aten, op).default
    with fake:
        size = symbolic(environment, k) if dynamic else k
        inputs = [
            torch.empty(
                [size if length == k else length for length in shape], dtype=getattr(torch, dtype), device="cuda"
            )
            for shape in shapes
        ]
    nodes = [graph.placeholder(f"arg{number}_1") for number in range(len(inputs))]
    product = graph.call_function(target, tuple(nodes))
    with fake:
        for node, value in zip((*nodes, product), (*inputs, target(*inputs)), strict=True):
            node.meta["val"] = value
    graph.output((product,))
    seen: list[list[Any]] = []
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"} | tuning

    class Watcher(InductorChoices):  # type: ignore[misc]
        def get_template_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
            listed: list[Any] = super().get_template_configs(*args, **kwargs)
            seen.append(listed)
            return listed if whole else [choice for choice in listed if not is_triton(choice)] or listed[:1]

    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    lowering = GraphLowering(module, example_inputs=inputs, shape_env=environment)
    with config.patch(settings), V.set_graph_handler(lowering), V.set_fake_mode(fake), V.set_choices_handler(Watcher()):
        lowering.run(*inputs)
    return [described(choice) for listed in seen for choice in listed]


def symbolic(environment: Any, hint: int) -> Any:
    """A size that may be any, for which `hint` stands."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource("k")
    symbol = environment.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
    return environment.create_symintnode(symbol, hint=hint, source=source)


def is_triton(choice: Any) -> bool:
    from torch._inductor.select_algorithm import TritonTemplateCaller

    return isinstance(choice, TritonTemplateCaller)


def described(choice: Any) -> dict[str, Any]:
    ktc = choice.annotations["ktc"]
    kwargs = {name: value for name, value in ktc.params.to_kwargs().items() if isinstance(value, int | str | None)}
    return {"template": ktc.template.uid, "ours": type(ktc).__name__.startswith("Tileguard")} | kwargs


def with_environment(values: Mapping[str, str], *given: Any, **more: Any) -> list[dict[str, Any]]:
    os.environ.update(values)
    try:
        return lowered(*given, **more)
    finally:
        for name in values:
            del os.environ[name]


@contextmanager
def broken(module: Any, name: str, error: type[Exception]) -> Iterator[None]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error("broken on purpose")

    before = getattr(module, name)
    setattr(module, name, fail)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def missing(models: Any) -> Iterator[None]:
    """No model is shipped."""
    before = models.model_path
    models.model_path = lambda family, hardware: None
    try:
        yield
    finally:
        models.model_path = before


@contextmanager
def failing_sources(host: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """The host can write no source for a tile that is not its own."""
    template: Any = importlib.import_module("torch._inductor.kernel.mm").mm_template
    own = {tuple(choice.get(name) for name in TILE) for choice in host}
    original = type(template).choice_or_none

    def choice_or_none(self: Any, **kwargs: Any) -> Any:
        if "BLOCK_M" in kwargs and tuple(kwargs[name] for name in TILE) not in own:
            raise RuntimeError("no source")
        return original(self, **kwargs)

    type(template).choice_or_none = choice_or_none
    try:
        yield
    finally:
        type(template).choice_or_none = original


def ranked(product: Any, mode: str) -> list[dict[str, Any]]:
    """With a ranker that likes the lattice's first tile best, and that was calibrated to need one tile."""
    from tests.matmul_world import H200, matmul_manifest
    from tests.support import FakeRanker
    from torch._inductor.choices import InductorChoices

    from tileguard.runtime.guard import GuardPolicy
    from tileguard.runtime.matmul_selector import MatmulSelector

    def scores(tiles: Sequence[Any]) -> Any:
        import numpy as np

        return -np.arange(len(tiles), dtype=np.float64)

    calibration = ({"k": 1, "kernels": 1000, "misses": 0, "upper": 0.003},)
    manifest = matmul_manifest(calibration=calibration)
    settings = product.MatmulSettings(mode=mode)
    hook = product.MatmulHook(settings, lambda index: H200, lambda: True)
    hook._selectors["h200"] = MatmulSelector(
        H200, model=FakeRanker(manifest, scores), top_k=1, policy=GuardPolicy(score_budget_s=60)
    )
    owner, name, wrap = hook.target()
    original = vars(owner)[name]
    setattr(InductorChoices, name, wrap(original))
    try:
        return lowered(*PRODUCTS["mm"])
    finally:
        setattr(owner, name, original)


if __name__ == "__main__":
    main()
