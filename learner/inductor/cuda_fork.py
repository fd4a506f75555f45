"""A process that has opened CUDA cannot fork one that may: keep it closed here, though torch keeps asking for GPUs."""

from __future__ import annotations

from typing import Any

from tileguard.runtime.optional import require

_COUNT = "_cuda_getDeviceCount"
_original: Any = None


def keep_cuda_closed() -> None:
    """Let `torch.cuda.is_available()` and the like say yes in this process without asking the driver; idempotent.

    Several modules of TorchInductor ask as they are imported. Where NVML answers them, nothing here is called.
    """
    global _original
    core = require("torch")._C
    if _original is None and hasattr(core, _COUNT):
        _original = getattr(core, _COUNT)
        setattr(core, _COUNT, lambda: 1)


def allow_cuda() -> None:
    """Undo `keep_cuda_closed`, in a forked process."""
    global _original
    if _original is not None:
        setattr(require("torch")._C, _COUNT, _original)
        _original = None
