"""Training: `fit` for anybody's model and data, `train` for a configuration."""

from atlas.distributed.launch import connected
from atlas.distributed.process_group import ProcessGroup
from atlas.training.checkpointer import Result
from atlas.training.fit import fit
from atlas.training.run import RunConfig, load_config, load_model, train
from atlas.training.schedule import Schedule
from atlas.training.settings import Optimizer, Training, Validation

__all__ = [
    "Optimizer",
    "ProcessGroup",
    "Result",
    "RunConfig",
    "Schedule",
    "Training",
    "Validation",
    "connected",
    "fit",
    "load_config",
    "load_model",
    "train",
]
