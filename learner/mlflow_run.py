"""Writing one run into MLflow through a client: what tracking.py records with, and knows nothing of tileguard's metrics.

A run is marked FINISHED after all else is stored; an exception marks it FAILED and is raised on.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tileguard.runtime.optional import require

from .store import Store, is_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PARAMS, MOST_METRICS = 100, 1000
"""MLflow's limits a call."""

LONGEST_PARAM = 6000
"""MLflow's limit, in characters."""

Artifact = str | Path
"""A text, or a file whose bytes are taken."""


def experiment_of(client: Any, store: Store, name: str) -> str:
    """The id of the experiment `name`, made if missing."""
    found = client.get_experiment_by_name(name)
    if found is None:
        location = (store.artifacts / name).as_uri() if store.artifacts else None
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except require("mlflow.exceptions").MlflowException as error:
            # Another process was faster.
            found = client.get_experiment_by_name(name)
            if found is None or not is_error(error, "RESOURCE_ALREADY_EXISTS"):
                raise
    return str(found.experiment_id)


@contextmanager
def running(client: Any, experiment_id: str, name: str, tags: Mapping[str, str]) -> Iterator[str]:
    """The id of a new run that ends FINISHED, or FAILED when the block raises."""
    run_id: str = client.create_run(experiment_id, run_name=name, tags=dict(tags)).info.run_id
    try:
        yield run_id
        _end(client, run_id, "FINISHED")
    except BaseException:
        with suppress(Exception):  # the block's own error says more
            _end(client, run_id, "FAILED")
        raise


def write_params(client: Any, run_id: str, values: Mapping[str, object]) -> None:
    param = require("mlflow.entities").Param
    batch = [param(name, str(value)[:LONGEST_PARAM]) for name, value in values.items()]
    for start in range(0, len(batch), MOST_PARAMS):
        client.log_batch(run_id, params=batch[start : start + MOST_PARAMS])


def write_metrics(client: Any, run_id: str, values: Mapping[str, float]) -> None:
    write_stepped(client, run_id, {0: values})


def write_stepped(client: Any, run_id: str, values: Mapping[int, Mapping[str, float]]) -> None:
    """Metrics that have a history, by step."""
    metric = require("mlflow.entities").Metric
    now = int(time.time() * 1000)
    batch = [metric(name, float(value), now, step) for step, found in values.items() for name, value in found.items()]
    for start in range(0, len(batch), MOST_METRICS):
        client.log_batch(run_id, metrics=batch[start : start + MOST_METRICS])


def write_datasets(client: Any, run_id: str, corpora: Mapping[str, str], *, context: str) -> None:
    """Corpora (file name -> SHA-256) as the run's data. MLflow takes 36 characters of a digest."""
    entities = require("mlflow.entities")
    tags = [entities.InputTag("mlflow.data.context", context)]
    client.log_inputs(
        run_id,
        [
            entities.DatasetInput(entities.Dataset(name, digest[:36], "local", json.dumps({"uri": name})), tags)
            for name, digest in corpora.items()
        ],
    )


def write_artifacts(client: Any, run_id: str, figures: Mapping[str, Figure], artifacts: Mapping[str, Artifact]) -> None:
    """Figures as figures/NAME.png; artifacts by their path in the run."""
    for name, figure in figures.items():
        client.log_figure(run_id, figure, f"figures/{name}.png")
    for name, content in artifacts.items():
        if isinstance(content, Path):
            folder = str(Path(name).parent)
            if content.name != Path(name).name:
                raise ValueError(f"{name}: MLflow keeps the file's own name, {content.name}")
            client.log_artifact(run_id, str(content), None if folder == "." else folder)
        else:
            client.log_text(run_id, content, name)


def git_commit() -> str | None:
    """The commit that this file is tracked in, `-dirty` where the tree has changes; None outside a repository, or in
    one that merely surrounds an installed package."""
    here = Path(__file__).resolve()
    answers = []
    for command in (
        ("ls-files", "--error-unmatch", here.name),
        ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"),
    ):
        try:
            done = subprocess.run(
                ("git", *command), cwd=here.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=10, check=True, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    return answers[-1]


def _end(client: Any, run_id: str, status: str) -> None:
    # Against a server, MLflow prints two lines with links to standard output, which belongs to the caller.
    variable = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
    before = os.environ.get(variable)
    os.environ[variable] = "true"
    try:
        client.set_terminated(run_id, status)
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
