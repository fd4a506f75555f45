"""Where MLflow keeps trainings and models, and how it is spoken to: always by an explicit address, never loudly, and
never with a password in what is printed, logged or raised."""

from __future__ import annotations

import functools
import logging
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tileguard.features.errors import InvalidInput, TileguardError
from tileguard.runtime.optional import require

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_DIRECTORY = Path("out/mlflow")

STORE_VARIABLE = "TILEGUARD_STORE"
"""The environment's word for `--store`, before MLflow's own."""
ARTIFACTS_VARIABLE = "TILEGUARD_ARTIFACTS"
"""The folder of artifacts for a database that is named by its URI; left out, a folder beside it, or out/mlflow."""

_SERVERS = ("http", "https", "databricks")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Import names whose package has another one."""

REACH_S = 10.0
"""How long a server may take to answer at first: MLflow itself would try for minutes."""


class StoreError(TileguardError):
    """The store cannot be reached, or MLflow failed there with a message that had to be redacted."""


@dataclass(frozen=True, slots=True)
class Store:
    """A tracking store and model registry. uri: without password, fit to be printed. artifacts: where they go (None:
    where the server says). secret_uri: with password, where there is one; `address` is what MLflow is to be told."""

    uri: str
    artifacts: Path | None
    secret_uri: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return self.secret_uri or self.uri


def open_store(location: str | Path | None = None) -> Store:
    """The store at `location`: a directory, made if missing (mlflow.db and artifacts/ inside), or a URI of a tracking
    server or database. None means TILEGUARD_STORE, else MLFLOW_TRACKING_URI, and without both ./out/mlflow.

    Relative paths are made absolute here, so that a later change of directory loses nothing. Raises InvalidInput for
    another kind of URI.
    """
    if location is None:
        location = os.environ.get(STORE_VARIABLE) or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_DIRECTORY
    text = str(location)
    scheme = text.partition(":")[0].partition("+")[0] if "://" in text or text == "databricks" else ""
    if scheme in _SERVERS:
        return _store(text, None)
    if scheme == "sqlite":
        path = text.partition(":///")[2]
        if not path or path.startswith((":", "?")):
            raise InvalidInput("location", text, "a SQLite file: sqlite:////absolute/path.db")
        database = Path(path).absolute()
        return _local_store(f"{text.partition(':')[0]}:///{database}", _artifacts(database.parent))
    if scheme in _DATABASES:
        if text.startswith("postgresql://") and find_spec("psycopg2"):
            # What a bare name means depends on SQLAlchemy's version; psycopg 3 need not be there.
            text = text.replace("postgresql://", "postgresql+psycopg2://", 1)
        return _local_store(text, _artifacts(DEFAULT_DIRECTORY.absolute()))
    if scheme or text.startswith("file:"):
        kinds = ", ".join((*_SERVERS, *_DATABASES))
        raise InvalidInput("location", redacted(text), f"a directory, or a URI of one of {kinds}")
    directory = Path(location).expanduser().absolute()
    if any(sign in str(directory) for sign in "?#%"):
        raise InvalidInput(
            "location", str(directory), "a path without ?, # and %, which a database URI reads otherwise"
        )
    if directory.exists() and not directory.is_dir():
        raise InvalidInput("location", str(directory), "a directory")
    return _local_store(f"sqlite:///{directory / 'mlflow.db'}", directory / "artifacts")


def redacted(uri: str) -> str:
    """A URI without password: `scheme://user:password@host` -> `scheme://user@host`; parameters that look like one are
    left out. What else stands there stays."""
    body, mark, query = uri.partition("?")
    if "@" in query and "@" not in body:  # a password with a question mark in it
        body, mark, query = uri, "", ""
    body = _PASSWORD.sub(r"\1@", body)
    kept = [pair for pair in query.split("&") if pair.startswith("passfile=") or not _SECRET.search(pair)]
    return body + (mark + "&".join(kept) if any(kept) else "")


_PASSWORD = re.compile(r"^([^:/?]+://[^:/@]*):.*@")
"""The password ends at the last @, and what databases allow in one, slashes for one, is taken for it."""
_USER = re.compile(r"//[^/]*@")
_SECRET = re.compile(r"pass|pwd|secret|token|credential", re.IGNORECASE)


def quiet(function: Callable[P, T]) -> Callable[P, T]:
    """`function` without MLflow's lines about tables made and runs viewed; its warnings stay. A failure whose words hold
    the password of the function's store becomes a StoreError without it."""

    @functools.wraps(function)
    def silenced(*args: P.args, **kwargs: P.kwargs) -> T:
        require("mlflow")  # it sets its own levels when imported
        loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(max(logger.level, logging.WARNING))
        try:
            return function(*args, **kwargs)
        except Exception as error:
            store = next((value for value in (*args, *kwargs.values()) if isinstance(value, Store)), None)
            words = str(error)
            if store is None or (clean := _without_secrets(words, store.address)) == words:
                raise
            raise StoreError(f"{store.uri}: {clean}") from None
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

    return silenced


def client_of(store: Store) -> Any:
    """MLflow's client of this store alone, whatever the process's own settings say. Raises StoreError where a server or
    database does not answer."""
    _reach(store.address)
    return require("mlflow").MlflowClient(tracking_uri=store.address, registry_uri=store.address)


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


@functools.lru_cache(maxsize=16)
def _reach(address: str) -> None:
    """Ask once whether anything answers, since MLflow tries again for minutes and tells of each attempt."""
    scheme = address.partition(":")[0]
    try:
        if scheme in ("http", "https"):
            # Whatever it answers, it answers. urllib knows of proxies, and takes a user for a part of the host's name.
            urllib.request.urlopen(_USER.sub("//", redacted(address)), timeout=REACH_S).close()
        elif scheme.partition("+")[0] in _DATABASES and not scheme.startswith("sqlite"):
            _connect(address)
    except urllib.error.HTTPError as answer:
        answer.close()
    except Exception as error:
        reason = " ".join(_without_secrets(str(getattr(error, "orig", None) or error), address).split())
        raise StoreError(f"no MLflow store can be reached at {redacted(address)}: {reason}") from None


def _connect(address: str) -> None:
    sqlalchemy = require("sqlalchemy")
    try:
        engine = sqlalchemy.create_engine(address)
    except ModuleNotFoundError as error:
        name = error.name or ""
        raise StoreError(f"{name} is needed here; pip install {_DRIVERS.get(name, name)}") from None
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def _without_secrets(words: str, address: str) -> str:
    """`words` with neither the address nor its password in them."""
    if redacted(address) == address:
        return words
    words = words.replace(address, redacted(address))
    if found := _PASSWORD_ITSELF.match(address):
        password = found[1]
        for text in {password, urllib.parse.unquote(password)} - {""}:
            words = words.replace(text, "***")
    return words


_PASSWORD_ITSELF = re.compile(r"^[^:/?]+://[^:/@]*:(.*)@")


def _artifacts(directory: Path) -> Path:
    chosen = os.environ.get(ARTIFACTS_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else directory / "artifacts"


def _local_store(uri: str, artifacts: Path) -> Store:
    artifacts.mkdir(parents=True, exist_ok=True)
    return _store(uri, artifacts)


def _store(uri: str, artifacts: Path | None) -> Store:
    shown = redacted(uri)
    return Store(shown, artifacts, None if shown == uri else uri)
