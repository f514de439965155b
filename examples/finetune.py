"""Make a trained model more robust: a few epochs of ATLAS with a small learning rate and a growing eps.

python examples/finetune.py
"""

import atlas

threat = atlas.Linf(0.1)
train_set = atlas.data.load("mnist-mini:4000")
test_set = atlas.data.load("mnist-mini", train=False)

model = atlas.models.build("cnn-small", shape=(1, 28, 28))
model = atlas.fit(model, train_set, atlas.methods.Natural(), threat=threat, epochs=2, lr=0.05).model
before = atlas.evaluate(model, test_set, threat, n=200)

method = atlas.methods.Atlas(alpha=1e-5, beta=0.3)
tuned = atlas.fit(model, train_set, method, threat=threat, epochs=4, lr=0.02).model
after = atlas.evaluate(tuned, test_set, threat, n=200)

print(f"before: clean {before.clean}, worst case {before.worst}")
print(f"after:  clean {after.clean}, worst case {after.worst}")
