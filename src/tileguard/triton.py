"""`tileguard.triton.prune` for `@triton.autotune`; see `tileguard.runtime.hooks.triton`."""

from tileguard.runtime.hooks.triton import BLOCK_NAMES, DEFAULT_MAX_EXTRA, Outcome, counts, prune

__all__ = ["BLOCK_NAMES", "DEFAULT_MAX_EXTRA", "Outcome", "counts", "prune"]
