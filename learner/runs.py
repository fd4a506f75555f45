"""Reading recorded runs back: the list of them, one by its id, its curve."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tileguard.features.errors import InvalidInput

from .store import Store, all_pages, client_of, quiet

KIND = "tileguard.kind"
"""The tag that says what was judged."""

TRAINING, ABLATION, FORMULA, EVALUATION = "training", "ablation", "formula", "evaluation"
KINDS = (TRAINING, ABLATION, FORMULA, EVALUATION)
FOLD = "fold"
"""A nested run, listed by none."""

SHORTEST_PREFIX = 4
"""Characters of a run's id that may stand for it."""


@quiet
def list_runs(store: Store, kinds: Sequence[str] = KINDS) -> list[dict[str, Any]]:
    """Every run of these kinds, newest first: run_id, kind, name, experiment, status, started (UTC, ISO 8601), seconds
    (of logging; None while it runs), hardware, family, tileguard, judged, corpora (file name -> SHA-256), model_version
    (None where none was registered), parameters, metrics."""
    client = client_of(store)
    names = {experiment.experiment_id: experiment.name for experiment in all_pages(client.search_experiments)}
    if not names:
        return []
    runs = all_pages(
        functools.partial(
            client.search_runs, list(names), f"tags.`{KIND}` != '{FOLD}'", order_by=["attributes.start_time DESC"]
        )
    )
    rows = (_row(run, names[run.info.experiment_id]) for run in runs)
    return [row for row in rows if row["kind"] in kinds]


def find_run(rows: Sequence[dict[str, Any]], run_id: str) -> dict[str, Any]:
    """The one row of `list_runs` whose id is, or begins with, `run_id`. Raises InvalidInput for none or several."""
    found = [row for row in rows if row["run_id"].startswith(run_id)] if len(run_id) >= SHORTEST_PREFIX else []
    if len(found) != 1:
        known = ", ".join(row["run_id"] for row in (found or rows)[:5])
        expected = "more of the id, which fits" if found else "the id of a recorded run, such as"
        raise InvalidInput("run", run_id, f"{expected} {known}" if known else "a recorded run; there is none")
    return found[0]


@quiet
def run_curve(store: Store, run_id: str) -> dict[int, dict[str, float]]:
    """k -> {lossless, severe, geomean} of a run; empty where no curve was recorded."""
    client = client_of(store)
    found: dict[int, dict[str, float]] = {}
    for name in ("lossless", "severe", "geomean"):
        for point in client.get_metric_history(run_id, f"curve/{name}"):
            found.setdefault(int(point.step), {})[name] = float(point.value)
    return dict(sorted(found.items()))


def _row(run: Any, experiment: str) -> dict[str, Any]:
    info, data = run.info, run.data
    started, ended = info.start_time, info.end_time
    version = data.tags.get("tileguard.model_version")
    return {
        "run_id": info.run_id,
        "kind": data.tags.get(KIND),
        "name": info.run_name,
        "experiment": experiment,
        "status": info.status,
        "started": datetime.fromtimestamp(started / 1000, UTC).isoformat(timespec="seconds"),
        "seconds": (ended - started) / 1000 if ended else None,
        "hardware": data.tags.get("tileguard.hardware"),
        "family": data.tags.get("tileguard.family"),
        "tileguard": data.tags.get("tileguard.version"),
        "judged": data.tags.get("tileguard.judged"),
        "corpora": data.tags.get("tileguard.corpora"),
        "model_version": int(version) if version else None,
        "parameters": dict(data.params),
        "metrics": dict(data.metrics),
    }
