"""Names of a host that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .locks import ForkLock


class Patches:
    """Wrappers in place of a host's attributes, and the way back."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._wrapped: dict[tuple[Any, str], tuple[Any, Any]] = {}  # (owner, name) -> our wrapper, the original

    def put(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `wrap` of it; nothing where that was done before. Raises KeyError where it is not there."""
        with self._lock:
            if (owner, name) not in self._wrapped:
                original = vars(owner)[name]
                wrapper = wrap(original)
                setattr(owner, name, wrapper)
                self._wrapped[owner, name] = wrapper, original

    def undo(self) -> None:
        """Put the originals back, the very objects; where someone wrapped our wrapper, theirs stays."""
        with self._lock:
            while self._wrapped:
                (owner, name), (wrapper, original) = self._wrapped.popitem()
                if vars(owner)[name] is wrapper:
                    setattr(owner, name, original)
