"""How robust is a PyTorch model that you already have? A number, its interval and what casts doubt on it.

python examples/evaluate_model.py
"""

import torch
from torch import nn

import atlas

# Your model: any module or function from images in [0, 1] to logits. This one is trained without defence.
train_set = atlas.data.load("mnist-mini:4000")
test_set = atlas.data.load("mnist-mini", train=False)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for _, x, y in atlas.data.batches(train_set, 100, seed=0, epoch=epoch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

# `quick` for a first look; suite="autoattack" and n=1000 for a number to publish.
report = atlas.evaluate(model, test_set, atlas.Linf(0.05), suite="quick", n=200)
print(report)
print("worst case:", report.worst)
print("warnings:", [flag.name for flag in report.flags] or "none")
report.save("report.html")
print("see report.html")
