"""Networks of the package transformers in tiny configurations with random weights; attention as scaled_dot_product_attention or written out."""
import torch
import torch.nn as nn

from reference import model

TINY = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Call(nn.Module):
    """Calls a network with arguments by name and gives one of its outputs."""

    def __init__(self, net, *names, output="logits", **fixed):
        super().__init__()
        self.net, self.names, self.output, self.fixed = net, names, output, fixed

    def forward(self, *args):
        return getattr(self.net(**dict(zip(self.names, args)), **self.fixed), self.output)


def words(high, *shape):
    return torch.randint(3, high, shape)


@model("encoder", opset=18, inputs=["input_ids", "attention_mask"], outputs=["logits"], loss=("ce", 1), optimize=False)
def bert_classifier():
    """BertForSequenceClassification, dynamo."""
    from transformers import BertConfig, BertForSequenceClassification
    config = BertConfig(vocab_size=30, max_position_embeddings=12, num_labels=3, **TINY, **NO_DROPOUT)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    return Call(BertForSequenceClassification(config), "input_ids", "attention_mask"), [words(30, 2, 7), mask]


@model("encoder", opset=14, exporter="torchscript", inputs=["input_ids", "attention_mask"], outputs=["logits"], loss=("ce", 2), optimize=False)
def bert_tagger_old_exporter():
    """BertForTokenClassification with attention written out, old exporter, opset 14."""
    from transformers import BertConfig, BertForTokenClassification
    config = BertConfig(vocab_size=30, max_position_embeddings=12, num_labels=4, attn_implementation="eager", **TINY, **NO_DROPOUT)
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[0, 5:] = 0
    return Call(BertForTokenClassification(config), "input_ids", "attention_mask"), [words(30, 2, 6), mask]


@model("encoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), optimize=False)
def albert_masked_words():
    """AlbertForMaskedLM: one layer used twice, factorized embeddings, tied output."""
    from transformers import AlbertConfig, AlbertForMaskedLM
    config = AlbertConfig(vocab_size=25, embedding_size=8, max_position_embeddings=10, hidden_size=16, num_hidden_layers=2,
                          num_attention_heads=2, intermediate_size=20, **NO_DROPOUT)
    return Call(AlbertForMaskedLM(config), "input_ids"), [words(25, 2, 6)]


@model("encoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 1), optimize=False)
def distilbert_classifier():
    """DistilBertForSequenceClassification."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification
    config = DistilBertConfig(vocab_size=25, max_position_embeddings=10, dim=16, n_layers=1, n_heads=2, hidden_dim=20, num_labels=3,
                              dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)
    return Call(DistilBertForSequenceClassification(config), "input_ids"), [words(25, 2, 6)]


@model("encoder", opset=18, inputs=["input_ids"], outputs=["hidden"], optimize=False)
def deberta_encoder():
    """DebertaV2Model: attention to content and to relative positions (GatherElements)."""
    from transformers import DebertaV2Config, DebertaV2Model
    config = DebertaV2Config(vocab_size=25, max_position_embeddings=16, relative_attention=True, pos_att_type=["c2p", "p2c"],
                             position_buckets=4, share_att_key=False, type_vocab_size=0, **TINY, **NO_DROPOUT)
    return Call(DebertaV2Model(config), "input_ids", output="last_hidden_state"), [words(25, 2, 6)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), optimize=False)
def gpt2_language_model():
    """GPT2LMHeadModel with tied embeddings, dynamo."""
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=25, n_positions=10, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return Call(GPT2LMHeadModel(config), "input_ids", use_cache=False), [words(25, 2, 6)]


def llama_like(kind, **more):
    import transformers
    config = getattr(transformers, kind + "Config")(vocab_size=25, num_key_value_heads=1, max_position_embeddings=16, pad_token_id=0,
                                                    bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, **TINY, **more)
    return Call(getattr(transformers, kind + "ForCausalLM")(config), "input_ids", use_cache=False)


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), single=True)
def llama_language_model():
    """LlamaForCausalLM: grouped queries, rotary positions, RMSNorm, SwiGLU."""
    return llama_like("Llama"), [words(25, 2, 6)]


@model("decoder", opset=23, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), single=True)
def qwen3_language_model_opset23():
    """Qwen3ForCausalLM (normalized queries and keys), opset 23."""
    return llama_like("Qwen3", head_dim=8), [words(25, 2, 6)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), single=True)
def mistral_sliding_window():
    """MistralForCausalLM with a window of three places."""
    return llama_like("Mistral", sliding_window=3), [words(25, 2, 7)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), single=True, optimize=False)
def gemma2_language_model():
    """Gemma2ForCausalLM: soft-capped scores, norms before and after, a scaled embedding."""
    return llama_like("Gemma2", head_dim=8, query_pre_attn_scalar=8), [words(25, 2, 6)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), single=True)
def phi_language_model():
    """PhiForCausalLM: attention and MLP side by side, part of each head is rotated."""
    return llama_like("Phi"), [words(25, 2, 6)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), optimize=False)
def opt_language_model():
    """OPTForCausalLM: ReLU, learned positions from the sum of a mask (CumSum)."""
    from transformers import OPTConfig, OPTForCausalLM
    config = OPTConfig(vocab_size=25, hidden_size=16, ffn_dim=20, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16,
                       word_embed_proj_dim=16, dropout=0.0, tie_word_embeddings=False)
    return Call(OPTForCausalLM(config), "input_ids", use_cache=False), [words(25, 2, 6)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2))
def bloom_language_model():
    """BloomForCausalLM: ALiBi."""
    from transformers import BloomConfig, BloomForCausalLM
    config = BloomConfig(vocab_size=25, hidden_size=16, n_layer=1, n_head=2, hidden_dropout=0.0, attention_dropout=0.0,
                         tie_word_embeddings=False)
    return Call(BloomForCausalLM(config), "input_ids", use_cache=False), [words(25, 2, 6)]


@model("decoder", opset=18, inputs=["input_ids"], outputs=["logits"], loss=("ce", 2), single=True, optimize=False)
def mamba_language_model():
    """MambaForCausalLM: the selective scan, unrolled."""
    from transformers import MambaConfig, MambaForCausalLM
    config = MambaConfig(vocab_size=25, hidden_size=12, state_size=4, num_hidden_layers=1, expand=2, time_step_rank=2,
                         use_mambapy=False, tie_word_embeddings=False)
    return Call(MambaForCausalLM(config), "input_ids", use_cache=False), [words(25, 1, 5)]


@model("encoder-decoder", opset=18, exporter="torchscript", inputs=["input_ids", "decoder_input_ids"], outputs=["logits"], loss=("ce", 2), optimize=False)
def t5_translation():
    """T5ForConditionalGeneration: biases by buckets of distances, tied embeddings."""
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=25, d_model=16, d_kv=8, d_ff=20, num_layers=1, num_heads=2, dropout_rate=0.0,
                      relative_attention_num_buckets=8, decoder_start_token_id=0)
    return Call(T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids", use_cache=False), [words(25, 2, 6), words(25, 2, 4)]


@model("encoder-decoder", opset=18, inputs=["input_ids", "decoder_input_ids"], outputs=["logits"], loss=("ce", 2), optimize=False)
def bart_summary():
    """BartForConditionalGeneration."""
    from transformers import BartConfig, BartForConditionalGeneration
    config = BartConfig(vocab_size=25, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                        encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=12, dropout=0.0, attention_dropout=0.0,
                        activation_dropout=0.0)
    return Call(BartForConditionalGeneration(config), "input_ids", "decoder_input_ids", use_cache=False), [words(25, 2, 6), words(25, 2, 4)]


@model("audio", opset=18, inputs=["input_features", "decoder_input_ids"], outputs=["logits"], loss=("ce", 2), optimize=False)
def whisper_transcription():
    """WhisperForConditionalGeneration: convolutions over mel bands, encoder and decoder."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    config = WhisperConfig(vocab_size=25, num_mel_bins=6, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                           decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_source_positions=8, max_target_positions=6,
                           dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return Call(WhisperForConditionalGeneration(config), "input_features", "decoder_input_ids", use_cache=False), [
        torch.randn(1, 6, 16), words(25, 1, 4)]


@model("audio", opset=18, inputs=["input_values"], outputs=["logits"], loss=("ce", 2), optimize=False)
def wav2vec2_characters():
    """Wav2Vec2ForCTC: convolutions on the wave, a grouped convolution for positions with a normalized weight."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
    config = Wav2Vec2Config(vocab_size=12, conv_dim=(8, 8), conv_stride=(3, 2), conv_kernel=(5, 3), num_conv_pos_embeddings=4,
                            num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, feat_proj_dropout=0.0, hidden_dropout=0.0,
                            attention_dropout=0.0, activation_dropout=0.0, final_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0,
                            **TINY)
    return Call(Wav2Vec2ForCTC(config), "input_values"), [torch.randn(2, 60)]


@model("image", opset=18, inputs=["pixel_values"], outputs=["logits"], loss=("ce", 1), optimize=False)
def vit_classifier():
    """ViTForImageClassification."""
    from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(image_size=8, patch_size=4, num_labels=4, **TINY, **NO_DROPOUT)
    return Call(ViTForImageClassification(config), "pixel_values"), [torch.randn(2, 3, 8, 8)]


@model("image", opset=18, inputs=["pixel_values"], outputs=["logits"], loss=("ce", 1), optimize=False)
def segformer_segmentation():
    """SegformerForSemanticSegmentation: attention with reduced keys, depthwise convolutions, bilinear Resize of all levels."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation
    config = SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 12], patch_sizes=[3, 3], strides=[2, 2],
                             num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8, num_labels=3, hidden_dropout_prob=0.0,
                             attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0, drop_path_rate=0.0)
    return Call(SegformerForSemanticSegmentation(config), "pixel_values"), [torch.randn(1, 3, 16, 16)]


@model("image", opset=18, inputs=["input_ids", "pixel_values"], outputs=["similarity"], optimize=False)
def clip_similarity():
    """CLIPModel: two towers, unit vectors, a learned temperature."""
    from transformers import CLIPConfig, CLIPModel
    text = dict(vocab_size=25, max_position_embeddings=8, eos_token_id=2, pad_token_id=1, bos_token_id=0, **TINY)
    config = CLIPConfig(text_config=text, vision_config=dict(image_size=8, patch_size=4, **TINY), projection_dim=10)
    ids = words(25, 2, 6)
    ids[:, -1] = 2
    return Call(CLIPModel(config), "input_ids", "pixel_values", output="logits_per_image"), [ids, torch.randn(3, 3, 8, 8)]
