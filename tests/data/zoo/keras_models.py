"""Networks of Keras with its PyTorch backend, exported by model.export(format="onnx")."""
import os
import tempfile

os.environ["KERAS_BACKEND"] = "torch"
import keras
import onnx
import torch
from keras import layers

from reference import model


def by_keras(net):
    """Export by Keras, which requires that the network has been called."""
    net(torch.zeros(net.input_shape))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        net.export(path, format="onnx", verbose=False)
        proto = onnx.load(path)
    return proto


KERAS = dict(export=by_keras, single=True, outputs=None, inputs=None, made_by="keras.Model.export, torch backend")


def sequential(shape, *stack):
    return keras.Sequential([keras.Input(shape, batch_size=4), *stack])


@model("keras", loss=("ce", 1), **KERAS)
def keras_dense():
    """Dense layers with SELU, GELU and L2 penalty (which is not in the file)."""
    return sequential((6,), layers.Dense(10, "selu", kernel_regularizer="l2"), layers.Dense(8, "gelu"), layers.Dense(3)), [torch.randn(4, 6)]


@model("keras", loss=("ce", 1), **KERAS)
def keras_convolutions():
    """Channels last: convolution, depthwise and separable convolution, pooling, global average."""
    return sequential((10, 10, 2), layers.Conv2D(6, 3, padding="same", activation="relu"), layers.MaxPooling2D(), layers.SeparableConv2D(8, 3),
                      layers.DepthwiseConv2D(2), layers.GlobalAveragePooling2D(), layers.Dense(4)), [torch.randn(4, 10, 10, 2)]


@model("keras", **KERAS)
def keras_unet_upsampling():
    """UpSampling2D (bilinear) and Conv2DTranspose, channels last."""
    return sequential((8, 8, 1), layers.Conv2D(4, 3, 2, "same", activation="relu"), layers.UpSampling2D(2, interpolation="bilinear"),
                      layers.Conv2DTranspose(3, 3, 2, "same", activation="tanh"), layers.Conv2D(1, 1)), [torch.randn(4, 8, 8, 1)]


@model("keras", **KERAS)
def keras_lstm():
    """LSTM and GRU of Keras: unrolled by the exporter."""
    return sequential((4, 3), layers.LSTM(5, return_sequences=True, seed=1), layers.GRU(4, seed=1), layers.Dense(2)), [torch.randn(4, 4, 3)]
