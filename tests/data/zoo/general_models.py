"""Dense networks, norms, activations, graphs, tables, generative models and half precision, from PyTorch."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import randn

from reference import model

X = dict(inputs=["x"], outputs=["y"])
ROWS = dict(X, dynamic=[{0: "batch"}])


class Activations(nn.Module):
    def __init__(self, alpha=1.3, beta=2.0, threshold=(0.2, -0.1)):
        super().__init__()
        self.weights = nn.ParameterList([randn(6) for _ in range(18)])
        self.prelu, self.out = nn.PReLU(6), nn.Linear(6, 2)
        self.functions = [F.elu, F.selu, lambda z: F.celu(z, alpha), F.gelu, lambda z: F.gelu(z, approximate="tanh"), F.mish, F.hardswish,
                          F.hardsigmoid, lambda z: F.softplus(z, beta), F.softsign, F.logsigmoid, F.tanhshrink, F.silu,
                          lambda z: F.softshrink(z, 0.3), lambda z: F.hardshrink(z, 0.4), lambda z: F.threshold(z, *threshold),
                          lambda z: F.leaky_relu(z, 0.1), F.relu6]

    def forward(self, x):
        y = self.prelu(x)
        for w, f in zip(self.weights, self.functions):
            y = y + f(x * w)
        return self.out(y)


@model("dense", opset=20, **ROWS)
def activations_dynamo():
    """Nineteen activations, dynamo."""
    return Activations(), [randn(7, 6)]


@model("dense", opset=15, exporter="torchscript", **ROWS)
def activations_old_exporter():
    """Nineteen activations as the old exporter writes them for opset 15."""
    return Activations(1.0, 1.0, (0.0, 0.0)), [randn(7, 6)]


class Norms(nn.Module):
    def __init__(self, rms):
        super().__init__()
        self.a, self.b, self.c = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True), nn.LayerNorm((6, 4, 5))
        self.d, self.e, self.f = nn.BatchNorm2d(6), nn.LocalResponseNorm(3), rms
        self.conv = nn.Conv2d(6, 2, 3)

    def forward(self, x):
        y = self.a(x) + self.b(x) + self.c(x) + self.d(x) + self.e(x) + self.f(x)
        return F.normalize(self.conv(y), dim=1)


@model("dense", opset=21, optimize=False, **X)
def normalizations_dynamo():
    """Group, instance, layer, batch, RMS and local response normalization and unit vectors; opset 21."""
    return Norms(nn.RMSNorm(5)), [randn(2, 6, 4, 5)]


@model("dense", opset=17, exporter="torchscript", **X)
def normalizations_old_exporter():
    """Group, instance, layer, batch and local response normalization and unit vectors; old exporter, opset 17."""
    return Norms(nn.LayerNorm(5)), [randn(2, 6, 4, 5)]


class Reductions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 6)

    def forward(self, x):
        h = self.a(x)
        parts = [h.sum(1), h.mean(1), h.amax(1), h.amin(1), h.prod(1), h.norm(dim=1), h.norm(p=1, dim=1), h.logsumexp(1), h.var(1),
                 h.std(1, correction=0), h.cumsum(1)[:, 2], h.sort(dim=1, descending=True)[0][:, 1], h.topk(2, 1)[0][:, 0],
                 h.abs().sqrt().sum(1), h.square().sum(1), h.flatten(1).max(1, keepdim=True)[0].expand(-1, 6)]
        return torch.stack(parts, 1)


@model("dense", opset=18, **X)
def reductions_and_sorting():
    """Sixteen reductions: norms, variances, products, logsumexp, cumulative sums, sort and top-k."""
    return Reductions(), [randn(3, 4, 5)]


class Movement(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.table = nn.Linear(6, 8), nn.Parameter(randn(5, 8))

    def forward(self, x, which):
        h = self.a(x)
        h = torch.roll(h, 2, 1).flip(1) + self.table[which] + F.pad(h[:, 1:-1], (1, 1), value=0.3)
        h = torch.where(h > 0.1, h, -0.2 * h).view(-1, 2, 4).transpose(1, 2)
        h = torch.cat([h, h[:, ::2], h.index_select(1, torch.tensor([3, 0]))], 1)
        h = h.masked_fill(torch.ones(8, 2, dtype=torch.bool).triu(), 0.5).unfold(1, 3, 2).flatten(1)
        a, b, c = h.split([4, 8, 6], 1)
        b = b.gather(1, which.unsqueeze(1).expand(-1, 4) + torch.arange(4))
        return (a * b).repeat(1, 2)[:, :6].clamp(-2, 2) + c.tril()


@model("dense", opset=18, inputs=["x", "which"], outputs=["y"])
def movement_of_data():
    """Roll, flip, pad, gather, index_select, unfold, split, repeat, masks, strided slices; dynamo."""
    return Movement(), [randn(5, 6), torch.tensor([0, 4, 2, 2, 1])]


@model("dense", opset=16, exporter="torchscript", inputs=["x", "which"], outputs=["y"])
def movement_of_data_old_exporter():
    """Roll, flip, pad, gather, index_select, unfold, split, repeat, masks, strided slices; old exporter, opset 16."""
    return Movement(), [randn(5, 6), torch.tensor([0, 4, 2, 2, 1])]


class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(10, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.register_buffer("octaves", 2.0 ** torch.arange(2))

    def forward(self, x):
        z = (x.unsqueeze(-1) * self.octaves * math.pi).flatten(1)
        h = torch.cat([x, z.sin(), z.cos()], 1)
        return torch.sigmoid(self.c(torch.sin(self.b(torch.sin(3 * self.a(h))))))


@model("dense", opset=18, **ROWS)
def implicit_image():
    """Coordinates to colours: octaves of sines and cosines, sine layers."""
    return Siren(), [randn(8, 2)]


class Spline(nn.Module):
    """A Kolmogorov-Arnold layer: cubic B-splines by their recurrence."""

    def __init__(self):
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2.2, 2.2, 12))
        self.weight, self.base = nn.Parameter(randn(4, 3, 8)), nn.Linear(3, 4)

    def forward(self, x):
        z, t = x.unsqueeze(-1), self.knots
        b = ((z >= t[:-1]) & (z < t[1:])).to(x.dtype)
        for k in (1, 2, 3):
            b = (z - t[:-k - 1]) / (t[k:-1] - t[:-k - 1]) * b[..., :-1] + (t[k + 1:] - z) / (t[k + 1:] - t[1:-k]) * b[..., 1:]
        return self.base(F.silu(x)) + torch.einsum("nib,oib->no", b, self.weight)


@model("dense", opset=18, **ROWS)
def kolmogorov_arnold_layer():
    """Learned cubic B-splines on every edge, by the recurrence of their bases."""
    return Spline(), [randn(6, 3).clamp(-2, 2)]


class Radial(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres, self.width, self.out = nn.Parameter(randn(7, 3)), nn.Parameter(torch.rand(7) + 0.5), nn.Linear(7, 2)

    def forward(self, x):
        return self.out(torch.exp(-self.width * torch.cdist(x, self.centres).square()))


@model("dense", opset=17, exporter="torchscript", optimize=False, **X)
def radial_basis_functions():
    """Gaussians of distances (cdist) to learned centres, old exporter."""
    return Radial(), [randn(6, 3)]


class Flow(nn.Module):
    """Affine coupling, an invertible matrix with the logarithm of its determinant, and the density."""

    def __init__(self):
        super().__init__()
        self.net = nn.ModuleList([nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2)])
        self.turn = nn.Parameter(torch.eye(4) + 0.3 * randn(4, 4))

    def forward(self, x):
        logdet = 0
        for net in self.net:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            x = torch.cat([b * scale.exp() + shift, a], 1) @ self.turn
            logdet = logdet + scale.sum(1) + torch.log(torch.abs(torch.det(self.turn)))
        return -0.5 * (x * x).sum(1) - 2 * math.log(2 * math.pi) + logdet


@model("generative", opset=18, optimize=False, **X)
def normalizing_flow():
    """Coupling layers and matrices whose determinant (Det) is in the density."""
    return Flow(), [randn(6, 4)]


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 6), nn.Sequential(nn.Linear(3, 8), nn.Sigmoid())

    def forward(self, x):
        mean, log_scale = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * torch.exp(log_scale))


@model("generative", opset=18, random=True, exporter="torchscript", **ROWS)
def variational_autoencoder():
    """Draws by RandomNormalLike inside; gradients go around the draw."""
    return Variational(), [torch.rand(10, 8)]


class Quantizer(nn.Module):
    """Nearest codes by ArgMin, their loss for the codes and for the encoder."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.codes = nn.Linear(6, 4), nn.Linear(4, 6), nn.Parameter(randn(5, 4))

    def forward(self, x):
        z = self.encode(x)
        which = torch.cdist(z, self.codes).argmin(1)
        q = F.embedding(which, self.codes)
        return self.decode(q) + 0.1 * z.sum(1, keepdim=True), (q - z).square().mean()


@model("generative", opset=18, inputs=["x"], outputs=["y", "commitment"], exporter="torchscript", optimize=False)
def vector_quantizer():
    """Codes chosen by ArgMin of distances and read by Gather."""
    return Quantizer(), [randn(6, 6)]


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 9))

    def forward(self, x, y):
        share, mean, scale = self.net(x).chunk(3, 1)
        scale = F.softplus(scale) + 0.05
        density = -0.5 * ((y - mean) / scale).square() - torch.log(scale)
        return torch.logsumexp(share.log_softmax(1) + density, 1)


@model("generative", opset=18, inputs=["x", "y"], outputs=["log_density"])
def mixture_density():
    """Log-density of a mixture of Gaussians that a network gives: logsumexp over components."""
    return Mixture(), [randn(7, 3), randn(7, 1)]


class UnetTime(nn.Module):
    """The network of a diffusion model: embedding of time, FiLM, group norm, a skip."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.exp(-torch.arange(4) * 1.5))
        self.time = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 16))
        self.a, self.norm, self.b, self.c = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x, t):
        e = t.unsqueeze(1) * self.frequencies
        scale, shift = self.time(torch.cat([e.sin(), e.cos()], 1)).unsqueeze(-1).unsqueeze(-1).chunk(2, 1)
        h = F.silu(self.norm(self.a(x)) * (1 + scale) + shift)
        low = F.interpolate(F.silu(self.b(h)), scale_factor=2.0, mode="nearest")
        return self.c(torch.cat([h, low], 1))


@model("generative", opset=18, inputs=["x", "t"], outputs=["noise"])
def diffusion_denoiser():
    """A step of a diffusion model: embedding of time, scale and shift of channels, nearest Resize."""
    return UnetTime(), [randn(2, 1, 8, 8), torch.rand(2) * 50]


# ---- graphs and tables --------------------------------------------------------------------------------------------------


class GraphConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, edges):
        source, target = edges[0], edges[1]
        for layer in (self.a, self.b):
            h = layer(x)
            degree = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, target, torch.ones_like(target, dtype=x.dtype))
            total = torch.zeros_like(h).scatter_add(0, target.unsqueeze(1).expand(-1, h.shape[1]), h[source])
            x = F.relu(h + total / degree.clamp(min=1).unsqueeze(1))
        return self.out(x)


@model("graph", opset=18, inputs=["nodes", "edges"], outputs=["y"], loss=("ce", 1), exporter="torchscript")
def graph_convolution():
    """Means over neighbours by scatter_add (ScatterElements with add), two layers, repeated targets."""
    return GraphConv(), [randn(6, 5), torch.randint(0, 6, (2, 13))]


class GraphAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.a, self.b = nn.Linear(4, 6, bias=False), nn.Linear(6, 1, bias=False), nn.Linear(6, 1, bias=False)

    def forward(self, x, edges):
        h = self.w(x)
        score = F.leaky_relu((self.a(h)[edges[0]] + self.b(h)[edges[1]]).squeeze(1), 0.2)
        at = edges[1]
        top = torch.full((x.shape[0],), -1e4, dtype=x.dtype).scatter_reduce(0, at, score, "amax")
        e = torch.exp(score - top[at])
        total = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, at, e)
        message = h[edges[0]] * (e / total[at]).unsqueeze(1)
        return torch.zeros_like(h).scatter_add(0, at.unsqueeze(1).expand(-1, 6), message)


@model("graph", opset=18, inputs=["nodes", "edges"], outputs=["y"])
def graph_attention():
    """Softmax over the edges of each node: scatter with max and with add; dynamo."""
    return GraphAttention(), [randn(5, 4), torch.randint(0, 5, (2, 11))]


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 10, 1), nn.Conv1d(10, 12, 1)
        self.turn, self.out = nn.Linear(12, 9), nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))

    def features(self, x):
        return F.relu(self.b(F.relu(self.a(x)))).max(2)[0]

    def forward(self, x):
        turn = self.turn(self.features(x)).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype)
        return self.out(self.features(turn @ x)).log_softmax(1)


@model("graph", opset=17, exporter="torchscript", inputs=["points"], outputs=["y"])
def point_cloud():
    """PointNet: a learned rotation, features of points, the maximum over points; weights used twice."""
    return Points(), [randn(3, 3, 12)]


class Recommender(nn.Module):
    """Embeddings of categories, a dense part, dot products of all pairs (DLRM)."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, 5) for n in (7, 9, 4)])
        self.bottom, self.top = nn.Sequential(nn.Linear(3, 5), nn.ReLU()), nn.Sequential(nn.Linear(11, 8), nn.ReLU(), nn.Linear(8, 1))
        rows, columns = torch.tril_indices(4, 4, -1)
        self.register_buffer("pairs", rows * 4 + columns)

    def forward(self, numbers, categories):
        d = self.bottom(numbers)
        e = torch.stack([d] + [table(categories[:, k]) for k, table in enumerate(self.tables)], 1)
        dots = (e @ e.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([d, dots], 1))


@model("table", opset=18, inputs=["numbers", "categories"], outputs=["y"], dynamic=[{0: "batch"}, {0: "batch"}])
def recommender():
    """DLRM: embeddings of categories, dot products of pairs, two dense parts."""
    return Recommender(), [randn(6, 3), torch.stack([torch.randint(0, n, (6,)) for n in (7, 9, 4)], 1)]


class Machine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.factors = nn.Linear(6, 1), nn.Parameter(0.4 * randn(6, 3))

    def forward(self, x):
        square = (x @ self.factors).square() - x.square() @ self.factors.square()
        return self.linear(x) + 0.5 * square.sum(1, keepdim=True)


@model("table", opset=13, exporter="torchscript", optimize=False, **ROWS)
def factorization_machine():
    """A factorization machine for rows of numbers, opset 13."""
    return Machine(), [randn(8, 6)]


class Sparsemax(nn.Module):
    """TabNet's choice of columns: projection onto the simplex by sorting."""

    def __init__(self):
        super().__init__()
        self.choose, self.a, self.out = nn.Linear(6, 6), nn.Linear(6, 8), nn.Linear(4, 2)

    def forward(self, x):
        z = self.choose(x)
        s, _ = torch.sort(z, 1, descending=True)
        total, k = s.cumsum(1), torch.arange(1, 7, dtype=x.dtype)
        size = (1 + k * s > total).to(x.dtype).sum(1, keepdim=True)
        tau = (total.gather(1, size.long() - 1) - 1) / size
        return self.out(F.glu(self.a(x * (z - tau).clamp(min=0)), 1))


@model("table", opset=18, **X)
def sparsemax_choice_of_columns():
    """TabNet's sparsemax: Sort (TopK), CumSum, GatherElements, a threshold."""
    return Sparsemax(), [randn(6, 6)]


class FakeQuantized(nn.Module):
    """Quantization-aware training: weights and activations are rounded, gradients go straight through where nothing is clipped."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 10), nn.Linear(10, 3)
        self.register_buffer("scales", torch.full((10,), 0.008))
        self.register_buffer("zeros", torch.zeros(10, dtype=torch.int32))

    def forward(self, x):
        x = torch.fake_quantize_per_tensor_affine(x, 0.015, 10, -128, 127)
        w = torch.fake_quantize_per_channel_affine(self.a.weight, self.scales.float(), self.zeros, 0, -128, 127)
        h = torch.fake_quantize_per_tensor_affine(F.relu(F.linear(x, w, self.a.bias)), 0.012, 0, 0, 255)
        return self.b(h)


@model("quantized", opset=17, exporter="torchscript", single=True, fused=False, **X)
def quantization_aware_training():
    """Fake quantization per tensor and per channel: QuantizeLinear and DequantizeLinear around float weights, straight-through gradient."""
    return FakeQuantized(), [randn(8, 6)]


# ---- types ---------------------------------------------------------------------------------------------------------------


@model("half precision", opset=18, tolerance=2e-2, forward_tolerance=5e-3, **X)
def mlp_float16():
    """A dense network in float16."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).half(), [randn(6, 8).half()]


@model("half precision", opset=20, tolerance=2e-2, forward_tolerance=5e-3, loss=("ce", 1), **X)
def convolutions_float16():
    """A convolutional network in float16."""
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 4))
    return net.half(), [randn(3, 1, 10, 10).half()]


class Cast32(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12).half(), nn.Linear(12, 3)

    def forward(self, x):
        h = F.silu(self.a(x.to(self.a.weight.dtype)))
        return self.b(h.to(self.b.weight.dtype))


@model("half precision", opset=18, single=False, tolerance=2e-2, forward_tolerance=5e-3, **X)
def mixed_float16_float32():
    """One layer in float16 and one in float32, with Cast between them."""
    return Cast32(), [randn(6, 6)]


@model("half precision", opset=18, tolerance=8e-2, forward_tolerance=4e-2, stock=False, **X)
def mlp_bfloat16():
    """A dense network in bfloat16."""
    return nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 4)).bfloat16(), [randn(6, 8).bfloat16()]

