"""Typed errors. The command line prints one line of them and exits with 2; in a host compiler none of them escapes."""

from __future__ import annotations

import operator
from collections.abc import Sequence

MAX_NUMEL = 1 << 62
"""Largest element count taken: past it, products with a block size no longer fit 64-bit integers."""

MAX_COUNT = 1 << 20
"""Largest number of buffers, reductions or bytes taken: far above any kernel, far below trouble."""


class TileguardError(Exception):
    """Base of every error that tileguard raises on purpose."""


class InvalidInput(TileguardError, ValueError):
    """A value that cannot be used; names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: {value!r} is not allowed; expected {allowed}")


class MissingDependency(TileguardError, ImportError):
    """An optional library is absent; names the extra that installs it."""


def checked_int(field: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """`value` as a plain int within the bounds (the upper a power of two); bool and float are refused, numpy integers are taken."""
    if type(value) is int and value >= minimum and (maximum is None or value <= maximum):
        return value
    allowed = f"an integer >= {minimum}"
    if isinstance(value, bool):
        raise InvalidInput(field, value, allowed)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(field, value, allowed) from None
    if number < minimum:
        raise InvalidInput(field, value, allowed)
    if maximum is not None and number > maximum:
        raise InvalidInput(field, value, f"an integer <= 2^{maximum.bit_length() - 1}")
    return number


def checked_choice(field: str, value: object, choices: Sequence[str]) -> str:
    """`value` when it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(field, value, "one of " + ", ".join(choices))
    return value


def checked_type(field: str, value: object, kind: type) -> None:
    """Raise InvalidInput unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidInput(field, value, f"a {kind.__name__}")
