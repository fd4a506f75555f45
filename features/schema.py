"""FeatureSchema: which numbers, in which order. A model and a program agree by its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from .errors import InvalidInput


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """Ordered feature names of one kernel family. `version` rises when a feature changes meaning, not name."""

    family: str
    version: int
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise InvalidInput("names", self.names, "one or more distinct feature names")

    @property
    def digest(self) -> str:
        """SHA-256 over family, version and names: equal digests mean interchangeable feature matrices."""
        text = json.dumps([self.family, self.version, list(self.names)], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
