# SPDX-License-Identifier: BSD-3-Clause
"""Models of torchvision: images, video, detection and segmentation.

Where a constructor has no argument for fewer channels, the wide stages at the end are cut off.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.tiny_transformers.models import Inputs, numbers
from tests.zoo import torchvision_support
from tests.zoo.architecture import Architecture, table


def vision() -> Any:
    """The package, imported when the first model is built."""
    torchvision_support.install()
    import torchvision
    import torchvision.models.detection
    import torchvision.models.segmentation
    import torchvision.models.video

    return torchvision


def image() -> Inputs:
    return {"x": numbers(2, 3, 32, 32)}


def images() -> Inputs:
    return {"images": [numbers(3, 32, 32), numbers(3, 32, 32).flip(-1)]}


def images_and_boxes() -> Inputs:
    """What a detector is trained with."""
    boxes = torch.tensor([[2.0, 3.0, 14.0, 15.0], [10.0, 8.0, 30.0, 28.0]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 2])}
    return {**images(), "targets": [dict(target), dict(target)]}


def features(model: nn.Module, inputs: Inputs) -> Any:
    """What a detector finds before it chooses boxes."""
    return model.backbone(torch.stack(inputs["images"]))


def resnet() -> nn.Module:
    """A ResNet of two stages."""
    models = vision().models.resnet
    model = models.ResNet(models.BasicBlock, [1, 1, 1, 1], num_classes=5)
    model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 5)
    return model


def r3d() -> nn.Module:
    models = vision().models.video.resnet
    makers = [models.Conv3DSimple] * 4
    model = models.VideoResNet(models.BasicBlock, makers, [1, 1, 1, 1], models.BasicStem, 5)
    model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 5)
    return model


def pyramid() -> nn.Module:
    """Two levels of features with 16 channels each."""
    from_ = vision().models.detection.backbone_utils
    no_more = vision().ops.feature_pyramid_network.LastLevelMaxPool()
    levels = {"layer1": "0", "layer2": "1"}
    return from_.BackboneWithFPN(resnet(), levels, [64, 128], 16, extra_blocks=no_more)


def anchors() -> nn.Module:
    kind = vision().models.detection.anchor_utils.AnchorGenerator
    return kind(sizes=((8,), (16,), (32,)), aspect_ratios=((0.5, 1.0, 2.0),) * 3)


def faster_rcnn() -> nn.Module:
    tv = vision()
    return tv.models.detection.FasterRCNN(
        pyramid(), min_size=32, max_size=32, rpn_anchor_generator=anchors(),
        rpn_pre_nms_top_n_train=50, rpn_pre_nms_top_n_test=50, rpn_post_nms_top_n_train=20,
        rpn_post_nms_top_n_test=20, rpn_batch_size_per_image=32,
        box_roi_pool=tv.ops.MultiScaleRoIAlign(["0", "1"], output_size=3, sampling_ratio=2),
        box_head=tv.models.detection.faster_rcnn.TwoMLPHead(16 * 9, 32),
        box_predictor=tv.models.detection.faster_rcnn.FastRCNNPredictor(32, 5),
        box_detections_per_img=10,
    )  # fmt: skip


def retinanet() -> nn.Module:
    return vision().models.detection.RetinaNet(
        pyramid(), num_classes=5, min_size=32, max_size=32, anchor_generator=anchors(),
        detections_per_img=10, topk_candidates=50,
    )  # fmt: skip


def deeplab() -> nn.Module:
    models = vision().models
    backbone = models._utils.IntermediateLayerGetter(resnet(), {"layer2": "out"})
    head = models.segmentation.deeplabv3.DeepLabHead(128, 5, atrous_rates=(1, 2))
    return models.segmentation.DeepLabV3(backbone, head)


def vit() -> nn.Module:
    kind = vision().models.vision_transformer.VisionTransformer
    model = kind(32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # its own values are zeros
    return model


def swin3d() -> nn.Module:
    kind = vision().models.video.swin_transformer.SwinTransformer3d
    return kind([2, 4, 4], 16, [1, 1], [2, 2], [2, 4, 4], num_classes=5)


def convnext() -> nn.Module:
    models = vision().models.convnext
    setting = [models.CNBlockConfig(16, 32, 1), models.CNBlockConfig(32, None, 1)]
    return models.ConvNeXt(setting, num_classes=5, layer_scale=1.0)


def efficientnet() -> nn.Module:
    models = vision().models.efficientnet
    setting = [models.MBConvConfig(1, 3, 1, 8, 8, 1), models.MBConvConfig(4, 5, 2, 8, 16, 2)]
    return models.EfficientNet(setting, dropout=0.1, num_classes=5, last_channel=64)


def of(name: str, family: str, make: Callable[[], nn.Module], **more: Any) -> Architecture:
    options: dict[str, Any] = {"package": "torchvision", "inputs": image, **more}
    return Architecture(f"torchvision_{name}", family, lambda _: make(), **options)


DETECTS: dict[str, Any] = {
    "inputs": images, "train_inputs": images_and_boxes, "outputs": features, "is_discrete": True,
}  # fmt: skip

TORCHVISION: dict[str, Architecture] = table(
    of("resnet", "image, convolutions", resnet),
    of("vit", "image, attention of torch.nn", vit),
    of("convnext", "image, convolutions", convnext),
    of("efficientnet", "image, convolutions", efficientnet),
    of("mobilenet_v3", "image, convolutions", lambda: vision().models.mobilenet_v3_small(
        width_mult=0.25, num_classes=5), least_cosine=0.55),
    of("r3d", "video, Conv3d", r3d, inputs=lambda: {"x": numbers(2, 3, 4, 16, 16)}),
    of("swin3d", "video, windows, Conv3d", swin3d, inputs=lambda: {"x": numbers(2, 3, 4, 32, 32)}),
    of("faster_rcnn", "detection", faster_rcnn, **DETECTS),
    of("retinanet", "detection", retinanet, **DETECTS),
    of("deeplab", "segmentation", deeplab),
)  # fmt: skip
