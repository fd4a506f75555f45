"""Where MLflow keeps trainings and models, and how it is spoken to: always by an explicit address, never loudly."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tileguard.features.errors import InvalidInput
from tileguard.runtime.optional import require

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_DIRECTORY = Path("out/mlflow")

_SERVERS = ("http", "https", "databricks")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True, slots=True)
class Store:
    """A tracking store and model registry: its URI, and where artifacts go (None: where the server says)."""

    uri: str
    artifacts: Path | None


def open_store(location: str | Path | None = None) -> Store:
    """The store at `location`: a directory, made if missing (mlflow.db and artifacts/ inside), or a URI of a tracking
    server or database. None means MLFLOW_TRACKING_URI, and without it ./out/mlflow.

    Relative paths are made absolute here, so that a later change of directory loses nothing. Raises InvalidInput for
    another kind of URI.
    """
    if location is None:
        location = os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_DIRECTORY
    text = str(location)
    scheme = text.partition(":")[0].partition("+")[0] if "://" in text or text == "databricks" else ""
    if scheme in _SERVERS:
        return Store(text, None)
    if scheme == "sqlite":
        path = text.partition(":///")[2]
        if not path or path.startswith((":", "?")):
            raise InvalidInput("location", text, "a SQLite file: sqlite:////absolute/path.db")
        database = Path(path).absolute()
        return _local_store(f"{text.partition(':')[0]}:///{database}", database.parent)
    if scheme in _DATABASES:
        return _local_store(text, DEFAULT_DIRECTORY.absolute())
    if scheme or text.startswith("file:"):
        kinds = ", ".join((*_SERVERS, *_DATABASES))
        raise InvalidInput("location", text, f"a directory, or a URI of one of {kinds}")
    directory = Path(location).expanduser().absolute()
    if any(sign in str(directory) for sign in "?#%"):
        raise InvalidInput(
            "location", str(directory), "a path without ?, # and %, which a database URI reads otherwise"
        )
    if directory.exists() and not directory.is_dir():
        raise InvalidInput("location", str(directory), "a directory")
    return _local_store(f"sqlite:///{directory / 'mlflow.db'}", directory)


def quiet(function: Callable[P, T]) -> Callable[P, T]:
    """`function` without MLflow's lines about tables made and runs viewed; its warnings stay."""

    @functools.wraps(function)
    def silenced(*args: P.args, **kwargs: P.kwargs) -> T:
        require("mlflow")  # it sets its own levels when imported
        loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(max(logger.level, logging.WARNING))
        try:
            return function(*args, **kwargs)
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

    return silenced


def client_of(store: Store) -> Any:
    """MLflow's client of this store alone, whatever the process's own settings say."""
    return require("mlflow").MlflowClient(tracking_uri=store.uri, registry_uri=store.uri)


def all_pages(search: Callable[..., Any]) -> list[Any]:
    """All results of a paged search."""
    found: list[Any] = []
    token = None
    while True:
        page = search(page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def is_error(error: Exception, *codes: str) -> bool:
    """Whether MLflow gave one of these as the error's code."""
    return getattr(error, "error_code", None) in codes


def _local_store(uri: str, directory: Path) -> Store:
    artifacts = directory / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    return Store(uri, artifacts)
