"""A store with two recorded trainings: what the tests of tracking and registry share, made by fixtures in conftest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tileguard.learner.store import Store
from tileguard.learner.tracking import LoggedTraining, TrainingRecord
from tileguard.learner.train import TrainConfig

NAME = "reduction-h200"
CONFIG = TrainConfig(rounds=12, folds=2)


@dataclass(frozen=True)
class Tracked:
    """A store in an otherwise empty directory, with two trainings logged while the process stood beside it."""

    directory: Path
    store: Store
    record: TrainingRecord
    first: LoggedTraining
    aliases_after_first: dict[str, int]
    second: LoggedTraining
