"""Attention with every kind of mask, mixtures of experts and blocks of language models, from PyTorch."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import randn

from reference import model

X = dict(inputs=["x"], outputs=["y"])
TOKENS = dict(inputs=["tokens"], outputs=["scores"], loss=("ce", 2))


class Heads(nn.Module):
    """Projections to heads and back; subclasses say what happens between."""

    def __init__(self, width=12, heads=3, kv_heads=None):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, self.kv_heads * self.size)
        self.v, self.out = nn.Linear(width, self.kv_heads * self.size), nn.Linear(width, width)

    def split(self, x):
        return (self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2),
                self.k(x).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2),
                self.v(x).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2))

    def join(self, y):
        return self.out(y.transpose(1, 2).flatten(2))


class Masked(Heads):
    def forward(self, x, mask):
        return self.join(F.scaled_dot_product_attention(*self.split(x), attn_mask=mask))


def lengths_mask(*lengths):
    return (torch.arange(6) < torch.tensor(lengths).unsqueeze(1)).view(len(lengths), 1, 1, 6)


@model("attention", opset=23, inputs=["x", "mask"], outputs=["y"])
def attention_boolean_mask():
    """scaled_dot_product_attention with a boolean mask of lengths; opset 23: the Attention operator."""
    return Masked(), [randn(3, 6, 12), lengths_mask(6, 4, 1).expand(3, 1, 6, 6).contiguous()]


@model("attention", opset=18, inputs=["x", "mask"], outputs=["y"])
def attention_float_mask():
    """scaled_dot_product_attention with a floating-point bias as mask, opset 18: written out; the bias has a gradient."""
    return Masked(), [randn(2, 6, 12), randn(2, 3, 6, 6)]


@model("attention", opset=23, inputs=["x", "mask"], outputs=["y"])
def attention_float_mask_opset23():
    """A floating-point bias as the mask of the Attention operator, broadcast over heads."""
    return Masked(), [randn(2, 6, 12), randn(2, 1, 6, 6)]


class Causal(Heads):
    def forward(self, x):
        return self.join(F.scaled_dot_product_attention(*self.split(x), is_causal=True))


@model("attention", opset=17, exporter="torchscript", **X)
def attention_causal_old_exporter():
    """Causal attention as the old exporter writes it: a triangle of -inf."""
    return Causal(), [randn(2, 5, 12)]


class Grouped(Heads):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True))


@model("attention", opset=24, **X)
def attention_grouped_queries():
    """Four heads of queries share two of keys and values, causal, a scale of its own; opset 24."""
    return Grouped(16, 4, 2), [randn(2, 5, 16)]


class EmptyRows(Heads):
    """Boolean mask in which rows are empty: their output is zero, and so is their gradient."""

    def forward(self, x, mask):
        q, k, v = self.split(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        weights = torch.where(mask, scores, -1e9).softmax(-1) * mask
        return self.join(weights @ v)


@model("attention", opset=18, inputs=["x", "mask"], outputs=["y"])
def attention_with_empty_rows():
    """A mask with rows that are masked altogether, written out with Where and a product."""
    mask = lengths_mask(6, 3, 0).expand(3, 1, 6, 6).clone()
    mask[0, 0, 2] = False
    return EmptyRows(), [randn(3, 6, 12), mask]


@model("attention", opset=17, exporter="torchscript", inputs=["x", "ignored"], outputs=["y"])
def multihead_attention_padding():
    """nn.MultiheadAttention with key_padding_mask, a causal mask and a bias for keys and values."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True, add_bias_kv=True)
            self.register_buffer("causal", torch.triu(torch.ones(6, 6, dtype=torch.bool), 1))

        def forward(self, x, ignored):
            return self.attention(x, x, x, key_padding_mask=ignored, attn_mask=self.causal)[0]
    return Net(), [randn(2, 6, 12), ~lengths_mask(6, 4).view(2, 6)]


@model("attention", opset=18, inputs=["x", "ignored"], outputs=["y"])
def transformer_encoder_layers():
    """nn.TransformerEncoderLayer, pre-norm with GELU, and a mask of padding; dynamo."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.TransformerEncoderLayer(12, 3, 20, 0.0, "gelu", batch_first=True, norm_first=True)

        def forward(self, x, ignored):
            return self.a(x, src_key_padding_mask=ignored)
    return Net(), [randn(2, 6, 12), ~lengths_mask(6, 4).view(2, 6)]


@model("attention", opset=18, inputs=["target", "memory"], outputs=["y"], exporter="torchscript")
def transformer_decoder_layer():
    """nn.TransformerDecoderLayer with a causal mask of numbers, old exporter."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.TransformerDecoderLayer(12, 2, 16, 0.0, batch_first=True)
            self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))

        def forward(self, target, memory):
            return self.a(target, memory, tgt_mask=self.mask.to(target.dtype))
    return Net(), [randn(2, 5, 12), randn(2, 7, 12)]


class Biased(Heads):
    """ALiBi in some heads, a learned bias by distance (T5) in all."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 3)
        place = torch.arange(6)
        distance = place.view(1, -1) - place.view(-1, 1)
        self.register_buffer("bucket", (distance + 4).clamp(0, 8))
        self.register_buffer("alibi", -distance.abs() * torch.tensor([0.5, 0.25, 0.125]).view(3, 1, 1))

    def forward(self, x):
        q, k, v = self.split(x)
        bias = self.table(self.bucket).permute(2, 0, 1) + self.alibi.to(x.dtype)
        return self.join((q @ k.transpose(-2, -1) / math.sqrt(self.size) + bias).softmax(-1) @ v)


@model("attention", opset=18, optimize=False, **X)
def attention_biased_by_distance():
    """ALiBi and a learned table of biases by distance."""
    return Biased(), [randn(2, 6, 12)]


class Sliding(Heads):
    def forward(self, x):
        q, k, v = self.split(x)
        n = x.shape[1]
        window = torch.ones(n, n, dtype=torch.bool).tril().triu(-2)
        scores = 20 * torch.tanh(q @ k.transpose(-2, -1) / 20)
        return self.join(scores.masked_fill(~window, torch.finfo(x.dtype).min).softmax(-1) @ v)


@model("attention", opset=18, exporter="torchscript", **X)
def attention_sliding_window():
    """Attention to three places, with soft-capped scores; Trilu masks, old exporter."""
    return Sliding(), [randn(2, 6, 12)]


class Linear(Heads):
    def forward(self, x):
        q, k, v = self.split(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        z = (q * k.cumsum(2)).sum(-1, keepdim=True)
        return self.join((q.unsqueeze(-2) @ kv).squeeze(-2) / z)


@model("attention", opset=18, **X)
def linear_attention_cumsum():
    """Causal linear attention: CumSum of outer products."""
    return Linear(), [randn(2, 6, 12)]


class Performer(Heads):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(torch.einsum("bhqd,bhkd,bhke->bhqe", torch.tanh(q), F.softplus(k), v))


@model("attention", opset=18, exporter="torchscript", **X)
def attention_by_einsum():
    """Attention without softmax as one Einsum of three operands."""
    return Performer(), [randn(2, 5, 12)]


# ---- language models -------------------------------------------------------------------------------------------------


class Rotary(Heads):
    def __init__(self, width, heads, kv_heads):
        super().__init__(width, heads, kv_heads)
        at = torch.arange(16).float().view(-1, 1) / 10 ** (torch.arange(0, self.size, 2).float() / self.size)
        self.register_buffer("cos", torch.cat([at.cos(), at.cos()], 1))
        self.register_buffer("sin", torch.cat([at.sin(), at.sin()], 1))

    def turn(self, z):
        n, half = z.shape[2], self.size // 2
        other = torch.cat([-z[..., half:], z[..., :half]], -1)
        return z * self.cos[:n] + other * self.sin[:n]

    def forward(self, x):
        q, k, v = self.split(x)
        repeat = self.heads // self.kv_heads
        k, v = (z.repeat_interleave(repeat, 1) for z in (self.turn(k), v))
        return self.join(F.scaled_dot_product_attention(self.turn(q), k, v, is_causal=True))


class GatedUnit(nn.Module):
    def __init__(self, kind, width=16, hidden=20):
        super().__init__()
        self.up, self.down, self.kind = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False), kind

    def forward(self, x):
        a, b = self.up(x).chunk(2, -1)
        return self.down({"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu, "glu": torch.sigmoid, "bilinear": lambda z: z}[self.kind](a) * b)


class Llama(nn.Module):
    def __init__(self, width=16, words=20):
        super().__init__()
        self.embedding, self.out = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.n1, self.n2, self.n3 = (nn.RMSNorm(width, eps=1e-5) for _ in range(3))
        self.attention, self.mlp = Rotary(width, 4, 2), GatedUnit("swiglu")

    def forward(self, tokens):
        h = self.embedding(tokens)
        h = h + self.attention(self.n1(h))
        return self.out(self.n3(h + self.mlp(self.n2(h))))


@model("language model", opset=18, dynamic=[{0: "batch"}], **TOKENS)
def llama_block():
    """RMSNorm, rotary embedding, grouped queries, SwiGLU; opset 18."""
    return Llama(), [torch.randint(0, 20, (2, 6))]


@model("language model", opset=23, **TOKENS)
def llama_block_opset23():
    """RMSNorm, rotary embedding, grouped queries, SwiGLU; opset 23: RMSNormalization and Attention are operators."""
    return Llama(), [torch.randint(0, 20, (2, 6))]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(15, 12), nn.LayerNorm(12)
        self.attention, self.mlp = Causal(), nn.Sequential(nn.Linear(12, 24), nn.GELU(approximate="tanh"), nn.Linear(24, 12))

    def forward(self, tokens):
        h = self.embedding(tokens) * math.sqrt(12)
        h = h + self.attention(self.norm(h))
        return (h + self.mlp(h)) @ self.embedding.weight.t()


@model("language model", opset=17, exporter="torchscript", optimize=False, **TOKENS)
def gpt_tied_weights():
    """A GPT block whose embedding is also the last layer, old exporter: one weight read by Gather and by MatMul."""
    return Tied(), [torch.randint(0, 15, (2, 5))]


@model("language model", opset=18, **TOKENS)
def gpt_tied_weights_folded():
    """A GPT block whose embedding is also the last layer, dynamo: constant folding may store the transposed table a second time."""
    return Tied(), [torch.randint(0, 15, (2, 5))]


class Gates(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.ModuleList([GatedUnit(kind, 8, 6) for kind in ("swiglu", "geglu", "reglu", "glu", "bilinear")])
        self.glu = nn.Sequential(nn.Linear(8, 16), nn.GLU())

    def forward(self, x):
        for unit in self.units:
            x = x + unit(x)
        return self.glu(x)


@model("language model", opset=18, **X)
def gated_linear_units():
    """SwiGLU, GEGLU, ReGLU, GLU and the bilinear one, in a row."""
    return Gates(), [randn(5, 8)]


class Rwkv(nn.Module):
    """Time mixing of RWKV: weighted averages with a decay, written with a matrix of distances."""

    def __init__(self, width=8):
        super().__init__()
        self.decay, self.bonus, self.mix = nn.Parameter(randn(width)), nn.Parameter(randn(width)), nn.Parameter(torch.rand(width))
        self.k, self.v, self.r, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        at = torch.arange(6)
        self.register_buffer("distance", (at.view(-1, 1) - at.view(1, -1) - 1).clamp(min=0).float())
        self.register_buffer("before", (at.view(-1, 1) > at.view(1, -1)).float())

    def forward(self, x):
        past = F.pad(x, (0, 0, 1, -1))
        z = x * self.mix + past * (1 - self.mix)
        k, v, r = self.k(z), self.v(z), torch.sigmoid(self.r(x))
        w = torch.exp(-self.distance.unsqueeze(-1) * self.decay.exp()) * self.before.unsqueeze(-1) + torch.eye(6, dtype=x.dtype).unsqueeze(-1) * self.bonus.exp()
        e = torch.exp(k - k.amax(1, keepdim=True)).unsqueeze(1) * w
        return self.out(r * (e * v.unsqueeze(1)).sum(2) / e.sum(2))


@model("language model", opset=18, optimize=False, **X)
def rwkv_time_mixing():
    """RWKV's time mixing: shifted tokens (a negative Pad), decays as exponentials of distances."""
    return Rwkv(), [randn(2, 6, 8)]


# ---- mixtures of experts ----------------------------------------------------------------------------------------------


class TopExperts(nn.Module):
    """Each token goes to the two best of four experts; their shares are a softmax over these two."""

    def __init__(self, width=8, hidden=12, experts=4, chosen=2):
        super().__init__()
        self.chosen = chosen
        self.inp, self.router = nn.Linear(6, width), nn.Linear(width, experts, bias=False)
        self.up, self.down = nn.Parameter(0.3 * randn(experts, width, hidden)), nn.Parameter(0.3 * randn(experts, hidden, width))
        self.out = nn.Linear(width, 5)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        best, which = torch.topk(self.router(h), self.chosen, -1)
        share = best.softmax(-1)
        up, down = self.up[which], self.down[which]
        y = F.gelu(torch.einsum("nw,nkwh->nkh", h, up))
        y = torch.einsum("nkh,nkhw,nk->nw", y, down, share)
        return self.out(h + y)


@model("mixture of experts", opset=18, loss=("ce", 1), train={"sgd": 0.2, "adam": 0.01}, dynamic=[{0: "batch"}], **X)
def moe_top2_gather():
    """TopK picks two of four experts, Gather their weights, Einsum applies them; 20 steps of SGD and Adam are stored."""
    return TopExperts(), [randn(10, 6)]


class ScatterExperts(nn.Module):
    """All experts run; a scattered softmax of the best two weighs them; a loss for balance is a second output."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 3)) for _ in range(4)])

    def forward(self, x):
        scores = self.router(x)
        best, which = scores.topk(2, dim=-1)
        gate = torch.zeros_like(scores).scatter(-1, which, best.softmax(-1))
        y = sum(gate[:, k:k + 1] * expert(x) for k, expert in enumerate(self.experts))
        return y, (gate.mean(0) * scores.softmax(-1).mean(0)).sum() * 4


@model("mixture of experts", opset=18, inputs=["x"], outputs=["y", "balance"], exporter="torchscript")
def moe_scattered_gates():
    """Gates scattered into zeros (ScatterElements) over all experts, old exporter."""
    return ScatterExperts(), [randn(7, 6)]


class SwitchExperts(nn.Module):
    """One expert a token, its rows found by NonZero and put back by index_add: sizes depend on data."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])

    def forward(self, x):
        share, which = self.router(x).softmax(-1).max(-1)
        y = torch.zeros(x.shape[0], 4, dtype=x.dtype)
        for k, expert in enumerate(self.experts):
            rows = (which == k).nonzero().squeeze(1)
            y = y.index_add(0, rows, expert(x[rows]) * share[rows].unsqueeze(1))
        return y


@model("mixture of experts", opset=18, exporter="torchscript", **X)
def moe_switch_nonzero():
    """Switch routing: rows of each expert by NonZero, results added to their places; data-dependent sizes."""
    return SwitchExperts(), [randn(9, 6)]
