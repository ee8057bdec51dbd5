"""Federated averaging of an ONNX model: clients that train on their own rows; weights alone move.

    python examples/federated.py

averages three clients of this process. With Flower (``pip install flwr``), `client` is a client of
a server that averages with ``flwr.server.strategy.FedAvg``.
"""

from typing import Any

import numpy as np

import onnxgrad as og
from onnxgrad.sklearn import multi_layer_perceptron

try:
    from flwr.client import NumPyClient as Client
except ImportError:
    Client = object


class OnnxClient(Client):  # type: ignore[misc,valid-type]
    """Trains a model on the rows of one client."""

    def __init__(self, trainer: og.Trainer, X: np.ndarray, y: np.ndarray) -> None:
        self.trainer, self.X, self.y = trainer, X, y

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:  # noqa: ARG002 (interface)
        """Return the weights, in the order of their names."""
        return self.trainer.get_weights()

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, float]]:
        """Train from the weights of the server; return the new ones and the number of rows."""
        self.trainer.set_weights(parameters)
        self.trainer.fit(self.X, self.y, epochs=int(config.get("epochs", 1)), verbose=0)
        loss = self.trainer.history["train_loss"][-1]
        return self.trainer.get_weights(), len(self.X), {"train_loss": loss}

    def evaluate(
        self,
        parameters: list[np.ndarray],
        config: dict[str, Any],  # noqa: ARG002 (interface)
    ) -> tuple[float, int, dict[str, float]]:
        """Evaluate the weights of the server on the client's rows."""
        self.trainer.set_weights(parameters)
        found = self.trainer.evaluate(self.X, self.y)
        return found.loss, found.rows, {"accuracy": found.accuracy or 0.0}


def client(context: Any) -> Any:
    """Return the client of one site, for ``flwr.client.ClientApp(client_fn=client)``."""
    site = int(context.node_config["partition-id"])
    rows = np.load(f"site-{site}.npz")
    trainer = og.Trainer("model.onnx", optimizer="sgd", lr=0.05)
    return OnnxClient(trainer, rows["X"], rows["y"]).to_client()


def averaged(found: list[tuple[list[np.ndarray], int, Any]]) -> list[np.ndarray]:
    """Return the mean of the clients' weights, by their numbers of rows."""
    total = sum(rows for _, rows, _ in found)
    several = zip(*(weights for weights, _, _ in found), strict=True)
    rows = [rows for _, rows, _ in found]
    return [
        sum(array * np.float32(n / total) for array, n in zip(arrays, rows, strict=True))
        for arrays in several
    ]


def main() -> None:
    """Average three clients in this process, and print the accuracy after each round."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(np.int64)
    model = multi_layer_perceptron([2, 16, 2], head="softmax")
    parts = np.split(np.arange(300), [60, 160])
    clients = [
        OnnxClient(og.Trainer(model, optimizer="adam", lr=0.02), X[part], y[part]) for part in parts
    ]
    weights = clients[0].get_parameters({})
    for number in range(1, 11):
        weights = averaged([one.fit(weights, {"epochs": 3}) for one in clients])
        clients[0].trainer.set_weights(weights)
        found = clients[0].trainer.evaluate(X, y)
        print(f"round {number}: loss {found.loss:.4f}, accuracy {found.accuracy:.3f}")


if __name__ == "__main__":
    main()
