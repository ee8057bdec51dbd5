"""Stores what PyTorch computes for GridSample, Resize, DeformConv and Attention: outputs and all gradients, in float64.

    python make_values.py        (torch 2.15.0, torchvision 0.29.2, numpy 2.4.6)

values.npz has for each case `CASE/in/INPUT`, `CASE/seed`, `CASE/out`, `CASE/grad/INPUT` (of sum(out * seed)); cases.json says which ONNX node
a case is: operator, attributes, inputs in order ("" is an absent one), and those with a gradient.
"""
import itertools
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
torch.manual_seed(0)
torch.set_num_threads(1)
CASES, VALUES = [], {}


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def case(name, op, function, inputs, attributes, order=None, opset=23):
    """`inputs`: ONNX input name -> tensor; floating-point ones that `function` (called with all by name) reads get gradients."""
    leaves = {n: t.clone().requires_grad_(True) if t.is_floating_point() and n not in ("scales",) else t for n, t in inputs.items()}
    out = function(**leaves)
    seed = randn(*out.shape)
    (out * seed).sum().backward()
    wanted = [n for n, t in leaves.items() if t.is_floating_point() and t.requires_grad]
    CASES.append(dict(name=name, op=op, opset=opset, attributes=attributes, inputs=order or list(inputs), gradients=wanted))
    for n, t in inputs.items():
        VALUES["%s/in/%s" % (name, n)] = t.detach().numpy()
    VALUES[name + "/seed"], VALUES[name + "/out"] = seed.numpy(), out.detach().numpy()
    for n in wanted:
        grad = leaves[n].grad
        assert torch.isfinite(grad).all(), (name, n)
        VALUES["%s/grad/%s" % (name, n)] = grad.numpy()


# ---- GridSample: places inside, outside and far away, none at a kink ---------------------------------------------------------

NAMES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
for dims, modes in ((2, NAMES), (3, ("bilinear", "nearest"))):
    x, grid = randn(2, 2, *(4, 5, 3)[:dims]), 1.3 * randn(2, *(3, 2, 2)[:dims], dims)
    for mode, padding, corners in itertools.product(modes, ("zeros", "border", "reflection"), (False, True)):
        case("grid_sample_%dd_%s_%s_%s" % (dims, mode, padding, "corners" if corners else "halves"), "GridSample",
             lambda X, grid: F.grid_sample(X, grid, mode, padding, corners), dict(X=x, grid=grid),
             dict(mode=NAMES[mode], padding_mode=padding, align_corners=int(corners)), opset=22)

# ---- Resize to sizes ------------------------------------------------------------------------------------------------------------


def resize(name, x, sizes, mode, onnx_mode, coordinates, corners=None, antialias=False, **attributes):
    def function(X, sizes):
        return F.interpolate(X, [int(n) for n in sizes[2:]], mode=mode, align_corners=corners, antialias=antialias)
    full = torch.tensor([*x.shape[:2], *sizes])
    case("resize_" + name, "Resize", function, dict(X=x, sizes=full),
         dict(mode=onnx_mode, coordinate_transformation_mode=coordinates, **({"antialias": 1, "exclude_outside": 1} if antialias else {}), **attributes),
         order=["X", "", "", "sizes"], opset=19)


LINE, IMAGE, VOLUME = randn(2, 2, 5), randn(1, 2, 5, 7), randn(1, 2, 3, 4, 3)
UP_DOWN = {"up": {1: (9,), 2: (8, 13), 3: (5, 7, 4)}, "down": {1: (3,), 2: (3, 4), 3: (2, 3, 2)}, "to_one": {1: (1,), 2: (1, 9), 3: (1, 1, 5)}}
for way, sizes in UP_DOWN.items():
    for dims, x, mode in ((1, LINE, "linear"), (2, IMAGE, "bilinear"), (3, VOLUME, "trilinear")):
        resize("%s_%dd_nearest" % (way, dims), x, sizes[dims], "nearest", "nearest", "asymmetric", nearest_mode="floor")
        resize("%s_%dd_nearest_exact" % (way, dims), x, sizes[dims], "nearest-exact", "nearest", "half_pixel", nearest_mode="round_prefer_ceil")
        # One element is taken from the middle with half pixels, which ONNX calls half_pixel, too.
        resize("%s_%dd_linear" % (way, dims), x, sizes[dims], mode, "linear", "half_pixel", False)
        resize("%s_%dd_linear_corners" % (way, dims), x, sizes[dims], mode, "linear", "align_corners", True)
    resize(way + "_2d_cubic", IMAGE, sizes[2], "bicubic", "cubic", "half_pixel", False, cubic_coeff_a=-0.75)
    resize(way + "_2d_cubic_corners", IMAGE, sizes[2], "bicubic", "cubic", "align_corners", True, cubic_coeff_a=-0.75)
    resize(way + "_2d_linear_antialias", IMAGE, sizes[2], "bilinear", "linear", "half_pixel", False, True)
    resize(way + "_2d_cubic_antialias", IMAGE, sizes[2], "bicubic", "cubic", "half_pixel", False, True, cubic_coeff_a=-0.5)

# ---- DeformConv -----------------------------------------------------------------------------------------------------------------


def deform(name, channels=4, out=6, kernel=(3, 2), stride=(1, 1), padding=(1, 0), dilation=(1, 1), groups=1, offset_groups=1, mask=False, bias=True):
    from torchvision.ops import deform_conv2d
    x, w = randn(2, channels, 6, 5), randn(out, channels // groups, *kernel)
    size = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip((6, 5), padding, dilation, kernel, stride)]
    points = offset_groups * kernel[0] * kernel[1]
    inputs = dict(X=x, W=w, offset=0.9 * randn(2, 2 * points, *size))
    order = ["X", "W", "offset", "B" if bias else "", "mask" if mask else ""]
    if bias:
        inputs["B"] = randn(out)
    if mask:
        inputs["mask"] = torch.rand(2, points, *size, dtype=torch.float64)

    def function(X, W, offset, B=None, mask=None):
        return deform_conv2d(X, offset, W, B, stride, padding, dilation, mask)
    case("deform_conv_" + name, "DeformConv", function, inputs,
         dict(kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *padding], dilations=list(dilation), group=groups,
              offset_group=offset_groups), order=order, opset=22)


deform("plain")
deform("mask", mask=True)
deform("no_bias", bias=False)
deform("strides", stride=(2, 1), padding=(2, 1))
deform("dilations", dilation=(2, 2), mask=True, bias=False)
deform("groups", groups=2, mask=True)
deform("offset_groups", offset_groups=2, mask=True)
deform("depthwise", groups=4, out=4, offset_groups=4)

# ---- Attention ------------------------------------------------------------------------------------------------------------------


def attention(name, mask=None, heads=(3, 3), lengths=(4, 5), scale=None, causal=False):
    q, k, v = randn(2, heads[0], lengths[0], 6), randn(2, heads[1], lengths[1], 6), randn(2, heads[1], lengths[1], 5)
    inputs = dict(Q=q, K=k, V=v) if mask is None else dict(Q=q, K=k, V=v, attn_mask=mask)

    def function(Q, K, V, attn_mask=None):
        return F.scaled_dot_product_attention(Q, K, V, attn_mask, is_causal=causal, scale=scale, enable_gqa=heads[0] != heads[1])
    attributes = {**({"is_causal": 1} if causal else {}), **({"scale": scale} if scale else {})}
    case("attention_" + name, "Attention", function, inputs, attributes)


lengths_mask = torch.arange(5) < torch.tensor([5, 3]).view(2, 1, 1, 1)
random_mask = torch.rand(4, 5) < 0.6
random_mask[:, 0] = True
empty_rows = random_mask.clone()
empty_rows[1] = False
blocked = randn(2, 3, 4, 5)
blocked[0, :, :, 3:] = -torch.inf
nothing = blocked.clone()
nothing[1, 2, 0] = -torch.inf
attention("plain")
attention("scale", scale=0.25)
attention("causal", causal=True, lengths=(5, 5))
attention("causal_shorter_queries", causal=True, lengths=(3, 5))
attention("causal_longer_queries", causal=True, lengths=(6, 4))
attention("boolean", random_mask)
attention("boolean_lengths", lengths_mask.expand(2, 1, 4, 5).contiguous())
attention("boolean_per_head", torch.rand(2, 3, 4, 5) < 0.7)
attention("boolean_empty_rows", empty_rows)
attention("boolean_all_empty", torch.zeros(4, 5, dtype=torch.bool))
attention("float", randn(4, 5))
attention("float_batch", randn(2, 1, 4, 5))
attention("float_blocked", blocked)
attention("float_empty_row", nothing)
attention("grouped_queries", heads=(4, 2))
attention("grouped_queries_boolean", random_mask, heads=(6, 2))
attention("grouped_queries_causal", heads=(4, 1), causal=True, lengths=(5, 5))

np.savez_compressed(HERE / "values.npz", **VALUES)
(HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in CASES) + "\n]\n")
print(len(CASES), "cases")
