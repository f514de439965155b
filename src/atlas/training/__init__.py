"""Training: `fit` for any model and data, `train` for a configuration."""

from atlas.distributed.launch import connected
from atlas.distributed.process_group import ProcessGroup
from atlas.runs import load_model
from atlas.training.fit import Result, fit
from atlas.training.run import RunConfig, load_config, train
from atlas.training.schedule import Schedule
from atlas.training.settings import Optimizer, Training, Validation
from atlas.training.trainer import StopTraining

__all__ = [
    "Optimizer",
    "ProcessGroup",
    "Result",
    "RunConfig",
    "Schedule",
    "StopTraining",
    "Training",
    "Validation",
    "connected",
    "fit",
    "load_config",
    "load_model",
    "train",
]
