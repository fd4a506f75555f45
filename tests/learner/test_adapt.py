"""Adapting: a foreign base and a short local sweep give a model that is trusted here, or none where it is worse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import CORPUS_PATH, CPU

from tileguard import models
from tileguard.__main__ import main
from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.learner import adapt as adapting
from tileguard.learner.adapt import AdaptRefused, adapt, local_weight, local_workloads, measured_on, why_refused
from tileguard.learner.collect import collect
from tileguard.learner.corpus import Corpus, read_corpus
from tileguard.learner.pipeline import write_model
from tileguard.learner.train import TrainConfig, design_matrix, fit_rows
from tileguard.learner.workloads import Workload, cpu_workloads
from tileguard.runtime.devices import cpu
from tileguard.runtime.devices.base import Compiled, Timing
from tileguard.runtime.guard import Reason
from tileguard.runtime.manifest import parse_manifest
from tileguard.runtime.selector import Selector

HERE, THERE = replace(CPU, name="cpu-here"), replace(CPU, name="cpu-there")
TINY = TrainConfig(rounds=10, num_leaves=8, min_data_in_leaf=5, folds=2, calls=(1e3,))
OPS = ("sum", "max", "softmax", "add_sum")


class MadeUpCpu:
    """A device whose times are a formula: a tile is the faster the nearer X·R0 is to `favourite`, and compiles the longer
    the larger it is."""

    toolchain = "made up"

    def __init__(self, hardware: HardwareSpec, favourite: int) -> None:
        self.hardware, self._favourite = hardware, favourite
        self.compiles = 0

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> Compiled:
        self.compiles += 1
        return Compiled(kernel, tile, 5.0 + math.log2(tile.xblock * tile.r0_block))

    def bench(self, compiled: Sequence[Compiled]) -> list[Timing]:
        times = [self._us(one.kernel, one.tile) for one in compiled]
        return [Timing(us, us, us, 0.0, 1) for us in times]

    def close(self) -> None:
        pass

    def _us(self, kernel: ReductionKernel, tile: ReductionTile) -> float:
        off = abs(math.log2(tile.xblock * tile.r0_block) - math.log2(self._favourite))
        return kernel.xnumel * kernel.rnumel / 1e4 * (1.0 + 0.2 * off) * (1.1 if tile.lowering else 1.0)


def made_up(path: Path, hardware: HardwareSpec, favourite: int, workloads: Sequence[Workload]) -> Corpus:
    collect(workloads, MadeUpCpu(hardware, favourite), path)
    return read_corpus(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """24 kernels of four operations on a CPU that likes tiles of 1024."""
    path = tmp_path_factory.mktemp("base") / "base.parquet"
    return made_up(path, THERE, 1024, cpu_workloads(24, 0, ops=OPS, min_log2=8))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """12 kernels on a CPU that likes tiles of 16."""
    path = tmp_path_factory.mktemp("local") / "local.parquet"
    return made_up(path, HERE, 16, cpu_workloads(12, 7, ops=OPS, min_log2=8))


@pytest.fixture(scope="module")
def adapted(base: Corpus, local: Corpus) -> adapting.Adaptation:
    return adapt(base, local, HERE, TINY, command="tileguard adapt")


def test_an_adapted_model_ranks_local_kernels_of_unseen_families_better_than_the_bases(
    adapted: adapting.Adaptation,
) -> None:
    assert adapted.refusal is None
    run_time = adapted.judgements[0]
    assert run_time.summary("model@8")["geomean"] < run_time.summary("base model@8")["geomean"]
    assert all(one.adapted.superset_violations == 0 for one in adapted.judgements)
    assert [one.calls for one in adapted.judgements] == [math.inf, 1.0, 100.0, 1e4, 1e6]


def test_every_local_kernel_is_judged_by_folds_that_saw_none_of_its_family(
    adapted: adapting.Adaptation, base: Corpus, local: Corpus
) -> None:
    assert adapted.trained is not None
    families = [*base.families, *local.families]
    folds = adapted.trained.held_out.folds
    assert sorted(i for fold in folds for i in fold.test) == list(range(len(local.sweeps)))
    for fold in folds:
        assert not set(fold.families) & {families[i] for i in fold.train}


def test_the_written_model_is_trusted_on_its_hardware_and_on_no_other(
    adapted: adapting.Adaptation, local: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adapted.trained is not None
    folder = write_model(adapted.trained, tmp_path / models.folder_name("reduction", HERE.name))
    kernel = local.sweeps[0].kernel
    monkeypatch.setenv(models.FOLDER_VARIABLE, str(tmp_path))
    assert Selector(HERE).select(kernel).verdict.trusted
    assert Selector(HERE).select(kernel, calls=100.0).verdict.trusted
    assert Selector(THERE, model=folder).select(kernel).verdict.reason is Reason.WRONG_HARDWARE
    assert not Selector(THERE).select(kernel).verdict.trusted
    # Even under another's name, what the manifest says counts.
    folder.rename(tmp_path / models.folder_name("reduction", THERE.name))
    assert Selector(THERE).select(kernel).verdict.reason is Reason.WRONG_HARDWARE


def test_manifest_and_card_say_what_the_model_rests_on(
    adapted: adapting.Adaptation, base: Corpus, local: Corpus
) -> None:
    assert adapted.trained is not None
    manifest = parse_manifest(adapted.trained.manifest.to_json())
    assert manifest.hardware == HERE.name
    assert dict(manifest.corpora) == {**base.files, **local.files}
    facts = manifest.metrics["adaptation"]
    assert (facts["base_hardware"], facts["base_kernels"], facts["local_kernels"]) == (THERE.name, 24, 12)
    assert facts["local_weight"] == 2.0
    assert manifest.metrics["held_out"]["kernels"] == len(local.sweeps)
    assert {entry["kernels"] for entry in manifest.calibration} == {len(local.sweeps)}
    assert "## Adaptation" in adapted.trained.card
    assert THERE.name in adapted.trained.card


def test_a_kernel_of_both_counts_as_measured_here(base: Corpus, local: Corpus) -> None:
    both = replace(base, sweeps=(*base.sweeps, replace(local.sweeps[0], hardware=THERE.name)))
    found = adapt(both, local, HERE, replace(TINY, rounds=1), command="")
    assert len(found.base.sweeps) == len(base.sweeps)


def test_a_base_of_this_hardware_is_merged_and_weighs_the_same(base: Corpus) -> None:
    half = len(base.sweeps) // 2
    local = replace(base.subset(range(half, 2 * half)), files={"local.parquet": "0" * 64})
    found = adapt(base, local, THERE, replace(TINY, rounds=1), command="")
    assert found.weight == 1.0
    assert {sweep.kernel_id for sweep in found.base.sweeps} == {sweep.kernel_id for sweep in base.sweeps[:half]}


def test_a_model_that_ranks_worse_is_refused_with_both_figures(
    base: Corpus, local: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = adapting.Joint.ranker

    def spoilt(self: adapting.Joint, indices: Sequence[int]) -> Any:
        ranker = real(self, indices)
        if max(indices) < self.n_base:
            return ranker

        class Backwards:
            manifest = ranker.manifest
            booster = ranker.booster

            def score(self, *asked: Any) -> Any:
                return -ranker.score(*asked)

        return Backwards()

    monkeypatch.setattr(adapting.Joint, "ranker", spoilt)
    # Judged on the base's own kind of machine, where its model is at home.
    there = replace(local, sweeps=tuple(replace(sweep, us=_like(1024, sweep)) for sweep in local.sweeps))
    found = adapt(base, there, HERE, TINY, command="")
    assert found.trained is None
    assert found.refusal is not None
    assert "behind the dense best" in found.refusal
    assert found.to_json()["refusal"] == found.refusal


def _like(favourite: int, sweep: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    device = MadeUpCpu(THERE, favourite)
    return np.array([device._us(sweep.kernel, tile) for tile in sweep.tiles])


def test_a_union_that_lacks_a_tile_is_refused(adapted: adapting.Adaptation) -> None:
    one = adapted.judgements[0]
    assert why_refused([one]) is None
    broken = replace(one, adapted=replace(one.adapted, superset_violations=1))
    assert why_refused([broken]) == "1 unions lack a tile of one of their parts"


def test_corpora_that_do_not_fit_are_refused_by_name(base: Corpus, local: Corpus, corpus: Corpus) -> None:
    with pytest.raises(InvalidInput, match=r"base.*one CPU"):
        measured_on(corpus)
    mixed = replace(base, sweeps=(*base.sweeps, *local.sweeps))
    with pytest.raises(InvalidInput, match="cpu-here, cpu-there"):
        adapt(mixed, local, HERE, TINY, command="")
    with pytest.raises(InvalidInput, match=r"local.*cpu-here"):
        adapt(base, base.subset(range(12)), HERE, TINY, command="")
    with pytest.raises(InvalidInput, match="another name"):
        adapt(base, replace(local, files=base.files), HERE, TINY, command="")
    with pytest.raises(AdaptRefused, match="3 kernels are swept, fewer than the 8"):
        adapt(base, local.subset(range(3)), HERE, TINY, command="")


def test_a_base_that_no_fold_could_train_without_a_family_is_refused_before_a_sweep(
    base: Corpus, local: Corpus
) -> None:
    family = base.families[0]
    single = base.subset(i for i, name in enumerate(base.families) if name == family)
    with pytest.raises(
        InvalidInput, match=f"base: '{family}' is not allowed; expected a corpus of two workload families"
    ):
        adapting.checked_base(single)
    untimed = replace(base.sweeps[0], compile_ms=np.full(len(base.sweeps[0].tiles), np.nan))
    with pytest.raises(InvalidInput, match="tiles without a compile time"):
        adapting.checked_base(replace(base, sweeps=(untimed, *base.sweeps[1:])))
    within = replace(base, sweeps=tuple(replace(sweep, hardware=HERE.name) for sweep in base.sweeps), files={"x": "0"})
    with pytest.raises(InvalidInput, match="that the local corpus does not hold"):
        adapting.adapt(base, within, HERE, TINY, command="")


def test_local_kernels_are_none_of_the_bases_and_the_same_again(base: Corpus) -> None:
    drawn = local_workloads(base, 24, 0)
    assert drawn == local_workloads(base, 40, 0)[:24]
    assert drawn != local_workloads(base, 24, 1)
    assert len({one.family for one in drawn}) > 8
    named = replace(base, sweeps=(replace(base.sweeps[0], kernel_id=drawn[0].workload), *base.sweeps[1:]))
    assert local_workloads(named, 24, 0)[:23] == drawn[1:]


def test_local_kernels_weigh_as_much_as_the_base_and_at_most_eight_times_each() -> None:
    assert local_weight(48, 24) == 2.0
    assert local_weight(340, 24) == 8.0
    assert local_weight(8, 24) == 1.0


def test_weights_of_one_change_no_model_and_others_do(base: Corpus) -> None:
    n = len(base.sweeps)
    matrices = design_matrix(base, THERE, range(n))

    def text(weights: list[float] | None) -> str:
        return str(fit_rows(base.sweeps, matrices, THERE, TINY, weights).model_to_string())

    plain = text(None)
    assert text([1.0] * n) == plain
    assert text([8.0] + [1.0] * (n - 1)) != plain


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(base: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """(exit status, standard output, standard error) of `tileguard adapt` on a made-up CPU, its models under tmp_path."""
    monkeypatch.setenv(models.FOLDER_VARIABLE, str(tmp_path / "models"))
    monkeypatch.setattr(cpu, "CpuDevice", lambda **options: MadeUpCpu(HERE, 16))
    monkeypatch.setattr("tileguard.learner.pipeline.default_config", lambda hardware, **changes: TINY)
    monkeypatch.setattr(adapting, "MIN_LOG2", 20.0)  # large kernels: their features are quick to count

    def command(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["adapt", "--base", base.path, *map(str, arguments)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return command


def test_adapt_sweeps_judges_and_installs_and_goes_on_where_it_was(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def select(hardware: str, kernel: ReductionKernel) -> tuple[int, str, str]:
        sizes = ["--xnumel", str(kernel.xnumel), "--rnumel", str(kernel.rnumel), "--dtype", kernel.dtype]
        layout = [] if kernel.inner else ["--outer"]
        with pytest.raises(SystemExit) as ended:
            main(["select", "--hardware", hardware, "--op", str(kernel.op), *sizes, *layout, "--json"])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    root = tmp_path / "models"
    code, _, err = run("--count", 10, "--budget", 1e-9)
    assert code == 2
    assert "1 kernels are swept" in err
    assert len(read_corpus(root / "local-cpu-here.parquet").sweeps) == 1
    code, out, err = run("--count", 10)
    assert (code, err) == (0, "")
    assert "was measured on cpu-there; this is cpu-here" in out
    for words in ("base model@8", "adapted model@8", "union@8", "formula", "run time", "N = 1e+06"):
        assert words in out
    assert len(read_corpus(root / "local-cpu-here.parquet").sweeps) == 10
    assert Selector(HERE).select(read_corpus(root / "local-cpu-here.parquet").sweeps[0].kernel).verdict.trusted
    kernel = read_corpus(root / "local-cpu-here.parquet").sweeps[0].kernel
    code, out, _ = select("cpu-here", kernel)
    assert code == 0
    assert json.loads(out)["verdict"]["reason"] == "trust"
    before = (root / "reduction-cpu-here" / "ranker.onnx").read_bytes()
    code, out, _ = run("--count", 10, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["refusal"] is None
    assert facts["model"] == str(root / "reduction-cpu-here")
    assert facts["kernels"]["local"] == 10
    assert (root / "reduction-cpu-here" / "ranker.onnx").read_bytes() == before


def test_a_refused_model_is_said_and_not_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "why_refused", lambda judgements: "it is worse")
    code, out, err = run("--count", 8, "--out", tmp_path / "else")
    assert code == 2
    assert err == "tileguard: no model is written: it is worse\n"
    assert "adapted model@8" in out
    assert not (tmp_path / "else" / "reduction-cpu-here").exists()
    assert (tmp_path / "else" / "local-cpu-here.parquet").is_file()


def test_bad_input_is_one_line(run: Run, tmp_path: Path) -> None:
    for options in (
        ("--base", CORPUS_PATH),
        ("--base", tmp_path / "none.parquet"),
        ("--count", -3),
        ("--seed", -1),
        ("--budget", -1),
    ):
        code, _, err = run(*options)
        assert code == 2, options
        assert err.count("\n") == 1
        assert "defect" not in err
