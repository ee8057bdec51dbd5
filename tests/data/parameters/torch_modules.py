"""Networks of PyTorch's layers, with parameters and buffers of every kind.

``MODULES`` maps a name to a function without arguments that returns a module and the inputs of its
export.
"""

import copy
import math

import torch
from torch import nn
from torch.nn import functional

MODULES = {}


def module(make):
    """Register a function that returns a module and its inputs."""
    MODULES[make.__name__] = make
    return make


def words(rows=2, length=6, count=12):
    return torch.randint(3, count, (rows, length), generator=torch.Generator().manual_seed(0))


def image(size=32, channels=3):
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


class Only(nn.Module):
    """A module of another library that returns one tensor."""

    def __init__(self, net, output=None, **fixed):
        super().__init__()
        self.net = net
        self.output = output
        self.fixed = fixed

    def forward(self, *inputs):
        result = self.net(*inputs, **self.fixed)
        return result if self.output is None else getattr(result, self.output)


# PyTorch's own layers, and parameters and buffers of every kind.


@module
def torch_layers():
    return nn.Sequential(
        nn.Linear(5, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.PReLU(),
        nn.Linear(8, 8),
        nn.Linear(8, 3),
    ), (torch.randn(4, 5),)


@module
def torch_convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.PReLU(8),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.ConvTranspose2d(8, 4, 2, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ), (image(12),)


@module
def torch_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(12, 8), net, nn.Linear(8, 3)), (words(),)


@module
def torch_translation():
    class Translation(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(12, 8)
            self.places = nn.Parameter(torch.zeros(1, 6, 8))
            self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

        def forward(self, source, target):
            source, target = self.table(source) + self.places, self.table(target) + self.places
            return (
                self.net(source, target, tgt_mask=self.mask, tgt_is_causal=True)
                @ self.table.weight.t()
            )

    return Translation(), (words(), words())


@module
def torch_cells():
    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
            self.gru = nn.GRU(8, 3, batch_first=True)
            self.rnn = nn.RNN(3, 2, batch_first=True)
            self.start = nn.Parameter(torch.zeros(1, 1, 2))
            self.out = nn.Linear(2, 2, bias=False)

        def forward(self, x):
            x = self.gru(self.lstm(x)[0])[0]
            return self.out(self.rnn(x, self.start.expand(1, 2, 2).contiguous())[0])

    return Cells(), (torch.randn(2, 5, 3),)


@module
def torch_normed_weights():
    norm, spectral = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm
    return nn.Sequential(
        norm(nn.Conv1d(3, 4, 3, padding=1)),
        nn.ELU(),
        norm(nn.Linear(6, 6)),
        nn.ELU(),
        spectral(nn.Linear(6, 5)),
        nn.ELU(),
        nn.Conv1d(4, 4, 1),
        nn.Flatten(),
        nn.Linear(20, 2),
    ), (torch.randn(2, 3, 6),)


@module
def torch_single_numbers():
    class Numbers(nn.Module):
        """Temperatures, scales, mixtures, shifts: parameters of one number and constants."""

        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
            self.logit_bias = nn.Parameter(torch.tensor(-10.0))
            self.temperature = nn.Parameter(torch.ones(1))
            self.mix = nn.Parameter(torch.zeros(()))
            self.power = nn.Parameter(torch.tensor(3.0))
            self.shift = nn.Parameter(torch.tensor([0.5]))
            self.register_buffer("mean", torch.tensor(0.45))
            self.register_buffer("epsilon", torch.tensor(1e-6))

        def forward(self, a, b):
            a, b = self.left(a - self.mean), self.right(b - self.mean)
            a = a / (a.norm(dim=-1, keepdim=True) + self.epsilon)
            b = b / b.norm(dim=-1, keepdim=True).clamp_min(1e-12)
            gate = torch.sigmoid(self.mix)
            logits = a @ b.t() * self.logit_scale.exp() + self.logit_bias
            blurred = (a @ b.t()).abs().clamp_min(1e-3) ** self.power + self.shift
            return (gate * logits + (1 - gate) * blurred) / self.temperature

    return Numbers(), (torch.randn(4, 6), torch.randn(4, 6))


@module
def torch_vectors():
    class Vectors(nn.Module):
        """A class token, places, layer scales, queries, a bias alone; a scaler, a mask, waves."""

        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor([0.1, 0.4, -0.2]))
            self.register_buffer("std", torch.tensor([1.3, 0.7, 2.1]))
            self.enter = nn.Linear(3, 8)
            self.token = nn.Parameter(torch.zeros(1, 1, 8))
            self.places = nn.Parameter(torch.zeros(1, 7, 8))
            self.scale1 = nn.Parameter(torch.ones(8))
            self.scale2 = nn.Parameter(1e-4 * torch.ones(8))
            self.query = nn.Parameter(torch.randn(2, 8) * 0.02)
            self.key = nn.Linear(8, 8)
            self.value = nn.Linear(8, 8)
            self.gate = nn.Parameter(torch.zeros(8))
            self.shift = nn.Parameter(torch.zeros(8))
            self.out = nn.Linear(16, 2)
            angles = torch.arange(7)[:, None] * 100.0 ** (-torch.arange(4) / 4)
            self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], 1))
            self.register_buffer("mask", torch.full((7, 7), float("-inf")).triu(1))
            self.register_buffer("decay", 0.5 ** torch.arange(7.0)[:, None])

        def forward(self, x):
            x = self.enter((x - self.mean) / self.std)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places + self.waves
            attention = (x @ x.transpose(1, 2) + self.mask).softmax(-1)
            x = x + self.scale1 * (attention @ x)
            x = x + self.scale2 * torch.tanh(self.value(x)) * self.decay
            x = x * torch.sigmoid(self.gate) + self.shift
            x = (self.query @ self.key(x).transpose(1, 2)).softmax(-1) @ x
            return self.out(x.flatten(1))

    return Vectors(), (torch.randn(2, 6, 3),)


@module
def torch_attention_biases():
    class Biases(nn.Module):
        """Relative biases from a table and as they are, slopes, keys and values of biases."""

        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(4, 8)
            self.qkv = nn.Linear(8, 24)
            self.table = nn.Parameter(torch.zeros(11, 2))
            self.bias = nn.Parameter(torch.zeros(2, 6, 6))
            self.heads = nn.Parameter(torch.ones(2, 1, 1))
            places = torch.arange(6)
            self.register_buffer("index", places[:, None] - places[None] + 5)
            slopes = 2.0 ** -torch.arange(1.0, 3)
            distances = -(places[:, None] - places[None]).abs()
            self.register_buffer("slopes", slopes[:, None, None] * distances)
            self.other = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)
            self.out = nn.Linear(8, 2)

        def forward(self, x):
            x = self.enter(x)
            q, k, v = self.qkv(x).reshape(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind()
            scores = q @ k.transpose(-2, -1) * 4**-0.5 * self.heads
            bias = self.table[self.index.reshape(-1)].reshape(6, 6, 2).permute(2, 0, 1)
            scores = scores + bias.unsqueeze(0) + self.bias + self.slopes
            x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 8)
            return self.out(x + self.other(x, x, x, need_weights=False)[0])

    return Biases(), (torch.randn(2, 6, 4),)


@module
def torch_kernels():
    class Kernels(nn.Module):
        """Radial basis functions with learned centres and widths, a spline on a fixed grid."""

        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(torch.randn(7, 3))
            self.log_widths = nn.Parameter(torch.zeros(7))
            self.out = nn.Linear(7, 4)
            self.coefficients = nn.Parameter(torch.randn(4, 5) * 0.1)
            self.register_buffer("grid", torch.linspace(-1, 1, 5))

        def forward(self, x):
            distances = (x[:, None] - self.centres).square().sum(-1)
            y = self.out(torch.exp(-distances * torch.exp(self.log_widths)))
            basis = torch.exp(-((y[:, :, None] - self.grid) ** 2))
            return (basis * self.coefficients).sum(-1)

    return Kernels(), (torch.randn(4, 3),)


@module
def torch_experts():
    class Experts(nn.Module):
        """Batched experts, a learned initial state, rotations of fixed frequencies."""

        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(12, 8, padding_idx=0)
            self.router = nn.Linear(8, 3, bias=False)
            self.up = nn.Parameter(torch.randn(3, 8, 6) * 0.2)
            self.up_bias = nn.Parameter(torch.zeros(3, 1, 6))
            self.down = nn.Parameter(torch.randn(3, 6, 8) * 0.2)
            self.norm = nn.RMSNorm(8)
            self.register_buffer("inv_freq", 100.0 ** (-torch.arange(4) / 4))

        def forward(self, ids):
            x = self.table(ids)
            angles = torch.arange(ids.shape[1])[:, None] * self.inv_freq
            a, b = x.chunk(2, -1)
            x = torch.cat(
                [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1
            )
            share = self.router(x).softmax(-1)
            flat = x.reshape(1, -1, 8)
            each = torch.relu(flat @ self.up + self.up_bias) @ self.down
            x = x + torch.einsum("ens,ne->ns", each, share.reshape(-1, 3)).reshape(x.shape)
            return functional.linear(self.norm(x), self.table.weight)

    return Experts(), (words(),)


@module
def torch_copies():
    class Copies(nn.Module):
        """A network and a copy of it, as students and teachers begin."""

        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))
            self.teacher = copy.deepcopy(self.student)

        def forward(self, x):
            return self.student(x) - self.teacher(torch.tanh(x))

    return Copies(), (torch.randn(4, 6),)


@module
def torch_shared():
    class Shared(nn.Module):
        """One layer called twice, (IA)3's vectors, a bilinear layer, a mean of a bag of words."""

        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(12, 6, mode="mean")
            self.layer = nn.Linear(6, 6)
            self.norm = nn.LayerNorm(6)
            self.scale = nn.Parameter(torch.ones(6))
            self.pair = nn.Bilinear(6, 6, 3)

        def forward(self, ids):
            x = self.bag(ids)
            a = self.norm(self.layer(x * self.scale))
            b = self.norm(self.layer(torch.tanh(a) * self.scale))
            return self.pair(a, b)

    return Shared(), (words(),)
