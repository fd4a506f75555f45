"""A kernel's arguments as plain data, and arguments like them again: a kernel is timed in another process than it was
captured in, and once more months later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.runtime.optional import require

SAMPLES = 256
"""Values of an integer tensor that are kept: indices must stay within their range, and real ones do."""

SCALARS = (bool, int, float)


def describe_args(names: Sequence[str], args: Sequence[Any]) -> list[Any]:
    """One JSON value an argument: a scalar as it stands, a tensor as an object.

    names: of the arguments; what is read has one that begins with `in`. Of a tensor: `shape`, `stride`, `offset`
    (elements), `dtype`, `storage` (equal for tensors that share memory), and `values` of an integer one that is read.
    Raises InvalidInput for an argument of another kind.
    """
    torch = require("torch")
    described: list[Any] = []
    storages: dict[int, int] = {}
    for name, value in zip(names, args, strict=False):
        if isinstance(value, SCALARS):
            described.append(value)
            continue
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(name, type(value).__name__, "a tensor or a number")
        storage = storages.setdefault(value.untyped_storage().data_ptr(), len(storages))
        one: dict[str, Any] = {
            "shape": list(value.shape), "stride": list(value.stride()), "offset": value.storage_offset(),
            "dtype": str(value.dtype).removeprefix("torch."), "storage": storage,
        }  # fmt: skip
        if name.startswith("in") and not value.dtype.is_floating_point:
            one["values"] = _sample(torch, value)
        described.append(one)
    return described


def build_args(described: Sequence[Any], *, device: str, seed: int = 0) -> list[Any]:
    """Arguments of the same sizes, strides, sharing and kind of content: normally distributed, or the kept integers.

    Raises InvalidInput for what `describe_args` did not write.
    """
    torch = require("torch")
    generator = torch.Generator(device=device).manual_seed(seed)
    storages: dict[int, Any] = {}
    for one in described:
        if isinstance(one, Mapping):
            needed = _bytes(torch, one)
            held = storages.get(one["storage"])
            if held is None or held.numel() < needed:
                storages[one["storage"]] = torch.zeros(needed, dtype=torch.uint8, device=device)
        elif not isinstance(one, SCALARS):
            raise InvalidInput("args", one, "what a sweep of TorchInductor's kernels holds")
    tensors = [one for one in described if isinstance(one, Mapping)]
    filled: set[int] = set()
    for one in sorted(tensors, key=lambda one: "values" not in one):
        if one["storage"] not in filled:
            filled.add(one["storage"])
            typed = storages[one["storage"]].view(getattr(torch, one["dtype"]))
            _fill(torch, typed, one.get("values"), generator)
    return [
        torch.as_strided(
            storages[one["storage"]].view(getattr(torch, one["dtype"])), one["shape"], one["stride"], one["offset"]
        )
        if isinstance(one, Mapping)
        else one
        for one in described
    ]


def _sample(torch: Any, tensor: Any) -> list[int]:
    """Values from all over an integer tensor, those at both ends of its range among them."""
    flat = tensor.reshape(-1)
    if not flat.numel():
        return []
    places = torch.linspace(0, flat.numel() - 1, min(SAMPLES, flat.numel()), device=flat.device).long()
    picked = flat[places.clamp_(0, flat.numel() - 1)]
    if tensor.dtype is not torch.bool:
        picked = torch.cat([picked, flat.min().reshape(1), flat.max().reshape(1)])
    return [int(value) for value in picked.tolist()]


def _bytes(torch: Any, one: Mapping[str, Any]) -> int:
    """Up to the last element, rounded up to what any dtype divides."""
    last: int = one["offset"] + sum(
        (size - 1) * stride for size, stride in zip(one["shape"], one["stride"], strict=True)
    )
    elements = last + 1 if all(one["shape"]) else 1
    size: int = torch.empty((), dtype=getattr(torch, one["dtype"])).element_size()
    return -(-elements * size // 16) * 16


def _fill(torch: Any, flat: Any, values: Sequence[int] | None, generator: Any) -> None:
    if values:
        given = torch.tensor(values, dtype=flat.dtype, device=flat.device)
        flat.copy_(given.repeat(-(-flat.numel() // len(values)))[: flat.numel()])
    elif flat.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        flat.normal_(generator=generator)
    elif flat.dtype.is_floating_point:  # eight bits: no generator makes them
        flat.copy_(torch.randn(flat.numel(), device=flat.device, generator=generator))
