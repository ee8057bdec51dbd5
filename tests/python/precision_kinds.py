"""Small models of each kind of layer that `precision=` treats on its own; Y are class scores."""

import numpy as np
import onnx
import onnx.parser


def with_weights(text, shapes, seed=0):
    """The model with weights of these shapes: vectors are scales or shifts."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        array = rng.normal(0, 0.1, shape) + (len(shape) == 1 and not name.startswith("b"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def perceptron():
    """Three layers of GELU, written out; few outputs."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 64] X) => (float[N, 4] Y)
    <float root = {1.4142135}, float one = {1}, float half = {0.5}>
    { a = MatMul(X, w0)  u = Add(a, b0)
      q = Div(u, root)  e = Erf(q)  f = Add(e, one)  m = Mul(u, f)  h = Mul(m, half)
      a1 = MatMul(h, w1)  u1 = Add(a1, b1)  s1 = Sigmoid(u1)  h1 = Mul(u1, s1)
      a2 = MatMul(h1, w2)  u2 = Add(a2, b2)  h2 = Tanh(u2)
      Y = MatMul(h2, w3) }
    """
    shapes = {"w0": (64, 256), "w1": (256, 256), "w2": (256, 256), "w3": (256, 4)}
    model = with_weights(text, shapes | {f"b{i}": (256,) for i in range(3)})
    return model, {"X": np.ones((256, 64), np.float32)}, 4


def encoder():
    """Two layers of attention and GELU with LayerNormalization and residuals."""
    width, heads, inner = 32, 4, 128
    text = f"""
    <ir_version: 8, opset_import: ["" : 20]>
    g (float[N, 64, {width}] X) => (float[N, 4] Y)
    <int64[4] split = {{0, 0, {heads}, {width // heads}}}, int64[3] joined = {{0, 0, {width}}},
     float root = {{0.35}}, int64[1] places = {{1}}>
    {{
    """
    shapes = {"head": (width, 4)}
    x = "X"
    for i in range(2):
        for name in "qkv":
            perm = "[0, 2, 3, 1]" if name == "k" else "[0, 2, 1, 3]"
            text += f"""
            {name}m{i} = MatMul({x}, {name}{i})  {name}a{i} = Add({name}m{i}, b{name}{i})
            {name}r{i} = Reshape({name}a{i}, split)
            {name}t{i} = Transpose<perm = {perm}>({name}r{i})
            """
            shapes |= {f"{name}{i}": (width, width), f"b{name}{i}": (width,)}
        text += f"""
        s{i} = MatMul(qt{i}, kt{i})  z{i} = Mul(s{i}, root)  p{i} = Softmax(z{i})
        c{i} = MatMul(p{i}, vt{i})  ct{i} = Transpose<perm = [0, 2, 1, 3]>(c{i})
        cr{i} = Reshape(ct{i}, joined)  om{i} = MatMul(cr{i}, o{i})
        x{i} = Add({x}, om{i})  n{i} = LayerNormalization(x{i}, scale0{i}, b0{i})
        um{i} = MatMul(n{i}, u{i})  ua{i} = Add(um{i}, bu{i})  g{i} = Gelu(ua{i})
        dm{i} = MatMul(g{i}, d{i})  y{i} = Add(n{i}, dm{i})
        l{i} = LayerNormalization(y{i}, scale1{i}, b1{i})
        """
        shapes |= {f"o{i}": (width, width), f"u{i}": (width, inner), f"d{i}": (inner, width)}
        shapes |= {f"bu{i}": (inner,)}
        shapes |= {f"{name}{i}": (width,) for name in ("scale0", "b0", "scale1", "b1")}
        x = f"l{i}"
    text += f"mean = ReduceMean<keepdims = 0>({x}, places)  Y = MatMul(mean, head) }}"
    return with_weights(text, shapes), {"X": np.ones((8, 64, width), np.float32)}, 4


def language_model():
    """A large vocabulary: the scores are most of the memory."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 64] X) => (float[N, 1024] Y)
    { a = MatMul(X, w0)  h = Relu(a)  a1 = MatMul(h, w1)  Y = Add(a1, b1) }
    """
    shapes = {"w0": (64, 64), "w1": (64, 1024), "b1": (1024,)}
    return with_weights(text, shapes), {"X": np.ones((256, 64), np.float32)}, 1024


def convolutions(clipped, layers):
    """Convolutions with BatchNormalization and Relu or Clip, as exported for training."""
    act = "Clip(n{i}, low, high)" if clipped else "Relu(n{i})"
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 8, 16, 16] X) => (float[N, 4] Y)
    <float low = {0}, float high = {6}>
    {
    """
    shapes = {"head": (8, 4)}
    x = "X"
    for i in range(layers):
        text += f"""
        c{i} = Conv<pads = [1, 1, 1, 1]>({x}, w{i})
        n{i} = BatchNormalization(c{i}, s{i}, b{i}, b_mean{i}, variance{i})
        r{i} = {act.format(i=i)}
        """
        shapes |= {f"w{i}": (8, 8, 3, 3)}
        shapes |= {f"{name}{i}": (8,) for name in ("s", "b", "b_mean", "variance")}
        x = f"r{i}"
    text += f"m = GlobalAveragePool({x})  f = Flatten(m)  Y = MatMul(f, head) }}"
    model = with_weights(text, shapes)
    for one in model.graph.initializer:
        if one.name.startswith("variance"):
            one.CopyFrom(onnx.numpy_helper.from_array(np.ones(8, np.float32), one.name))
    return model, {"X": np.ones((16, 8, 16, 16), np.float32)}, 4


MODELS = {
    "perceptron": perceptron,
    "encoder": encoder,
    "language_model": language_model,
    "relu_network": lambda: convolutions(False, 20),
    "clip_network": lambda: convolutions(True, 20),
}
# Few layers: roundings grow from each normalization to the next.
SHALLOW = MODELS | {
    "relu_network": lambda: convolutions(False, 3),
    "clip_network": lambda: convolutions(True, 3),
}
