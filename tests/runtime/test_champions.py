"""Which model a hardware gets: the user's own, the shipped one, or on a foreign CPU the word that there is another's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.support import CPU

from tileguard import models
from tileguard.features.hardware import HardwareSpec, host_cpu
from tileguard.runtime import doctor
from tileguard.runtime.devices.cpu import cpu_kernel
from tileguard.runtime.fallback import formula_tiles
from tileguard.runtime.guard import ModelRejected, Reason
from tileguard.runtime.selector import Selector, load_champion


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(the user's, the shipped) models folders, empty."""
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    own.mkdir()
    shipped.mkdir()
    monkeypatch.setenv(models.FOLDER_VARIABLE, str(own))
    monkeypatch.setattr(models, "ROOT", shipped)
    return own, shipped


def put(model_dir: Path, root: Path, name: str) -> Path:
    return Path(shutil.copytree(model_dir, root / name))


def test_the_users_folder_is_the_named_one_or_the_data_homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(models.FOLDER_VARIABLE, str(tmp_path / "named"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert models.user_root() == tmp_path / "named"
    monkeypatch.delenv(models.FOLDER_VARIABLE)
    assert models.user_root() == tmp_path / "data" / "tileguard" / "models"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert models.user_root() == tmp_path / "home" / ".local" / "share" / "tileguard" / "models"


def test_without_a_home_only_shipped_models_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(models.FOLDER_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert models.user_root() is None
    assert models.own() == ()
    assert models.model_path("reduction", "h200") == models.ROOT / "reduction-h200"


def test_the_users_own_model_comes_before_the_shipped_one(
    roots: tuple[Path, Path], model_dir: Path, h200: HardwareSpec
) -> None:
    own, shipped = roots
    assert models.model_path("reduction", "h200") is None
    put(model_dir, shipped, "reduction-h200")
    assert models.model_path("reduction", "h200") == shipped / "reduction-h200"
    put(model_dir, own, "reduction-h200")
    assert models.model_path("reduction", "h200") == own / "reduction-h200"
    assert models.own() == (own / "reduction-h200",)
    assert load_champion(h200).manifest.hardware == "h200"


def test_a_users_model_that_is_broken_is_refused_and_not_passed_over(
    roots: tuple[Path, Path], model_dir: Path, h200: HardwareSpec
) -> None:
    put(model_dir, roots[1], "reduction-h200")
    (put(model_dir, roots[0], "reduction-h200") / "ranker.onnx").write_bytes(b"no model")
    with pytest.raises(ModelRejected) as refused:
        load_champion(h200)
    assert refused.value.verdict.reason is Reason.DIGEST_MISMATCH


@pytest.mark.parametrize("name", ["missing", "file", "locked", "nul\0"])
def test_a_users_folder_that_cannot_be_looked_into_counts_as_none(
    name: str, roots: tuple[Path, Path], model_dir: Path, h200: HardwareSpec, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    put(model_dir, roots[1], "reduction-h200")
    folder = tmp_path / name
    if "\0" in name:
        monkeypatch.setattr(models, "user_root", lambda: folder)  # no environment can hold it
    else:
        monkeypatch.setenv(models.FOLDER_VARIABLE, str(folder))
    if name == "file":
        folder.write_text("")
    if name == "locked":
        put(model_dir, folder, "reduction-h200")
        folder.chmod(0)
        if os.access(folder, os.X_OK):  # root looks into anything
            refuse(monkeypatch, folder)
    try:
        assert load_champion(h200).manifest.hardware == "h200"
        assert models.model_path("reduction", "h200") == roots[1] / "reduction-h200"
    finally:
        if name == "locked":
            folder.chmod(0o700)


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have `folder` refuse to be looked into."""
    real = Path.is_dir

    def is_dir(path: Path) -> bool:
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)


def test_no_folder_is_searched_where_the_exact_name_exists(
    roots: tuple[Path, Path], model_dir: Path, h200: HardwareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(model_dir, roots[0], "reduction-h200")
    monkeypatch.setattr(Path, "glob", None)
    assert load_champion(h200).manifest.hardware == "h200"


def test_on_a_foreign_cpu_the_verdict_names_the_other_one_and_the_cure(
    roots: tuple[Path, Path], model_dir: Path
) -> None:
    kernel = cpu_kernel("sum", 300, 700, "fp32")
    assert Selector(CPU).select(kernel).verdict.reason is Reason.NO_MODEL
    put(model_dir, roots[1], "reduction-cpu-other")
    found = Selector(CPU).select(kernel)
    assert found.verdict.reason is Reason.WRONG_HARDWARE
    assert found.verdict.detail == (
        "trained on cpu-other, this is cpu-test; `tileguard adapt` fits one to this machine"
    )
    assert set(found.tiles) == set(formula_tiles(kernel, CPU))


def test_a_gpu_without_a_model_is_told_so_whatever_cpus_there_are(roots: tuple[Path, Path], model_dir: Path) -> None:
    put(model_dir, roots[1], "reduction-cpu-other")
    assert Selector("h100").select(cpu_kernel("sum", 300, 700, "fp32")).verdict.reason is Reason.NO_MODEL


def test_doctor_tells_what_this_cpu_gets_and_lists_the_users_models(roots: tuple[Path, Path], model_dir: Path) -> None:
    def findings() -> dict[str, doctor.Finding]:
        return {one.name: one for one in doctor.model_findings()}

    here = f"champion of {host_cpu().name}"
    put(model_dir, roots[1], "reduction-cpu-other")
    assert not findings()[here].ok
    assert "tileguard adapt" in findings()[here].detail
    put(model_dir, roots[0], "reduction-h200")
    found = findings()[str(roots[0] / "reduction-h200")]
    assert found.ok
    assert "h200" in found.detail
