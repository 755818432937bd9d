"""AudioVAE: recordings to latent frames and latent frames to audio, causal, stateful and cut-invariant.

Convolutions are written as linear layers and shifted multiply-adds over ``(rows, time, channels)``. A library
convolution chooses its algorithm, and with it the order of summation, by batch and length; in this form a sample's
bits depend on neither, so that any cut of the input, and any set of rows decoded together, gives the same audio.

Every stage keeps the inputs its kernel still reaches back to. :data:`State` is the list of those tails, one per stage
``(rows, tail, channels)``, zeros before the first frame. A stage never writes into a state: it returns the next one,
so that a failed call leaves the caller's state as it was.

Source: OpenBMB/VoxCPM, ``AudioVAEV2``, ``StreamingVAEDecoder``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from voxr_ray.voxcpm2.config import VAEConfig
from voxr_ray.voxcpm2.ops import Linear, joined
from voxr_ray.voxcpm2.tape import Function, Recorded

State: TypeAlias = list[Tensor]
"""Tails of all stages of an encoder or decoder: one ``(rows, tail, channels)`` tensor per stage."""

KERNEL = 7
DILATIONS = (1, 3, 9)


def snake(x: Tensor, alpha: Tensor, inverse: Tensor) -> Tensor:
    """``x + sin(alpha x)^2 / alpha`` over the last axis.

    Source: OpenBMB/VoxCPM, ``snake``.
    """
    if torch.is_grad_enabled():
        return x + inverse * torch.sin(alpha * x).square()
    wave = (x * alpha).sin_()
    return wave.square_().mul_(inverse).add_(x)


class Snake(nn.Module):
    """Periodic activation with one frequency per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))
        self._inverse: Tensor | None = None

    def pack(self) -> None:
        """Compute once what only depends on the weight; it must not change from here on."""
        self._inverse = (self.alpha.detach() + 1e-9).reciprocal()

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, time, channels)``."""
        inverse = (self.alpha + 1e-9).reciprocal() if self._inverse is None else self._inverse
        return snake(x, self.alpha, inverse)


class Stage(nn.Module):
    """A part of the VAE with one tail. ``tail`` is its length in frames, ``channels`` its width."""

    def __init__(self, tail: int, channels: int) -> None:
        super().__init__()
        self.tail = tail
        self.channels = channels

    def run(self, x: Tensor) -> Tensor:
        """From ``(rows, tail + time, channels)``, tail in front, to the outputs of the new frames alone."""
        raise TypeError(f"{type(self).__name__} must say how it runs")

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of ``x`` ``(rows, time, channels)`` behind ``state``, and the next state."""
        if self.tail == 0:
            return self.run(x), state
        behind = torch.cat((state, x), dim=1)
        return self.run(behind), behind[:, -self.tail :]


class Conv(Stage):
    """Causal convolution over all channels, as one linear layer over the taps laid side by side."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, dilation: int = 1) -> None:
        super().__init__((kernel - 1) * dilation, inputs)
        self.kernel, self.dilation = kernel, dilation
        self.linear = Linear(kernel * inputs, outputs)

    def run(self, x: Tensor) -> Tensor:
        """See :meth:`Stage.run`."""
        if self.kernel == 1:
            return self.linear(x)  # type: ignore[no-any-return]
        time = x.shape[1] - self.tail
        taps = [x[:, tap * self.dilation : tap * self.dilation + time] for tap in range(self.kernel)]
        return self.linear(torch.cat(taps, dim=-1))  # type: ignore[no-any-return]

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Take a convolution's weight ``(outputs, inputs, kernel)`` and bias."""
        self.linear.weight = nn.Parameter(weight.permute(0, 2, 1).reshape(weight.shape[0], -1).contiguous())
        self.linear.bias = nn.Parameter(bias)


class DepthwiseConv(Stage):
    """Causal convolution of each channel by itself, as shifted multiply-adds."""

    def __init__(self, channels: int, *, kernel: int, dilation: int = 1) -> None:
        super().__init__((kernel - 1) * dilation, channels)
        self.kernel, self.dilation = kernel, dilation
        self.weight = nn.Parameter(torch.empty(kernel, channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def run(self, x: Tensor) -> Tensor:
        """See :meth:`Stage.run`."""
        time = x.shape[1] - self.tail
        if torch.is_grad_enabled():
            out: Tensor = self.bias
            for tap in range(self.kernel):
                start = tap * self.dilation
                out = torch.addcmul(out, x[:, start : start + time], self.weight[tap])
            return out
        taps = self.weight.unbind(0)
        out = torch.addcmul(self.bias, x[:, :time], taps[0])
        for tap in range(1, self.kernel):
            start = tap * self.dilation
            out.addcmul_(x[:, start : start + time], taps[tap])
        return out

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Take a grouped convolution's weight ``(channels, 1, kernel)`` and bias."""
        self.weight = nn.Parameter(weight[:, 0].t().contiguous())
        self.bias = nn.Parameter(bias)


def first_conv(channels: int, *, dilation: int, depthwise: bool) -> Conv | DepthwiseConv:
    """The wide convolution of a residual unit."""
    if depthwise:
        return DepthwiseConv(channels, kernel=KERNEL, dilation=dilation)
    return Conv(channels, channels, kernel=KERNEL, dilation=dilation)


class ResidualUnit(Stage):
    """Snake, wide convolution, snake, pointwise convolution, added to the input.

    The tail is kept of the first snake's output, which is what the wide convolution reaches back to.
    """

    def __init__(self, channels: int, *, dilation: int, depthwise: bool) -> None:
        super().__init__((KERNEL - 1) * dilation, channels)
        self.snake_in = Snake(channels)
        self.wide = first_conv(channels, dilation=dilation, depthwise=depthwise)
        self.snake_out = Snake(channels)
        self.pointwise = Conv(channels, channels, kernel=1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Stage.forward`."""
        wide, state = self.wide(self.snake_in(x), state)
        return x + self.pointwise.run(self.snake_out(wide)), state


class Downsample(Stage):
    """Snake and a causal convolution of kernel ``2 * stride`` that keeps one frame in ``stride``.

    An output frame reads one block of ``stride`` inputs and the block before it, so it is one linear layer over two
    blocks laid side by side.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(stride, inputs)
        self.stride = stride
        self.snake = Snake(inputs)
        self.linear = Linear(2 * stride * inputs, outputs)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Stage.forward`; ``time`` must be a multiple of the stride."""
        behind = torch.cat((state, self.snake(x)), dim=1)
        blocks = behind.view(x.shape[0], -1, self.stride * self.channels)
        out = self.linear(torch.cat((blocks[:, :-1], blocks[:, 1:]), dim=-1))
        return out, behind[:, -self.stride :]

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Take a convolution's weight ``(outputs, inputs, 2 * stride)`` and bias."""
        self.linear.weight = nn.Parameter(weight.permute(0, 2, 1).reshape(weight.shape[0], -1).contiguous())
        self.linear.bias = nn.Parameter(bias)


class Upsample(Stage):
    """Snake and a causal transposed convolution of kernel ``2 * stride`` that makes ``stride`` frames of one.

    An output frame reads one input frame and the frame before it, so it is one linear layer over the two.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(1, inputs)
        self.stride, self.outputs = stride, outputs
        self.snake = Snake(inputs)
        self.linear = Linear(2 * inputs, stride * outputs)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Stage.forward`."""
        behind = torch.cat((state, self.snake(x)), dim=1)
        out = self.linear(torch.cat((behind[:, :-1], behind[:, 1:]), dim=-1))
        return out.view(x.shape[0], -1, self.outputs), behind[:, -1:]

    def load(self, weight: Tensor, bias: Tensor) -> None:
        """Take a transposed convolution's weight ``(inputs, outputs, 2 * stride)`` and bias."""
        # Output r of an input frame takes tap r of that frame and tap r + stride of the frame before it.
        now, before = weight[:, :, : self.stride], weight[:, :, self.stride :]
        taps = joined((before, now)).permute(2, 1, 0)
        self.linear.weight = nn.Parameter(taps.reshape(self.stride * self.outputs, -1).contiguous())
        self.linear.bias = nn.Parameter(bias.repeat(self.stride))


class RateCondition(Stage):
    """What tells the decoder the rate it is asked for. The rate never changes, so its embedding is a constant.

    Source: OpenBMB/VoxCPM, ``SampleRateConditionLayer``.
    """

    def __init__(self, channels: int, config: VAEConfig) -> None:
        super().__init__(0, channels)
        self.kind = config.cond_type
        extra = config.cond_dim if self.kind == "concat" else 0
        if self.kind.startswith("scale_bias"):
            self.scale = nn.Parameter(torch.ones(channels))
        self.offset = nn.Parameter(torch.zeros(extra or channels))
        self.snake = Snake(channels + extra) if config.cond_out_layer else None
        self.pointwise = Conv(channels + extra, channels, kernel=1) if config.cond_out_layer else None

    def run(self, x: Tensor) -> Tensor:
        """See :meth:`Stage.run`."""
        if self.kind.startswith("scale_bias"):
            x = x * self.scale + self.offset
        elif self.kind == "add":
            x = x + self.offset
        else:
            x = torch.cat((x, self.offset.expand(*x.shape[:-1], -1)), dim=-1)
        if self.snake is not None and self.pointwise is not None:
            x = self.pointwise.run(self.snake(x))
        return x


class FinalConv(Conv):
    """Snake, a convolution to one channel, and the limiter."""

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs, 1, kernel=KERNEL)
        self.snake = Snake(inputs)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Stage.forward`."""
        out, state = super().forward(self.snake(x), state)
        return out.tanh(), state


class Causal(nn.Module):
    """Stages run one after the other."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def new_state(self, rows: int) -> State:
        """The state before the first frame."""
        device = next(self.parameters()).device
        return [torch.zeros(rows, stage.tail, stage.channels, device=device) for stage in self._stages()]

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Run ``(rows, time, channels)`` behind ``state``; gives the output and the next state."""
        after: State = []
        for stage, tail in zip(self._stages(), state, strict=True):
            x, tail = stage(x, tail)
            after.append(tail)
        return x, after

    def _stages(self) -> list[Stage]:
        return list(self.stages)  # type: ignore[arg-type]


class AudioVAE(nn.Module):
    """Encoder and decoder, float32 whatever the rest of the model computes in."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        width = config.encoder_dim
        encoder: list[Stage] = [Conv(1, width, kernel=KERNEL)]
        for stride in config.encoder_rates:
            encoder += [ResidualUnit(width, dilation=d, depthwise=config.depthwise) for d in DILATIONS]
            encoder.append(Downsample(width, 2 * width, stride))
            width *= 2
        encoder.append(Conv(width, config.latent_dim, kernel=3))
        self.encoder = Causal(encoder)

        width = config.decoder_dim
        decoder: list[Stage]
        if config.depthwise:
            decoder = [DepthwiseConv(config.latent_dim, kernel=KERNEL), Conv(config.latent_dim, width, kernel=1)]
        else:
            decoder = [Conv(config.latent_dim, width, kernel=KERNEL)]
        for stride in config.decoder_rates:
            if config.sr_bin_boundaries is not None:
                decoder.append(RateCondition(width, config))
            decoder.append(Upsample(width, width // 2, stride))
            width //= 2
            decoder += [ResidualUnit(width, dilation=d, depthwise=config.depthwise) for d in DILATIONS]
        decoder.append(FinalConv(width))
        self.decoder = Causal(decoder)
        self._decode: Function = self._run_decoder

    def encode(self, samples: Tensor, state: State) -> tuple[Tensor, State]:
        """Encode ``(rows, samples)`` at the input rate, a multiple of ``encoder_hop``.

        Returns:
            Latent frames ``(rows, samples / encoder_hop, latent_dim)`` and the next state.
        """
        out: tuple[Tensor, State] = self.encoder(samples.unsqueeze(-1), state)
        return out

    def decode(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        """Decode latent frames ``(rows, frames, latent_dim)``.

        Returns:
            Audio ``(rows, frames * decoder_hop)`` in [-1, 1] at the output rate and the next state.
        """
        audio, *after = self._decode(frames, *state)
        return audio, after

    def record(self) -> None:
        """Record decodes from here on, once for each number of rows and frames."""
        self._decode = Recorded(self._run_decoder)

    def _run_decoder(self, frames: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        audio, after = self.decoder(frames, list(state))
        return audio.squeeze(-1), *after
