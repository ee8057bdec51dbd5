"""Models and rows of the tests of language models."""

import json
from pathlib import Path

import numpy as np

from onnx_tool import MODELS

DATA = Path(__file__).parents[1] / "data" / "language"
EXAMPLE = Path(__file__).parents[2] / "examples" / "language"
CACHED, TRANSLATION = DATA / "cached_decoder.onnx", DATA / "translation.onnx"
DECODER, SONNETS = EXAMPLE / "decoder.onnx", EXAMPLE / "sonnets.txt"
GPT = MODELS / "gpt_learned_places_opset18.onnx"  # 29 tokens, 16 places
ENCODER = MODELS.parent / "zoo" / "albert_masked_words.onnx"  # 25 tokens, 6 places
IGNORED = -100


def quick(**options):
    return {"epochs": 1, "batch_size": 4, "verbose": 0, **options}


def chunks(data, session, epoch=0):
    """The inputs and labels of all rows of an epoch."""
    reader = data._reader_for(session)
    reader.start(epoch, shuffle=False, seed=0)
    return reader.arrays([int(number) for number in reader.order])


def pairs_file(path, count=12):
    rng = np.random.default_rng(0)
    lines = [
        {
            "prompt": rng.integers(0, 29, 3).tolist(),
            "chosen": [*rng.integers(0, 14, 4).tolist(), 5],
            "rejected": rng.integers(15, 29, 3).tolist(),
        }
        for _ in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path
