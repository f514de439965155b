"""ATLAS in a training loop of your own: one line makes the loss.

python examples/plain_loop.py
"""

import torch

import atlas

threat = atlas.Linf(0.1)
train_set = atlas.data.load("mnist-mini:2000")
model = atlas.models.build("cnn-small", shape=(1, 28, 28))
method = atlas.methods.Atlas(alpha=1e-5, beta=0.3)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
epochs = 3

for epoch in range(epochs):
    ramp = (epoch + 1) / epochs  # eps, alpha and beta grow together
    losses = []
    for _, x, y in atlas.data.batches(train_set, 100, seed=0, epoch=epoch):
        loss = method.loss(model, x, y, threat=threat.at(ramp * threat.eps), ramp=ramp)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch + 1}: eps {ramp * threat.eps:.3f}, loss {sum(losses) / len(losses):.3f}")

model.eval()
print(atlas.evaluate(model, atlas.data.load("mnist-mini", train=False), threat, n=100))
