# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # A tour of ATLAS
# Train a classifier that withstands small changes of its input, attack it, and get a number with its
# interval. Open this file as a notebook with jupytext, or run it: `python examples/tour.py`.

# %%
import torch

import atlas

train_set = atlas.data.load("mnist-mini:4000")  # or a pair (x, y), a torch Dataset, a DataLoader
test_set = atlas.data.load("mnist-mini", train=False)
threat = atlas.Linf(0.1)  # each pixel may change by 0.1, in units of [0, 1]

# %% [markdown]
# ## Train
# One-step ATLAS: the cross-entropy at an adversary x' of one gradient step, a local term that makes f
# flat around x', and a global term that joins x' to x. `fit` takes any `nn.Module` from images in
# [0, 1] to logits.

# %%
torch.manual_seed(0)
model = atlas.models.build("cnn-small", shape=(1, 28, 28))
method = atlas.methods.Atlas(alpha=1e-5, beta=0.3)
result = atlas.fit(model, train_set, method, threat=threat, epochs=4, lr=0.05)

# %% [markdown]
# ## Attack
# `quick` takes seconds; `suite="autoattack"` and `n=1000` give a number to publish. The worst case counts an
# image as right if no attack fooled it.

# %%
report = atlas.evaluate(result.model, test_set, threat, n=200)
print(report)

# %% [markdown]
# ## Doubt
# The warnings say what casts doubt on the number. Here the outputs are rounded, so gradients vanish.


# %%
def rounded(x: torch.Tensor) -> torch.Tensor:
    return (result.model(x) * 4).round() / 4


print([flag.name for flag in atlas.evaluate(rounded, test_set, threat, n=100).flags])

# %% [markdown]
# ## Show
# One self-contained page with tables, curves and a gallery.

# %%
report.save("report.html")
