"""Families of the package timm, small: the classes are its own, depth and width are reduced."""
import torch

from reference import model

SMALL = dict(inputs=["image"], outputs=["logits"], loss=("ce", 1), optimize=False)


def image(n=2, size=32):
    return [torch.randn(n, 3, size, size)]


@model("timm", opset=18, exporter="torchscript", **SMALL)
def timm_resnet():
    """ResNet with bottlenecks, a deep stem and average pooling in the shortcuts (ResNet-D), old exporter."""
    from timm.models.resnet import Bottleneck, ResNet
    return ResNet(Bottleneck, (1, 1, 1, 1), num_classes=5, stem_width=4, stem_type="deep", avg_down=True, channels=(4, 4, 5, 5)), image()


@model("timm", opset=18, exporter="torchscript", **SMALL)
def timm_mobilenet_v3():
    """MobileNetV3: depthwise convolutions, squeeze and excitation, Hardswish, old exporter."""
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.mobilenetv3 import MobileNetV3
    arch = decode_arch_def([["ds_r1_k3_s1_e1_c6_nre"], ["ir_r1_k5_s2_e3_c8_se0.25_nre"], ["ir_r1_k3_s1_e3_c8"], ["cn_r1_k1_s1_c16"]])
    return MobileNetV3(arch, num_classes=5, stem_size=6, num_features=20, act_layer=torch.nn.Hardswish), image()


@model("timm", opset=18, **SMALL)
def timm_efficientnet():
    """EfficientNet: inverted bottlenecks with SiLU and squeeze and excitation."""
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet
    arch = decode_arch_def([["ds_r1_k3_s1_e1_c6_se0.25"], ["ir_r1_k3_s2_e4_c8_se0.25"], ["er_r1_k3_s1_e2_c8"]])
    return EfficientNet(arch, num_classes=5, stem_size=6, num_features=20, act_layer=torch.nn.SiLU), image()


@model("timm", opset=18, **SMALL)
def timm_convnext():
    """ConvNeXt: depthwise 7x7, LayerNorm over channels, a learned scale of each block."""
    from timm.models.convnext import ConvNeXt
    return ConvNeXt(num_classes=5, depths=(1, 1, 1, 1), dims=(8, 8, 12, 12), patch_size=2), image()


@model("timm", opset=18, **SMALL)
def timm_vision_transformer():
    """VisionTransformer with a class token, scaled residuals and a fused projection of queries, keys and values."""
    from timm.models.vision_transformer import VisionTransformer
    return VisionTransformer(img_size=16, patch_size=8, num_classes=5, embed_dim=16, depth=1, num_heads=2, init_values=0.1), image(size=16)


@model("timm", opset=18, exporter="torchscript", **SMALL)
def timm_vision_transformer_old_exporter():
    """VisionTransformer with registers and global pooling, old exporter."""
    from timm.models.vision_transformer import VisionTransformer
    return VisionTransformer(img_size=16, patch_size=8, num_classes=5, embed_dim=16, depth=1, num_heads=2, reg_tokens=2,
                             global_pool="avg"), image(size=16)


@model("timm", opset=18, **SMALL)
def timm_swin():
    """SwinTransformer: shifted windows, merged patches, tables of relative positions."""
    from timm.models.swin_transformer import SwinTransformer
    return SwinTransformer(img_size=16, patch_size=2, window_size=4, num_classes=5, embed_dim=8, depths=(2, 1), num_heads=(2, 2),
                           drop_path_rate=0.0), image(1, 16)


@model("timm", opset=18, **SMALL)
def timm_mixer():
    """MLP-Mixer with gated units."""
    from timm.models.mlp_mixer import MlpMixer
    return MlpMixer(num_classes=5, img_size=16, patch_size=8, num_blocks=1, embed_dim=16), image(size=16)


@model("timm", opset=18, **SMALL)
def timm_densenet():
    """DenseNet: joined features and transitions."""
    from timm.models.densenet import DenseNet
    return DenseNet(growth_rate=4, block_config=(2, 2), num_classes=5), image()


@model("timm", opset=18, exporter="torchscript", **SMALL)
def timm_repvgg():
    """RepVGG: branches of 3x3, 1x1 and identity, each with BatchNormalization, before they are merged."""
    from timm.models.byobnet import ByoBlockCfg, ByoModelCfg, ByobNet
    blocks = tuple(ByoBlockCfg(type="rep", d=1, c=c, s=2, gs=0) for c in (6, 8))
    return ByobNet(ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=6), num_classes=5), image()


@model("timm", opset=18, **SMALL)
def timm_poolformer():
    """PoolFormer (MetaFormer): average pooling in place of attention."""
    from timm.models.metaformer import MetaFormer, Pooling
    return MetaFormer(num_classes=5, depths=(1, 1), dims=(8, 12), token_mixers=Pooling, mlp_act=torch.nn.GELU, drop_path_rate=0.0), image()
