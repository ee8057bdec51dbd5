"""`data.Sequences`: sequences of different lengths, padded to a few."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

VOCABULARY, WIDTH = 11, 8


def model(*, causal: bool, dtype=np.float64, positions=64) -> onnx.ModelProto:
    """One layer of attention; logits for each position, or for the sequence with a mask."""
    rng = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = {
        "emb": rng.standard_normal((VOCABULARY, WIDTH)),
        "pos": 0.3 * rng.standard_normal((positions, WIDTH)),
        "head": rng.standard_normal((WIDTH, VOCABULARY)),
    }
    weights |= {name: 0.5 * rng.standard_normal((WIDTH, WIDTH)) for name in "qkv"}
    mask = (
        """length_m1 = Sub(length, one)
        columns = Range(zero, length, one)  rows = Unsqueeze(columns, last)
        seen = GreaterOrEqual(rows, columns)"""
        if causal
        else "wide = Unsqueeze(attention_mask, middle)  seen = Cast<to = 9>(wide)"
    )
    dt = {np.float64: "double", np.float32: "float"}[dtype]
    pooled = (
        "y = MatMul(mixed, head)"
        if causal
        else f"""m = Cast<to = {kind}>(attention_mask)
        m3 = Unsqueeze(m, last)  masked = Mul(mixed, m3)
        sums = ReduceSum<keepdims = 0>(masked, middle)  counts = ReduceSum<keepdims = 1>(m, middle)
        mean = Div(sums, counts)  y = MatMul(mean, head)"""
    )
    masks = "" if causal else ", int64[N, T] attention_mask"
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g (int64[N, T] ids{masks}) => ({dt} y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}},
     int64[1] middle = {{1}}, int64[1] last = {{-1}},
     {dt} low = {{-1e9}}>
    {{
      shape = Shape(ids)  length = Gather(shape, one)  length1 = Unsqueeze(length, first)
      places = Slice(pos, first, length1)
      e = Gather(emb, ids)  x = Add(e, places)
      a = MatMul(x, q)  b = MatMul(x, k)  c = MatMul(x, v)
      bt = Transpose<perm = [0, 2, 1]>(b)  scores = MatMul(a, bt)
      {mask}
      hidden = Where(seen, scores, low)
      p = Softmax<axis = -1>(hidden)  mixed = MatMul(p, c)
      {pooled}
    }}"""
    made = onnx.parser.parse_model(text)
    made.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(
            "y", TensorProto.DOUBLE if dtype is np.float64 else TensorProto.FLOAT, None
        )
    )
    for name, numbers in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(numbers.astype(dtype), name))
    return made


def causal_loss():
    return og.losses.SoftmaxCrossEntropy(ignore_index=-100)


def gradients(made, loss, feeds):
    names = [w.name for w in og.TrainingSession(made, loss).trained_weights]
    session = og.TrainingSession(made, loss, outputs=[f"{name}_grad" for name in names])
    total, found = session.step(feeds)
    return total, dict(zip(names, found, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_padding_changes_neither_loss_nor_gradients(causal):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, VOCABULARY, (4, 5))
    label = rng.integers(0, VOCABULARY, (4, 5) if causal else 4)
    padded = np.pad(ids, ((0, 0), (0, 4)))
    plain, wide = {"ids": ids, "label": label}, {"ids": padded, "label": label}
    if causal:
        wide["label"] = np.pad(label, ((0, 0), (0, 4)), constant_values=-100)
    else:
        plain["attention_mask"] = np.ones((4, 5), int)
        wide["attention_mask"] = np.pad(plain["attention_mask"], ((0, 0), (0, 4)))
    loss = causal_loss() if causal else og.losses.SoftmaxCrossEntropy()
    made = model(causal=causal)
    (a, first), (b, second) = gradients(made, loss, plain), gradients(made, loss, wide)
    assert a == pytest.approx(b, rel=1e-12)
    for name in first:
        np.testing.assert_allclose(second[name], first[name], rtol=1e-9, atol=1e-12, err_msg=name)


def sequences(count=60, shortest=1, longest=40, seed=2):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n) for n in rng.integers(shortest, longest + 1, count)]


@pytest.mark.parametrize("causal", [True, False])
def test_a_fit_learns_and_makes_few_plans(causal):
    X = sequences()
    rng = np.random.default_rng(3)
    y = [(x * 3 + 1) % VOCABULARY for x in X] if causal else rng.integers(0, 3, len(X))
    loss = causal_loss() if causal else og.losses.SoftmaxCrossEntropy()
    data = og.data.Sequences(X, y, batch_size=8, bucket_by_length=3)
    assert len(data.lengths) == 3
    trainer = og.Trainer(model(causal=causal, dtype=np.float32), loss, "adam", lr=0.02)
    losses = trainer.fit(data, epochs=12, verbose=0).history["train_loss"]
    assert losses[-1] < 0.7 * losses[0]
    again = og.Trainer(model(causal=causal, dtype=np.float32), loss, "adam", lr=0.02)
    assert again.fit(data, epochs=12, verbose=0).history["train_loss"] == losses


def test_batches_are_what_was_given():
    X = sequences()
    y = [x + 1 for x in X]
    data = og.data.Sequences({"ids": X}, y, batch_size=7, ignore_index=-5, padding={"ids": 2})
    session = og.TrainingSession(model(causal=False), og.losses.SoftmaxCrossEntropy())
    reader = data._reader(session)
    reader.start(0, True, 4)
    seen = set()
    for number in reader._orders(0, True, 4):
        length, rows = data._batches[number]
        inputs, labels, mask = reader.arrays(number)
        assert inputs["ids"].shape == labels.shape == mask.shape == (len(rows), length)
        for i, row in enumerate(rows):
            n = len(X[row])
            assert (inputs["ids"][i, :n] == X[row]).all()
            assert (inputs["ids"][i, n:] == 2).all()
            assert (labels[i, :n] == y[row]).all()
            assert (labels[i, n:] == -5).all()
            assert mask[i].sum() == n
        seen |= set(rows.tolist())
    assert seen == set(range(len(X)))


def total_padding(lengths, buckets):
    return sum(min(b for b in buckets if b >= n) for n in lengths)


def test_lengths_pad_least():
    rng = np.random.default_rng(5)
    for _ in range(30):
        lengths = rng.integers(1, 12, rng.integers(1, 20))
        X = [np.zeros(n, int) for n in lengths]
        for most in (1, 2, 3, 20):
            found = og.data.Sequences(X, lengths, bucket_by_length=most).lengths
            assert len(found) <= most
            distinct = sorted(set(lengths.tolist()))
            best = min(
                total_padding(lengths, [*chosen, distinct[-1]])
                for size in range(min(most, len(distinct)))
                for chosen in itertools.combinations(distinct[:-1], size)
            )
            assert total_padding(lengths, found) == best
    many = [np.zeros(n, int) for n in range(1, 3001)]
    assert len(og.data.Sequences(many, np.zeros(3000), bucket_by_length="auto").lengths) == 16


def test_each_length_by_itself():
    X = sequences(20)
    data = og.data.Sequences(X, np.zeros(20, int), batch_size=4, bucket_by_length=False)
    assert data.lengths is None
    assert [len(rows) for _, rows in data._batches] == [4] * 5
    trainer = og.Trainer(model(causal=False, dtype=np.float32), og.losses.SoftmaxCrossEntropy())
    trainer.fit(data, epochs=1, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([np.zeros(3)], [1, 2]), "2 rows, the sequences are 1"),
        (([np.zeros(3), np.zeros(2)], [np.zeros(3), np.zeros(3)]), "length 3 in sequence 1"),
        (([np.zeros(0)], [1]), "without elements"),
        ((np.zeros((2, 3)), [1, 2]), "no input is a list"),
    ],
)
def test_errors(arguments, text):
    with pytest.raises(og.DataError, match=text):
        og.data.Sequences(*arguments)


@pytest.mark.parametrize("lengths", [[2], [0, 5], "few", True, 0, [2.5]])
def test_wrong_lengths(lengths):
    with pytest.raises(og.OptionError, match="bucket_by_length"):
        og.data.Sequences([np.zeros(4)], [1], bucket_by_length=lengths)
