"""The names that README promises, and that `import atlas` stays light."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys

import pytest
import torch

import atlas


def test_import_is_light() -> None:
    """torch must not be loaded yet when the command line sets up its threads."""
    code = "import sys, atlas, atlas.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", [n for n in dir(atlas) if not n.startswith("_")])
def test_every_name_is_there(name: str) -> None:
    assert getattr(atlas, name) is not None


@pytest.mark.parametrize("name", [n for n in atlas.__all__ if callable(getattr(atlas, n))])
def test_the_docstring_names_arguments_and_errors_and_its_example_runs(name: str) -> None:
    thing = getattr(atlas, name)
    text = inspect.getdoc(thing) or ""
    assert all(f"{part}:\n" in text for part in ("Args", "Raises", "Example"))
    (example,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert example.examples
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert doctest.DocTestRunner().run(example).failed == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = atlas.nothing


def test_a_custom_training_loop() -> None:
    model = atlas.models.build("cnn-small", shape=(1, 28, 28))
    method = atlas.methods.Atlas(alpha=2e-4, beta=5.0, attack=atlas.attacks.FGSM())
    x, y = torch.rand(4, 1, 28, 28), torch.arange(4)
    loss = method.loss(model, x, y, threat=atlas.Linf(8 / 255), rng=atlas.Rng.batch(len(x), seed=0, step=3))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    x_adv = atlas.attacks.PGD(steps=2)(model, x, y, atlas.Linf(8 / 255))
    assert atlas.Linf(8 / 255).contains(x_adv, x).all()
