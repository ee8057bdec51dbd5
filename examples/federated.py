"""Federated averaging of an ONNX model with Flower: a client that trains on its own rows.

    pip install flwr

A server averages the lists of weights that the clients return, by their numbers of rows
(``flwr.server.strategy.FedAvg``), and sends the mean back; only weights leave a client.
"""

from typing import Any

import numpy as np
from flwr.client import NumPyClient

import onnxgrad as og


class OnnxClient(NumPyClient):  # type: ignore[misc]
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
