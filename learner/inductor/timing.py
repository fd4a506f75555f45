"""Compiling one tile of a captured kernel, and timing all that compiled: what runs in the collector's processes.

Times are CUPTI's kernel durations: the L2 is overwritten before every launch, all tiles are launched in every round, in
a new random order, and a tile's time is the mean of the middle half of its rounds: CUPTI counts in ticks of 32 ns, which
is 3 % of a kernel of 1 µs, and a mean of many rounds tells apart what a median of ticks cannot.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
import subprocess
import time
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.hooks.gpu import gpu_hardware
from tileguard.runtime.optional import require

from .args import build_args
from .cuda_fork import allow_cuda
from .cupti import CuptiStopwatch
from .swept import Row, SweptKernel

LOOK_ROUNDS, ROUNDS, FEWEST_ROUNDS = 2, 9, 5
"""Rounds in which every tile runs; further ones for those not hopeless, and the fewest where a round is long."""

SHORT_US, SHORT_ROUNDS = 6.0, 31
"""A kernel whose best tile is shorter gets so many rounds: each costs next to nothing, and ticks are coarse."""

MOST_ROUNDS_S = 1.0
"""Of one kernel's further rounds: where they would take longer, they are fewer."""

HEURISTICS_LOG = "torch._inductor.runtime.triton_heuristics"

DEVICE = "cuda"
"""Where arguments lie."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a sweep runs on. toolchain: what times must share to compare; facts: the rest that is worth knowing."""

    hardware: HardwareSpec
    toolchain: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class CompileJob:
    kernel: SweptKernel
    tile: Any


@dataclass(frozen=True, slots=True)
class CompiledTile:
    """Milliseconds, and the binary's digest where it is known."""

    ms: float
    digest: str | None


@dataclass(frozen=True, slots=True)
class TimingJob:
    """digests: of the tiles' binaries, None where not known."""

    kernel: SweptKernel
    tiles: tuple[Any, ...]
    digests: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class GridLauncher:
    """The host's launcher of a template's kernel, with the grid that it has to be given."""

    launcher: Any
    grid: tuple[int, ...]

    @property
    def config(self) -> Any:
        return self.launcher.config

    def __call__(self, *args: Any, stream: Any) -> None:
        self.launcher(*args, *self.grid, stream=stream)


class Stopwatch(Protocol):
    """Launches and times what was compiled."""

    def launch(self, launcher: Any, args: Sequence[Any]) -> None:
        """One launch, not timed. Raises whatever the driver says."""

    def time(self, launchers: Sequence[Any], args: Sequence[Any], rounds: int) -> list[list[float]]:
        """Durations in µs, one list a launcher."""


def tile_compiler() -> Callable[[CompileJob], CompiledTile]:
    """What compiles a tile into Triton's cache; for a process of its own, which never opens the GPU."""
    allow_cuda()
    logging.getLogger(HEURISTICS_LOG).setLevel(logging.CRITICAL)  # else a traceback a failure

    def compile_tile(job: CompileJob) -> CompiledTile:
        autotuner = load_kernel(job.kernel, job.tile)
        began = time.perf_counter()
        result = autotuner._precompile_config(job.kernel.config(job.tile))
        return CompiledTile((time.perf_counter() - began) * 1e3, _digest(result.kernel))

    return compile_tile


def tile_timer() -> Callable[[TimingJob | None], Machine | list[Row]]:
    """What times the tiles of a kernel, or given None says what machine this is; for the one process with the GPU."""
    torch = require("torch")
    allow_cuda()
    logging.getLogger(HEURISTICS_LOG).setLevel(logging.CRITICAL)
    stopwatch = make_stopwatch()

    def run(job: TimingJob | None) -> Machine | list[Row]:
        if job is None:
            return machine()
        rows = time_tiles(job, stopwatch)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return rows

    return run


def time_tiles(job: TimingJob, stopwatch: Stopwatch) -> list[Row]:
    """One row a tile, in order, then one a reference of the kernel's. Raises what the stopwatch raises.

    A row has `us`, `us_min`, `mad`, `reps`, of a tile `regs`, `spills`, `shared`, or it has `error`. Where the binary is
    that of an earlier tile with another num_stages, it has that one's.
    """
    args = build_args(job.kernel.args, device=DEVICE)
    rows: list[Row] = []
    launchers: dict[int, Any] = {}
    first: dict[Hashable, int] = {}
    for place, (tile, digest) in enumerate(zip(job.tiles, job.digests, strict=True)):
        same = first.setdefault((digest or place, job.kernel.twin(tile)), place)
        if same != place:
            rows.append(rows[same])
            continue
        try:
            autotuner = load_kernel(job.kernel, tile)
            launcher = autotuner._precompile_config(job.kernel.config(tile)).make_launcher()
            row = {"regs": launcher.n_regs, "spills": launcher.n_spills, "shared": launcher.shared}
            grid = job.kernel.grid(tile)
            launchers[place] = GridLauncher(launcher, grid) if grid else launcher
            stopwatch.launch(launchers[place], args)
        except Exception as error:
            launchers.pop(place, None)
            row = {"error": error_text(error)}
        rows.append(row)
    references = range(len(rows), len(rows) + len(job.kernel.references()))
    for place, reference in zip(references, job.kernel.references().values(), strict=True):
        try:
            stopwatch.launch(reference, args)
            launchers[place] = reference
            rows.append({})
        except Exception as error:
            rows.append({"error": error_text(error)})
    timed = interleaved(launchers, args, stopwatch, hopeless=job.kernel.hopeless, always=references)
    for place, times in timed.items():
        rows[place].update(summary(times))
    return rows


def interleaved(
    launchers: dict[int, Any],
    args: Sequence[Any],
    stopwatch: Stopwatch,
    *,
    hopeless: float,
    always: Container[int] = (),
) -> dict[int, list[float]]:
    """µs of every round that counts: of a hopeless one the first look, of the others the rounds after it. `always`:
    places that are never hopeless, nor what others are measured by."""
    if not launchers:
        return {}
    places = list(launchers)
    looks = dict(zip(places, stopwatch.time(list(launchers.values()), args, LOOK_ROUNDS), strict=True))
    best = min((min(looks[place]) for place in places if place not in always), default=0.0)
    kept = [place for place in places if place in always or min(looks[place]) < hopeless * best]
    round_s = sum(min(looks[place]) for place in kept) / 1e6
    wanted = SHORT_ROUNDS if 0.0 < best < SHORT_US else ROUNDS
    rounds = min(wanted, max(FEWEST_ROUNDS, int(MOST_ROUNDS_S / max(round_s, 1e-9))))
    return looks | dict(zip(kept, stopwatch.time([launchers[place] for place in kept], args, rounds), strict=True))


def summary(times: Sequence[float]) -> Row:
    """Mean of the middle half (`us`), median, minimum, median absolute deviation and number of rounds, µs."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    middle = statistics.median(ordered)
    spread = statistics.median(abs(us - middle) for us in ordered)
    times_us = {
        "us": statistics.fmean(ordered[cut : len(ordered) - cut]), "us_median": middle, "us_min": ordered[0], "mad": spread
    }  # fmt: skip
    return {name: round(us, 4) for name, us in times_us.items()} | {"reps": len(ordered)}


def error_text(error: BaseException) -> str:
    """Type and first line; what ran out of a resource says so in the words that an import looks for."""
    name = type(error).__name__
    ran_out = "out of resource" in str(error) or name == "OutOfMemoryError"
    line = next(iter(str(error).splitlines()), "")
    return f"{'OutOfResources' if ran_out else name}: {line}"[:200]


def load_kernel(kernel: SweptKernel, tile: Any) -> Any:
    """The host's `CachingAutotuner` of a tile's generated source, in this process; nothing is compiled yet."""
    from torch._inductor.codecache import PyCodeCache

    return getattr(PyCodeCache.load(kernel.code(tile)), kernel.kernel)


def make_stopwatch() -> Stopwatch:
    """The one of this process's GPU."""
    return CuptiStopwatch(DEVICE)


def machine() -> Machine:
    """The GPU and the software of this process."""
    torch = require("torch")
    triton = require("triton")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts = {"gpu": str(properties.name), "cuda": str(torch.version.cuda), "driver": _driver()}
    return Machine(
        gpu_hardware(properties), f"torch {torch.__version__}, triton {triton.__version__}",
        {name: fact for name, fact in facts.items() if fact},
    )  # fmt: skip


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(shown.split()), "")


def _digest(kernel: Any) -> str | None:
    """SHA-256 of a compiled kernel's binary: Triton's own object holds it, the host's static one a path to it."""
    binary = getattr(kernel, "asm", {}).get("cubin") if hasattr(kernel, "asm") else None
    path = getattr(kernel, "cubin_path", None)
    try:
        if binary is None and path:
            binary = Path(path).read_bytes()
    except OSError:
        return None
    return hashlib.sha256(binary).hexdigest() if isinstance(binary, bytes) else None
