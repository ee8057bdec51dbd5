"""Recurrent networks, loops and scans, from PyTorch."""
from typing import List, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import randn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from reference import model

WORDS = dict(inputs=["words"], outputs=["y"])
SERIES = dict(inputs=["series"], outputs=["y"])


class PackedTagger(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(20, 6), cell
        self.out = nn.Linear(cell.hidden_size * (2 if cell.bidirectional else 1), 5)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True)
        y, _ = pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        return self.out(y)


def sentences():
    return [torch.randint(0, 20, (4, 7)), torch.tensor([7, 5, 4, 2])]


@model("recurrent", opset=17, exporter="torchscript", inputs=["words", "lengths"], outputs=["tags"], loss=("ce", 2),
       train={"sgd": 0.3, "adam": 0.01})
def lstm_tagger_packed():
    """Tagger with an LSTM in both directions over packed sequences of different lengths; 20 steps of SGD and Adam are stored."""
    return PackedTagger(nn.LSTM(6, 7, batch_first=True, bidirectional=True)), sentences()


@model("recurrent", opset=18, exporter="torchscript", inputs=["words", "lengths"], outputs=["tags"], loss=("ce", 2))
def gru_tagger_packed():
    """Tagger with two stacked GRU layers in both directions over packed sequences."""
    return PackedTagger(nn.GRU(6, 5, num_layers=2, batch_first=True, bidirectional=True)), sentences()


@model("recurrent", opset=16, exporter="torchscript", inputs=["words", "lengths"], outputs=["tags"], loss=("ce", 2))
def rnn_relu_tagger_packed():
    """Tagger with a plain recurrent layer (relu) over packed sequences."""
    return PackedTagger(nn.RNN(6, 8, nonlinearity="relu", batch_first=True)), sentences()


class States(nn.Module):
    """The caller gives the first states and gets the last ones."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 6, num_layers=2), nn.Linear(6, 2)

    def forward(self, series, h0, c0):
        y, (h, c) = self.lstm(series, (h0, c0))
        return self.out(y), h, c


@model("recurrent", opset=20, inputs=["series", "h0", "c0"], outputs=["y", "h", "c"])
def lstm_with_states():
    """Two LSTM layers with first and last states as inputs and outputs, dynamo."""
    return States(), [randn(6, 2, 3), randn(2, 2, 6), randn(2, 2, 6)]


class Forecast(nn.Module):
    def __init__(self, cell, width):
        super().__init__()
        self.cell, self.out = cell, nn.Linear(width, 3)

    def forward(self, series):
        return self.out(self.cell(series)[0][:, -1])


@model("recurrent", opset=18, dynamic=[{0: "batch"}], **SERIES)
def gru_forecast():
    """GRU over time, the last step forecasts, dynamo with a dynamic batch."""
    return Forecast(nn.GRU(2, 8, batch_first=True), 8), [randn(4, 9, 2)]


@model("recurrent", opset=14, exporter="torchscript", dynamic=[{0: "batch", 1: "time"}], **SERIES)
def rnn_tanh_both_directions():
    """RNN with tanh in both directions, dynamic batch and time, opset 14."""
    return Forecast(nn.RNN(2, 6, batch_first=True, bidirectional=True), 12), [randn(3, 8, 2)]


class Cells(nn.Module):
    """Cells called step by step: the exporter unrolls them."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.out = nn.LSTMCell(3, 6), nn.GRUCell(6, 5), nn.Linear(5, 1)

    def forward(self, series):
        h = c = torch.zeros(series.shape[1], 6, dtype=series.dtype)
        g, ys = torch.zeros(series.shape[1], 5, dtype=series.dtype), []
        for x in series:
            h, c = self.lstm(x, (h, c))
            g = self.gru(h, g)
            ys.append(self.out(g))
        return torch.stack(ys)


@model("recurrent", opset=18, exporter="torchscript", **SERIES)
def unrolled_cells():
    """LSTMCell and GRUCell called in Python: a graph of 5 unrolled steps."""
    return Cells(), [randn(5, 2, 3)]


class ConvLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates, self.out = nn.Conv2d(6, 16, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, film):
        h = c = torch.zeros(film.shape[0], 4, 6, 6, dtype=film.dtype)
        for t in range(film.shape[1]):
            i, f, o, g = self.gates(torch.cat([film[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


@model("recurrent", opset=18, inputs=["film"], outputs=["next"])
def convolutional_lstm():
    """A convolutional LSTM over four images, unrolled, one convolution for all gates."""
    return ConvLstm(), [randn(2, 4, 2, 6, 6)]


class Translate(nn.Module):
    """Encoder and decoder with additive attention; the decoder's steps are unrolled."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(12, 6), nn.Embedding(10, 6)
        self.encoder, self.decoder = nn.GRU(6, 7, batch_first=True, bidirectional=True), nn.GRUCell(20, 7)
        self.w, self.u, self.v = nn.Linear(7, 6), nn.Linear(14, 6, bias=False), nn.Linear(6, 1, bias=False)
        self.out = nn.Linear(7, 10)

    def forward(self, source, target):
        memory, last = self.encoder(self.source(source))
        keys, h, ys = self.u(memory), last[0], []
        for t in range(target.shape[1]):
            score = self.v(torch.tanh(self.w(h).unsqueeze(1) + keys))
            context = (score.softmax(1) * memory).sum(1)
            h = self.decoder(torch.cat([self.target(target[:, t]), context], 1), h)
            ys.append(self.out(h))
        return torch.stack(ys, 1)


@model("recurrent", opset=18, inputs=["source", "target"], outputs=["scores"], loss=("ce", 2))
def translation_with_attention():
    """Encoder GRU and unrolled decoder with additive attention."""
    return Translate(), [torch.randint(0, 12, (3, 6)), torch.randint(0, 10, (3, 4))]


# ---- Loop and Scan --------------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """Emits `steps` vectors; scripted, this is a Loop that grows a sequence."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.out = nn.Linear(5, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 4)

    def forward(self, x, steps):
        ys = []
        h = torch.zeros_like(x)
        for _ in range(int(steps)):
            h = torch.tanh(self.w(x) + self.u(h))
            ys.append(self.out(h))
        return torch.stack(ys, 1)


class DecoderScript(Decoder):
    def forward(self, x, steps: int):
        ys: List[torch.Tensor] = []
        h = torch.zeros_like(x)
        for _ in range(steps):
            h = torch.tanh(self.w(x) + self.u(h))
            ys.append(self.out(h))
        return torch.stack(ys, 1)


@model("control", opset=17, exporter="torchscript", inputs=["x", "steps"], outputs=["scores"], loss=("ce", 2), script=DecoderScript,
       train={"sgd": 0.3, "adam": 0.01})
def scripted_decoder():
    """A scripted decoder: Loop with a sequence that grows, steps given by an input; 20 steps of SGD and Adam are stored."""
    return Decoder(), [randn(3, 5), torch.tensor(6)]


class Until(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(4, 4)

    def forward(self, x):
        h, n = x, 0
        while n < 12 and bool(h.abs().sum() > 2.0):
            h = 0.8 * torch.tanh(self.w(h))
            n += 1
        return h


class UntilScript(Until):
    def forward(self, x):
        h = x
        n = 0
        while n < 12 and bool(h.abs().sum() > 2.0):
            h = 0.8 * torch.tanh(self.w(h))
            n += 1
        return h


@model("control", opset=16, exporter="torchscript", inputs=["x"], outputs=["y"], script=UntilScript)
def scripted_while():
    """A while loop that ends when its state is small, scripted: Loop with a condition computed inside, If for the `and`."""
    return Until(), [randn(2, 4)]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(0.4 * randn(4, 4)), nn.Parameter(0.4 * randn(4, 4))

    def forward(self, x, outer, inner):
        for k in range(int(outer)):
            for _ in range(int(inner)):
                x = torch.sin(x @ self.a) + x
            x = x * 0.5 if k % 2 == 0 else torch.tanh(x @ self.b)
        return x


class NestedScript(Nested):
    def forward(self, x, outer: int, inner: int):
        for k in range(outer):
            for _ in range(inner):
                x = torch.sin(x @ self.a) + x
            if k % 2 == 0:
                x = x * 0.5
            else:
                x = torch.tanh(x @ self.b)
        return x


@model("control", opset=18, exporter="torchscript", inputs=["x", "outer", "inner"], outputs=["y"], script=NestedScript)
def nested_loops():
    """A Loop in a Loop, and an If on the counter, scripted; both trip counts are inputs."""
    return Nested(), [randn(2, 4), torch.tensor(3), torch.tensor(2)]


class Selective(nn.Module):
    """A selective state space (as Mamba's), its recurrence by torch's scan."""

    def __init__(self, width=6, state=4):
        super().__init__()
        self.inp, self.delta, self.bc = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 2 * state)
        self.log_a, self.skip, self.out = nn.Parameter(randn(width, state)), nn.Parameter(randn(width)), nn.Linear(width, 2)

    @staticmethod
    def step(h, parts):
        decay, push, c = parts
        h = decay * h + push
        return h, (h * c.unsqueeze(1)).sum(-1)

    def parts(self, x):
        u = F.silu(self.inp(x))
        delta = F.softplus(self.delta(u)).unsqueeze(-1)
        b, c = self.bc(u).chunk(2, -1)
        return u, (torch.exp(-delta * self.log_a.exp()), delta * u.unsqueeze(-1) * b.unsqueeze(2), c)

    def forward(self, x, h0):
        from torch._higher_order_ops.scan import scan
        u, parts = self.parts(x)
        _, ys = scan(self.step, h0, parts)
        return self.out(ys + self.skip * u)

    def reference(self, x, h0):
        u, parts = self.parts(x)
        h, ys = h0, []
        for t in range(len(x)):
            h, y = self.step(h, [p[t] for p in parts])
            ys.append(y)
        return self.out(torch.stack(ys) + self.skip * u)


@model("control", opset=19, inputs=["series", "h0"], outputs=["y"], optimize=False)
def selective_state_space():
    """A selective state space model: the recurrence is a Scan over three sequences."""
    return Selective(), [randn(7, 2, 3), randn(2, 6, 4)]


class Route(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.large(x) if bool(x.mean() > 0) else self.small(x)


class RouteScript(Route):
    def forward(self, x):
        if bool(x.mean() > 0):
            y = self.large(x)
        else:
            y = self.small(x)
        return y


@model("control", opset=17, exporter="torchscript", inputs=["x"], outputs=["y"], script=RouteScript)
def scripted_branches():
    """An If with a small and a large network, scripted; the batch takes one of them."""
    return Route(), [randn(5, 4) + 0.5]


# ---- sequences without recurrence -------------------------------------------------------------------------------------


class TemporalBlock(nn.Module):
    def __init__(self, a, b, dilation):
        super().__init__()
        from torch.nn.utils.parametrizations import weight_norm
        self.pad = 2 * dilation
        self.conv = weight_norm(nn.Conv1d(a, b, 3, padding=self.pad, dilation=dilation))
        self.short = nn.Conv1d(a, b, 1)

    def forward(self, x):
        return F.relu(F.relu(self.conv(x)[:, :, :-self.pad]) + self.short(x))


@model("sequence", opset=18, optimize=False, **SERIES)
def temporal_convolutions():
    """Temporal convolutional network with weight normalization: the norm of each filter is in the graph."""
    return nn.Sequential(TemporalBlock(2, 6, 1), TemporalBlock(6, 6, 2), nn.Conv1d(6, 2, 1)), [randn(2, 2, 12)]


class TextCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(25, 8, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(8, 5, k) for k in (2, 3, 4)])
        self.out = nn.Linear(15, 4)

    def forward(self, words):
        h = self.embedding(words).transpose(1, 2)
        return self.out(torch.cat([F.relu(c(h)).amax(2) for c in self.convs], 1))


@model("sequence", opset=18, loss=("ce", 1), dynamic=[{0: "batch"}], **WORDS)
def text_convolutions():
    """Text classification by convolutions of several widths and the maximum over time."""
    return TextCnn(), [torch.randint(1, 25, (5, 9))]


class Bags(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(18, 6, mode=mode), nn.Linear(6, 3)

    def forward(self, words, starts):
        return self.out(self.bag(words, starts))


@model("sequence", opset=16, exporter="torchscript", inputs=["words", "starts"], outputs=["y"], loss=("ce", 1))
def embedding_bag_sum():
    """EmbeddingBag (sum) of texts by their starts in one list, old exporter: a Loop of slices."""
    return Bags("sum"), [torch.randint(0, 18, (11,)), torch.tensor([0, 3, 7, 8])]


@model("sequence", opset=18, exporter="torchscript", inputs=["words", "starts"], outputs=["y"], loss=("ce", 1))
def embedding_bag_mean():
    """EmbeddingBag (mean), opset 18."""
    return Bags("mean"), [torch.randint(0, 18, (11,)), torch.tensor([0, 4, 6, 10])]


class Spectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(16))
        self.register_buffer("mel", torch.rand(9, 6))
        self.conv, self.out = nn.Conv1d(6, 6, 3), nn.Linear(6, 3)

    def forward(self, wave):
        z = torch.stft(wave, 16, 8, 16, self.window, center=False, return_complex=True)
        power = torch.view_as_real(z).square().sum(-1)
        h = torch.log(torch.einsum("nft,fm->nmt", power, self.mel) + 1e-3)
        return self.out(F.relu(self.conv(h)).mean(2))


@model("audio", opset=18, inputs=["wave"], outputs=["y"], loss=("ce", 1))
def log_mel_classifier():
    """STFT of a wave, mel bands, logarithm, convolution: gradients reach the wave too."""
    return Spectrogram(), [randn(3, 80)]


class Fourier(nn.Module):
    """A Fourier neural operator: weights for the lowest frequencies."""

    def __init__(self, width=4, modes=3):
        super().__init__()
        self.modes = modes
        self.inp, self.out, self.skip = nn.Linear(1, width), nn.Linear(width, 1), nn.Conv1d(width, width, 1)
        self.real, self.imag = nn.Parameter(randn(width, width, modes)), nn.Parameter(randn(width, width, modes))

    def forward(self, x):
        h = self.inp(x).transpose(1, 2)
        z = torch.view_as_real(torch.fft.rfft(h, dim=2))[:, :, :self.modes]
        re, im = z[..., 0], z[..., 1]
        a = torch.einsum("nim,iom->nom", re, self.real) - torch.einsum("nim,iom->nom", im, self.imag)
        b = torch.einsum("nim,iom->nom", re, self.imag) + torch.einsum("nim,iom->nom", im, self.real)
        k = torch.arange(self.modes, dtype=x.dtype).view(-1, 1) * torch.arange(h.shape[2], dtype=x.dtype) * (6.283185307179586 / h.shape[2])
        y = a @ torch.cos(k) - b @ torch.sin(k)
        return self.out(F.gelu(y + self.skip(h)).transpose(1, 2))


@model("audio", opset=20, inputs=["signal"], outputs=["y"])
def fourier_neural_operator():
    """DFT of a signal, complex weights for the lowest frequencies written as two real ones, Einsum."""
    return Fourier(), [randn(2, 16, 1)]


class Separation(nn.Module):
    """Conv-TasNet in small: learned bases, a mask, overlap-add by ConvTranspose."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, 8, 6, 3, bias=False), nn.ConvTranspose1d(8, 1, 6, 3, bias=False)
        self.norm, self.inp, self.dw, self.mask = nn.GroupNorm(1, 8), nn.Conv1d(8, 10, 1), nn.Conv1d(10, 10, 3, padding=2, dilation=2, groups=10), nn.Conv1d(10, 16, 1)
        self.act = nn.PReLU()

    def forward(self, wave):
        w = F.relu(self.encoder(wave.unsqueeze(1)))
        m = self.mask(self.act(self.dw(self.inp(self.norm(w))))).view(wave.shape[0], 2, 8, -1).sigmoid()
        y = (m * w.unsqueeze(1)).flatten(0, 1)
        return self.decoder(y).view(wave.shape[0], 2, -1)


@model("audio", opset=18, exporter="torchscript", inputs=["wave"], outputs=["sources"])
def source_separation():
    """Conv-TasNet in small: learned bases, GroupNorm, masks of two sources, ConvTranspose1d."""
    return Separation(), [randn(2, 36)]
