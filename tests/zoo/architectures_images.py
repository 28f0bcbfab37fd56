# SPDX-License-Identifier: BSD-3-Clause
"""Models of images, and of images with text, from the configurations of transformers."""

import torch

from tests.support.tiny_transformers import models as tiny
from tests.support.tiny_transformers.models import image, numbers, of, text, tokens
from tests.zoo.architecture import Architecture, each, known, table

IMAGE_TOKEN = 4


def qwen2_vl_inputs() -> tiny.Inputs:
    """An image of 4 x 4 patches, of which four make a token, before the text."""
    ids = torch.cat([torch.full((2, 4), IMAGE_TOKEN), tokens(8)], dim=1)
    return {
        "input_ids": ids,
        "pixel_values": numbers(2 * 16, 3 * 2 * 8 * 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
        "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
    }


IMAGES: dict[str, Architecture] = table(
    # Classification and features.
    *each("image, transformer", "vit", "deit", "beit"),
    *each("image, windows", "swin", "swinv2"),
    known("dinov2", "image, transformer"),
    *each("image, convolutions", "convnext", "resnet", "regnet"),
    known("efficientnet", "image, convolutions", inputs=image(64)),
    known("mobilenet_v2", "image, convolutions", inputs=image(64), least_cosine=0.5),
    known("mobilevit", "image, convolutions and attention", least_cosine=0.6),
    known("videomae", "video, transformer with Conv3d", of("VideoMAE", "Model", lambda:
        {"pixel_values": numbers(2, 4, 3, 32, 32)}, tiny.VIT, num_frames=4)),
    # Detection, depth and segmentation.
    *each("detection", "detr", "yolos"),
    known("segformer", "segmentation"),
    known("dpt", "depth, ConvTranspose2d"),
    known("sam", "segmentation, ConvTranspose2d"),
    # Attention is masked where a mask is less than a half.
    known("mask2former", "segmentation", of("Mask2Former", "ForUniversalSegmentation", image(64),
        feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=32,
        dim_feedforward=32, encoder_layers=1, decoder_layers=2, num_attention_heads=2,
        num_queries=5, nested={"backbone_config": ("SwinConfig", {"image_size": 64, "patch_size": 4,
        "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "window_size": 4,
        "out_features": ["stage1", "stage2", "stage3", "stage4"]})}), is_discrete=True),
    # Images and text.
    *each("image and text", "clip", "siglip", "blip"),
    known("llava", "image and text, decoder"),
    known("idefics", "image and text, decoder", of("Idefics", "ForVisionText2Text", lambda:
        {**text(), "pixel_values": numbers(2, 1, 3, 32, 32), "image_attention_mask": torch.ones(2,
        12, 1, dtype=torch.int64)}, tiny.BERT, tiny.ENDS, alpha_initializer="ones",
        freeze_text_layers=False, freeze_vision_layers=False,
        nested={"vision_config": ("IdeficsVisionConfig", {"embed_dim": 32, "image_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "patch_size": 8})})),
    known("qwen2_vl", "image and text, decoder, Conv3d", of("Qwen2VL", "ForConditionalGeneration",
        qwen2_vl_inputs, generates=True, image_token_id=IMAGE_TOKEN, video_token_id=3,
        vision_start_token_id=1, vision_end_token_id=2, nested={"text_config": ("Qwen2VLTextConfig",
        {**tiny.LLAMA, **tiny.ENDS, "rope_parameters": {"rope_type": "default",
        "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}),
        "vision_config": ("Qwen2VLVisionConfig", {"depth": 2, "embed_dim": 32, "hidden_size": 32,
        "num_heads": 2, "patch_size": 8})})),
)  # fmt: skip
