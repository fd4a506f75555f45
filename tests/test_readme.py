"""The README speaks the truth: its code runs, its table is the results file's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.readme import BEGIN, BLOCKS, END
from benchmarks.readme_matmul import load
from tests.support import python

from tileguard.learner.corpus import read_corpus

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_quick_start_runs_as_printed() -> None:
    (code,) = re.findall(r"## Quick start.*?```python\n(.*?)```", README, re.DOTALL)
    assert code.count("\n") <= 20
    verdict, *candidates = python(code).splitlines()
    assert verdict == "trust"
    assert candidates[0].startswith("X1·R1024·w8 ('host',")
    assert len(candidates) > 8


@pytest.mark.parametrize("page", BLOCKS, ids=lambda page: page.name)
def test_the_figures_are_those_of_the_results_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == BLOCKS[page]().strip()


@pytest.mark.parametrize("script", ["readme", "cpu_objectives", "cpu_union", "cpu_adapt", "xir_lowerings"])
def test_a_benchmark_starts_as_a_file_from_anywhere(script: str, tmp_path: Path) -> None:
    path = ROOT / "benchmarks" / f"{script}.py"
    code = f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path({str(path)!r})"
    assert python(code, PYTHONPATH=str(ROOT / "src")) == ""


def test_figures_of_the_cpu_are_from_the_shipped_corpus() -> None:
    digest = read_corpus(ROOT / "corpora" / "cpu.parquet").digest
    assert load("cpu_objectives")["corpus"]["digest"] == digest
    assert load("cpu_union")["training"]["corpus_digest"] == digest
    assert load("cpu_adapt")["base"]["files"] == {"cpu.parquet": digest}
    (champion,) = (ROOT / "models").glob("reduction-cpu-*/manifest.json")
    assert json.loads(champion.read_text(encoding="utf-8"))["corpora"] == {"cpu.parquet": digest}


def test_every_file_that_the_docs_link_to_exists() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
