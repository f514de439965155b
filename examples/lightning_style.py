"""ATLAS in a module of the style of PyTorch Lightning: the loss is the whole of `training_step`.

With Lightning installed, derive from `lightning.LightningModule` and drop `fit`, which stands in for the
Trainer.

python examples/lightning_style.py
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import atlas


class RobustClassifier(nn.Module):
    def __init__(self, eps: float = 0.05) -> None:
        super().__init__()
        self.net = atlas.models.build("cnn-small", shape=(1, 28, 28))
        self.threat, self.method = atlas.Linf(eps), atlas.methods.Atlas(alpha=1e-5, beta=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return self.method.loss(self.net, x, y, threat=self.threat)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def fit(module: RobustClassifier, loader: DataLoader, epochs: int) -> None:
    optimizer = module.configure_optimizers()
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            module.training_step(batch, number).backward()
            optimizer.step()


images = atlas.data.load("mnist-mini:2000")
loader = DataLoader(TensorDataset(images.x.float() / 255, images.y), batch_size=100, shuffle=True)
module = RobustClassifier()
fit(module, loader, epochs=3)
module.eval()
print(atlas.evaluate(module, atlas.data.load("mnist-mini", train=False), module.threat, n=100))
