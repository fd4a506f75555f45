"""The folder of a champion: a new model is put there in one step, the old one kept beside it and brought back.

What was replaced lies in `.replaced/NAME/TIME-ONNX12` beside the folder NAME, in the order of its times. A kill at any
moment leaves the old champion or the new one in the folder, whole, and the old one among the replaced.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tileguard.features.errors import InvalidInput
from tileguard.runtime.ranker import MANIFEST_FILE, ONNX_FILE

from .card import CARD_FILE

REPLACED = ".replaced"
FILES = (ONNX_FILE, MANIFEST_FILE, CARD_FILE)
STAGING = ".new."
DIGITS = 12
"""Digits of a digest that name a model to people."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True, slots=True)
class Replaced:
    """A former champion: where it lies, the first digits of its ONNX file's SHA-256, and when it was replaced (UTC)."""

    folder: Path
    onnx12: str
    replaced: str


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of a model's folder by name, those of FILES that it has; {} where there is no folder.

    Raises InvalidInput for a folder without a model, or with more in it: nothing else is ever replaced or removed.
    """
    if not folder.exists():
        return {}
    found = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    if MANIFEST_FILE not in found and ONNX_FILE not in found:
        raise InvalidInput("folder", str(folder), f"a model's folder, with {MANIFEST_FILE} and {ONNX_FILE}")
    if others := sorted(path.name for path in folder.iterdir() if path.name not in found):
        raise InvalidInput("folder", f"{folder} with {others[0]}", f"a folder of {', '.join(FILES)} and nothing else")
    return found


def onnx_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of a model's ONNX file; "" where it has none."""
    return hashlib.sha256(files[ONNX_FILE]).hexdigest() if ONNX_FILE in files else ""


def replaced(folder: Path) -> tuple[Replaced, ...]:
    """What stood in `folder` before, newest first."""
    found = []
    for path in sorted(_history(Path(os.path.realpath(folder))).glob("[!.]*-*"), reverse=True):
        stamp, _, onnx12 = path.name.rpartition("-")
        if path.is_dir():
            found.append(Replaced(path, onnx12, stamp))
    return tuple(found)


def install(files: Mapping[str, bytes], folder: Path, *, expected: str | None = None) -> Replaced | None:
    """Put a model into `folder`; what stood there before, as it is kept now.

    expected: digest of the ONNX file that must stand there ("": none), so that what was judged is what is replaced.
    Raises InvalidInput where another one does, and OSError with everything as it was.
    """
    folder = Path(os.path.realpath(folder))  # a link to a folder stays one
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        before = read_files(folder)
        if expected is not None and onnx_digest(before) != expected:
            raise InvalidInput("champion", str(folder), f"the model {expected[:DIGITS] or '(none)'} that was judged")
        for left in _history(folder).glob(STAGING + "*"):  # by a killed process: the lock says that none is at work
            shutil.rmtree(left, ignore_errors=True)
        kept = _keep(before, folder) if before else None
        staging = _written(files, _history(folder))
        try:
            if before:
                _exchange(staging, folder)
            else:
                staging.rename(folder)
        except BaseException:
            if kept is not None and onnx_digest(read_files(folder)) == onnx_digest(before):
                shutil.rmtree(kept.folder, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return kept


def bring_back(folder: Path, onnx12: str | None = None) -> tuple[Replaced, Replaced | None]:
    """Put a former champion back (left out: the last one replaced): (it, what it replaced in turn, kept as well).

    Twice in a row is therefore the first state again. onnx12: first digits of the digest of another one. Raises
    InvalidInput where there is none.
    """
    now = _model(read_files(folder))
    # A kill between keeping and replacing leaves a copy of what is still there.
    known = [one for one in replaced(folder) if _model(read_files(one.folder)) != now]
    if not known:
        raise InvalidInput("folder", str(folder), "a folder whose model was replaced before; nothing is kept for it")
    chosen = next((one for one in known if onnx12 is None or one.onnx12.startswith(onnx12[:DIGITS])), None)
    if chosen is None:
        raise InvalidInput("to", onnx12, "one of " + ", ".join(dict.fromkeys(one.onnx12 for one in known)))
    kept = install(read_files(chosen.folder), folder)
    shutil.rmtree(chosen.folder, ignore_errors=True)
    return chosen, kept


def check_writable(folder: Path) -> None:
    """Raise InvalidInput where nothing could be installed, before hours of judging."""
    at = Path(os.path.realpath(folder))
    if at.exists() and not at.is_dir():
        raise InvalidInput("into", str(folder), "a folder")
    nearest = at.parent
    while not nearest.exists():
        nearest = nearest.parent
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidInput("into", str(folder), f"a folder that can be replaced; {nearest} cannot be written")
    read_files(at)


def _model(files: Mapping[str, bytes]) -> tuple[bytes | None, bytes | None]:
    """What makes a model itself: not its card, to which decisions are added."""
    return files.get(ONNX_FILE), files.get(MANIFEST_FILE)


def _history(folder: Path) -> Path:
    return folder.parent / REPLACED / folder.name


def _keep(files: Mapping[str, bytes], folder: Path) -> Replaced:
    """A copy of a folder's model among the replaced; its name appears once it is complete."""
    history = _history(folder)
    onnx12 = onnx_digest(files)[:DIGITS] or "unreadable"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    staging = _written(files, history)
    path = history / f"{stamp}-{onnx12}"
    staging.rename(path)
    return Replaced(path, onnx12, stamp)


def _written(files: Mapping[str, bytes], history: Path) -> Path:
    """A new folder with `files`, on the disk before this returns."""
    folder = Path(tempfile.mkdtemp(dir=history, prefix=STAGING))
    try:
        for name, content in files.items():
            with (folder / name).open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        folder.chmod(0o755)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _exchange(one: Path, other: Path) -> None:
    """Swap two folders in one step (Linux); elsewhere file by file into `other`, the manifest last but for the card.

    Between the files the digest in the manifest is not the ONNX file's, which the guard refuses: a selection then falls
    back to the formula, and never listens to half a model.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        renameat2 = None
    if renameat2 is not None:
        if not renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
            return
        code = ctypes.get_errno()
        # A file system that cannot (EINVAL), a kernel that does not know it, a folder of a container's lower layer.
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.ENOTSUP):
            raise OSError(code, os.strerror(code), str(other))
    for name in FILES:
        if (one / name).is_file():
            (one / name).replace(other / name)
        else:
            (other / name).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One installation at a time, where the system has locks; a killed process holds none. Makes the history."""
    history = _history(folder)
    history.mkdir(parents=True, exist_ok=True)
    ignore = history.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (history / ".lock").open("a") as stream:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
