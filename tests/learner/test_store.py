"""Where a store is: a directory, a URI, or what the environment says; anything else is refused before it is made."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tileguard.features.errors import InvalidInput
from tileguard.learner import store as store_module
from tileguard.learner.runs import list_runs
from tileguard.learner.store import Store, StoreError, open_store, quiet, redacted


def test_a_store_is_a_directory_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("TILEGUARD_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    for location, directory in (("runs", "runs"), (Path("a/b"), "a/b"), (tmp_path / "c", "c"), (None, "out/mlflow")):
        expected = Store(f"sqlite:///{tmp_path}/{directory}/mlflow.db", tmp_path / directory / "artifacts")
        assert open_store(location) == expected
        assert (tmp_path / directory / "artifacts").is_dir()


def test_a_store_may_be_a_uri_or_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("https://tracking.example:5000") == Store("https://tracking.example:5000", None)
    assert open_store("sqlite:///db/own.db") == Store(f"sqlite:///{tmp_path}/db/own.db", tmp_path / "db" / "artifacts")
    absolute = open_store(f"sqlite:///{tmp_path}/own.db")
    assert absolute == Store(f"sqlite:///{tmp_path}/own.db", tmp_path / "artifacts")
    remote = open_store("postgresql+psycopg2://user@host/db")
    assert remote == Store("postgresql+psycopg2://user@host/db", tmp_path / "out" / "mlflow" / "artifacts")
    monkeypatch.delenv("TILEGUARD_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert open_store(None) == Store("http://localhost:5000", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "elsewhere")
    assert open_store(None).uri == f"sqlite:///{tmp_path}/elsewhere/mlflow.db"
    monkeypatch.setenv("TILEGUARD_STORE", "ours")
    assert open_store(None).uri == f"sqlite:///{tmp_path}/ours/mlflow.db"
    assert open_store("given").uri == f"sqlite:///{tmp_path}/given/mlflow.db"


def test_a_databases_artifacts_go_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEGUARD_ARTIFACTS", "kept")
    assert open_store("postgresql+psycopg2://host/db").artifacts == tmp_path / "kept"
    assert open_store("folder").artifacts == tmp_path / "folder" / "artifacts"


@pytest.mark.parametrize(
    "location",
    ["sqlite://", "sqlite:///:memory:", "ftp://host/x", "file:///runs", "file:runs", "what?", "50%", "taken"],
)
def test_a_place_that_cannot_hold_a_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    with pytest.raises(InvalidInput, match=r"^location: "):
        open_store(location)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


# Passwords.

SECRET = "pa:s/s?w@rd"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"postgresql://me:{SECRET}@host:5432/db?sslmode=require", "postgresql://me@host:5432/db?sslmode=require"),
        ("postgresql://me:pa%40ss@/db?host=/run", "postgresql://me@/db?host=/run"),
        ("https://me:word@host/path", "https://me@host/path"),
        ("mysql+pymysql://:word@host/db", "mysql+pymysql://@host/db"),
        ("postgresql://host/db?user=me&password=word", "postgresql://host/db?user=me"),
        (
            "postgresql://host/db?passfile=/etc/secret.pgpass&sslpassword=a",
            "postgresql://host/db?passfile=/etc/secret.pgpass",
        ),
        ("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dword", "mssql+pyodbc:///"),
        ("sqlite:////a/b@c:d.db", "sqlite:////a/b@c:d.db"),
    ],
)
def test_what_is_shown_of_a_uri_has_no_password_and_all_else(uri: str, shown: str) -> None:
    assert redacted(uri) == shown


def test_a_store_shows_no_password_and_hands_it_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"postgresql+psycopg2://me:{SECRET}@host/db"
    store = open_store(uri)
    assert store.address == uri
    assert SECRET not in f"{store} {store!r} {store.uri}"
    with pytest.raises(InvalidInput) as refused:
        open_store(f"postgres://me:{SECRET}@host/db")
    assert SECRET not in str(refused.value)
    assert "postgres://me@host/db" in str(refused.value)


def test_a_failure_that_tells_the_password_is_told_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("https://me:s%40cret@host")

    @quiet
    def fails(store: Store, words: str) -> None:
        raise RuntimeError(words)

    for words in (f"cannot reach {store.address}", "password s@cret is wrong", "password s%40cret is wrong"):
        with pytest.raises(StoreError) as failure:
            fails(store, words)
        assert "cret" not in str(failure.value).replace("https://me@host", "")
        assert failure.value.__cause__ is None
    with pytest.raises(RuntimeError, match=r"^nothing to hide$"):
        fails(store, "nothing to hide")


def test_a_server_that_answers_anything_is_reached_with_its_user_and_through_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        store_module._reach(f"http://me:s3cret@127.0.0.1:{server.server_port}/mlflow")
        server.shutdown()


@pytest.mark.parametrize(
    "uri", ["http://me:s3cret@127.0.0.1:9/", "postgresql+psycopg2://me:s3cret@127.0.0.1:9/db?connect_timeout=2"]
)
def test_a_store_that_does_not_answer_is_one_error_at_once(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store_module._reach.cache_clear()
    with pytest.raises(StoreError) as failure:
        list_runs(open_store(uri))
    assert "s3cret" not in str(failure.value)
    assert "\n" not in str(failure.value)
