"""Matrix products of TorchInductor's max-autotune: the planner's tiles, and a model's, beside the host's own choices.

`InductorChoices._finalize_template_configs` is where the host has listed its choices and made none of them yet. What it
returns comes back as it was and first, ATen included; behind it come choices of the same template with other tiles,
in the order of MatmulSelector's set.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tileguard.features.errors import InvalidInput, checked_choice
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import DTYPE_ALIASES, MatmulKernel
from tileguard.features.tiles import MatmulTile

from ..calibration import checked_top_k
from ..feature_space import MATMUL
from ..guard import GuardPolicy
from ..matmul_selector import PRUNE_RISK, MatmulSelector, unlikely
from ..selector import DEFAULT_TOP_K, FORMULA, MODEL
from . import process_log
from .configs import Refused
from .digests import model_digests
from .matmul_log import SELECTED, TILE_NAMES, Selected, record_target
from .matmul_race import ADDED, check_parameters, race_target
from .telling import warn_once

FINALIZE = "_finalize_template_configs"
OPS = ("mm", "addmm", "bmm")

EVEN_K = "EVEN_K"
UNION, PRUNE = "union", "prune"
MODES = (UNION, PRUNE)


@dataclass(frozen=True, slots=True)
class MatmulSettings:
    """model, top_k, policy: as Selector takes them; a model of another family or hardware is not listened to, and the
    planner's tiles are then all that is added. mode: "union" only adds, "prune" also drops the host's tiles that
    `unlikely` finds, never ATen nor the host's first. Raises InvalidInput."""

    model: str | Path | None = "champion"
    top_k: int | str = DEFAULT_TOP_K
    policy: GuardPolicy = field(default_factory=GuardPolicy)
    mode: str = UNION

    def __post_init__(self) -> None:
        checked_top_k(self.top_k)
        checked_choice("matmul", self.mode, MODES)

    @property
    def uuid(self) -> str:
        """What the lists depend on, but for the version; part of the graph cache's key. Changes with the model's files."""
        files = hashlib.sha256("\n".join(model_digests(self.model, MATMUL)).encode()).hexdigest()
        return f"matmul {self.mode} {self.top_k} {self.policy!r} {files if self.model is not None else 'planner'}"


def matmul_settings(
    matmul: object,
    *,
    model: str | Path | None = "champion",
    top_k: int | str = DEFAULT_TOP_K,
    policy: GuardPolicy | None = None,
) -> MatmulSettings | None:
    """Of `install(matmul=…)`: False, True, or a mode by name. Raises InvalidInput."""
    if matmul is False:
        return None
    if matmul is not True and matmul not in MODES:
        raise InvalidInput("matmul", matmul, f"True, False, {UNION!r} or {PRUNE!r}")
    mode = UNION if matmul is True else str(matmul)
    return MatmulSettings(model, top_k, policy or GuardPolicy(), mode)


class MatmulHook:
    """The union for every product that the host tunes.

    hardware: index of a device -> what it is; active: whether the hook is on at the moment.
    """

    def __init__(
        self, settings: MatmulSettings, hardware: Callable[[int], HardwareSpec], active: Callable[[], bool]
    ) -> None:
        self.settings = settings
        self._hardware, self._active = hardware, active
        self._selectors: dict[str, MatmulSelector] = {}

    def target(self) -> tuple[Any, str, Callable[[Any], Any]]:
        """What to patch, for Patches.put. Raises where torch's names or signatures are other ones."""
        from torch._inductor.choices import InductorChoices
        from torch._inductor.kernel_inputs import MMKernelInputs
        from torch._inductor.kernel_template_choice import KernelTemplateChoice

        _templates()
        given = ("self", "template_choices", "kernel_inputs", "templates", "op_name", "kwarg_overrides")
        check_parameters(getattr(InductorChoices, FINALIZE), given)
        check_parameters(
            KernelTemplateChoice.__init__, ("self", "template", "params", "extra_kwargs", "layout", "inputs")
        )
        for name in ("mnk_hinted", "mnk_symbolic", "batch_hinted"):
            check_parameters(getattr(MMKernelInputs, name), ("self",))
        return InductorChoices, FINALIZE, self.wrap

    def wrap(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The method that calls `original` and adds to what it returns; on any failure just that."""

        @functools.wraps(original)
        def finalize(
            choices: Any, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str,
            kwarg_overrides: Any = None,
        ) -> list[Any]:  # fmt: skip
            listed = original(choices, template_choices, kernel_inputs, templates, op_name, kwarg_overrides)
            try:
                if self._active():
                    return self.united(listed, kernel_inputs, op_name)
            except Refused as refusal:
                process_log.current().count_untouched(f"matmul_{refusal}")
            except Exception as error:
                process_log.current().count_untouched("matmul_error")
                warn_once("tileguard leaves a matrix product as it is", error)
            return listed

        return finalize

    def united(self, listed: list[Any], kernel_inputs: Any, op_name: str) -> list[Any]:
        """`listed` with the tiles that it lacks; itself where the host lists no tile of its plain template.

        Raises Refused for a product that must stay as it is.
        """
        from torch._inductor import config

        if not isinstance(listed, list):
            raise Refused("choices")
        templates = _templates()
        own = [choice for choice in listed if choice.template.uid in templates]
        if not own or not (config.max_autotune or config.max_autotune_gemm):
            return listed
        if op_name not in OPS:
            raise Refused("op")
        if config.deterministic:
            raise Refused("deterministic")  # the host times nothing, and takes by the order of the list
        given = [choice.params.to_kwargs() for choice in own]
        even = _even_k(kernel_inputs)
        _check_given(given, even)
        device = kernel_inputs.device()
        if device.type != "cuda" or _is_hip():
            raise Refused("device")
        hardware = self._hardware(device.index or 0)
        kernel = _kernel(kernel_inputs, {**own[0].extra_kwargs, **given[0]})
        host = [MatmulTile(*_tile_key(kwargs)) for kwargs in given]
        selector = self.selector(hardware)
        chosen = selector.select(kernel, host)
        if not (chosen.proposed_by(FORMULA) or chosen.proposed_by(MODEL)):
            raise Refused("hardware")
        known = set(host)
        added = [_like(own[0], given[0], tile, even) for tile in chosen.tiles if tile not in known]
        selected = Selected(op_name, chosen, templates)
        for choice in added:
            setattr(choice, SELECTED, selected)
        if self.settings.mode == UNION:
            return [*listed, *added]
        bad = unlikely(chosen, selector.calibrated_k(PRUNE_RISK))
        dropped = {id(choice) for choice, tile in zip(own, host, strict=True) if tile in bad}
        return [*(choice for choice in listed if id(choice) not in dropped), *added]

    def selector(self, hardware: HardwareSpec) -> MatmulSelector:
        """The selector of a hardware, made when first needed."""
        if hardware.name not in self._selectors:
            given = self.settings
            made = MatmulSelector(hardware, model=given.model, top_k=given.top_k, policy=given.policy)
            self._selectors.setdefault(hardware.name, made)
        return self._selectors[hardware.name]


def product_targets(
    settings: MatmulSettings | None, hardware: Callable[[int], HardwareSpec], active: Callable[[], bool]
) -> tuple[tuple[Any, str, Callable[[Any], Any]], ...]:
    """What to patch for products; nothing where they are not asked for, or (told once) torch is not as expected."""
    if settings is None:
        return ()
    try:
        targets = (MatmulHook(settings, hardware, active).target(), race_target(active))
    except Exception as error:
        warn_once("tileguard leaves matrix products as they are", error)
        return ()
    try:
        return (*targets, record_target(active))
    except Exception as error:
        warn_once("tileguard keeps no records of matrix products", error)
        return targets


def _kernel(kernel_inputs: Any, constants: dict[str, Any]) -> MatmulKernel:
    """The product. Raises Refused where the features do not cover it."""
    shapes, strides = kernel_inputs.shapes_hinted(), kernel_inputs.strides_hinted()
    a, b = kernel_inputs._mat1_idx, kernel_inputs._mat2_idx
    dtypes = [str(kernel_inputs.dtype(index)).removeprefix("torch.") for index in (a, b)]
    if dtypes[0] != dtypes[1]:
        raise Refused("mixed_dtypes")
    dtype = DTYPE_ALIASES.get(dtypes[0], dtypes[0])
    if dtype == "fp32" and constants.get("ALLOW_TF32") in (True, "True"):
        dtype = "tf32"
    m, n, k = (int(size) for size in kernel_inputs.mnk_hinted())

    def transposed(index: int) -> bool:
        """Whether the rows' axis is the contiguous one."""
        return bool(strides[index][-1] != 1 and shapes[index][-1] != 1)

    out_dtype = str(kernel_inputs.out_dtype()).removeprefix("torch.")
    try:
        return MatmulKernel(
            int(kernel_inputs.batch_hinted()), m, n, k, dtype, out_dtype, transposed(a), transposed(b)
        )  # fmt: skip
    except InvalidInput as error:
        raise Refused(f"unsupported_{error.field}") from None


def _check_given(given: Sequence[dict[str, Any]], even: Callable[[int], bool]) -> None:
    """Raise Refused unless the host's choices differ by what a tile says, and by EVEN_K as it is understood here."""
    for kwargs in given:
        if not {*TILE_NAMES, EVEN_K} <= kwargs.keys():
            raise Refused("template")
        if _rest(kwargs) != _rest(given[0]) or bool(kwargs[EVEN_K]) != even(kwargs["BLOCK_K"]):
            raise Refused("template")


def _rest(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in (*TILE_NAMES, EVEN_K)}


def _even_k(kernel_inputs: Any) -> Callable[[int], bool]:
    """Whether BLOCK_K divides K for sure; symbolic sizes included."""
    from torch._inductor.virtualized import V

    k = kernel_inputs.mnk_symbolic()[2]
    return lambda block_k: bool(V.graph.sizevars.statically_known_multiple_of(k, block_k))


def _like(choice: Any, kwargs: dict[str, Any], tile: MatmulTile, even: Callable[[int], bool]) -> Any:
    """A choice of the host's own kind, with another tile."""
    changed = kwargs | dict(zip(TILE_NAMES, tile.sort_key, strict=True)) | {EVEN_K: even(tile.block_k)}
    kind: Any = type(choice)
    return _added_kind(kind)(
        template=choice.template, params=type(choice.params)(changed), extra_kwargs=choice.extra_kwargs,
        layout=choice.layout, inputs=choice.inputs,
    )  # fmt: skip


@functools.cache
def _added_kind(host: Hashable) -> Any:
    """The host's kind of choice; where its code cannot be generated it is none, and the lowering goes on."""

    def choice(added: Any) -> Any:
        try:
            return of_host.fget(added)
        except Exception as error:
            warn_once("tileguard leaves a tile of a matrix product out", error)
            added._choice = None
            return None

    assert isinstance(host, type)
    of_host: Any = inspect.getattr_static(host, "choice")
    own = {"choice": property(choice), "__module__": __name__, ADDED: True}
    return type("TileguardTemplateChoice", (host,), own)


def _tile_key(kwargs: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(kwargs[name]) for name in TILE_NAMES)


def _templates() -> frozenset[str]:
    """The templates whose tiles are the planner's: plain products, without TMA and without a split K."""
    from torch._inductor.kernel.bmm import bmm_template
    from torch._inductor.kernel.mm import mm_template

    return frozenset((mm_template.uid, bmm_template.uid))


def _is_hip() -> bool:
    import torch

    return torch.version.hip is not None
