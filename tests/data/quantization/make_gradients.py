"""Writes gradients.json: gradients of fake quantization by PyTorch's autograd, in float64.

y = conv(q(x), q(w)) with q the rounding to integers of a scale, whose gradients are those of
Esser et al., Learned Step Size Quantization, 2020: straight through the rounding, 0 for what is
clipped. Needs PyTorch: `build/interop/bin/python tests/data/quantization/make_gradients.py`.
"""

import json
import pathlib

import torch


def through(rounded: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The rounded value, with the gradient of x."""
    return x + (rounded - x).detach()


def quantized(x: torch.Tensor, s: torch.Tensor, zero: int, low: int, high: int) -> torch.Tensor:
    """Round; clipped elements give the scale alone a gradient, as in PyTorch's own operators."""
    codes = torch.round(x / s).detach() + zero
    kept = torch.clamp(codes, low, high)
    return torch.where(codes == kept, through(kept - zero, x / s), kept - zero) * s


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5, dtype=torch.float32).double().requires_grad_()
    w = torch.randn(4, 2, 3, dtype=torch.float32).double().requires_grad_()
    # A range that clips some elements of each.
    x_scale = torch.tensor(2.5 / 255, dtype=torch.float32).double().requires_grad_()
    w_scale = (torch.rand(4, dtype=torch.float32) * 0.1 + 0.1).double().requires_grad_()
    seed = torch.randn(3, 4, 5, dtype=torch.float32).double()
    # No quotient is near a half, where float32 would round another way.
    for value, scale in ((x, x_scale), (w, w_scale.reshape(4, 1, 1))):
        part = (value / scale).detach() % 1
        assert ((part - 0.5).abs() > 1e-4).all()
    zero = -100
    y = torch.nn.functional.conv1d(
        quantized(x, x_scale, zero, -128, 127),
        quantized(w, w_scale.reshape(4, 1, 1), 0, -8, 7),
        padding=1,
    )
    (y * seed).sum().backward()
    values = {
        "torch": torch.__version__,
        "zero_point": zero,
        **{n: v.tolist() for n, v in {"x": x, "w": w, "seed": seed, "y": y}.items()},
        "x_scale": x_scale.item(),
        "w_scale": w_scale.tolist(),
        "x_grad": x.grad.tolist(),
        "w_grad": w.grad.tolist(),
        "x_scale_grad": x_scale.grad.item(),
        "w_scale_grad": w_scale.grad.tolist(),
    }
    path = pathlib.Path(__file__).with_name("gradients.json")
    path.write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
