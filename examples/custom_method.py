"""A training method of your own, used by name: `--set method.name=custom_method:Pairing` finds it here.

python examples/custom_method.py
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

import atlas
from atlas.attacks import FGSM, Model, TrainingAttack
from atlas.methods import Method, Terms, TrainingStep
from atlas.objectives import cross_entropy


@dataclass(frozen=True)
class Pairing(Method):
    """Adversarial logit pairing: CE(x') + gamma ||f(x') - f(x)||^2 / C."""

    gamma: float = 0.5
    attack: TrainingAttack = FGSM()

    @property
    def weights(self) -> Mapping[str, float]:
        return {"pairing": self.gamma}

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        logits_adv = model(x_adv)
        losses = {"ce": cross_entropy(logits_adv, y)}
        if self.gamma:
            losses["pairing"] = (logits_adv - model(x)).square().mean(1)
        return Terms(losses, logits_adv)


if __name__ == "__main__":
    threat = atlas.Linf(0.1)
    model = atlas.models.build("cnn-small", shape=(1, 28, 28))
    train_set = atlas.data.load("mnist-mini:2000")
    model = atlas.fit(model, train_set, Pairing(), threat=threat, epochs=3, lr=0.05).model
    print(atlas.evaluate(model, atlas.data.load("mnist-mini", train=False), threat, n=100))
