"""LSTM, GRU and RNN in NumPy from the formulas of ONNX's specification, in the inputs' type."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# By name: the function of x, alpha, beta, and which of the two it has, with their defaults.
FUNCTIONS = {
    "Sigmoid": (lambda x, a, b: sigmoid(x), None, None),
    "Tanh": (lambda x, a, b: np.tanh(x), None, None),
    "Relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "Affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "LeakyRelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "ThresholdedRelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, None),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "Elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, None),
    "Softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "Softplus": (lambda x, a, b: np.logaddexp(0, x), None, None),
}
USUAL = {
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "RNN": ["Tanh"],
}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def functions_of(op, directions, attributes):
    """Return the functions, those of each direction in a list."""
    names = attributes.get("activations") or USUAL[op] * directions
    alphas = list(attributes.get("activation_alpha", ()))
    betas = list(attributes.get("activation_beta", ()))
    made = []
    for name in names:
        function, alpha, beta = FUNCTIONS[name]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)
        made.append(lambda x, f=function, a=alpha, b=beta: f(x, a, b))
    count = len(USUAL[op])
    return [made[count * d : count * (d + 1)] for d in range(directions)]


def step_lstm(x, state, weights, functions, bound, attributes):
    h, c = state
    w, r, b, p = weights
    f, g, squash = functions
    s_i, s_o, s_f, s_c = np.split(x @ w.T + h @ r.T + b[0] + b[1], 4, axis=1)
    p_i, p_o, p_f = p
    i = f(bound(s_i + p_i * c))
    u = 1 - i if attributes.get("input_forget") else f(bound(s_f + p_f * c))
    c = u * c + i * g(bound(s_c))
    o = f(bound(s_o + p_o * c))
    return o * squash(c), c


def step_gru(x, state, weights, functions, bound, attributes):
    (h,) = state
    w, r, b, _ = weights
    f, g = functions
    x_z, x_r, x_n = np.split(x @ w.T + b[0], 3, axis=1)
    r_z, r_r, r_n = np.split(r, 3)
    b_z, b_r, b_n = np.split(b[1], 3)
    z = f(bound(x_z + h @ r_z.T + b_z))
    reset = f(bound(x_r + h @ r_r.T + b_r))
    if attributes.get("linear_before_reset"):
        n = g(bound(x_n + reset * (h @ r_n.T + b_n)))
    else:
        n = g(bound(x_n + (reset * h) @ r_n.T + b_n))
    return ((1 - z) * n + z * h,)


def step_rnn(x, state, weights, functions, bound, attributes):
    (h,) = state
    w, r, b, _ = weights
    return (functions[0](bound(x @ w.T + h @ r.T + b[0] + b[1])),)


STEPS = {"LSTM": step_lstm, "GRU": step_gru, "RNN": step_rnn}


def run(op, operands, attributes):
    """Return Y, Y_h and, of LSTM, Y_c for operands by name, with layout 0.

    What sequences of no steps return is what onnxruntime returns: zeros.
    """
    x, w, r = operands["X"], operands["W"], operands["R"]
    steps, batch, _ = x.shape
    directions, width, hidden = r.shape
    direction = attributes.get("direction", "forward")
    clip = attributes.get("clip")
    lengths = operands.get("sequence_lens", np.full(batch, steps))

    def bound(values):
        return values if not clip else np.clip(values, -clip, clip)

    names = ["initial_h", "initial_c"] if op == "LSTM" else ["initial_h"]
    y = np.zeros((steps, directions, batch, hidden), x.dtype)
    last = [np.zeros((directions, batch, hidden), x.dtype) for _ in names]
    functions = functions_of(op, directions, attributes)
    for d in range(directions):
        b = operands["B"][d].reshape(2, width) if "B" in operands else np.zeros((2, width))
        p = operands["P"][d].reshape(3, hidden) if "P" in operands else np.zeros((3, hidden))
        state = [
            operands[name][d] if name in operands else np.zeros((batch, hidden)) for name in names
        ]
        goes_back = direction == "reverse" or d == 1
        for t in reversed(range(steps)) if goes_back else range(steps):
            weights = (w[d], r[d], b, p)
            after = STEPS[op](x[t], state, weights, functions[d], bound, attributes)
            valid = (t < lengths)[:, None]
            y[t, d] = np.where(valid, after[0], 0)
            state = [np.where(valid, new, old) for new, old in zip(after, state, strict=True)]
        for k, values in enumerate(state):
            last[k][d] = np.where((lengths > 0)[:, None], values, 0)
    return [y, *last]
