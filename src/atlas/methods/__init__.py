"""Training methods, as values: ``Atlas(alpha=2e-4, beta=5.0, attack=FGSM())``."""

from collections.abc import Callable

from atlas.methods.adv import Adv, Natural
from atlas.methods.atlas import Atlas, Jac, atlas_g, atlas_l
from atlas.methods.method import Method, Terms, TrainingStep
from atlas.methods.trades import Trades, TradesJac

METHODS: dict[str, Callable[..., Method]] = {
    "natural": Natural,
    "jac": Jac,
    "adv": Adv,
    "trades": Trades,
    "atlas": Atlas,
    "atlas_l": atlas_l,
    "atlas_g": atlas_g,
    "trades_jac": TradesJac,
}
"""Every method by its name in a configuration."""

__all__ = ["METHODS", "Method", "Terms", "TrainingStep"]
__all__ += ["Adv", "Atlas", "Jac", "Natural", "Trades", "TradesJac", "atlas_g", "atlas_l"]
