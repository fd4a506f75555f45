"""Where a store is: a directory, a URI, or what the environment says; anything else is refused before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tileguard.features.errors import InvalidInput
from tileguard.learner.store import Store, open_store


def test_a_store_is_a_directory_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
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
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert open_store(None) == Store("http://localhost:5000", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "elsewhere")
    assert open_store(None).uri == f"sqlite:///{tmp_path}/elsewhere/mlflow.db"


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
