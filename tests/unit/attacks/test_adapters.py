"""Foreign attack objects in our tables: the real libraries where they are installed, and stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import PGD, adapt, engine
from atlas.errors import UsageError
from atlas.evaluation import evaluate
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

COUNT, CLASSES = 60, 4
SHAPE = (1, 6, 6)


class Net(nn.Module):
    """A smooth classifier with a BatchNorm, whose modes and buffers can be looked at."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return 4 * self.layers(x - 0.5)  # type: ignore[no-any-return]


def images(model: nn.Module) -> tuple[Tensor, Tensor]:
    x = torch.rand(COUNT, *SHAPE, generator=torch.Generator().manual_seed(1))
    return x, model.eval()(x).argmax(1)


def torchattacks_pgd(model: nn.Module, threat: Threat) -> Any:
    library = pytest.importorskip("torchattacks", reason="the peer torchattacks is not installed")
    if isinstance(threat, Linf):
        return library.PGD(model, eps=threat.eps, alpha=threat.eps / 4, steps=20)
    return library.PGDL2(model, eps=threat.eps, alpha=threat.eps / 4, steps=20)


def foolbox_pgd(model: nn.Module, threat: Threat) -> Any:
    library = pytest.importorskip("foolbox", reason="the peer foolbox is not installed")
    kind = library.attacks.LinfPGD if isinstance(threat, Linf) else library.attacks.L2PGD
    return kind(rel_stepsize=0.25, steps=20)


def art_pgd(model: nn.Module, threat: Threat) -> Any:
    art = pytest.importorskip("art.attacks.evasion", reason="the peer ART is not installed")
    from art.estimators.classification import PyTorchClassifier

    estimator = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), SHAPE, CLASSES, clip_values=(0.0, 1.0), device_type="cpu"
    )
    norm = "inf" if isinstance(threat, Linf) else 2
    settings: dict[str, Any] = {"norm": norm, "eps": threat.eps, "eps_step": threat.eps / 4, "max_iter": 20}
    return art.ProjectedGradientDescentPyTorch(estimator, verbose=False, **settings)


Make = Callable[[nn.Module, Threat], Any]
each_library = pytest.mark.parametrize("make", [torchattacks_pgd, foolbox_pgd, art_pgd])
each_threat = pytest.mark.parametrize("threat", [Linf(0.03), L2(0.2)], ids=str)


@each_library
@each_threat
def test_their_pgd_finds_what_ours_finds(make: Make, threat: Threat) -> None:
    """On a smooth model twenty steps are enough for either; 3 of 60 images are left to luck."""
    model = Net()
    x, y = images(model)
    theirs = engine.run(adapt(make(model, threat)), model, x, y, threat, Rng.batch(COUNT), batch_size=25)
    ours = engine.run(PGD(steps=20, restarts=2), model, x, y, threat, Rng.batch(COUNT))
    assert 10 < int(ours.robust.sum()) < 50
    assert (theirs.robust != ours.robust).sum() <= 3
    assert threat.contains(theirs.x_adv, x).all()
    assert torch.equal(model(theirs.x_adv).argmax(1) != y, ~theirs.robust)
    assert set(theirs.queries.tolist()) == {1}


@each_library
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_as_before(make: Make, training: bool) -> None:
    model = Net()
    x, y = images(model)
    theirs = make(model, Linf(0.03))
    model.train(training)
    model.layers[4].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pixels = x.clone()
    engine.run(adapt(theirs), model, x, y, Linf(0.03), Rng.batch(COUNT))
    assert all(module.training == training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    wanting = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert wanting == ["layers.4.bias"]
    assert torch.equal(x, pixels)


@pytest.mark.parametrize("make", [torchattacks_pgd, foolbox_pgd])
def test_the_model_under_attack_is_attacked_whatever_theirs_was_made_with(make: Make) -> None:
    model, foreign = Net(), Net()
    with torch.no_grad():
        for p in foreign.parameters():
            p.zero_()  # no gradient and no answer to learn from
    x, y = images(model)
    theirs = make(foreign, Linf(0.05))

    def function(pixels: Tensor) -> Tensor:
        return model(pixels)  # type: ignore[no-any-return]

    for under_attack in (model, function):
        found = engine.run(adapt(theirs), under_attack, x, y, Linf(0.05), Rng.batch(COUNT))
        wanted = engine.run(adapt(make(model, Linf(0.05))), model, x, y, Linf(0.05), Rng.batch(COUNT))
        assert (found.robust != wanted.robust).sum() <= 3
        assert found.robust.double().mean() < 0.8
    assert getattr(theirs, "model", foreign) is foreign


@each_library
def test_in_a_table_with_others(make: Make, tmp_path: Any) -> None:
    model, threat = Net(), Linf(0.03)
    x, y = images(model)
    attacks = {"theirs": adapt(make(model, threat), name="a peer's PGD"), "PGD": PGD(steps=5)}
    for _ in range(2):  # the second time from the folder, where it is known by its description
        report = evaluate(model, (x, y), threat, attacks=attacks, folder=tmp_path / "e", progress=False)
        assert list(report.results) == ["theirs", "PGD"]
        assert 0 < report.worst.rate < 1
    assert str(attacks["theirs"]).startswith("a peer's PGD: ")


@each_library
def test_a_description_names_library_and_settings_and_no_address(make: Make) -> None:
    attack = adapt(make(Net(), Linf(0.03)))
    assert attack.name.split(".")[0] in ("torchattacks", "foolbox", "art")
    assert "20" in str(attack)
    assert "0x" not in str(attack)
    assert str(attack) == str(adapt(make(Net(), Linf(0.03))))


@pytest.mark.parametrize("make", [torchattacks_pgd, art_pgd])
def test_another_radius_is_refused(make: Make) -> None:
    model = Net()
    x, y = images(model)
    with pytest.raises(UsageError, match=r"made with eps 0.02, expected that of Linf\(eps=0.03\)"):
        engine.run(adapt(make(model, Linf(0.02))), model, x, y, Linf(0.03), Rng.batch(COUNT))


@pytest.mark.parametrize("make", [foolbox_pgd, art_pgd])
def test_another_norm_is_refused(make: Make) -> None:
    model = Net()
    x, y = images(model)
    with pytest.raises(UsageError, match="made for the norm"):
        engine.run(adapt(make(model, L2(0.2))), model, x, y, Linf(0.2), Rng.batch(COUNT))


def test_targeted_attacks_are_refused_where_they_want_target_labels() -> None:
    model = Net()
    theirs = torchattacks_pgd(model, Linf(0.03))
    theirs.set_mode_targeted_random(quiet=True)
    adapt(theirs)  # chooses its own targets
    theirs.set_mode_targeted_by_label(quiet=True)
    with pytest.raises(UsageError, match="make it untargeted"):
        adapt(theirs)
    art = art_pgd(model, Linf(0.03))
    art.set_params(targeted=True)
    with pytest.raises(UsageError, match="make it untargeted"):
        adapt(art)


def test_a_minimum_norm_attack_counts_only_in_the_ball() -> None:
    """DeepFool goes to the boundary however far it is; images beyond eps are no success."""
    library = pytest.importorskip("foolbox", reason="the peer foolbox is not installed")
    model = Net()
    x, y = images(model)
    robust = [
        engine.run(adapt(library.attacks.L2DeepFoolAttack()), model, x, y, L2(eps), Rng.batch(COUNT))
        .robust.double()
        .mean()
        for eps in (0.02, 0.1, 0.5)
    ]
    assert 1 > robust[0] > robust[1] > robust[2]


# --- stand-ins: a class is known by its module ---


def stand_in(found: Callable[[Tensor], Tensor]) -> Any:
    """An object that passes for one of torchattacks."""

    class Theirs:
        model = None

        def set_model(self, model: nn.Module) -> None:
            self.model = model

        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            return found(x)

    Theirs.__module__ = "torchattacks.attacks.theirs"
    return type("Derived", (Theirs,), {})()


def outcome(found: Callable[[Tensor], Tensor], errs_below: float = 0.2) -> engine.Outcome:
    """Under an attack that hands this back; the model errs where the first pixel is dark enough."""
    x = torch.full((5, 1, 2, 2), 0.5)

    def model(pixels: Tensor) -> Tensor:
        first = pixels.flatten(1)[:, :1]
        return torch.cat([first - errs_below, errs_below - first], 1)

    y = torch.zeros(5, dtype=torch.int64)
    return engine.run(adapt(stand_in(found)), model, x, y, Linf(0.4), Rng.batch(5))


def test_claims_are_verified() -> None:
    assert not outcome(lambda x: x - 0.4).robust.any()
    assert not outcome(lambda x: x - 0.45).robust.any(), "drawn back to the ball, it still fools"
    assert outcome(lambda x: x - 0.45, errs_below=0.07).robust.all(), "it fools outside the ball only"
    assert outcome(lambda x: x + 0.1).robust.all(), "not misclassified"
    assert outcome(lambda x: x.requires_grad_() - 0.1).robust.all()


def test_one_that_only_asks_attacks_a_model_without_gradients() -> None:
    model = Net().eval()
    x, y = images(model)

    def answers(pixels: Tensor) -> Tensor:
        return model(pixels).detach()

    theirs = stand_in(lambda pixels: (pixels - 0.3).clamp(0, 1))
    with pytest.raises(UsageError, match="needs gradients"):
        evaluate(answers, (x, y), Linf(0.3), attacks={"theirs": adapt(theirs)}, progress=False)
    attack = adapt(theirs, white_box=False)
    report = evaluate(answers, (x, y), Linf(0.3), attacks={"theirs": attack}, progress=False)
    assert 0 < report.score("theirs").rate < 1


def test_images_that_are_not_numbers_are_no_finding_about_the_model() -> None:
    found = outcome(lambda x: x * torch.nan)
    assert found.robust.all()
    assert not found.broken.any()
    assert torch.equal(found.x_adv, torch.full((5, 1, 2, 2), 0.5))


def test_another_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"images of shape \(5, 1, 2, 2\), got \(5, 4\)"):
        outcome(lambda x: x.flatten(1))


@pytest.mark.parametrize("theirs", [object(), PGD(), nn.Identity(), "torchattacks.PGD"])
def test_what_cannot_be_adapted(theirs: object) -> None:
    with pytest.raises(UsageError, match="expected an attack object of torchattacks, foolbox, art"):
        adapt(theirs)
