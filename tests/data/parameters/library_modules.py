"""Networks of transformers, timm and diffusers, in ``MODULES`` beside those of PyTorch's layers.

All are small: their files differ from those of full size in numbers only.
"""

import importlib

import torch
from torch import nn
from torch_modules import MODULES, Only, image, module, words

__all__ = ["MODULES"]

# transformers

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 12,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PIXELS = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": 3,
}


def of_transformers(name, config, output="logits", fixed=(), **values):
    """Return a class of transformers with a small configuration."""
    import transformers

    settings = getattr(transformers, config)(**values)
    settings._attn_implementation = "eager"
    net = getattr(transformers, name)(settings)
    return Only(net, output, **{"use_cache": False} if "use_cache" in fixed else {})


def add(name, model, config, inputs, output="logits", fixed=(), **values):
    def make():
        return of_transformers(model, config, output, fixed, **values), inputs()

    make.__name__ = name
    module(make)


def ids():
    return (words(),)


def pixels(size=16):
    return lambda: (image(size),)


CACHE = ("use_cache",)
add("hf_bert", "BertForSequenceClassification", "BertConfig", ids, **SMALL)
add("hf_bert_masked", "BertForMaskedLM", "BertConfig", ids, **SMALL)
add("hf_roberta", "RobertaForMaskedLM", "RobertaConfig", ids, **SMALL)
add(
    "hf_distilbert",
    "DistilBertForMaskedLM",
    "DistilBertConfig",
    ids,
    dim=8,
    n_layers=2,
    n_heads=2,
    hidden_dim=16,
    vocab_size=12,
    max_position_embeddings=16,
    sinusoidal_pos_embds=True,
)
add("hf_albert", "AlbertForMaskedLM", "AlbertConfig", ids, embedding_size=4, **SMALL)
add(
    "hf_electra",
    "ElectraForSequenceClassification",
    "ElectraConfig",
    ids,
    embedding_size=4,
    **SMALL,
)
add(
    "hf_deberta",
    "DebertaV2ForSequenceClassification",
    "DebertaV2Config",
    ids,
    relative_attention=True,
    pos_att_type="p2c|c2p",
    position_buckets=4,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    **SMALL,
)
add(
    "hf_gpt2",
    "GPT2LMHeadModel",
    "GPT2Config",
    ids,
    fixed=CACHE,
    n_embd=8,
    n_layer=2,
    n_head=2,
    vocab_size=12,
    n_positions=16,
    bos_token_id=1,
    eos_token_id=2,
)
add(
    "hf_bloom",
    "BloomForCausalLM",
    "BloomConfig",
    ids,
    fixed=CACHE,
    hidden_size=8,
    n_layer=2,
    n_head=2,
    vocab_size=12,
)
add(
    "hf_opt",
    "OPTForCausalLM",
    "OPTConfig",
    ids,
    fixed=CACHE,
    ffn_dim=16,
    word_embed_proj_dim=8,
    **SMALL,
)
LLAMA = SMALL | {"num_key_value_heads": 1, "head_dim": 4}
add("hf_llama", "LlamaForCausalLM", "LlamaConfig", ids, fixed=CACHE, **LLAMA)
add("hf_gemma", "GemmaForCausalLM", "GemmaConfig", ids, fixed=CACHE, **LLAMA)
add(
    "hf_qwen3",
    "Qwen3ForCausalLM",
    "Qwen3Config",
    ids,
    fixed=CACHE,
    tie_word_embeddings=True,
    **LLAMA,
)
add(
    "hf_mamba",
    "MambaForCausalLM",
    "MambaConfig",
    ids,
    fixed=CACHE,
    hidden_size=8,
    num_hidden_layers=2,
    vocab_size=12,
    state_size=4,
)


def two_texts():
    return (words(), torch.ones(2, 6, dtype=torch.int64), words())


T5 = {
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 16,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": 12,
    "decoder_start_token_id": 0,
}
add("hf_t5", "T5ForConditionalGeneration", "T5Config", two_texts, fixed=CACHE, **T5)
add(
    "hf_bart",
    "BartForConditionalGeneration",
    "BartConfig",
    two_texts,
    fixed=CACHE,
    d_model=8,
    vocab_size=12,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=16,
    decoder_ffn_dim=16,
    max_position_embeddings=16,
)
add("hf_vit", "ViTForImageClassification", "ViTConfig", pixels(), **PIXELS)
add("hf_deit", "DeiTForImageClassificationWithTeacher", "DeiTConfig", pixels(), **PIXELS)
add(
    "hf_beit",
    "BeitForImageClassification",
    "BeitConfig",
    pixels(),
    use_relative_position_bias=True,
    use_mask_token=False,
    **PIXELS,
)
add(
    "hf_dinov2",
    "Dinov2ForImageClassification",
    "Dinov2Config",
    pixels(),
    mlp_ratio=2,
    **{k: v for k, v in PIXELS.items() if k != "intermediate_size"},
)
add(
    "hf_swin",
    "SwinForImageClassification",
    "SwinConfig",
    pixels(16),
    image_size=16,
    patch_size=2,
    embed_dim=8,
    depths=[2, 1],
    num_heads=[2, 2],
    window_size=4,
    num_labels=3,
)
add(
    "hf_convnext",
    "ConvNextForImageClassification",
    "ConvNextConfig",
    pixels(32),
    hidden_sizes=[4, 8],
    depths=[1, 1],
    num_stages=2,
    num_labels=3,
)
add(
    "hf_segformer",
    "SegformerForSemanticSegmentation",
    "SegformerConfig",
    pixels(32),
    hidden_sizes=[4, 8],
    depths=[1, 1],
    num_encoder_blocks=2,
    num_attention_heads=[1, 2],
    sr_ratios=[2, 1],
    patch_sizes=[7, 3],
    strides=[4, 2],
    mlp_ratios=[2, 2],
    decoder_hidden_size=8,
    num_labels=3,
)


@module
def hf_clip():
    import transformers

    text = {k: v for k, v in SMALL.items() if not k.endswith("token_id")}
    config = transformers.CLIPConfig(
        text_config=text | {"projection_dim": 8, "bos_token_id": 0, "eos_token_id": 2},
        vision_config=PIXELS | {"projection_dim": 8},
        projection_dim=8,
    )
    return Only(transformers.CLIPModel(config), "logits_per_image"), (words(), image(16))


@module
def hf_siglip():
    import transformers

    config = transformers.SiglipConfig(text_config=SMALL, vision_config=PIXELS)
    return Only(transformers.SiglipModel(config), "logits_per_image"), (words(), image(16))


@module
def hf_whisper():
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=12,
        num_mel_bins=4,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=8,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )

    class Whisper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = transformers.WhisperForConditionalGeneration(config)

        def forward(self, features, ids):
            return self.net(features, decoder_input_ids=ids, use_cache=False).logits

    return Whisper(), (torch.randn(2, 4, 16), words())


@module
def hf_wav2vec2():
    import transformers

    config = transformers.Wav2Vec2Config(
        **{k: v for k, v in SMALL.items() if k != "max_position_embeddings"},
        conv_dim=(8, 8),
        conv_stride=(4, 2),
        conv_kernel=(8, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    return Only(transformers.Wav2Vec2ForCTC(config), "logits"), (torch.randn(2, 200),)


# timm


def of_timm(name, file, cls, inputs=None, **values):
    def make():
        net = getattr(importlib.import_module(f"timm.models.{file}"), cls)(**values)
        return net, (inputs() if inputs else image(32),)

    make.__name__ = name
    module(make)


VIT = {
    "img_size": 32,
    "patch_size": 16,
    "embed_dim": 8,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 3,
}
of_timm(
    "timm_vit",
    "vision_transformer",
    "VisionTransformer",
    reg_tokens=1,
    init_values=1e-5,
    qk_norm=True,
    **VIT,
)
of_timm("timm_deit3", "deit", "VisionTransformerDistilled", **VIT)
of_timm("timm_cait", "cait", "Cait", **VIT)
of_timm("timm_xcit", "xcit", "Xcit", **VIT)
of_timm(
    "timm_beit",
    "beit",
    "Beit",
    use_rel_pos_bias=True,
    use_abs_pos_emb=False,
    init_values=0.1,
    **VIT,
)
of_timm("timm_eva", "eva", "Eva", use_rot_pos_emb=True, swiglu_mlp=True, **VIT)
of_timm(
    "timm_swin",
    "swin_transformer",
    "SwinTransformer",
    img_size=32,
    patch_size=4,
    embed_dim=8,
    depths=(2, 1),
    num_heads=(2, 2),
    window_size=4,
    num_classes=3,
)
of_timm(
    "timm_swin2",
    "swin_transformer_v2",
    "SwinTransformerV2",
    img_size=32,
    patch_size=4,
    embed_dim=8,
    depths=(2, 1),
    num_heads=(2, 2),
    window_size=4,
    num_classes=3,
)
of_timm(
    "timm_convnext", "convnext", "ConvNeXt", depths=(1, 1, 1, 1), dims=(4, 8, 8, 8), num_classes=3
)
of_timm(
    "timm_convnext2",
    "convnext",
    "ConvNeXt",
    depths=(1, 1, 1, 1),
    dims=(4, 8, 8, 8),
    num_classes=3,
    use_grn=True,
    ls_init_value=None,
)
of_timm(
    "timm_mixer",
    "mlp_mixer",
    "MlpMixer",
    img_size=32,
    patch_size=16,
    embed_dim=8,
    num_blocks=2,
    num_classes=3,
)


@module
def timm_resmlp():
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    net = MlpMixer(
        img_size=32,
        patch_size=16,
        embed_dim=8,
        num_blocks=2,
        num_classes=3,
        mlp_ratio=2,
        block_layer=ResBlock,
        norm_layer=Affine,
    )
    return net, (image(32),)


@module
def timm_resnet():
    from timm.models.resnet import BasicBlock, ResNet

    net = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=3, channels=(4, 8, 8, 8), stem_width=4)
    return net, (image(32),)


@module
def timm_levit():
    from timm.models.levit import Levit

    net = Levit(
        img_size=64,
        embed_dim=(16, 16),
        key_dim=4,
        depth=(1, 1),
        num_heads=(2, 2),
        num_classes=3,
        down_op="subsample",
    )
    return net, (image(64),)


# diffusers


@module
def diffusers_unet():
    from diffusers import UNet2DModel

    net = UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        norm_num_groups=2,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )
    return Only(net, "sample"), (image(8), torch.tensor([3, 7]))


@module
def diffusers_autoencoder():
    from diffusers import AutoencoderKL

    net = AutoencoderKL(
        block_out_channels=(4, 8),
        norm_num_groups=2,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return Only(net, "sample"), (image(8),)


@module
def diffusers_dit():
    from diffusers import DiTTransformer2DModel

    net = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=3,
        num_layers=1,
        sample_size=8,
        patch_size=4,
        num_embeds_ada_norm=10,
        norm_num_groups=2,
    )
    return Only(net, "sample"), (image(8), torch.tensor([3, 7]), torch.tensor([1, 2]))
