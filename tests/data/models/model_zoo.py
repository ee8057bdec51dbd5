"""The networks that make_models.py exports, with random weights."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SPECS = []


def model(**spec):
    def register(make):
        SPECS.append(dict(name=make.__name__, make=make, what=" ".join(make.__doc__.split()), **spec))
        return make
    return register


def randn(*shape):
    return torch.randn(*shape)


def randint(high, *shape):
    return torch.randint(0, high, shape)


# ---- dense -----------------------------------------------------------------------------------------------------


@model(opset=20, loss="mse", inputs=["features"], outputs=["reconstruction"], dynamic=[{0: "batch"}])
def dense_autoencoder_elu():
    """Dense autoencoder 22-18-6-18-22 with ELU (alpha 0.7 and 1.3)."""
    net = nn.Sequential(nn.Linear(22, 18), nn.ELU(0.7), nn.Linear(18, 6), nn.ELU(1.3), nn.Linear(6, 18), nn.ELU(0.7),
                        nn.Linear(18, 22))
    return net, lambda k: [randn((9, 4)[k], 22)]


class GatedMlp(nn.Module):
    def __init__(self, width=28, hidden=44):
        super().__init__()
        self.inp = nn.Linear(10, width)
        self.norm = nn.ModuleList([nn.RMSNorm(width, eps=1e-6) for _ in range(3)])
        self.gate = nn.ModuleList([nn.Linear(width, hidden, bias=False) for _ in range(2)])
        self.up = nn.ModuleList([nn.Linear(width, hidden, bias=False) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(hidden, width, bias=False) for _ in range(2)])
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h = self.inp(x)
        for n, g, u, d in zip(self.norm, self.gate, self.up, self.down):
            z = n(h)
            h = h + d(F.gelu(g(z)) * u(z))
        return self.out(self.norm[2](h))


@model(opset=23, loss="mse", inputs=["rows"], outputs=["values"], dynamic=[{0: "batch"}])
def rmsnorm_gated_mlp():
    """Two residual blocks of RMSNorm and a GELU-gated MLP; opset 23, so RMSNormalization and Gelu are operators."""
    return GatedMlp(), lambda k: [randn((6, 11)[k], 10)]


class DenseExperts(nn.Module):
    def __init__(self, experts=5, width=9, hidden=14):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.w1, self.b1 = nn.Parameter(randn(experts, width, hidden)), nn.Parameter(randn(experts, 1, hidden))
        self.w2, self.b2 = nn.Parameter(randn(experts, hidden, 4)), nn.Parameter(randn(experts, 1, 4))

    def forward(self, x):
        share = torch.softmax(self.router(x) / 1.5, -1)
        h = F.softplus(torch.matmul(x.unsqueeze(0), self.w1) + self.b1)
        y = torch.matmul(h, self.w2) + self.b2
        return (share.t().unsqueeze(-1) * y).sum(0), share


@model(opset=19, loss="ce", inputs=["x"], outputs=["scores", "share"], dynamic=[{0: "batch"}])
def dense_mixture_of_experts():
    """Five experts, all evaluated by batched MatMul and mixed by a softmax router; the second output is not in the loss."""
    return DenseExperts(), lambda k: [randn((8, 3)[k], 9)]


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 8))
        self.right = nn.Sequential(nn.Linear(7, 20), nn.Hardtanh(-1.2, 1.5), nn.Linear(20, 8))
        self.shared = nn.Linear(8, 8, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(0.9))

    def forward(self, a, b):
        a, b = F.normalize(self.shared(self.left(a)), dim=-1), F.normalize(self.shared(self.right(b)), dim=-1)
        return self.log_scale.exp() * (a @ b.t())


@model(opset=18, loss="ce", inputs=["image_features", "text_features"], outputs=["similarity"], optimize=False)
def contrastive_pair():
    """Two towers with one shared projection (its weight is used twice), cosine similarity, learned temperature; the label is
    the row that belongs to each column."""
    return Contrastive(), lambda k: [randn(6, 12), randn(6, 7)]


class Physics(nn.Module):
    def __init__(self):
        super().__init__()
        self.amplitude, self.decay, self.omega, self.phase = (nn.Parameter(randn(3)) for _ in range(4))
        self.coef, self.exponent = nn.Parameter(randn(6)), nn.Parameter(torch.tensor([1.7, 0.6]))
        self.register_buffer("knots", torch.linspace(-1.5, 1.4, 6))

    def forward(self, t):
        u = t.unsqueeze(-1)
        wave = (self.amplitude * torch.exp(-self.decay.abs() * u.abs()) * torch.sin(self.omega * u + self.phase)).sum(-1)
        spline = (self.coef * torch.clamp(u - self.knots, min=0).pow(3)).sum(-1)
        power = (u * u + 0.3).pow(self.exponent).sum(-1)
        return wave + spline / (1 + torch.cos(t) ** 2) + torch.log1p(power) * torch.atan(t)


@model(opset=21, loss="mse", inputs=["time"], outputs=["position"], optimize=False, dynamic=[{0: "points"}])
def spline_oscillator():
    """Damped oscillations, a cubic truncated-power spline and learned exponents: Sin, Cos, Exp, Pow, Atan, Log, Abs."""
    return Physics(), lambda k: [randn((13, 20)[k])]


# ---- convolution -----------------------------------------------------------------------------------------------


def cbr(a, b):
    return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b, eps=1e-4), nn.ReLU()]


@model(opset=18, loss="ce", inputs=["pixels"], outputs=["logits"], optimize=False, dynamic=[{0: "batch"}])
def vgg_small_batchnorm():
    """VGG-like: 2 + 2 convolutions with BatchNormalization in inference form, overlapping max pooling, two dense layers."""
    net = nn.Sequential(*cbr(3, 10), *cbr(10, 10), nn.MaxPool2d(2), *cbr(10, 16), *cbr(16, 16), nn.MaxPool2d(3, 2, ceil_mode=True),
                        nn.Flatten(), nn.Linear(16 * 3 * 3, 40), nn.ReLU(), nn.Linear(40, 8))
    return net, lambda k: [randn((3, 5)[k], 3, 14, 14)]


class DenseBlock(nn.Module):
    def __init__(self, start=6, growth=4, layers=3):
        super().__init__()
        self.stem = nn.Conv2d(2, start, 3, bias=False)
        self.norm = nn.ModuleList([nn.BatchNorm2d(start + growth * k) for k in range(layers)])
        self.conv = nn.ModuleList([nn.Conv2d(start + growth * k, growth, 3, padding=1, bias=False) for k in range(layers)])
        end = start + growth * layers
        self.tnorm, self.tconv = nn.BatchNorm2d(end), nn.Conv2d(end, end // 2, 1, bias=False)
        self.head = nn.Linear(end // 2, 5)

    def forward(self, x):
        h = self.stem(x)
        for n, c in zip(self.norm, self.conv):
            h = torch.cat([h, c(F.leaky_relu(n(h), 0.05))], 1)
        h = F.avg_pool2d(self.tconv(F.relu(self.tnorm(h))), 2)
        return self.head(torch.amax(h, (2, 3)))


@model(opset=22, loss="ce", inputs=["image"], outputs=["logits"], optimize=False)
def densenet_block():
    """DenseNet block: three layers of growth 4 joined by Concat, a transition with AveragePool, the maximum over the map."""
    return DenseBlock(), lambda k: [randn(2, 2, 11, 10)]


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.dw, self.pw = nn.Conv2d(6, 12, (3, 5), (2, 1), (0, 2), groups=6), nn.Conv2d(12, 10, 1)
        self.reduce, self.expand = nn.Linear(10, 3), nn.Linear(3, 10)
        self.skip = nn.Conv2d(6, 10, 3, (2, 1), (0, 1), bias=False)

    def forward(self, x):
        h = F.silu(self.pw(self.dw(x)))
        s = torch.sigmoid(self.expand(torch.tanh(self.reduce(h.mean((2, 3))))))
        return h * s[:, :, None, None] + self.skip(x)


@model(opset=18, loss="mse", inputs=["maps"], outputs=["scaled"], exporter="torchscript", dynamic=[{0: "batch"}])
def squeeze_excite():
    """Squeeze-and-excitation with dense layers around a grouped 3x5 convolution of stride (2, 1) with a multiplier of two."""
    return SqueezeExcite(), lambda k: [randn((2, 4)[k], 6, 9, 7)]


class WaveNet(nn.Module):
    def __init__(self, width=10, skip=7):
        super().__init__()
        self.inp = nn.Conv1d(1, width, 1)
        self.filter = nn.ModuleList([nn.Conv1d(width, width, 3, dilation=3 ** k) for k in range(2)])
        self.gate = nn.ModuleList([nn.Conv1d(width, width, 3, dilation=3 ** k) for k in range(2)])
        self.res = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(1)])
        self.skip = nn.ModuleList([nn.Conv1d(width, skip, 1) for _ in range(2)])
        self.out = nn.Conv1d(skip, 12, 1)

    def forward(self, x):
        h, total = self.inp(x), 0
        for k, (f, g, s) in enumerate(zip(self.filter, self.gate, self.skip)):
            p = F.pad(h, (2 * 3 ** k, 0))
            z = torch.tanh(f(p)) * torch.sigmoid(g(p))
            total = total + s(z)
            if k < len(self.res):
                h = h + self.res[k](z)
        return self.out(F.relu(total))


@model(opset=20, loss="ce", inputs=["wave"], outputs=["levels"], dynamic=[{0: "batch", 2: "samples"}])
def wavenet_stack():
    """WaveNet-like causal stack: separate filter and gate convolutions of dilation 1 and 3, left padding, skip sums; 12 levels
    per sample, cross-entropy over the third axis."""
    return WaveNet(), lambda k: [randn((2, 3)[k], 1, (30, 21)[k])]


class UNetNearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, 8, 4, 2, 1), nn.Conv2d(8, 11, 2, 2)
        self.d, self.e = nn.Conv2d(11, 8, 3, padding=1), nn.Conv2d(8, 5, 3, padding=1)
        self.o = nn.Conv2d(10, 1, 3, padding=1)

    def forward(self, x):
        a = F.leaky_relu(self.a(x), 0.2)
        b = F.leaky_relu(self.b(a), 0.2)
        c = torch.tanh(self.c(b))
        d = F.leaky_relu(self.d(F.interpolate(c, scale_factor=2, mode="nearest")) + b, 0.2)
        e = self.e(F.interpolate(d, scale_factor=2, mode="nearest"))
        return self.o(torch.cat([a, e], 1))


@model(opset=19, loss="mse", inputs=["noisy"], outputs=["clean"])
def unet_nearest():
    """U-shaped net: strided convolutions down, nearest Resize up, one additive and one concatenated skip."""
    return UNetNearest(), lambda k: [randn(2, 1, 12, 16)]


# ---- sequences -------------------------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    def __init__(self, words=37, width=12, hidden=16):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(words, width), nn.LSTM(width, hidden, 2)
        self.out = nn.Linear(hidden, words)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


@model(opset=21, loss="ce_last", ignore=-100, inputs=["tokens"], outputs=["logits"])
def lstm_language_model():
    """Language model, time first: embedding, two stacked LSTM layers, 37 words; labels of -100 are ignored."""
    return LanguageModel(), lambda k: [randint(37, 9, 3)]


class GruClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(5, 7, bidirectional=True, batch_first=True), nn.Linear(28, 6)

    def forward(self, x):
        y, h = self.gru(x)
        return self.out(torch.cat([y.mean(1), h[0], h[1]], -1))


@model(opset=18, loss="ce", inputs=["frames"], outputs=["logits"], exporter="torchscript", dynamic=[{0: "batch", 1: "time"}])
def gru_bidirectional_classifier():
    """Bidirectional GRU; the mean over time joined with the final state of both directions."""
    return GruClassifier(), lambda k: [randn((4, 2)[k], (8, 5)[k], 5)]


def heads(x, n):
    return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


class Attend(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.n, self.q, self.k, self.v, self.o = n, *(nn.Linear(width, width) for _ in range(4))

    def forward(self, x, y, mask=None):
        q, k, v = heads(self.q(x), self.n), heads(self.k(y), self.n), heads(self.v(y), self.n)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            s = s.masked_fill(mask, -1e4)
        return self.o((torch.softmax(s, -1) @ v).transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class EncoderDecoder(nn.Module):
    def __init__(self, width=18, n=3):
        super().__init__()
        self.src, self.dst = nn.Embedding(23, width), nn.Embedding(19, width)
        self.enc, self.dec, self.cross = Attend(width, n), Attend(width, n), Attend(width, n)
        self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.f1, self.f2, self.out = nn.Linear(width, 30), nn.Linear(30, width), nn.Linear(width, 19)
        self.register_buffer("where", torch.triu(torch.ones(7, 7), 1) > 0, persistent=False)

    def forward(self, source, target):
        e = self.src(source)
        blank = (source == 0)[:, None, None, :]
        e = self.norm[0](e + self.enc(e, e, blank))
        d = self.dst(target)
        d = self.norm[1](d + self.dec(d, d, self.where))
        d = self.norm[2](d + self.cross(d, e, blank))
        return self.out(self.norm[3](d + self.f2(F.relu(self.f1(d)))))


@model(opset=20, loss="ce_last", inputs=["source", "target"], outputs=["logits"])
def encoder_decoder_attention():
    """Post-norm encoder-decoder: self, masked and cross attention written out; source positions with token 0 are masked."""
    def args(k):
        s = randint(22, 2, 9) + 1
        s[1, 6:] = 0
        return [s, randint(19, 2, 7)]
    return EncoderDecoder(), args


class PatchNet(nn.Module):
    def __init__(self, width=20, n=5):
        super().__init__()
        self.patch = nn.Linear(2 * 5 * 5, width)
        self.token, self.place = nn.Parameter(randn(width)), nn.Parameter(randn(7, width))
        self.att = nn.ModuleList([Attend(width, n) for _ in range(2)])
        self.norm = nn.ModuleList([nn.LayerNorm(width, eps=1e-6) for _ in range(4)])
        self.f1 = nn.ModuleList([nn.Linear(width, 36) for _ in range(2)])
        self.f2 = nn.ModuleList([nn.Linear(36, width) for _ in range(2)])
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        b = x.shape[0]
        p = x.reshape(b, 2, 2, 5, 3, 5).permute(0, 2, 4, 3, 5, 1).reshape(b, 6, 50)
        h = torch.cat([self.token.expand(b, 1, -1), self.patch(p)], 1) + self.place
        for k in range(2):
            z = self.norm[2 * k](h)
            h = h + self.att[k](z, z)
            h = h + self.f2[k](F.gelu(self.f1[k](self.norm[2 * k + 1](h)), approximate="tanh"))
        return self.out(h[:, 0])


@model(opset=18, loss="ce", inputs=["picture"], outputs=["logits"], dynamic=[{0: "batch"}])
def patch_transformer_class_token():
    """ViT-like: patches cut by Reshape and Transpose, a class token, learned places, two layers, tanh GELU written out."""
    return PatchNet(), lambda k: [randn((2, 5)[k], 2, 10, 15)]


class Layer(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.n, self.a, self.b = n, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.f1, self.f2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        z = self.a(x)
        q, k, v = heads(self.q(z), self.n), heads(self.k(z), self.n), heads(self.v(z), self.n)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.f2(F.gelu(self.f1(self.b(x))))


class Gpt(nn.Module):
    def __init__(self, words=61, width=36, n=6, layers=3):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(randn(16, width))
        self.layer = nn.ModuleList([Layer(width, n) for _ in range(layers)])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        h = self.words(tokens) + self.places[: tokens.shape[1]]
        for q in self.layer:
            h = q(h)
        return self.out(self.norm(h))


@model(opset=23, loss="ce_last", inputs=["tokens"], outputs=["logits"], dynamic=[{0: "batch", 1: "time"}])
def gpt_learned_places_opset23():
    """Three-layer GPT, learned positions, erf GELU, attention scale 0.3; opset 23, so Attention (causal) and Gelu are operators."""
    return Gpt(), lambda k: [randint(61, (2, 3)[k], (11, 7)[k])]


@model(opset=18, loss="ce_last", inputs=["tokens"], outputs=["logits"], exporter="torchscript", dynamic=[{0: "batch", 1: "time"}])
def gpt_learned_places_opset18():
    """A small GPT, learned positions, from the TorchScript exporter at opset 18: attention, mask and erf GELU written out."""
    return Gpt(29, 20, 4, 2), lambda k: [randint(29, (3, 1)[k], (6, 10)[k])]


# ---- control flow ----------------------------------------------------------------------------------------------


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.a1, self.a2 = nn.Linear(6, 10), nn.Linear(10, 3)
        self.low, self.high = nn.Parameter(randn(6, 2)), nn.Parameter(randn(2, 3))
        self.scale = nn.Parameter(torch.tensor(0.8))

    def forward(self, x, level):
        def deep(x):
            return self.a2(F.elu(self.a1(x))) * self.scale

        def flat(x):
            return (x @ self.low @ self.high).sin() + self.scale
        return torch.cond((x * x).mean() > level, deep, flat, (x,)) * 1.5


@model(opset=20, loss="mse", inputs=["x", "level"], outputs=["y"], batches=2, no_grad_inputs=["level"])
def cond_router():
    """torch.cond, exported as If, with weights captured by either branch and one by both; the two batches take one branch each.
    Weights of the branch not taken have gradient zero."""
    return Router(), lambda k: [randn(5, 6), torch.tensor((0.1, 9.0)[k])]


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(4, 6), nn.Linear(6, 2)
        self.decay, self.level = nn.Parameter(randn(6)), nn.Parameter(randn(6))

    def step(self, state, x):
        v, s = state
        keep = torch.sigmoid(self.decay)
        v = keep * v + (1 - keep) * x - 0.2 * s
        s = torch.sigmoid(3 * (v - self.level))
        return (v, s), v * s

    def forward(self, v, s, xs):
        from torch._higher_order_ops.scan import scan
        state, ys = scan(self.step, (v, s), self.inp(xs))
        return self.out(ys), state[0]

    def reference(self, v, s, xs):
        state, ys = (v, s), []
        for x in self.inp(xs):
            state, y = self.step(state, x)
            ys.append(y)
        return self.out(torch.stack(ys)), state[0]


@model(opset=19, loss="mse", inputs=["v0", "s0", "current"], outputs=["signal", "v_last"], optimize=False)
def scan_leaky_neurons():
    """Soft leaky integrate-and-fire neurons, exported as Scan: two states, one scanned output, captured weights."""
    return Leaky(), lambda k: [randn(3, 6), torch.rand(3, 6), randn(8, 3, 4)]


class Euler(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(randn(3, 3))
        self.rate = nn.Parameter(torch.tensor(0.4))
        self.push = nn.Parameter(randn(3))

    def forward(self, x, steps):
        for _ in range(int(steps)):
            x = x + 0.3 * torch.sigmoid(self.rate) * (torch.sin(x @ self.w) + self.push - 0.1 * x * x)
        return x


class EulerScript(Euler):
    def forward(self, x, steps: int):
        for _ in range(steps):
            x = x + 0.3 * torch.sigmoid(self.rate) * (torch.sin(x @ self.w) + self.push - 0.1 * x * x)
        return x


@model(opset=18, loss="mse", inputs=["x", "steps"], outputs=["x_end"], exporter="torchscript", script=EulerScript, batches=2)
def loop_euler():
    """Explicit Euler steps of a small differential equation, exported as Loop; the number of steps is an input (4 and 7)."""
    return Euler(), lambda k: [randn(5, 3), torch.tensor((4, 7)[k])]
