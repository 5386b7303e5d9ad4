"""Tiny random models in the layout of Hugging Face, with their tokenizers, written by the tests themselves."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

SIZE, LENGTH = 32, 12
"""Side of the pictures that the models see, and their number of tokens."""


def write_clip(folder: Path, *, seed: int = 0) -> Path:
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

    letters = string.ascii_lowercase + string.digits
    names = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    tokenizer = CLIPTokenizer(vocab={name: i for i, name in enumerate(names)}, merges=[], model_max_length=LENGTH)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}).save_pretrained(
        folder
    )
    text = {"vocab_size": len(names), "max_position_embeddings": LENGTH, "bos_token_id": 0, "eos_token_id": 1}
    config = CLIPConfig(text_config={**_layers(), **text}, vision_config={**_layers(), **_patches()}, projection_dim=24)
    torch.manual_seed(seed)
    CLIPModel(config).save_pretrained(folder)
    return folder


def write_siglip(folder: Path, *, seed: int = 0) -> Path:
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    words = ["<unk>", "</s>", "a", "red", "boat", "white", "ship", "two", "in", "the", "harbour"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>"}
    settings = {"tokenizer_class": "SiglipTokenizer", "model_max_length": LENGTH, "model_input_names": ["input_ids"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **names}))
    SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(folder)
    text = {"vocab_size": len(words), "max_position_embeddings": LENGTH, "pad_token_id": 1, "eos_token_id": 1}
    config = SiglipConfig(
        text_config={**_layers(), **text, "bos_token_id": 1}, vision_config={**_layers(), **_patches()}
    )
    torch.manual_seed(seed)
    SiglipModel(config).save_pretrained(folder)
    return folder


def write_dinov2(folder: Path, *, seed: int = 0, registers: str = "") -> Path:
    import torch
    import transformers
    from transformers import BitImageProcessorPil

    config = getattr(transformers, f"Dinov2{registers}Config")(**_layers(), **_patches(), mlp_ratio=2)

    BitImageProcessorPil(
        size={"shortest_edge": SIZE + 4}, crop_size={"height": SIZE, "width": SIZE}, do_convert_rgb=True
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    getattr(transformers, f"Dinov2{registers}Model")(config).save_pretrained(folder)
    return folder


def _layers() -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def _patches() -> dict[str, Any]:
    return {"image_size": SIZE, "patch_size": 16}
