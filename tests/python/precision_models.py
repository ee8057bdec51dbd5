"""The trainings whose curves are compared with PyTorch's autocast: model, weights and data.

`tests/data/precision/make_curves.py` imports this too; it needs NumPy only.
"""

import numpy as np

RATE = 0.001  # Adam
STEPS = 120


def perceptron_weights():
    """784 - 512 - 512 - 10, weights [in, out]."""
    rng = np.random.default_rng(7)
    weights = {}
    for i, (rows, columns) in enumerate(((784, 512), (512, 512), (512, 10))):
        bound = 1 / np.sqrt(rows)
        weights[f"W{i}"] = rng.uniform(-bound, bound, (rows, columns)).astype(np.float32)
        weights[f"b{i}"] = np.zeros(columns, np.float32)
    return weights


def perceptron_text():
    return """
    <ir_version: 8, opset_import: ["" : 17]>
    perceptron (float[N, 784] X) => (float[N, 10] Y)
    {
      m0 = MatMul(X, W0)  a0 = Add(m0, b0)  h0 = Relu(a0)
      m1 = MatMul(h0, W1)  a1 = Add(m1, b1)  h1 = Relu(a1)
      m2 = MatMul(h1, W2)  Y = Add(m2, b2)
    }
    """


def perceptron_batches():
    """Blurred prototypes of ten classes under noise."""
    rng = np.random.default_rng(8)
    prototypes = rng.normal(size=(10, 784)).astype(np.float32)
    for _ in range(STEPS):
        labels = rng.integers(0, 10, 128)
        yield (prototypes[labels] * 0.12 + rng.normal(size=(128, 784))).astype(np.float32), labels


LAYERS, WIDTH, HEADS, LENGTH, INNER, CLASSES = 2, 64, 4, 24, 128, 4


def transformer_weights():
    rng = np.random.default_rng(9)
    weights = {}
    for i in range(LAYERS):
        for name, shape in (
            ("q", (WIDTH, WIDTH)), ("k", (WIDTH, WIDTH)), ("v", (WIDTH, WIDTH)),
            ("o", (WIDTH, WIDTH)), ("u", (WIDTH, INNER)), ("d", (INNER, WIDTH)),
        ):  # fmt: skip
            array = rng.normal(0, 1 / np.sqrt(shape[0]), shape)
            weights[f"{name}{i}"] = array.astype(np.float32)
            weights[f"{name}b{i}"] = np.zeros(shape[1], np.float32)
        for j in (0, 1):
            weights[f"scale{j}{i}"] = np.ones(WIDTH, np.float32)
            weights[f"shift{j}{i}"] = np.zeros(WIDTH, np.float32)
    weights["head"] = rng.normal(0, 0.1, (WIDTH, CLASSES)).astype(np.float32)
    weights["headb"] = np.zeros(CLASSES, np.float32)
    return weights


def transformer_text():
    """Post-norm encoder layers as exporters write them, the mean over the sequence, a head."""
    size = WIDTH // HEADS
    text = f"""
    <ir_version: 8, opset_import: ["" : 20]>
    encoder (float[N, {LENGTH}, {WIDTH}] X) => (float[N, {CLASSES}] Y)
    <int64[4] split = {{0, 0, {HEADS}, {size}}}, int64[3] joined = {{0, 0, {WIDTH}}},
     float root = {{{size**-0.5}}}, int64[1] places = {{1}}>
    {{
    """
    x = "X"
    for i in range(LAYERS):
        for name in "qkv":
            perm = "[0, 2, 3, 1]" if name == "k" else "[0, 2, 1, 3]"
            text += f"""
            {name}m{i} = MatMul({x}, {name}{i})  {name}a{i} = Add({name}m{i}, {name}b{i})
            {name}r{i} = Reshape({name}a{i}, split)
            {name}t{i} = Transpose<perm = {perm}>({name}r{i})
            """
        text += f"""
        s{i} = MatMul(qt{i}, kt{i})  z{i} = Mul(s{i}, root)  p{i} = Softmax(z{i})
        c{i} = MatMul(p{i}, vt{i})  ct{i} = Transpose<perm = [0, 2, 1, 3]>(c{i})
        cr{i} = Reshape(ct{i}, joined)  om{i} = MatMul(cr{i}, o{i})  oa{i} = Add(om{i}, ob{i})
        x{i} = Add({x}, oa{i})  n{i} = LayerNormalization(x{i}, scale0{i}, shift0{i})
        um{i} = MatMul(n{i}, u{i})  ua{i} = Add(um{i}, ub{i})  g{i} = Gelu(ua{i})
        dm{i} = MatMul(g{i}, d{i})  da{i} = Add(dm{i}, db{i})  y{i} = Add(n{i}, da{i})
        l{i} = LayerNormalization(y{i}, scale1{i}, shift1{i})
        """
        x = f"l{i}"
    return f"""{text}
      mean = ReduceMean<keepdims = 0>({x}, places)
      hm = MatMul(mean, head)  Y = Add(hm, headb)
    }}
    """


def transformer_batches():
    """Four classes by which of four directions most tokens point to."""
    rng = np.random.default_rng(10)
    directions = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
    for _ in range(STEPS):
        labels = rng.integers(0, CLASSES, 32)
        tokens = rng.normal(size=(32, LENGTH, WIDTH))
        marked = rng.random((32, LENGTH, 1)) < 0.25
        tokens += marked * directions[labels][:, None] * 0.4
        yield tokens.astype(np.float32), labels


CHANNELS = 16


def convolutions_weights():
    rng = np.random.default_rng(11)
    weights = {}
    for i, (rows, columns, size, groups) in enumerate(CONVOLUTIONS):
        shape = (rows, columns // groups, size, size)
        bound = np.sqrt(3 / np.prod(shape[1:]))
        weights[f"w{i}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        weights[f"scale{i}"] = np.ones(rows, np.float32)
        weights[f"shift{i}"] = np.zeros(rows, np.float32)
    weights["head"] = rng.normal(0, 0.1, (CHANNELS, CLASSES)).astype(np.float32)
    weights["headb"] = np.zeros(CLASSES, np.float32)
    return weights


# Results, sources, kernel, groups: a convolution, then an inverted residual.
CONVOLUTIONS = (
    (CHANNELS, 3, 3, 1), (4 * CHANNELS, CHANNELS, 1, 1),
    (4 * CHANNELS, 4 * CHANNELS, 3, 4 * CHANNELS), (CHANNELS, 4 * CHANNELS, 1, 1),
)  # fmt: skip


def convolutions_text():
    """Clip after all BatchNormalizations but the last one, which a residual is added to."""
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    convolutions (float[N, 3, 16, 16] X) => (float[N, {CLASSES}] Y)
    <float low = {{0}}, float high = {{6}},
    """
    statistics = [
        f"float[{rows}] {name}{i} = {{{', '.join([value] * rows)}}}"
        for i, (rows, *_) in enumerate(CONVOLUTIONS)
        for name, value in (("mean", "0"), ("variance", "1"))
    ]
    text += ", ".join(statistics) + "> {"
    x = "X"
    for i, (_, _, size, groups) in enumerate(CONVOLUTIONS):
        pad = size // 2
        text += f"""
        c{i} = Conv<pads = [{pad}, {pad}, {pad}, {pad}], group = {groups}>({x}, w{i})
        n{i} = BatchNormalization(c{i}, scale{i}, shift{i}, mean{i}, variance{i})
        """
        if i + 1 < len(CONVOLUTIONS):
            text += f"r{i} = Clip(n{i}, low, high)"
        x = f"r{i}"
    return f"""{text}
      y = Add(n{len(CONVOLUTIONS) - 1}, r0)  m = ReduceMean<axes = [2, 3], keepdims = 0>(y)
      hm = MatMul(m, head)  Y = Add(hm, headb)
    }}
    """


def convolutions_batches():
    """Four classes by the pattern of 5 x 5 that is repeated somewhere under noise."""
    rng = np.random.default_rng(12)
    patterns = rng.normal(size=(CLASSES, 3, 5, 5))
    for _ in range(STEPS):
        labels = rng.integers(0, CLASSES, 32)
        images = rng.normal(size=(32, 3, 16, 16))
        for image, label in zip(images, labels, strict=True):
            for _ in range(3):
                row, column = rng.integers(0, 11, 2)
                image[:, row : row + 5, column : column + 5] += 0.7 * patterns[label]
        yield images.astype(np.float32), labels


TRAININGS = {
    "perceptron": (perceptron_text, perceptron_weights, perceptron_batches),
    "transformer": (transformer_text, transformer_weights, transformer_batches),
    "convolutions": (convolutions_text, convolutions_weights, convolutions_batches),
}
