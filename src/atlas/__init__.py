"""ATLAS: adversarial training via local stability, and the evaluation to go with it.

    import atlas
    method = atlas.methods.Atlas(alpha=2e-4, beta=5.0, attack=atlas.attacks.FGSM())
    result = atlas.fit(model, train_set, method, threat=atlas.Linf(8 / 255))
    report = atlas.evaluate(result.model, test_set, threat=atlas.Linf(8 / 255), suite="autoattack")

Names are imported when they are first used: `import atlas` is quick, and the command line can set up the
threads of torch before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas import attacks as attacks
    from atlas import data as data
    from atlas import errors as errors
    from atlas import evaluation as evaluation
    from atlas import methods as methods
    from atlas import models as models
    from atlas import training as training
    from atlas.evaluation.evaluate import evaluate as evaluate
    from atlas.rng import Rng as Rng
    from atlas.threat import L2 as L2
    from atlas.threat import Linf as Linf
    from atlas.training import Optimizer as Optimizer
    from atlas.training import Schedule as Schedule
    from atlas.training import Training as Training
    from atlas.training import Validation as Validation
    from atlas.training import load_model as load_model
    from atlas.training.fit import fit as fit

__version__ = "0.2.0"

_MODULES = ("attacks", "data", "errors", "evaluation", "methods", "models", "training")
_NAMES = {
    "Rng": "rng",
    "L2": "threat",
    "Linf": "threat",
    "Optimizer": "training",
    "Schedule": "training",
    "Training": "training",
    "Validation": "training",
    "evaluate": "evaluation",
    "fit": "training",
    "load_model": "training",
}
__all__ = [*_MODULES, *_NAMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"atlas.{name}")
    if name in _NAMES:
        return getattr(import_module(f"atlas.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'atlas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
