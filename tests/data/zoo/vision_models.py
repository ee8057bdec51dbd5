"""Networks for images, volumes and signals, from PyTorch and torchvision."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import randn

from reference import model

IMAGE = dict(inputs=["image"], outputs=["y"])
BATCHED = dict(IMAGE, dynamic=[{0: "batch"}])


# ---- convolutions ------------------------------------------------------------------------------------------------


@model("convolution", opset=18, **BATCHED)
def conv1d_same_padding():
    """Conv1d with padding='same' of odd and even kernels and dilation, reflect and circular padding."""
    net = nn.Sequential(nn.Conv1d(2, 6, 4, padding="same"), nn.ReLU(), nn.Conv1d(6, 6, 3, padding="same", dilation=2), nn.Tanh(),
                        nn.Conv1d(6, 6, 3, padding=2, padding_mode="reflect"), nn.SiLU(),
                        nn.Conv1d(6, 3, 3, padding=1, padding_mode="circular"))
    return net, [randn(3, 2, 17)]


@model("convolution", opset=17, exporter="torchscript", loss=("ce", 1), **BATCHED)
def conv3d_video():
    """Conv3d over a clip, stride (1, 2, 2), MaxPool3d and AvgPool3d, old exporter."""
    net = nn.Sequential(nn.Conv3d(2, 4, 3, (1, 2, 2), 1), nn.ReLU(), nn.MaxPool3d((1, 2, 2)), nn.Conv3d(4, 6, (3, 1, 1), groups=2),
                        nn.ELU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(6 * 2 * 2 * 2, 5))
    return net, [randn(2, 2, 6, 16, 16)]


class Separable(nn.Sequential):
    def __init__(self, a, b, stride=1, dilation=1):
        super().__init__(nn.Conv2d(a, a, 3, stride, dilation, dilation, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU6(),
                         nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.Hardswish())


@model("convolution", opset=20, loss=("ce", 1), optimize=False, **BATCHED)
def depthwise_separable():
    """Depthwise separable convolutions with ReLU6 and Hardswish, dilation 2, global average pooling."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Separable(8, 12), Separable(12, 16, 2), Separable(16, 16, dilation=2),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 7))
    return net, [randn(3, 3, 18, 18)]


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.ConvTranspose1d(4, 6, 4, 2, 1)
        self.b = nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1, groups=1)
        self.c = nn.ConvTranspose2d(4, 2, 3, 1, 2, dilation=2, groups=2, bias=False)
        self.d = nn.ConvTranspose3d(2, 2, 2, 2)

    def forward(self, line, image, volume):
        return self.a(line), self.c(torch.relu(self.b(image))), self.d(volume)


@model("convolution", opset=18, inputs=["line", "image", "volume"], outputs=["line_y", "image_y", "volume_y"], loss_output=1,
       exporter="torchscript", unused=[])
def conv_transpose_1d_2d_3d():
    """ConvTranspose1d, 2d and 3d: stride, output_padding, groups, dilation; the loss is of the second output."""
    return Transposed(), [randn(2, 4, 7), randn(2, 3, 5, 6), randn(1, 2, 3, 3, 3)]


@model("convolution", opset=17, exporter="torchscript", training=True, optimize=False, loss=("ce", 1), random=True, **BATCHED)
def dropout_in_training_mode():
    """Exported for training: BatchNormalization with its statistics as outputs, Dropout that drops, twice."""
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Dropout(0.3),
                        nn.Linear(6 * 36, 4))
    return net, [randn(6, 1, 8, 8)]


@model("convolution", opset=15, exporter="torchscript", training=True, optimize=False, loss=("ce", 1), **BATCHED)
def batchnorm_in_training_mode():
    """Exported for training: the statistics of BatchNormalization are the batch's, and the gradient goes through them."""
    net = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, 2), nn.BatchNorm2d(8, momentum=0.3),
                        nn.Flatten(), nn.Linear(8 * 9, 5), nn.BatchNorm1d(5))
    return net, [randn(6, 2, 10, 10)]


# ---- Resize --------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Two levels down and up; `up` is how it grows."""

    def __init__(self, up, width=6, out=3):
        super().__init__()
        self.up = up
        self.down1, self.down2 = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(4 * width, width, 3, padding=1), nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, out, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.relu(self.middle(F.max_pool2d(b, 2)))
        c = F.relu(self.up2(torch.cat([F.interpolate(c, b.shape[2:], **self.up), b], 1)))
        return self.out(F.relu(self.up1(torch.cat([F.interpolate(c, a.shape[2:], **self.up), a], 1))))


@model("segmentation", opset=18, loss=("ce", 1), train={"sgd": 0.2, "adam": 0.01}, **BATCHED)
def unet_bilinear():
    """U-Net that grows by bilinear Resize; 20 steps of SGD and Adam are stored."""
    return UNet(dict(mode="bilinear", align_corners=False)), [randn(2, 2, 12, 12)]


@model("segmentation", opset=17, exporter="torchscript", loss=("ce", 1), **BATCHED)
def unet_bicubic_corners():
    """U-Net that grows by bicubic Resize with aligned corners, odd sizes, old exporter."""
    return UNet(dict(mode="bicubic", align_corners=True), 5), [randn(2, 2, 11, 13)]


class Sizes(nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        dims = calls[0][0]
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.convs = nn.ModuleList([conv(2, 2, 3, padding=1) for _ in calls])

    def forward(self, x):
        total = 0
        for conv, (_, options) in zip(self.convs, self.calls):
            total = total + F.interpolate(conv(x), **options).flatten(2).square().sum(-1)
        return total


@model("segmentation", opset=18, exporter="torchscript", **IMAGE)
def resize_nearest_linear_cubic():
    """Resize of images: nearest by 2 and by 1.5, bilinear up and down with and without aligned corners, bicubic, both exporters' defaults."""
    calls = [dict(scale_factor=2, mode="nearest"), dict(scale_factor=1.5, mode="nearest"),
             dict(scale_factor=(0.5, 1.7), mode="bilinear", align_corners=False), dict(size=(9, 4), mode="bilinear", align_corners=True),
             dict(size=(5, 9), mode="bicubic", align_corners=False), dict(scale_factor=2, mode="bicubic", align_corners=True)]
    return Sizes([(2, c) for c in calls]), [randn(2, 2, 6, 7)]


@model("segmentation", opset=20, **IMAGE)
def resize_antialias():
    """Resize with antialias, bilinear and bicubic, smaller and larger."""
    calls = [dict(size=(4, 5), mode="bilinear", antialias=True), dict(size=(5, 12), mode="bicubic", antialias=True)]
    return Sizes([(2, c) for c in calls]), [randn(2, 2, 9, 10)]


@model("segmentation", opset=19, **IMAGE)
def resize_trilinear():
    """Resize of volumes: trilinear with and without aligned corners, nearest."""
    calls = [dict(scale_factor=2, mode="trilinear", align_corners=False), dict(size=(3, 7, 5), mode="trilinear", align_corners=True),
             dict(size=(2, 3, 4), mode="nearest")]
    return Sizes([(3, c) for c in calls]), [randn(1, 2, 4, 5, 6)]


@model("segmentation", opset=18, **IMAGE)
def resize_linear_1d():
    """Resize of lines: linear and nearest, and adaptive average pooling to a size that divides."""
    calls = [dict(scale_factor=2, mode="linear", align_corners=False), dict(size=7, mode="linear", align_corners=True),
             dict(scale_factor=3, mode="nearest")]
    return Sizes([(1, c) for c in calls]), [randn(2, 2, 8)]


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling with an image-level branch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.branches = nn.ModuleList([nn.Conv2d(8, 6, 1)] + [nn.Conv2d(8, 6, 3, padding=r, dilation=r) for r in (2, 3)])
        self.pooled, self.project, self.head = nn.Conv2d(8, 6, 1), nn.Conv2d(24, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        h = F.relu(self.stem(x))
        parts = [F.relu(branch(h)) for branch in self.branches]
        image = F.relu(self.pooled(F.adaptive_avg_pool2d(h, 1)))
        parts.append(F.interpolate(image, h.shape[2:], mode="bilinear", align_corners=False))
        y = self.head(F.relu(self.project(torch.cat(parts, 1))))
        return F.interpolate(y, x.shape[2:], mode="bilinear", align_corners=False)


@model("segmentation", opset=20, loss=("ce", 1), **IMAGE)
def deeplab_head():
    """DeepLab's pyramid: dilated branches, an image-level branch that Resize spreads, scores resized to the image."""
    return Pyramid(), [randn(1, 3, 16, 18)]


@model("super-resolution", opset=18, **BATCHED)
def pixel_shuffle_super_resolution():
    """Sub-pixel convolution: DepthToSpace by 3 with a bicubic skip; PixelUnshuffle at the front."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 36, 3, padding=1)

        def forward(self, x):
            h = F.pixel_shuffle(self.b(torch.tanh(self.a(F.pixel_unshuffle(x, 2)))), 6)
            return h + F.interpolate(x, scale_factor=3, mode="bicubic", align_corners=False)
    return Net(), [randn(2, 1, 8, 8)]


@model("super-resolution", opset=16, exporter="torchscript", **BATCHED)
def depth_to_space_old_exporter():
    """DepthToSpace in mode CRD and what the old exporter writes for PixelUnshuffle."""
    net = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4, 12, 3, padding=1), nn.PReLU(12), nn.Conv2d(12, 16, 1), nn.PixelShuffle(4))
    return net, [randn(2, 1, 8, 6)]


# ---- sampling ------------------------------------------------------------------------------------------------------


class SpatialTransformer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.locate = nn.Sequential(nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 6))
        self.net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 25, 4))

    def forward(self, x):
        theta = 0.3 * self.locate(x).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        grid = F.affine_grid(theta, (x.shape[0], 1, 12, 12), align_corners=False)
        return self.net(F.grid_sample(x, grid, align_corners=False, **self.options))


@model("sampling", opset=20, loss=("ce", 1), **IMAGE)
def spatial_transformer():
    """A network that straightens its image first: AffineGrid and bilinear GridSample."""
    return SpatialTransformer(padding_mode="zeros"), [randn(3, 1, 14, 14)]


@model("sampling", opset=20, exporter="torchscript", loss=("ce", 1), **IMAGE)
def spatial_transformer_bicubic():
    """A network that straightens its image first: AffineGrid and bicubic GridSample, padding by reflection, old exporter."""
    return SpatialTransformer(mode="bicubic", padding_mode="reflection"), [randn(3, 1, 14, 14)]


class Warp(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow = nn.Conv3d(2, 3, 3, padding=1)

    def forward(self, moving, fixed):
        flow = self.flow(torch.cat([moving, fixed], 1)).permute(0, 2, 3, 4, 1)
        axes = [torch.linspace(-1, 1, n, dtype=moving.dtype) for n in moving.shape[2:]]
        z, y, x = torch.meshgrid(*axes, indexing="ij")
        grid = torch.stack([x, y, z], -1) + 0.2 * torch.tanh(flow)
        return F.grid_sample(moving, grid, align_corners=True, padding_mode="border")


@model("sampling", opset=20, inputs=["moving", "fixed"], outputs=["warped"])
def registration_3d():
    """Registration of volumes: a field of displacements and GridSample in 5 dimensions."""
    return Warp(), [randn(1, 1, 5, 6, 7), randn(1, 1, 5, 6, 7)]


class DeformableViT(nn.Module):
    """A small vision transformer that attends to a second look at the image, taken where it wants by GridSample."""

    def __init__(self, width=16, classes=5):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.place = nn.Parameter(0.1 * randn(1, 9, width))
        self.look = nn.Linear(width, 2)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        maps = self.patch(x)
        h = maps.flatten(2).transpose(1, 2) + self.place
        places = torch.tanh(self.look(self.norm1(h)))
        seen = F.grid_sample(maps, places.unsqueeze(1), align_corners=False, padding_mode="border").squeeze(2).transpose(1, 2)
        n, t, width = h.shape

        def heads(z):
            return z.view(n, -1, 4, width // 4).transpose(1, 2)
        k, v = self.kv(self.norm2(seen)).chunk(2, -1)
        y = F.scaled_dot_product_attention(heads(self.q(self.norm1(h))), heads(k), heads(v))
        h = h + self.proj(y.transpose(1, 2).reshape(n, t, width))
        h = h + self.mlp(self.norm3(h))
        return self.head(h.mean(1))


@model("sampling", opset=20, loss=("ce", 1), train={"sgd": 0.1, "adam": 0.003}, **IMAGE)
def vit_with_grid_sample():
    """Vision transformer whose keys and values are sampled by GridSample at learned places; 20 steps are stored."""
    return DeformableViT(), [randn(4, 3, 12, 12)]


@model("sampling", opset=19, inputs=["image"], outputs=["y"], stock=False)
def deformable_convolution():
    """torchvision's DeformConv2d with offsets and a modulation mask that convolutions compute."""
    from torchvision.ops import deform_conv2d

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.offset, self.mask = nn.Conv2d(4, 18, 3, padding=1), nn.Conv2d(4, 9, 3, padding=1)
            self.weight, self.bias = nn.Parameter(0.2 * randn(6, 4, 3, 3)), nn.Parameter(randn(6))
            self.out = nn.Conv2d(6, 2, 1)

        def forward(self, x):
            offset, mask = self.offset(x), torch.sigmoid(self.mask(x))
            return self.out(torch.relu(deform_conv2d(x, offset, self.weight, self.bias, padding=1, mask=mask)))
    return Net(), [randn(1, 4, 6, 7)]


# ---- detection -----------------------------------------------------------------------------------------------------


class FeaturePyramid(nn.Module):
    """Three levels, joined top down, one head for all."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1)
        self.l1, self.l2, self.l3 = nn.Conv2d(8, width, 1), nn.Conv2d(12, width, 1), nn.Conv2d(16, width, 1)
        self.cls, self.box = nn.Conv2d(width, classes, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.c1(x))
        b = F.relu(self.c2(a))
        c = F.relu(self.c3(b))
        p3 = self.l3(c)
        p2 = self.l2(b) + F.interpolate(p3, scale_factor=2, mode="nearest")
        p1 = self.l1(a) + F.interpolate(p2, scale_factor=2, mode="nearest")
        scores = torch.cat([self.cls(p).flatten(2) for p in (p1, p2, p3)], 2)
        boxes = torch.cat([self.box(p).flatten(2).exp() for p in (p1, p2, p3)], 2)
        return torch.cat([scores.sigmoid(), boxes], 1)


@model("detection", opset=18, **BATCHED)
def feature_pyramid_detector():
    """RetinaNet-like: feature pyramid with nearest Resize, shared heads, boxes and scores of all levels joined."""
    return FeaturePyramid(), [randn(2, 3, 16, 16)]


class Yolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.SiLU())
        self.pool, self.head = nn.MaxPool2d(5, 1, 2), nn.Conv2d(48, 14, 1)
        self.register_buffer("anchors", torch.tensor([[1.2, 2.1], [2.5, 1.4]]).view(1, 2, 1, 1, 2))

    def forward(self, x):
        h = self.body(x)
        y1 = self.pool(h)
        y2 = self.pool(y1)
        h = self.head(torch.cat([h, y1, y2, self.pool(y2)], 1))
        n, _, rows, columns = h.shape
        h = h.view(n, 2, 7, rows, columns).permute(0, 1, 3, 4, 2).sigmoid()
        gy, gx = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        grid = torch.stack([gx, gy], -1).to(x.dtype)
        xy = (2 * h[..., 0:2] - 0.5 + grid) * 4
        wh = (2 * h[..., 2:4]) ** 2 * self.anchors
        return torch.cat([xy, wh, h[..., 4:]], -1).view(n, -1, 7)


@model("detection", opset=17, exporter="torchscript", **IMAGE)
def yolo_head():
    """YOLO-like: spatial pyramid pooling, anchors, boxes decoded from a grid; old exporter."""
    return Yolo(), [randn(2, 3, 16, 16)]


@model("detection", opset=18, exporter="torchscript", inputs=["image", "boxes"], outputs=["scores"], loss=("ce", 1),
       no_input_gradients=["boxes"])
def roi_align_head():
    """The second stage of a detector: torchvision's RoiAlign of given boxes, two dense layers."""
    from torchvision.ops import roi_align

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.a, self.b = nn.Conv2d(3, 6, 3, 2, 1), nn.Linear(54, 12), nn.Linear(12, 4)

        def forward(self, x, boxes):
            r = roi_align(torch.relu(self.conv(x)), [boxes], 3, 0.5, 2, aligned=True)
            return self.b(torch.relu(self.a(r.flatten(1))))
    corners = 8 * torch.rand(5, 2)
    return Net(), [randn(1, 3, 16, 16), torch.cat([corners, corners + 2 + 5 * torch.rand(5, 2)], 1)]


@model("detection", opset=18, exporter="torchscript", inputs=["image"], outputs=["boxes", "scores"])
def detector_with_nms():
    """A whole detector: scores and boxes of a grid, the best kept by NonMaxSuppression; how many depends on the image."""
    from torchvision.ops import nms

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 3, 4, 1), nn.Conv2d(6, 5, 1)

        def forward(self, x):
            h = self.head(torch.relu(self.conv(x))).flatten(2)[0].t()
            boxes = torch.cat([h[:, :2], h[:, :2] + h[:, 2:4].exp()], 1)
            scores = h[:, 4].sigmoid()
            keep = nms(boxes, scores, 0.3)
            return boxes[keep], scores[keep]
    return Net(), [randn(1, 3, 16, 16)]


# ---- classification --------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.c2, self.n2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.short = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else nn.Identity()

    def forward(self, x):
        return F.relu(self.n2(self.c2(F.relu(self.n1(self.c1(x))))) + self.short(x))


@model("classification", opset=18, loss=("ce", 1), exporter="torchscript", **BATCHED)
def residual_network():
    """ResNet of three basic blocks, BatchNormalization in inference form, old exporter."""
    net = nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1), Residual(6, 6, 1), Residual(6, 10, 2), Residual(10, 12, 2), nn.AdaptiveAvgPool2d(1),
                        nn.Flatten(), nn.Linear(12, 6))
    return net, [randn(3, 3, 12, 12)]


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b0, self.b1 = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, (1, 5), padding=(0, 2))
        self.c0, self.c1, self.d = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, (5, 1), padding=(2, 0)), nn.Conv2d(3, 4, 1)
        self.lrn, self.out = nn.LocalResponseNorm(5, 0.01, 0.75, 1.5), nn.Linear(16 * 4, 5)

    def forward(self, x):
        parts = [self.a(x), self.b1(F.relu(self.b0(x))), self.c1(F.relu(self.c0(x))),
                 self.d(F.max_pool2d(x, 3, 1, 1))]
        h = self.lrn(F.relu(torch.cat(parts, 1)))
        return self.out(F.lp_pool2d(h, 2, 4).flatten(1))


@model("classification", opset=18, loss=("ce", 1), exporter="torchscript", **BATCHED)
def inception_block():
    """Inception block with asymmetric convolutions, LRN and LpPool; old exporter."""
    return Inception(), [randn(3, 3, 8, 8)]


class Shuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 12, 3, 2, 1), nn.Conv2d(6, 6, 1)
        self.dw, self.out = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Linear(12, 5)

    def forward(self, x):
        h = F.relu(self.a(x))
        for _ in range(2):
            left, right = h.chunk(2, 1)
            h = torch.cat([left, F.relu(self.b(self.dw(right)))], 1)
            n, c, y, x2 = h.shape
            h = h.view(n, 2, c // 2, y, x2).transpose(1, 2).reshape(n, c, y, x2)
        return self.out(h.amax((2, 3)))


@model("classification", opset=21, loss=("ce", 1), **BATCHED)
def channel_shuffle():
    """ShuffleNet's units: split channels, shuffled by Reshape and Transpose; weights used twice."""
    return Shuffle(), [randn(3, 3, 10, 10)]


class Mixer(nn.Module):
    def __init__(self, tokens=9, width=10):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.t = nn.Sequential(nn.Linear(tokens, 14), nn.GELU(), nn.Linear(14, tokens))
        self.c = nn.Sequential(nn.Linear(width, 20), nn.GELU(approximate="tanh"), nn.Linear(20, width))
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = h + self.t(self.n1(h).transpose(1, 2)).transpose(1, 2)
        return self.out((h + self.c(self.n2(h))).mean(1))


@model("classification", opset=18, loss=("ce", 1), **BATCHED)
def mlp_mixer():
    """MLP-Mixer: dense layers over patches and over channels, exact and approximate GELU."""
    return Mixer(), [randn(3, 3, 12, 12)]


class Swin(nn.Module):
    """One block with shifted windows, a mask and a table of relative positions."""

    def __init__(self, width=12, window=4):
        super().__init__()
        self.window, self.heads = window, 2
        self.patch, self.norm = nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        self.qkv, self.proj, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 4)
        self.table = nn.Parameter(0.3 * randn((2 * window - 1) ** 2, self.heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = at[:, :, None] - at[:, None, :] + window - 1
        self.register_buffer("pairs", relative[0] * (2 * window - 1) + relative[1])
        regions = torch.zeros(1, 8, 8, 1)
        for k, (a, b) in enumerate([(0, -4), (-4, -2), (-2, None)]):
            for m, (c, d) in enumerate([(0, -4), (-4, -2), (-2, None)]):
                regions[:, a:b, c:d] = 3 * k + m
        parts = self.split(regions).squeeze(-1)
        self.register_buffer("mask", torch.where(parts[:, None] == parts[:, :, None], 0.0, -100.0))

    def split(self, x):
        n, y, x2, c = x.shape
        w = self.window
        return x.view(n, y // w, w, x2 // w, w, c).transpose(2, 3).reshape(-1, w * w, c)

    def forward(self, x):
        h = self.patch(x).permute(0, 2, 3, 1)
        n, y, x2, c = h.shape
        w = self.split(torch.roll(self.norm(h), (-2, -2), (1, 2)))
        q, k, v = self.qkv(w).view(-1, 16, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5 + self.table[self.pairs].permute(2, 0, 1)
        a = (a.view(n, -1, self.heads, 16, 16) + self.mask[None, :, None].to(a.dtype)).view(-1, self.heads, 16, 16).softmax(-1)
        w = self.proj((a @ v).transpose(1, 2).reshape(-1, 16, c))
        w = w.view(n, y // 4, x2 // 4, 4, 4, c).transpose(2, 3).reshape(n, y, x2, c)
        return self.head((h + torch.roll(w, (2, 2), (1, 2))).mean((1, 2)))


@model("classification", opset=18, loss=("ce", 1), optimize=False, **IMAGE)
def shifted_windows():
    """A Swin block: windows rolled and masked, a table of relative positions read by Gather."""
    return Swin(), [randn(2, 3, 16, 16)]


class PatchesByUnfold(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(27, 18), nn.Linear(18, 27)

    def forward(self, x):
        h = F.unfold(x, 3, dilation=1, padding=1, stride=2).transpose(1, 2)
        h = self.b(torch.tanh(self.a(h))).transpose(1, 2)
        return F.fold(h, (9, 8), 3, padding=1, stride=2)


@model("super-resolution", opset=18, exporter="torchscript", **IMAGE)
def unfold_and_fold():
    """Overlapping patches through a dense autoencoder: unfold (Gather) and fold (Col2Im), old exporter."""
    return PatchesByUnfold(), [randn(2, 3, 9, 8)]


class Capsules(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.w = nn.Conv2d(1, 8, 5, 2), nn.Parameter(0.3 * randn(1, 18, 3, 4, 4))

    def squash(self, s):
        n2 = (s * s).sum(-1, keepdim=True)
        return n2 / (1 + n2) * s / torch.sqrt(n2 + 1e-6)

    def forward(self, x):
        u = self.squash(self.conv(x).view(x.shape[0], 2, 4, 9).permute(0, 1, 3, 2).reshape(x.shape[0], 18, 4))
        u = torch.einsum("nic,aijcd->nijd", u, self.w)
        b = torch.zeros_like(u[..., :1])
        for _ in range(2):
            v = self.squash((b.softmax(2) * u).sum(1, keepdim=True))
            b = b + (u * v).sum(-1, keepdim=True)
        return v.squeeze(1).norm(dim=-1)


@model("classification", opset=18, **IMAGE)
def capsule_routing():
    """Capsules with two rounds of routing: Einsum, norms, softmax over capsules."""
    return Capsules(), [randn(2, 1, 9, 9)]
