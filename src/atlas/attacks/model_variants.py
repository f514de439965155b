"""While an attack runs, the model stands still; afterwards it is exactly as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from atlas.config import integer
from atlas.errors import UsageError, choose, is_ctrl_c, is_out_of_memory, unknown

Model = Callable[[Tensor], Tensor]
BatchNormMode = Literal["eval", "train"]
FAST_CONV_GRAD = True
"""Whether an attack may lend the layers of a model the class `FastGradConv2d`, which is faster. Turn it off
where a model depends on the exact class of its convolutions."""
WIDE = 32
"""Channels from which on channels last pays: docs/results/records/speed.md has how much, on two networks."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""In which precision an attack may search."""


def check_autograd() -> None:
    """Refuse `torch.inference_mode()`: unlike `no_grad`, it cannot be undone inside."""
    if torch.is_inference_mode_enabled():
        raise UsageError(
            "attacks and losses need gradients, which torch.inference_mode() rules out: call them outside of "
            "it; torch.no_grad() is fine for attacks"
        )


@contextmanager
def frozen(model: Model, mode: BatchNormMode = "eval", *, fast_conv_grad: bool = True) -> Iterator[None]:
    """Weights without gradients and all modules in `mode`, put back afterwards, also on an exception.

    Frozen weights make a backward pass input-only, half the work of a full one. In "train" mode
    BatchNorm uses the statistics of the batch; its running ones are put back, because the images that
    an attack passes through are not the ones that are trained on. So is every other buffer: a module may
    count or average in any mode, and one by `torch.export` keeps the mode in which it was exported.

    With `fast_conv_grad`, layers of one channel take their gradient in a faster way (`FastGradConv2d`) unless
    `FAST_CONV_GRAD` is off.
    """
    check_autograd()
    if mode not in get_args(BatchNormMode):
        raise unknown("mode", mode, get_args(BatchNormMode))
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    slow = slow_convolutions(model) if fast_conv_grad else []
    trainable = [p for p in model.parameters() if p.requires_grad]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        _switch(model, mode == "train")
        for p in trainable:
            p.requires_grad_(False)
        for layer in slow:
            layer.__class__ = FastGradConv2d
        yield
    finally:
        for layer in slow:
            layer.__class__ = nn.Conv2d
        for p in trainable:
            p.requires_grad_(True)
        for module, training in modes:
            module.training = training
        for module, name, buffer, before in buffers:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            # Not if it is the same: a graph that the caller is going to go back through may hold the buffer.
            if not torch.equal(buffer, before):
                with torch.no_grad():
                    buffer.copy_(before)


def _switch(model: nn.Module, training: bool) -> None:
    """`model.train(training)`, past modules by `torch.export`, which refuse it."""
    try:
        model.train(training)
    except NotImplementedError:
        model.training = training
        for child in model.children():
            _switch(child, training)


def slow_convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """The convolutions of one channel whose input gradient takes a slow path on the CPU."""
    return [
        layer
        for layer in (model.modules() if FAST_CONV_GRAD else ())
        if type(layer) is nn.Conv2d
        and layer.in_channels == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and layer.weight.device.type == "cpu"
    ]


class FastGradConv2d(nn.Conv2d):
    """A convolution of one channel whose input gradient is a matrix product, folded back to an image.

    The library's own gradient pads the one channel to a full vector and is several times slower, which on
    MNIST is a good part of all that an attack does. Whoever wants more than that gradient (one of the
    weights, a derivative by `torch.func` or forward mode, an image without a batch) gets the library's.
    """

    def _get_name(self) -> str:
        """As before: a frozen model has the same description, by which it is known."""
        return nn.Conv2d.__name__

    def forward(self, x: Tensor) -> Tensor:
        other_derivatives = forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
        if x.dim() != 4 or self.weight.requires_grad or other_derivatives:
            return super().forward(x)
        apply: Any = _FastConvGrad.apply
        return apply(x, self.weight, self.bias, self.stride, self.padding)  # type: ignore[no-any-return]


class _FastConvGrad(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.size, ctx.padding, ctx.stride = x.shape[2:], padding, stride
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        gradient = gradients[0].to(weight.dtype)  # autocast may lower it
        # Not flatten, which a batch of gradients (`is_grads_batched`) does not know.
        columns = weight.flatten(1).t() @ gradient.reshape(*gradient.shape[:2], -1)
        image = F.fold(columns, ctx.size, weight.shape[2:], 1, ctx.padding, ctx.stride)
        return image, None, None, None, None


@contextmanager
def channels_last(model: Model, x: Tensor) -> Iterator[None]:
    """The weights of convolutions in that order, put back afterwards, also on an exception.

    Answers and gradients are the same, up to rounding. Left as they are: narrow models, other devices, and a
    model that cannot answer x [B, C, H, W] so, as one cannot that takes its features apart by `view`.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    layers = [module for module in modules if isinstance(module, nn.Conv2d)]
    wide = any(layer.in_channels >= WIDE for layer in layers)
    parameters = [p for layer in layers for p in layer.parameters(recurse=False)] if wide else []
    before = {p: p.data for p in parameters if p.dim() == 4 and p.device.type == "cpu"}
    try:
        for weight, data in before.items():
            # Not contiguous(), which leaves a weight of one channel as it is, and with it all that it feeds.
            weight.data = data.clone(memory_format=torch.channels_last)
        if before and not _answers(model, x[:1]):
            for weight, data in before.items():
                weight.data = data
        yield
    finally:
        for weight, data in before.items():
            weight.data = data


@torch.no_grad()
def _answers(model: Model, x: Tensor) -> bool:
    try:
        model(x)
    except (Exception, SystemExit) as error:  # it is told where the model is asked in its own order
        if is_ctrl_c(error):
            raise
        return False
    return True


def searched(model: Model, dtype: str) -> Model:
    """The model in the precision `dtype`, to search with: what it finds is checked with the model itself.

    Images come in and logits go out as they do for the model. In bfloat16 it is a copy of the weights,
    channels last, which this arithmetic wants. In float32 it is the model.
    """
    kind = choose("attack dtype", dtype, DTYPES)
    if kind == torch.float32:
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(f"{dtype} search needs an nn.Module, got a {type(model).__name__}: take float32")
    try:
        fast = copy.deepcopy(model).to(kind).eval().requires_grad_(False)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(f"the model cannot be copied for {dtype} ({error}): search in float32") from error
    for layer in slow_convolutions(fast):
        layer.__class__ = FastGradConv2d
    fast = fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def search(x: Tensor) -> Tensor:
        try:
            logits: Tensor = fast(x.to(kind, memory_format=torch.channels_last))
        except RuntimeError as error:  # not every operation, or constant of an exported graph, can
            if is_out_of_memory(error):
                raise
            raise UsageError(f"the model failed in {dtype}: {error}; search in float32") from error
        return logits.to(x.dtype)

    return search


@contextmanager
def full_float32() -> Iterator[None]:
    """Switch off TF32 and other shortcuts that round float32 products to fewer bits.

    GPUs from Ampere on take them in convolutions unless told otherwise, and their rounding decides about
    images next to the boundary. What was set before is set again afterwards, also after an exception.
    """
    backends: Any = torch.backends  # torch's stubs lack these
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    switches = [backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def averaged(model: Model, passes: int) -> Model:
    """The mean of the logits over `passes` looks at each image: expectation over transformation (EOT)."""
    passes = integer(passes, "eot", least=1)
    return model if passes == 1 else Averaged(model, passes)


@dataclass(frozen=True)
class Averaged:
    """The mean of several answers of a model that gives another one each time."""

    model: Model
    passes: int
    random: ClassVar[bool] = True  # no climb on it can go in circles

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([self.model(x) for _ in range(self.passes)]).mean(0)
