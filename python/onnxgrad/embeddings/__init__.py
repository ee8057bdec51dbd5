"""Embeddings: large batches of contrastive losses, and what retrieval finds with them.

The losses are `onnxgrad.losses.InfoNCE`, `Triplet` and `CosineEmbedding`: of a model with two
towers, or with ``views=2`` of one encoder that is run on several inputs of each row.

>>> import onnxgrad as og
>>> trainer = og.Trainer("encoder.onnx", og.losses.InfoNCE(views=2))    # doctest: +SKIP
>>> trainer.fit({"x": questions, "x_2": answers})                       # doctest: +SKIP
>>> og.embeddings.retrieval(trainer.predict(q), trainer.predict(a))     # doctest: +SKIP
"""

from onnxgrad.embeddings.grad_cache import GradCache
from onnxgrad.embeddings.retrieval import retrieval

__all__ = ["GradCache", "retrieval"]
