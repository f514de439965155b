"""Is one model more robust than another? A paired test on the same images, not two intervals side by side.

python examples/compare_models.py
"""

import atlas
from atlas.evaluation.compare import compared

threat = atlas.Linf(0.1)
train_set = atlas.data.load("mnist-mini:4000")
test_set = atlas.data.load("mnist-mini", train=False)
methods = {"one-step ADV": atlas.methods.Adv(), "one-step ATLAS": atlas.methods.Atlas(alpha=1e-5, beta=0.3)}

reports = {}
for name, method in methods.items():
    model = atlas.models.build("cnn-small", shape=(1, 28, 28))
    model = atlas.fit(model, train_set, method, threat=threat, epochs=3, lr=0.05).model
    reports[name] = atlas.evaluate(model, test_set, threat, n=200)

for attack, (first, second, test) in compared(*reports.values()).items():
    print(f"{attack:12} {first}  {second}  difference {test}")
# This compares two trained models. A statement about the methods needs several seeds of each.
