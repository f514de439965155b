"""Networks in disguise: models whose robustness only looks higher than it is, and what they are made of.

A disguise is a function (f, x) -> logits around a network f. Some hide gradients, some make queries useless,
some change nothing that matters; a default evaluation has to see through each, or say that it is in doubt.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from atlas.attacks import ATTACKS, PGD, Attack, engine
from atlas.data import Images
from atlas.rng import Rng
from atlas.threat import Linf, Threat

Hide = Callable[[nn.Module, Tensor], Tensor]


class Disguised(nn.Module):
    """A network behind a disguise."""

    def __init__(self, net: nn.Module, hide: Hide) -> None:
        super().__init__()
        self.net, self.hide = net, hide

    def forward(self, x: Tensor) -> Tensor:
        return self.hide(self.net, x)


def sine(frequency: float, slope: float, spread: bool = True) -> Hide:
    """Waves on the pixels, steep, fine and low. `spread` gives every pixel its own phase."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        phase = 7.0 * torch.arange(x[0].numel(), dtype=x.dtype).view_as(x[0]) if spread else 0.0
        return f(x + slope / frequency * torch.sin(frequency * x + phase))

    return hide


def plain(x: Tensor, shown: Tensor) -> Tensor:
    """`shown`, of which x has no gradient but zeros."""
    return shown.detach() + 0 * x


def through(x: Tensor, shown: Tensor) -> Tensor:
    """`shown`, with the gradient of the identity."""
    return x + (shown - x).detach()


def levels(x: Tensor, count: int) -> Tensor:
    return (x * count).round() / count


def rounded(count: int) -> Hide:
    return lambda f, x: f(plain(x, levels(x, count)))


def leaking(count: int, leak: float) -> Hide:
    """Rounded, with a part of the slope."""
    return lambda f, x: f(leak * x + plain(x, levels(x, count) - leak * x))


def stairs(count: int, sharpness: float) -> Hide:
    """Smooth stairs, flat where images are and steep in between."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        scaled = x * count
        floor = scaled.floor().detach()
        rise = torch.sigmoid(sharpness * (scaled - floor - 0.5))
        return f((floor + rise) / count)

    return hide


def blackened(below: float, above: float = 1.0) -> Hide:
    """A denoiser: dark pixels black, bright ones white, no gradient there."""
    return lambda f, x: f(torch.where(x < below, 0 * x, torch.where(x > above, 1 + 0 * x, x)))


def contrast(steepness: float) -> Hide:
    """Saturation: nearly black and white."""
    return lambda f, x: f(torch.sigmoid(steepness * (x - 0.5)))


def mask_of(x: Tensor, share: float, seed: int = 0) -> Tensor:
    """Pixels at random, the same ones for all images."""
    return (torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(seed)) < share).to(x.dtype)


def masked(share: float, count: int = 4) -> Hide:
    """Some of the pixels rounded."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        mask = mask_of(x, share)
        return f(x * (1 - mask) + mask * plain(x, levels(x, count)))

    return hide


def half_rounded(count: int) -> Hide:
    """The upper half of each image rounded."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        cut = x.shape[2] // 2
        return f(torch.cat([plain(x[:, :, :cut], levels(x[:, :, :cut], count)), x[:, :, cut:]], 2))

    return hide


def masked_gradient(share: float) -> Hide:
    """The identity, with no gradient at some of the pixels."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        mask = mask_of(x, share)
        return f(x * (1 - mask) + mask * plain(x, x))

    return hide


class _Turned(torch.autograd.Function):
    """The identity, whose gradient is multiplied by something."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.saved_tensors[0], None


def turned(share: float) -> Hide:
    """The gradient of some of the pixels turned round."""
    return lambda f, x: f(_Turned.apply(x, 1 - 2 * mask_of(x, share)))


def seed_of(x: Tensor) -> Tensor:
    """A number for each image that any change of it changes, int64 [B]."""
    weights = torch.arange(1, x[0].numel() + 1) * 2654435761 % 1000003
    return ((x.detach().flatten(1) * 1e6).long() * weights).sum(1)


def noise_of(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal, and another for every image."""
    found = [torch.randn(shape, generator=torch.Generator().manual_seed(int(s) % 2**31)) for s in seed_of(x)]
    return torch.stack(found).to(x.dtype)


def seeded_noise(size: float) -> Hide:
    return lambda f, x: f(x + size * noise_of(x, tuple(x.shape[1:])))


def seeded_logits(size: float) -> Hide:
    def hide(f: nn.Module, x: Tensor) -> Tensor:
        logits = f(x)
        return logits + size * noise_of(x, tuple(logits.shape[1:]))

    return hide


def jpeg(quality: int, how: Callable[[Tensor, Tensor], Tensor] = plain, share: float = 1.0) -> Hide:
    """Compressed and decompressed by Pillow; `share` mixes it with the image itself."""

    def pressed(image: Tensor) -> Tensor:
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        buffer = io.BytesIO()
        Image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=quality)
        back = np.asarray(Image.open(buffer), dtype=np.float32) / 255
        return torch.from_numpy(back.reshape(pixels.shape)).permute(2, 0, 1)

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        shown = torch.stack([pressed(image) for image in x.detach().clamp(0, 1)])
        return f(share * how(x, shown) + (1 - share) * x)

    return hide


def layers_of(f: nn.Module) -> Iterator[nn.Module]:
    """The layers of a network that is a sequence, or a sequence after a normalisation."""
    for child in f.children():
        yield from layers_of(child) if isinstance(child, nn.Sequential) else (child,)


def winners(share: float) -> Hide:
    """k-winners-take-all after every ReLU: the largest activations stay, the others are 0."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        for layer in layers_of(f):
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                flat = x.flatten(1)
                least = flat.kthvalue(max(1, int((1 - share) * flat.shape[1])), 1, True).values
                x = (flat * (flat > least)).view_as(x)
        return x

    return hide


def activations(change: Callable[[Tensor], Tensor]) -> Hide:
    """What each ReLU gives, changed."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        for layer in layers_of(f):
            x = change(layer(x)) if isinstance(layer, nn.ReLU) else layer(x)
        return x

    return hide


def weights(bits: int) -> Hide:
    """Weights of so many bits."""

    def quantised(values: Tensor) -> Tensor:
        step = values.abs().max() / 2 ** (bits - 1)
        return (values / step).round() * step

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        few = {name: quantised(value) for name, value in f.named_parameters()}
        return torch.func.functional_call(f, few, (x,))  # type: ignore[no-any-return]

    return hide


def of_logits(change: Callable[[Tensor], Tensor]) -> Hide:
    return lambda f, x: change(f(x))


def filtered(f: nn.Module, x: Tensor) -> Tensor:
    """A median filter, 3 x 3."""
    patches = F.unfold(x, 3, padding=1).view(len(x), x.shape[1], 9, -1)
    return f(patches.median(2).values.view_as(x))  # type: ignore[no-any-return]


def off_grid(f: nn.Module, x: Tensor) -> Tensor:
    """Honest at images of 8 bits, as all clean ones are, and without a gradient elsewhere."""
    on = ((x * 255 - (x * 255).round()).abs().flatten(1).amax(1) < 1e-3).view(-1, 1, 1, 1)
    return f(torch.where(on, x, plain(x, x)))  # type: ignore[no-any-return]


def borrowed(share: float) -> Hide:
    """The answers of f, and beside its own gradient that of a random linear map."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        logits = f(x)
        map_ = torch.randn(x[0].numel(), logits.shape[1], generator=torch.Generator().manual_seed(1))
        strange = share * x.flatten(1) @ map_
        return logits + strange - strange.detach()

    return hide


def routed(f: nn.Module, x: Tensor) -> Tensor:
    """Shifted by a pixel or not, as a number made of the image has it."""
    shift = (seed_of(x) % 3 - 1).tolist()
    return f(torch.stack([image.roll(s, 2) for image, s in zip(x, shift, strict=True)]))  # type: ignore


def prototypes(f: nn.Module, x: Tensor) -> Tensor:
    """Grey values drawn to the nearest of nine by a sharp softmax."""
    centres = torch.linspace(0, 1, 9)
    weights = torch.softmax(-2000 * (x[..., None] - centres) ** 2, -1)
    return f((weights * centres).sum(-1))  # type: ignore[no-any-return]


def smoothed(f: nn.Module, x: Tensor) -> Tensor:
    """The mean over 8 points around the image: honest, and steadier than the network."""
    noise = torch.randn(8, *x.shape[1:], generator=torch.Generator().manual_seed(0))
    return torch.stack([f((x + 0.1 * each).clamp(0, 1)) for each in noise]).mean(0)


def zigzag(count: int, slope: float) -> Hide:
    """Triangles on the pixels, of the slope 1 + slope and 1 - slope in turn."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        scaled = x * count
        wave = (scaled - scaled.round().detach()).abs()
        return f(x + slope / count * (wave - 0.25))

    return hide


DISGUISES: dict[str, Hide] = {
    **{
        f"sine {w} x {s}": sine(w, s)
        for w, s in [
            (200, 2),
            (200, 5),
            (500, 1),
            (500, 3),
            (500, 10),
            (1000, 2),
            (1000, 5),
            (2000, 3),
            (2000, 10),
        ]
    },
    "sine 300 x 3 in phase": sine(300, 3, spread=False),
    "sine 1000 x 5 in phase": sine(1000, 5, spread=False),
    "zigzag 50 x 4": zigzag(50, 4),
    "zigzag 200 x 8": zigzag(200, 8),
    "rounded to 8": rounded(8),
    "rounded to 4, leak 0.01": leaking(4, 0.01),
    "rounded to 4, leak 0.3": leaking(4, 0.3),
    "stairs 8, sharp 10": stairs(8, 10),
    "stairs 16, sharp 20": stairs(16, 20),
    "stairs 4, sharp 30": stairs(4, 30),
    "prototypes": prototypes,
    "blackened below 0.1": blackened(0.1),
    "blackened below 0.25": blackened(0.25),
    "black below 0.25, white above 0.75": blackened(0.25, 0.75),
    "contrast 10": contrast(10),
    "contrast 30": contrast(30),
    "contrast 100": contrast(100),
    **{f"masked {share:.0%}": masked(share) for share in (0.25, 0.5, 0.75, 0.9, 0.97)},
    "masked 50% to halves": masked(0.5, 2),
    "half rounded": half_rounded(4),
    **{f"no gradient at {share:.0%}": masked_gradient(share) for share in (0.5, 0.9, 0.97)},
    **{f"gradient turned at {share:.0%}": turned(share) for share in (0.2, 0.4, 0.48)},
    "borrowed gradient 0.1": borrowed(0.1),
    "borrowed gradient 1": borrowed(1.0),
    "borrowed gradient 10": borrowed(10.0),
    "seeded noise 0.05": seeded_noise(0.05),
    "seeded noise 0.15": seeded_noise(0.15),
    "seeded noise 0.3": seeded_noise(0.3),
    "seeded logits 1": seeded_logits(1.0),
    "routed": routed,
    "JPEG 50": jpeg(50),
    "JPEG 20, straight through": jpeg(20, through),
    "JPEG 20, half": jpeg(20, share=0.5),
    "JPEG 20, nine tenths": jpeg(20, share=0.9),
    "winners 10%": winners(0.1),
    "winners 20%": winners(0.2),
    "winners 40%": winners(0.4),
    "rounded activations": activations(lambda a: plain(a, (a * 4).round() / 4)),
    "activations rounded, leak 0.1": activations(lambda a: 0.1 * a + plain(a, (a * 4).round() / 4 - 0.1 * a)),
    "waves in the activations": activations(lambda a: a + 0.05 * torch.sin(100 * a)),
    "saturated activations": activations(lambda a: 2 * torch.tanh(2 * a)),
    "weights of 3 bits": weights(3),
    "weights of 5 bits": weights(5),
    "logits x 1000": of_logits(lambda z: 1000 * z),
    "logits x 1e5": of_logits(lambda z: 1e5 * z),
    "logits x 1e-4": of_logits(lambda z: 1e-4 * z),
    "logits x 1e-12": of_logits(lambda z: 1e-12 * z),
    "logits x 1e-40": of_logits(lambda z: 1e-40 * z),
    "logits + 1e4": of_logits(lambda z: 1e4 + z),
    "logits + 1e6": of_logits(lambda z: 1e6 + z),
    "logits clipped at 2": of_logits(lambda z: z.clamp(-2, 2)),
    "logits clipped at 8": of_logits(lambda z: z.clamp(-8, 8)),
    "tanh of logits": of_logits(torch.tanh),
    "tanh of logits / 10": of_logits(lambda z: torch.tanh(z / 10)),
    "logits cubed": of_logits(lambda z: z**3),
    "rounded logits": of_logits(lambda z: plain(z, z.round())),
    "rounded logits, leak 0.01": of_logits(lambda z: 0.01 * z + plain(z, z.round())),
    "waves in the logits": of_logits(lambda z: z + 0.5 * torch.sin(20 * z)),
    "steep waves in the logits": of_logits(lambda z: z + torch.sin(50 * z)),
    "softmax": of_logits(lambda z: z.softmax(1)),
    "softmax, cold": of_logits(lambda z: (5 * z).softmax(1)),
    "median filter": filtered,
    "smoothed": smoothed,
    "off the grid": off_grid,
}

CHOSEN = (
    *("sine 500 x 3", "sine 1000 x 5", "sine 2000 x 10", "sine 300 x 3 in phase", "zigzag 200 x 8"),
    *("rounded to 8", "rounded to 4, leak 0.01", "stairs 16, sharp 20", "blackened below 0.25"),
    *("contrast 30", "masked 50% to halves", "half rounded", "borrowed gradient 0.1"),
)
"""Those that `make test` tries."""


class _Backward(torch.autograd.Function):
    """The identity, whose gradient is changed by a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def backward(change: Callable[[Tensor], Tensor], *, of_logits: bool = False) -> Hide:
    """The network itself; the gradient is changed on its way back to the image, or back from the logits."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        return _Backward.apply(f(x), change) if of_logits else f(_Backward.apply(x, change))  # type: ignore

    return hide


def largest_removed(share: float) -> Callable[[Tensor], Tensor]:
    """Zeros in place of a share of the entries of each gradient, the largest ones."""

    def change(gradient: Tensor) -> Tensor:
        flat = gradient.flatten(1).abs()
        limit = flat.kthvalue(max(1, int((1 - share) * flat.shape[1])), 1, True).values
        return gradient * (flat <= limit).view_as(gradient)

    return change


def table_lookup(count: int, jitter: float) -> Hide:
    """Grey values from a table with random errors, linear between its entries: a wrong slope everywhere."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        noise = torch.rand(count + 1, generator=torch.Generator().manual_seed(2)) - 0.5
        table = torch.linspace(0, 1, count + 1) + jitter * noise
        low = (x * count).floor().clamp(0, count - 1).detach()
        start, end = table[low.long()], table[low.long() + 1]
        return f(start + (end - start) * (x * count - low))  # type: ignore[no-any-return]

    return hide


def seeded_dropout(share: float) -> Hide:
    """Pixels set to 0, chosen by a number made of the image."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        return f(x * (noise_of(x, tuple(x.shape[1:])).erf() * 0.5 + 0.5 > share))  # type: ignore[no-any-return]

    return hide


def bit_planes(bits: int, leak: float) -> Hide:
    """The upper bits of each pixel, rounded down, and a part of what was cut off."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        kept = (x.detach() * 255).byte().bitwise_and(256 - 2 ** (8 - bits)) / 255
        return f(kept + leak * (x - kept))  # type: ignore[no-any-return]

    return hide


def cosine_threshold(below: float) -> Hide:
    """Small coefficients of the cosine transform of the image set to 0, as wavelet denoisers do."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        side = torch.arange(x.shape[-1], dtype=x.dtype)
        basis = torch.cos(torch.pi * (side + 0.5) * side[:, None] / len(side)) * (2 / len(side)) ** 0.5
        basis[0] /= 2**0.5
        coefficients = basis @ x @ basis.T
        return f(basis.T @ (coefficients * (coefficients.abs() > below)) @ basis)  # type: ignore[no-any-return]

    return hide


def hashed_logits(size: float, frequency: float) -> Hide:
    """Waves of a random projection of the image on every logit: smooth, and steep everywhere."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        logits = f(x)
        map_ = torch.randn(x[0].numel(), logits.shape[1], generator=torch.Generator().manual_seed(3))
        return logits + size * torch.sin(frequency * x.flatten(1) @ map_)  # type: ignore[no-any-return]

    return hide


def vote(leak: float) -> Hide:
    """The votes of five shifted looks, and a little of their mean logits."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        shifts = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
        looks = torch.stack([f(x.roll(shift, (2, 3))) for shift in shifts])
        votes = F.one_hot(looks.argmax(2), looks.shape[2]).sum(0)
        return votes + leak * looks.mean(0)  # type: ignore[no-any-return]

    return hide


def total_variation(steps: int, count: int, leak: float) -> Hide:
    """Smoothed by steps down the total variation, then rounded with a part of the slope."""

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        smooth = x
        for _ in range(steps):
            for axis in (2, 3):
                slope = torch.tanh(20 * smooth.diff(dim=axis))
                pad = [0, 0, 0, 0] if axis == 2 else [0, 0]
                pad[-2:] = [1, 1]
                smooth = smooth + 0.03 * F.pad(slope, pad).diff(dim=axis)
        return f(leak * smooth + plain(smooth, levels(smooth, count) - leak * smooth))  # type: ignore

    return hide


def blurred_where_noisy(f: nn.Module, x: Tensor) -> Tensor:
    """A detector of noise: images whose neighbouring pixels differ much are blurred first."""
    noisy = (x.diff(dim=2).abs().mean((1, 2, 3)) + x.diff(dim=3).abs().mean((1, 2, 3))) > 0.2
    blurred = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return f(torch.where(noisy[:, None, None, None], blurred, x))  # type: ignore[no-any-return]


def winner_takes(leak: float) -> Hide:
    """1 for the answer and 0 for the others, and a little of the logits."""
    return of_logits(lambda z: F.one_hot(z.argmax(1), z.shape[1]) + leak * z)


HELD_OUT: dict[str, Hide] = {
    "gradient x 1e-30": backward(lambda g: 1e-30 * g),
    "gradient reversed": backward(lambda g: -g),
    "gradient replaced by noise": backward(lambda g: noise_of(g, tuple(g.shape[1:]))),
    "gradient shifted by 2 pixels": backward(lambda g: g.roll(2, 3)),
    "gradient without its largest half": backward(largest_removed(0.5)),
    "gradient of the next class": backward(lambda g: g.roll(1, 1), of_logits=True),
    "table of 32 greys, errors 0.1": table_lookup(32, 0.1),
    "seeded dropout 10%": seeded_dropout(0.1),
    "3 bits a pixel, leak 0.1": bit_planes(3, 0.1),
    "small cosines removed": cosine_threshold(0.3),
    "hashed waves in the logits": hashed_logits(1.0, 30.0),
    "log-softmax above -5": of_logits(lambda z: z.log_softmax(1).clamp_min(-5)),
    "logits in half precision x 1000": of_logits(lambda z: (1000 * z).half().float()),
    "logits rounded to 0.1, leak 0.001": of_logits(lambda z: 1e-3 * z + plain(z, (z * 10).round() / 10)),
    "answer and logits x 1e-3": winner_takes(1e-3),
    "vote of 5 shifts": vote(1e-3),
    "total variation, rounded to 8": total_variation(5, 8, 0.02),
    "blurred where noisy": blurred_where_noisy,
}
"""Written after the suite and its probes were settled, and run on them as they were."""


def confidence_of(other: nn.Module) -> Hide:
    """The answers of the network with the confidence of another one, whose weak points are elsewhere.

    The outputs are smooth and their gradients right, and there is nothing in them to climb towards the
    boundary of the network: only attacks that look at answers alone, such as RayS, find it.
    """

    def hide(f: nn.Module, x: Tensor) -> Tensor:
        logits, answer = other(x), f(x).argmax(1, keepdim=True)
        rest = logits.scatter(1, answer, -torch.inf).amax(1, keepdim=True)
        return logits.scatter(1, answer, rest + F.softplus(logits.gather(1, answer) - rest))

    return hide


class _Answers(torch.autograd.Function):
    """`shown` exactly, with the gradient of `bare`."""

    @staticmethod
    def forward(ctx: Any, bare: Tensor, shown: Tensor) -> Tensor:
        return shown.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


@dataclass(frozen=True)
class Bare:
    """The answers of a disguised network with the gradients of the network, as an insider attacks."""

    model: Disguised

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            shown = self.model(x)
        return _Answers.apply(self.model.net(x), shown)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True)
class Averaged:
    """The answers of a model with the mean gradient over points around the image."""

    model: nn.Module
    radius: float
    points: int = 8

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            shown = self.model(x)
        if not x.requires_grad:
            return shown  # type: ignore[no-any-return]
        around = x.repeat_interleave(self.points, 0)
        moved = around + self.radius * (2 * torch.rand_like(around) - 1)
        logits = self.model(moved.clamp(0, 1)).unflatten(0, (len(x), self.points)).mean(1)
        return _Answers.apply(logits, shown)  # type: ignore[no-any-return, no-untyped-call]


def best_known(model: Disguised, images: Images, right: Tensor, threat: Threat) -> dict[str, Tensor]:
    """Which images of `right` are still right after each of a set of strong attacks, one after the other.

    Those on `Bare` and `Averaged` use what an evaluation does not know: the network behind the disguise, and
    that there is one.
    """
    pixels = images.x[0].numel()
    bare = Bare(model)
    averaged = Averaged(model, threat.eps / 2 if isinstance(threat, Linf) else threat.eps / pixels**0.5)
    attacks: dict[str, tuple[Callable[[Tensor], Tensor], Attack]] = {
        "Un-T on the bare network": (bare, ATTACKS["un-t"](restarts=2, steps=50)),
        "Shrink-T on the bare network": (bare, ATTACKS["shrink-t"](targets=3, steps=40)),
        "PGD on averaged gradients": (averaged, PGD(steps=40, objective="margin")),
        "Shrink-T on averaged gradients": (averaged, ATTACKS["shrink-t"](targets=1, steps=30, far=4.0)),
        "FAB-T": (model, ATTACKS["fab-t"](targets=3, steps=30)),
        "APGD-T": (model, ATTACKS["apgd-t"](targets=3, steps=40)),
        "Square 1500": (model, ATTACKS["square"](queries=1500)),
    }
    left: dict[str, Tensor] = {}
    for name, (attacked, attack) in attacks.items():
        which = right.nonzero()[:, 0]
        if len(which):
            x, y = images.pixels(which), images.y[which]
            torch.manual_seed(0)
            outcome = engine.run(attack, attacked, x, y, threat, Rng.batch(len(x)))
            right = right.clone()
            right[which] = outcome.robust
        left[name] = right
    return left


def trained(model: nn.Module, images: Images, epochs: int) -> nn.Module:
    """The model after a natural training, in evaluation mode."""
    x, y = images.pixels(slice(None)), images.y
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for some in torch.split(order, 100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)
