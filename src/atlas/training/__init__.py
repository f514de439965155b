"""Training: `fit` for anybody's model and data, `train` for a configuration."""

from atlas.training.fit import Result, fit
from atlas.training.run import RunConfig, load_config, load_model, train
from atlas.training.schedule import Schedule
from atlas.training.settings import Optimizer, Training, Validation

__all__ = [
    "Optimizer",
    "Result",
    "RunConfig",
    "Schedule",
    "Training",
    "Validation",
    "fit",
    "load_config",
    "load_model",
    "train",
]
