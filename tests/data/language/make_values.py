"""Writes cached_decoder.onnx, translation.onnx and values.npz: losses of transformers and TRL's.

    python make_values.py

The loss and the gradients of a small Llama are those of its own `labels=input_ids`, from torch in
float32; the loss of preferences is TRL's formula in torch. README.md has the versions.
"""

import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, T5Config
from transformers import T5ForConditionalGeneration

FOLDER = Path(__file__).parent
VOCABULARY = 40


class Cached(torch.nn.Module):
    """The decoder with keys and values as inputs and outputs, as programs that generate call it."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids, attention_mask, position_ids, key_0, value_0, key_1, value_1):
        cache = DynamicCache(config=self.net.config)
        for layer, (key, value) in enumerate([(key_0, value_0), (key_1, value_1)]):
            cache.update(key, value, layer)
        made = self.net(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        layers = made.past_key_values.layers
        return (made.logits, *(x for one in layers for x in (one.keys, one.values)))


def export(net, arguments, path, names, outputs, axes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            arguments,
            path,
            dynamo=False,
            opset_version=17,
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            do_constant_folding=False,  # a folded transposition of a tied table would be another one
        )


def disturbed(net):
    """The network with norms that differ: the exporter stores equal tensors once."""
    for parameter in net.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return net.eval()


def decoder():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    return disturbed(LlamaForCausalLM(config))


def write_decoder(net):
    past = [torch.zeros(2, 2, 3, 4) for _ in range(4)]
    arguments = (
        torch.ones(2, 5, dtype=torch.int64),
        torch.ones(2, 8, dtype=torch.int64),
        torch.arange(3, 8)[None].repeat(2, 1),
        *past,
    )
    kinds = [f"{i}.{kind}" for i in range(2) for kind in ("key", "value")]
    pasts = [f"past_key_values.{kind}" for kind in kinds]
    presents = [f"present.{kind}" for kind in kinds]
    axes = {
        "input_ids": {0: "batch", 1: "time"},
        "attention_mask": {0: "batch", 1: "all"},
        "position_ids": {0: "batch", 1: "time"},
        "logits": {0: "batch", 1: "time"},
        **{name: {0: "batch", 2: "past"} for name in pasts},
        **{name: {0: "batch", 2: "all"} for name in presents},
    }
    names = ["input_ids", "attention_mask", "position_ids", *pasts]
    path = FOLDER / "cached_decoder.onnx"
    export(Cached(net), arguments, path, names, ["logits", *presents], axes)
    model = onnx.load(path)
    for node in model.graph.node:
        node.doc_string = ""
    onnx.save(model, path)


class Translation(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        return self.net(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
        ).logits


def translation():
    torch.manual_seed(1)
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=20,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return disturbed(T5ForConditionalGeneration(config))


def write_translation(net):
    arguments = (
        torch.ones(2, 6, dtype=torch.int64),
        torch.ones(2, 6, dtype=torch.int64),
        torch.ones(2, 5, dtype=torch.int64),
    )
    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    axes = {
        "input_ids": {0: "batch", 1: "source"},
        "attention_mask": {0: "batch", 1: "source"},
        "decoder_input_ids": {0: "batch", 1: "target"},
        "logits": {0: "batch", 1: "target"},
    }
    path = FOLDER / "translation.onnx"
    export(Translation(net), arguments, path, names, ["logits"], axes)


def log_probabilities(net, ids, labels):
    log_p = torch.log_softmax(net(ids).logits[:, :-1].double(), -1)
    target = labels[:, 1:]
    taken = torch.gather(log_p, 2, target.clamp(min=0)[..., None])[..., 0]
    return (taken * (target >= 0)).sum(1)


def preferences(net, values):
    """TRL's sigmoid loss of DPOTrainer, after a step that has changed the policy."""
    ids = torch.randint(0, VOCABULARY, (6, 7))
    labels = ids.clone()
    labels[:, :3] = -100
    labels[1, 5:] = -100
    reference = torch.from_numpy(np.linspace(-20.0, -10.0, 6))
    logps = log_probabilities(net, ids, labels)
    ratios = (logps - reference).reshape(-1, 2)
    logits = ratios[:, 0] - ratios[:, 1]
    values |= {"dpo/ids": ids.numpy(), "dpo/labels": labels.numpy()}
    values["dpo/reference"] = reference.numpy()
    values["dpo/logps"] = logps.detach().numpy()
    for name, beta, smoothing in (("plain", 0.1, 0.0), ("smooth", 0.5, 0.1)):
        loss = (
            -torch.nn.functional.logsigmoid(beta * logits) * (1 - smoothing)
            - torch.nn.functional.logsigmoid(-beta * logits) * smoothing
        ).mean()
        net.zero_grad()
        loss.backward(retain_graph=True)
        values[f"dpo/{name}"] = loss.detach().numpy()
        values |= gradients(net, f"dpo/{name}/grad/")


def gradients(net, prefix):
    return {
        prefix + name: parameter.grad.numpy().copy()
        for name, parameter in net.named_parameters()
        if parameter.grad is not None
    }


def main():
    net = decoder()
    write_decoder(net)
    values = {}
    ids = torch.randint(0, VOCABULARY, (3, 9))
    labels = ids.clone()
    labels[0, 4] = labels[2, 6:] = -100
    for name, given in (("causal", ids), ("ignored", labels)):
        net.zero_grad()
        loss = net(ids, labels=given).loss
        loss.backward()
        values |= {f"{name}/ids": ids.numpy(), f"{name}/labels": given.numpy()}
        values[f"{name}/loss"] = loss.detach().numpy()
        values |= gradients(net, f"{name}/grad/")
    preferences(net, values)
    net = translation()
    write_translation(net)
    source = torch.randint(1, VOCABULARY, (3, 6))
    target = torch.randint(1, VOCABULARY, (3, 5))
    target[1, 3:] = -100
    loss = net(source, labels=target).loss
    loss.backward()
    values |= {"translation/source": source.numpy(), "translation/labels": target.numpy()}
    values["translation/loss"] = loss.detach().numpy()
    values |= gradients(net, "translation/grad/")
    np.savez_compressed(FOLDER / "values.npz", **values)
    print(torch.__version__, transformers.__version__)


if __name__ == "__main__":
    main()
