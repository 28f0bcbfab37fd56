# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models of images, with text and without."""

from __future__ import annotations

from tests.support.tiny_transformers.parts import (
    BERT,
    ENDS,
    LLAMA,
    VIT,
    Tiny,
    image,
    image_and_text,
    llava_inputs,
    vision_of,
)

IMAGES: dict[str, Tiny] = {
    # Images.
    "vit": vision_of("ViT", "ForImageClassification"),
    "deit": vision_of("DeiT", "ForImageClassification"),
    "beit": vision_of("Beit", use_relative_position_bias=True),
    "data2vec_vision": vision_of("Data2VecVision", use_shared_relative_position_bias=True),
    "dinov2": vision_of("Dinov2"),
    "swin": Tiny(
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        image(),
    ),
    "swinv2": Tiny(
        "Swinv2Model",
        "Swinv2Config",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        image(),
    ),
    "convnext": Tiny(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
        image(),
    ),
    "resnet": Tiny(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
        image(),
    ),
    "regnet": Tiny(
        "RegNetModel",
        "RegNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
        image(),
    ),
    "mobilenet_v2": Tiny(
        "MobileNetV2Model",
        "MobileNetV2Config",
        {"depth_multiplier": 0.25, "image_size": 32},
        image(),
    ),
    "mobilevit": Tiny(
        "MobileViTModel",
        "MobileViTConfig",
        {
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 16],
            "image_size": 64,
        },
        image(64),
    ),
    "efficientnet": Tiny(
        "EfficientNetModel",
        "EfficientNetConfig",
        {"width_coefficient": 0.25, "hidden_dim": 320},
        image(),
    ),
    "segformer": Tiny(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [16, 16, 32, 32],
            "num_attention_heads": [1, 1, 2, 2],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 16,
        },
        image(64),
    ),
    "pvt": Tiny(
        "PvtModel",
        "PvtConfig",
        {"image_size": 64, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
        | {"num_attention_heads": [1, 1, 2, 2]},
        image(64),
    ),
    "vit_mae": vision_of(
        "ViTMAE",
        "ForPreTraining",
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
        mask_ratio=0.5,
    ),
    "detr": Tiny(
        "DetrForObjectDetection",
        "DetrConfig",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_queries": 6,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
        },
        image(64),
        nested={
            "backbone_config": (
                "ResNetConfig",
                {
                    "embedding_size": 16,
                    "hidden_sizes": [16, 32],
                    "depths": [1, 1],
                    "num_stages": 2,
                    "out_features": ["stage2"],
                },
            )
        },
    ),
    "yolos": Tiny(
        "YolosForObjectDetection",
        "YolosConfig",
        {**VIT, "image_size": [32, 32], "num_detection_tokens": 4},
        image(),
    ),
    "dpt": Tiny(
        "DPTForDepthEstimation",
        "DPTConfig",
        {
            **VIT,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
            "is_hybrid": False,
            "readout_type": "project",
        },
        image(),
    ),
    "sam": Tiny(
        "SamModel",
        "SamConfig",
        {},
        image(32),
        nested={
            "vision_config": (
                "SamVisionConfig",
                {
                    "hidden_size": 32,
                    "output_channels": 16,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "image_size": 32,
                    "patch_size": 8,
                    "mlp_dim": 64,
                    "window_size": 2,
                    "global_attn_indexes": [1],
                    "num_pos_feats": 8,
                },
            ),
            "prompt_encoder_config": (
                "SamPromptEncoderConfig",
                {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
            ),
            "mask_decoder_config": (
                "SamMaskDecoderConfig",
                {
                    "hidden_size": 16,
                    "mlp_dim": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "iou_head_hidden_dim": 16,
                },
            ),
        },
    ),
    # Images and text.
    "clip": Tiny(
        "CLIPModel",
        "CLIPConfig",
        {"projection_dim": 16},
        image_and_text,
        nested={
            "text_config": ("CLIPTextConfig", {**BERT, **ENDS}),
            "vision_config": ("CLIPVisionConfig", VIT),
        },
    ),
    "siglip": Tiny(
        "SiglipModel",
        "SiglipConfig",
        {},
        image_and_text,
        nested={
            "text_config": ("SiglipTextConfig", {**BERT, **ENDS}),
            "vision_config": ("SiglipVisionConfig", VIT),
        },
    ),
    "blip": Tiny(
        "BlipForConditionalGeneration",
        "BlipConfig",
        {"projection_dim": 16},
        image_and_text,
        nested={
            "text_config": ("BlipTextConfig", {**BERT, **ENDS, "encoder_hidden_size": 32}),
            "vision_config": ("BlipVisionConfig", VIT),
        },
    ),
    "llava": Tiny(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {"image_token_index": 4, "image_token_id": 4, "vision_feature_layer": -1},
        llava_inputs,
        nested={
            "text_config": ("LlamaConfig", {**LLAMA, **ENDS, "head_dim": 16}),
            "vision_config": ("CLIPVisionConfig", VIT),
        },
        generates=True,
    ),
    "owlvit": Tiny(
        "OwlViTModel",
        "OwlViTConfig",
        {"projection_dim": 16},
        image_and_text,
        nested={
            "text_config": ("OwlViTTextConfig", {**BERT, **ENDS}),
            "vision_config": ("OwlViTVisionConfig", VIT),
        },
    ),
}
