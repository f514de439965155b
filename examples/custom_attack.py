"""An attack of your own, in a table beside ours: `--attacks custom_attack:Walk` finds it here.

python examples/custom_attack.py
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

import atlas
from atlas.attacks import PGD, Attack, Model
from atlas.attacks.engine import NewAttempts, State, Step
from atlas.rng import Rng
from atlas.threat import Threat


@dataclass(frozen=True)
class WalkState(State):
    key: Tensor
    """The random stream of each attempt."""


@dataclass(frozen=True)
class Walk(Attack[WalkState]):
    """A random walk in the ball; any point that fools the model counts."""

    steps: int = 100
    white_box: ClassVar[bool] = False

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> WalkState:
        return WalkState(fresh.x, fresh.y, fresh.x, fresh.no_steps(), fresh.rng.key)

    def advance(self, model: Model, state: WalkState, threat: Threat) -> Step[WalkState]:
        with torch.no_grad():
            logits = model(state.x_adv)
        noise = threat.noise(state.x, Rng(state.key).fold("walk", state.step))
        moved = threat.project(state.x_adv + noise, state.x)
        return Step(replace(state, x_adv=moved, step=state.step + 1), state.x_adv, logits)


if __name__ == "__main__":
    threat = atlas.Linf(0.1)
    model = atlas.models.build("cnn-small", shape=(1, 28, 28))
    train_set = atlas.data.load("mnist-mini:2000")
    model = atlas.fit(model, train_set, atlas.methods.Adv(), threat=threat, epochs=3, lr=0.05).model
    attacks = {"PGD-20": PGD(steps=20), "walk": Walk()}
    print(atlas.evaluate(model, atlas.data.load("mnist-mini", train=False), threat, attacks=attacks, n=100))
