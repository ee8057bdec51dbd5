"""One-node models of com.microsoft's operators, in the forms that onnxruntime's tools write."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh

MICROSOFT = "com.microsoft"
F = np.float32


@dataclass
class Sample:
    """A call of one operator: inputs in order (None is absent) and the outputs that are wanted."""

    name: str
    op_type: str
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)  # "" is absent
    domain: str = MICROSOFT
    gradient: bool = True
    static_only: bool = False  # the sizes of its operands say what they mean
    tolerance_float32: float = 2e-5

    def feeds(self, dtype: type = F) -> dict[str, np.ndarray]:
        return {
            f"x{i}": array.astype(dtype) if array.dtype == F else array
            for i, array in enumerate(self.inputs)
            if array is not None
        }

    def model(
        self, dtype: type = F, *, constants: tuple[int, ...] = (), symbolic: bool = False
    ) -> onnx.ModelProto:
        """The model; inputs with these numbers are initializers.

        `symbolic` leaves all dimensions of the inputs but the last one open.
        """
        feeds = self.feeds(dtype)
        names = ["" if array is None else f"x{i}" for i, array in enumerate(self.inputs)]
        node = oh.make_node(self.op_type, names, list(self.outputs), "the_node", domain=self.domain)
        node.attribute.extend(oh.make_attribute(k, v) for k, v in self.attributes.items())
        fixed = {f"x{i}" for i in constants}
        graph = oh.make_graph(
            [node],
            "sample",
            [
                oh.make_tensor_value_info(
                    name,
                    oh.np_dtype_to_tensor_dtype(array.dtype),
                    [None] * (array.ndim - 1) + list(array.shape[-1:]) if symbolic else array.shape,
                )
                for name, array in feeds.items()
                if name not in fixed
            ],
            [oh.make_empty_tensor_value_info(name) for name in self.outputs if name],
            [onnx.numpy_helper.from_array(feeds[name], name) for name in sorted(fixed)],
        )
        opsets = [oh.make_opsetid("", 21), oh.make_opsetid(MICROSOFT, 1)]
        return oh.make_model(graph, opset_imports=opsets, ir_version=10)


class Numbers:
    """Random operands, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self._rng.standard_normal(shape) * scale).astype(F)

    def integers(self, low: int, high: int, shape: tuple, dtype: type = np.int32) -> np.ndarray:
        return self._rng.integers(low, high, shape).astype(dtype)

    def positive(self, *shape: int) -> np.ndarray:
        return self._rng.uniform(0.5, 1.5, shape).astype(F)


def activation_samples() -> list[Sample]:
    n = Numbers(0)
    return [
        Sample("gelu", "Gelu", [n(2, 5)]),
        Sample("bias_gelu", "BiasGelu", [n(2, 3, 5), n(5)]),
        Sample("fast_gelu", "FastGelu", [n(2, 5)]),
        Sample("fast_gelu_bias", "FastGelu", [n(2, 5), n(5)]),
        Sample("quick_gelu", "QuickGelu", [n(2, 5)]),
        Sample("quick_gelu_alpha", "QuickGelu", [n(2, 5)], {"alpha": 0.7}),
    ]


def normalization_samples() -> list[Sample]:
    n = Numbers(1)
    x, skip, gamma, beta, bias = n(2, 3, 8), n(2, 3, 8), n.positive(8), n(8), n(8)
    four = ("y", "", "", "sum")
    ids, segments = n.integers(0, 7, (2, 4)), n.integers(0, 2, (2, 4))
    word, position, segment = n(7, 6), n(5, 6), n(2, 6)
    scale, shift = n.positive(6), n(6)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    positions = n.integers(0, 5, (2, 4))
    embed = [ids, segments, word, position, segment, scale, shift]
    return [
        Sample("skip", "SkipLayerNormalization", [x, skip, gamma, beta], {"epsilon": 1e-5}),
        Sample("skip_no_beta", "SkipLayerNormalization", [x, skip, gamma]),
        Sample("skip_bias", "SkipLayerNormalization", [x, skip, gamma, beta, bias], {}, four),
        Sample("skip_broadcast", "SkipLayerNormalization", [x, n(3, 8), gamma, beta], {}, four),
        Sample("skip_one_batch", "SkipLayerNormalization", [x, n(1, 3, 8), gamma, beta]),
        Sample("skip_matrix", "SkipLayerNormalization", [n(4, 8), n(4, 8), gamma, None, bias]),
        Sample("skip_rms", "SkipSimplifiedLayerNormalization", [x, skip, gamma]),
        Sample(
            "skip_rms_bias",
            "SkipSimplifiedLayerNormalization",
            [x, skip, gamma, bias],
            {"epsilon": 1e-4},
            four,
        ),
        Sample("rms", "SimplifiedLayerNormalization", [x, gamma], {}, domain=""),
        Sample(
            "rms_axis",
            "SimplifiedLayerNormalization",
            [x, n.positive(3, 8)],
            {"axis": 1, "epsilon": 1e-3, "stash_type": 1},
            ("y", "r"),
            domain="",
        ),
        Sample("embed", "EmbedLayerNormalization", embed, {"epsilon": 1e-5}, ("y", "count")),
        Sample("embed_mask", "EmbedLayerNormalization", [*embed, mask], {}, ("y", "count", "sum")),
        Sample(
            "embed_positions",
            "EmbedLayerNormalization",
            [*embed, mask, positions],
            {},
            ("y", "count"),
        ),
        Sample(
            "embed_no_segments",
            "EmbedLayerNormalization",
            [ids, None, word, position, None, scale, shift],
            {},
            ("y", "count"),
        ),
    ]


def attention_samples() -> list[Sample]:
    n = Numbers(2)
    x, w, b = n(2, 4, 6), n(6, 24, scale=0.5), n(24)
    flags = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], np.int32)
    some = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], np.int32)
    cube = n.integers(0, 2, (2, 4, 4))
    past = n(2, 2, 2, 3, 4)
    heads = {"num_heads": 2}
    causal = {"num_heads": 2, "unidirectional": 1}
    both = ("y", "present")
    uneven = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}

    def sample(name, inputs, attributes, outputs=("y",)):
        one = Sample("attention_" + name, "Attention", inputs, attributes, outputs)
        one.static_only = name == "ends_and_starts"
        if name in ("flags", "cube"):  # a row without keys: -10000 + score rounds the score
            one.tolerance_float32 = 1e-3
        return one

    return [
        sample("plain", [x, w, b], heads),
        sample("causal", [x, w, b], causal),
        sample("scale", [x, w, b], {**heads, "scale": 0.3}),
        sample("flags", [x, w, b, flags], heads),
        sample("filter", [x, w, b, flags], {**causal, "mask_filter_value": -100.0}),
        sample("lengths", [x, w, b, np.array([3, 4], np.int32)], heads),
        sample("ends_and_starts", [x, w, b, np.array([3, 4, 1, 0], np.int32)], heads),
        sample("cube", [x, w, b, cube], heads),
        sample("bias", [x, w, b, None, None, n(2, 2, 4, 4)], heads),
        sample("bias_broadcast", [x, w, b, some, None, n(1, 2, 4, 4)], heads),
        sample("past", [x, w, b, None, past], causal, both),
        sample("past_flags", [x, w, b, n.integers(0, 2, (2, 7)), past], heads, both),
        sample("present", [x, w, b], heads, both),
        sample("sizes", [x, n(6, 28), n(28)], uneven),
    ]


def multi_head_samples() -> list[Sample]:
    n = Numbers(3)
    q, k, v = n(2, 3, 8), n(2, 5, 8), n(2, 5, 12)
    flags = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)
    heads = {"num_heads": 2}
    three = ("y", "present_key", "present_value")

    def sample(name, inputs, attributes=None, outputs=("y",)):
        attributes = heads if attributes is None else {**heads, **attributes}
        return Sample("multi_head_" + name, "MultiHeadAttention", inputs, attributes, outputs)

    return [
        sample("plain", [q, k, v]),
        sample("scale", [q, k, v], {"scale": 0.2}),
        sample("bias", [q, k, v, n(28)]),
        sample("flags", [q, k, v, None, flags]),
        sample("flags_filter", [q, k, v, None, flags], {"mask_filter_value": -50.0}),
        sample("lengths", [q, k, v, None, np.array([3, 5], np.int32)]),
        sample("attention_bias", [q, k, v, None, None, n(1, 2, 3, 5)]),
        sample("causal", [n(2, 5, 8), k, v], {"unidirectional": 1}),
        sample("cross", [q, n(2, 2, 5, 4), n(2, 2, 5, 4)]),
        sample(
            "past",
            [q, n(2, 3, 8), n(2, 3, 8), None, None, None, n(2, 2, 4, 4), n(2, 2, 4, 4)],
            {},
            three,
        ),
        sample(
            "past_bias",
            [q, n(2, 3, 8), n(2, 3, 8), n(24), None, n(1, 1, 3, 7), n(2, 2, 4, 4), n(2, 2, 4, 4)],
            {},
            three,
        ),
    ]


def rotary_caches(n: Numbers, length: int, planes: int) -> list[np.ndarray]:
    angles = n(length, planes)
    return [np.cos(angles), np.sin(angles)]


def rotary_samples() -> list[Sample]:
    n = Numbers(4)
    x, cube = n(2, 3, 8), n(2, 2, 3, 4)
    ids = n.integers(0, 6, (2, 3), np.int64)
    first = np.array([2], np.int64)
    whole, part = rotary_caches(n, 6, 2), rotary_caches(n, 6, 1)
    partial = {"num_heads": 2, "rotary_embedding_dim": 2}
    return [
        Sample("rotary", "RotaryEmbedding", [x, ids, *whole]),
        Sample("rotary_first", "RotaryEmbedding", [x, first, *whole]),
        Sample("rotary_interleaved", "RotaryEmbedding", [x, ids, *whole], {"interleaved": 1}),
        Sample("rotary_heads", "RotaryEmbedding", [cube, ids, *whole]),
        Sample("rotary_part", "RotaryEmbedding", [x, ids, *part], partial),
    ]


def group_query_samples() -> list[Sample]:
    n = Numbers(5)
    heads = {"num_heads": 4, "kv_num_heads": 2}
    q, k, v = n(2, 3, 64), n(2, 3, 32), n(2, 3, 32)
    caches = rotary_caches(n, 16, 8)
    prompt = [np.array([2, 2], np.int32), np.array([3], np.int32)]
    three = ("y", "present_key", "present_value")
    past = [n(2, 2, 4, 16), n(2, 2, 4, 16)]
    step = [n(2, 1, 64), n(2, 1, 32), n(2, 1, 32)]
    after = [np.array([4, 4], np.int32), np.array([5], np.int32)]
    ragged = [np.array([4, 2], np.int32), np.array([5], np.int32)]
    empty = [np.zeros((2, 2, 0, 16), F)] * 2

    def sample(name, inputs, attributes=None):
        attributes = {**heads, **(attributes or {})}
        return Sample("group_query_" + name, "GroupQueryAttention", inputs, attributes, three)

    none = [None, None]
    return [
        sample("prompt", [q, k, v, *none, *prompt]),
        sample("empty_past", [q, k, v, *empty, *prompt]),
        sample("packed", [n(2, 3, 128), *none, *none, *prompt]),
        sample("rotary", [q, k, v, *none, *prompt, *caches], {"do_rotary": 1}),
        sample(
            "interleaved",
            [q, k, v, *none, *prompt, *caches],
            {"do_rotary": 1, "rotary_interleaved": 1},
        ),
        sample("scale", [q, k, v, *none, *prompt], {"scale": 0.25}),
        sample("softcap", [q, k, v, *none, *prompt], {"softcap": 1.5}),
        sample("smooth", [q, k, v, *none, *prompt], {"smooth_softmax": 1}),
        sample("window", [q, k, v, *none, *prompt], {"local_window_size": 2}),
        sample("bias", [q, k, v, *none, *prompt, None, None, None, n(1, 1, 3, 3)]),
        sample("sink", [q, k, v, *none, *prompt, None, None, None, None, n(4)]),
        sample("past", [*step, *past, *after]),
        sample("past_rotary", [*step, *past, *after, *caches], {"do_rotary": 1}),
        sample("past_ragged", [*step, *past, *ragged, *caches], {"do_rotary": 1}),
        sample("past_window", [*step, *past, *ragged], {"local_window_size": 2}),
    ]


def product_samples() -> list[Sample]:
    n = Numbers(6)
    image, kernel, bias = n(2, 2, 5, 5), n(3, 2, 3, 3), n(3)
    a, b, c = n(4, 3), n(3, 5), n(5)

    def conv(name, activation, numbers=None, inputs=None, **attributes):
        given = {"activation": activation, **attributes}
        if numbers is not None:
            given["activation_params"] = numbers
        return Sample("conv_" + name, "FusedConv", inputs or [image, kernel, bias], given)

    def gemm(name, activation, **attributes):
        given = {"activation": activation, **attributes}
        return Sample("gemm_" + name, "FusedGemm", [a, b, c], given)

    return [
        Sample("matmul", "FusedMatMul", [n(2, 3, 4), n(4, 5)], {"alpha": 0.5}),
        Sample("matmul_a", "FusedMatMul", [n(2, 4, 3), n(2, 4, 5)], {"transA": 1}),
        Sample("matmul_b", "FusedMatMul", [n(2, 3, 4), n(5, 4)], {"transB": 1, "alpha": 2.0}),
        Sample("matmul_batch_a", "FusedMatMul", [n(3, 2, 4), n(2, 4, 5)], {"transBatchA": 1}),
        Sample(
            "matmul_batch_both",
            "FusedMatMul",
            [n(4, 2, 3), n(5, 2, 4)],
            {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1},
        ),
        Sample("transpose_matmul", "TransposeMatMul", [n(2, 4, 3), n(2, 4, 5)], {"transA": 1}),
        gemm("relu", "Relu"),
        gemm("leaky", "LeakyRelu", activation_alpha=0.3, alpha=0.5, beta=2.0),
        gemm("sigmoid", "Sigmoid"),
        gemm("tanh", "Tanh"),
        gemm("elu", "Elu", activation_alpha=0.7),
        gemm("softplus", "Softplus"),
        Sample(
            "gemm_transposed",
            "FusedGemm",
            [n(3, 4), n(5, 3)],
            {"activation": "Relu", "transA": 1, "transB": 1},
        ),
        conv("relu", "Relu", strides=[2, 2], pads=[1, 1, 1, 1]),
        conv("leaky", "LeakyRelu", [0.2], auto_pad="SAME_UPPER"),
        conv("clip", "Clip", [-0.5, 1.0], kernel_shape=[3, 3]),
        conv("hard_sigmoid", "HardSigmoid", [0.3, 0.4], dilations=[2, 2]),
        conv("tanh", "Tanh", inputs=[n(1, 4, 5, 5), n(2, 2, 3, 3)], group=2),
        conv("sum", "Relu", inputs=[image, kernel, bias, n(2, 3, 3, 3)]),
    ]


def all_samples() -> list[Sample]:
    return [
        *activation_samples(),
        *normalization_samples(),
        *attention_samples(),
        *multi_head_samples(),
        *rotary_samples(),
        *group_query_samples(),
        *product_samples(),
    ]
