"""Networks of independent packages, in small: pytorchcv and transformers, where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from .blocks import (
    NORMALISED,
    UNIT,
    by_name,
    dead,
    dead_blocks,
    enliven,
    killing,
    normalised,
    tokens,
    uniform,
)
from .planting import Entry, Plant

STAGES = ("features.stage1", "features.stage2", "features.stage3")
ONE, TWO, THREE = STAGES


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def still(model: nn.Module) -> nn.Module:
    """Pool whatever size is left at the end, and drop nothing: masks of unlike widths cannot be compared."""
    for path, module in list(model.named_modules()):
        if path.endswith("final_pool"):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, nn.AdaptiveAvgPool2d(1))
        elif isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def pytorchcv(module: str, cls: str, size: int, *plants: Plant, output: Any = None, pinned: str = "output",
              tags: str = "", gain: float = 2.0, **config: Any) -> Entry:  # fmt: skip
    """An entry for `pytorchcv.models.<module>.<cls>`; `output` replaces a head of fixed, large width."""

    def build() -> nn.Module:
        factory = getattr(importlib.import_module(f"pytorchcv.models.{module}"), cls)
        model = factory(in_size=(size, size), num_classes=10, **config)
        if output is not None:
            model.output = nn.Linear(*output)
        return enliven(still(model), gain)

    name = f"pytorchcv_{module}"
    return Entry(name, build, normalised(2, 3, size, size), NORMALISED, plants, (pinned,),
                 frozenset({"external", "pytorchcv", *tags.split()}))  # fmt: skip


def residual_networks() -> Iterator[Entry]:
    yield pytorchcv(
        "resnet_cifar", "CIFARResNet", 16,
        dead_blocks("features.init_block", f"{ONE}.unit1.body.conv2", f"{ONE}.unit2.body.conv2", at=(1, 6)),
        dead_blocks(f"{TWO}.unit1.body.conv2", f"{TWO}.unit1.identity_conv", at=(0, 4, 11)),
        dead_blocks(f"{THREE}.unit1.body.conv2", f"{THREE}.unit1.identity_conv", at=(3, 15)),
        dead_blocks(f"{ONE}.unit1.body.conv1", at=(2, 5)),
        dead_blocks(f"{ONE}.unit2.body.conv1", at=(0, 7)),
        dead_blocks(f"{TWO}.unit1.body.conv1", at=(8, 9)),
        dead_blocks(f"{THREE}.unit1.body.conv1", at=(1, 12)),
        channels=[[8, 8], [12], [16]], init_block_channels=8, bottleneck=False, tags="residual batchnorm",
    )  # fmt: skip
    yield pytorchcv(
        "preresnet_cifar", "CIFARPreResNet", 16,
        killing(f"{ONE}.unit1.body.conv1.bn {TWO}.unit1.body.conv1.bn", at=(2, 6),
                removes=f"features.init_block {ONE}.unit1.body.conv2.conv"),
        killing(f"{THREE}.unit1.body.conv1.bn", at=(0, 10),
                removes=f"{TWO}.unit1.body.conv2.conv {TWO}.unit1.identity_conv"),
        killing("features.post_activ.bn", at=(5, 14),
                removes=f"{THREE}.unit1.body.conv2.conv {THREE}.unit1.identity_conv"),
        *(killing(f"{stage}.unit1.body.conv2.bn", removes=f"{stage}.unit1.body.conv1.conv", at=(1, 4))
          for stage in STAGES),
        channels=[[8], [12], [16]], init_block_channels=8, bottleneck=False, tags="residual batchnorm preact",
    )  # fmt: skip
    yield pytorchcv(
        "sepreresnet_cifar", "CIFARSEPreResNet", 16,
        *(killing(f"{stage}.unit1.body.conv2.bn", removes=f"{stage}.unit1.body.conv1.conv", at=(3, 20, 31))
          for stage in (ONE, TWO)),
        # the gates read the units of the branch, and the branch keeps those of the path that it is added to
        killing(f"{TWO}.unit1.body.conv1.bn", removes="", at=(5, 9),
                stays=(f"{ONE}.unit1.body.conv2.conv", f"{ONE}.unit1.se.conv2")),
        killing("features.init_block.bn", removes="", stays=("features.init_block.conv",), at=(6,)),
        dead(f"{ONE}.unit1.se.conv1", at=(1,)), dead(f"{TWO}.unit1.se.conv1", at=(0,)),
        channels=[[32], [32]], init_block_channels=32, bottleneck=False,
        tags="residual batchnorm preact squeeze-excite",
    )  # fmt: skip
    yield pytorchcv(
        "resnext_cifar", "CIFARResNeXt", 16,
        dead_blocks("features.init_block", at=(0, 7)),
        *(plant for stage in (ONE, TWO) for plant in (
            dead_blocks(f"{stage}.unit1.body.conv1", at=(1, 5)),
            dead_blocks(f"{stage}.unit1.body.conv2", at=(2, 6)),
            dead_blocks(f"{stage}.unit1.body.conv3", f"{stage}.unit1.identity_conv", at=(4, 17, 30)))),
        channels=[[32], [32]], init_block_channels=8, cardinality=2, bottleneck_width=32,
        tags="residual batchnorm grouped",
    )  # fmt: skip


def plain_and_dense_networks() -> Iterator[Entry]:
    yield pytorchcv(
        "vgg", "VGG", 16,
        dead_blocks(f"{ONE}.unit1", at=(2, 7)), dead_blocks(f"{TWO}.unit1", at=(0, 5)),
        dead_blocks(f"{THREE}.unit1", at=(3, 8)), dead_blocks(f"{THREE}.unit2", at=(1, 15)),
        channels=[[8], [12], [16, 16]], use_bn=True, bias=False, output=(64, 10),
        tags="batchnorm flatten maxpool",
    )  # fmt: skip
    yield pytorchcv(
        "densenet_cifar", "CIFARDenseNet", 16,
        killing(f"{ONE}.unit1.conv.bn {ONE}.unit2.conv.bn {TWO}.trans2.conv.bn",
                removes="features.init_block", at=(3, 6)),
        killing(f"{ONE}.unit2.conv.bn {TWO}.trans2.conv.bn", removes=f"{ONE}.unit1.conv.conv", at=(9,),
                removed_at={f"{ONE}.unit1.conv.conv": (1,)}),
        killing(f"{TWO}.trans2.conv.bn", removes=f"{ONE}.unit2.conv.conv", at=(12, 15),
                removed_at={f"{ONE}.unit2.conv.conv": (0, 3)}),
        killing(f"{TWO}.unit1.conv.bn features.post_activ.bn", removes=f"{TWO}.trans2.conv.conv", at=(2, 5)),
        killing("features.post_activ.bn", removes=f"{TWO}.unit1.conv.conv", at=(10,),
                removed_at={f"{TWO}.unit1.conv.conv": (2,)}),
        channels=[[12, 16], [12]], init_block_channels=8, bottleneck=False,
        tags="concat batchnorm preact avgpool",
    )  # fmt: skip
    yield pytorchcv(
        "squeezenet", "SqueezeNet", 32,
        dead("features.init_block.conv", at=(1, 4), how="bound", box=NORMALISED),
        *(plant for unit in (f"{ONE}.unit1", f"{ONE}.unit2", f"{TWO}.unit1") for plant in (
            dead(f"{unit}.squeeze.conv", at=(2,)),
            dead(f"{unit}.expand1x1.conv", at=(0, 9)), dead(f"{unit}.expand3x3.conv", at=(5, 15)))),
        channels=[[64, 64], [64]], residuals=None, init_block_kernel_size=3, init_block_channels=8,
        pinned="output.final_conv", tags="concat maxpool", gain=1.0,
    )  # fmt: skip


def mobile_networks() -> Iterator[Entry]:
    yield pytorchcv(
        "mobilenet", "MobileNet", 16,
        dead_blocks("features.init_block", f"{ONE}.unit1.dw_conv", at=(0, 5)),
        dead_blocks(f"{ONE}.unit1.pw_conv", f"{ONE}.unit2.dw_conv", at=(2, 3)),
        killing(f"{TWO}.unit1.dw_conv.bn", at=(1, 11),
                removes=f"{ONE}.unit2.pw_conv.conv {TWO}.unit1.dw_conv.conv"),
        dead_blocks(f"{TWO}.unit1.pw_conv", at=(4, 13)),
        channels=[[8], [8, 12], [16]], first_stage_stride=False, tags="depthwise batchnorm",
    )  # fmt: skip
    yield pytorchcv(
        "mobilenetv2", "MobileNetV2", 16,
        dead_blocks("features.init_block", f"{ONE}.unit1.conv3", at=(1, 6), how="null"),
        dead_blocks(f"{TWO}.unit1.conv3", f"{TWO}.unit2.conv3", at=(0, 3), how="null"),
        dead_blocks(f"{ONE}.unit1.conv1", f"{ONE}.unit1.conv2", at=(2, 5)),
        dead_blocks(f"{TWO}.unit1.conv1", f"{TWO}.unit1.conv2", at=(7, 30, 47)),
        dead_blocks(f"{TWO}.unit2.conv1", f"{TWO}.unit2.conv2", at=(0, 21)),
        dead_blocks("features.final_block", at=(9, 23)),
        channels=[[8], [8, 8]], init_block_channels=8, final_block_channels=24, remove_exp_conv=False,
        tags="depthwise batchnorm residual relu6",
    )  # fmt: skip
    yield pytorchcv(
        "mobilenetv3", "MobileNetV3", 16,
        dead_blocks("features.init_block", f"{ONE}.unit1.conv1", f"{ONE}.unit1.conv2", at=(0, 4), how="null"),
        *(killing(f"{unit}.exp_conv.bn {unit}.conv1.bn", at=(3, 14), level=-4.0,
                  removes=f"{unit}.exp_conv.conv {unit}.conv1.conv {unit}.se.conv2")
          for unit in (f"{TWO}.unit1", f"{TWO}.unit2")),
        dead(f"{TWO}.unit1.se.conv1", at=(1, 6)), dead(f"{TWO}.unit2.se.conv1", at=(2,)),
        dead_blocks("features.final_block.conv", at=(5, 19), level=-3.5), dead("output.conv1", at=(2,), how="null"),
        channels=[[8], [8, 8]], exp_channels=[[8], [16, 16]], init_block_channels=8, final_block_channels=24,
        classifier_mid_channels=16, kernels3=[[1], [1, 0]], use_relu=[[1], [1, 0]], use_se=[[0], [1, 1]],
        first_stride=False, final_use_se=False, pinned="output.conv2",
        tags="depthwise batchnorm squeeze-excite hardswish hardsigmoid",
    )  # fmt: skip
    yield pytorchcv(
        "shufflenetv2", "ShuffleNetV2", 32,
        killing("features.init_block.conv.bn", removes="features.init_block.conv.conv", at=(1, 6)),
        killing(f"{ONE}.unit1.dw_bn4", removes=f"{ONE}.unit1.dw_conv4", at=(1, 6), how="null"),
        killing(f"{ONE}.unit1.dw_bn2", at=(0, 5), how="null",
                removes=f"{ONE}.unit1.compress_conv1 {ONE}.unit1.dw_conv2"),
        killing(f"{ONE}.unit2.dw_bn2", at=(3,), how="null",
                removes=f"{ONE}.unit2.compress_conv1 {ONE}.unit2.dw_conv2"),
        killing(f"{ONE}.unit1.expand_bn3 {ONE}.unit1.expand_bn5", at=(1, 5),
                removes=f"{ONE}.unit1.expand_conv3 {ONE}.unit1.expand_conv5"),
        killing(f"{ONE}.unit2.expand_bn3", removes=f"{ONE}.unit2.expand_conv3", at=(2, 3)),
        dead_blocks("features.final_block", at=(8, 20)),
        channels=[[16, 16]], init_block_channels=8, final_block_channels=24,
        tags="depthwise channel-shuffle chunk batchnorm concat",
    )  # fmt: skip


# Where a block keeps its first feed-forward layer, the norm that feeds it (none where a layer without bias
# can only be dead by a zero row), and the second one.
FEED_FORWARD = {
    "Bert": ("intermediate.dense", "attention.output.LayerNorm", "output.dense"),
    "GPT2": ("mlp.c_fc", "ln_2", "mlp.c_proj"),
    "OPT": ("fc1", "final_layer_norm", "fc2"),
    "T5": ("DenseReluDense.wi", "", "DenseReluDense.wo"),
    "ViT": ("mlp.fc1", "layernorm_after", "mlp.fc2"),
    "DistilBert": ("ffn.lin1", "sa_layer_norm", "ffn.lin2"),
    "Whisper": ("fc1", "final_layer_norm", "fc2"),
}


def transformer(family: str, model: str, inputs: Callable[..., Any], domain: object, **config: Any) -> Entry:
    """A random network of a tiny `<family>Config`, with units planted in every feed-forward layer."""
    library = importlib.import_module("transformers")

    def build() -> nn.Module:
        settings = getattr(library, f"{family}Config")(**config, use_cache=False)
        built = enliven(still(getattr(library, model)(settings)))
        for module in built.modules():
            if isinstance(module, nn.LayerNorm):
                # some have 1e-12, with which rounding in single precision may move a result by any amount
                module.eps = max(module.eps, 1e-5)
        return built

    first, norm, second = FEED_FORWARD[family]
    blocks = [path.removesuffix(first) for path, _ in build().named_modules() if path.endswith(f".{first}")]
    plants: list[Plant] = []
    for block in blocks:
        plants.append(dead(block + first, at=(7, 20)))
        if norm:
            plants.append(dead(block + first, at=(1, 4), how="norm", norm=block + norm))
    tags = frozenset({"external", "transformers", "attention", "layernorm" if norm else "rmsnorm"})
    pinned = tuple(block + second for block in blocks)
    return Entry(f"transformers_{family.lower()}", build, inputs, domain, tuple(plants), pinned, tags)


def transformer_networks() -> Iterator[Entry]:
    ids = tokens(30, 2, 6)
    one, pair = {"input_ids": None}, {"input_ids": None, "decoder_input_ids": None}
    special: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    yield transformer(
        "Bert", "BertModel", by_name(input_ids=ids), one, vocab_size=30, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, hidden_act="relu", max_position_embeddings=16,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    yield transformer(
        "GPT2", "GPT2LMHeadModel", by_name(input_ids=ids), one, vocab_size=30, n_embd=16, n_layer=2, n_head=2,
        n_inner=24, n_positions=16, activation_function="relu", attn_pdrop=0.0, **special,
    )  # fmt: skip
    yield transformer(
        "OPT", "OPTForCausalLM", by_name(input_ids=ids), one, vocab_size=30, hidden_size=16,
        num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, word_embed_proj_dim=16,
        max_position_embeddings=16, dropout=0.0, **special,
    )  # fmt: skip
    yield transformer(
        "T5", "T5ForConditionalGeneration", by_name(input_ids=ids, decoder_input_ids=ids), pair,
        vocab_size=30, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
        feed_forward_proj="relu", dropout_rate=0.0,
    )  # fmt: skip
    yield transformer(
        "ViT", "ViTForImageClassification", by_name(pixel_values=uniform(2, 3, 8, 8)), {"pixel_values": UNIT},
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, hidden_act="relu",
        image_size=8, patch_size=4,
    )  # fmt: skip
    yield transformer(
        "DistilBert", "DistilBertModel", by_name(input_ids=ids), one, vocab_size=30, dim=16, n_layers=2,
        n_heads=2, hidden_dim=24, activation="relu", max_position_embeddings=16, attention_dropout=0.0,
    )  # fmt: skip
    yield transformer(
        "Whisper", "WhisperForConditionalGeneration",
        by_name(input_features=uniform(2, 8, 20), decoder_input_ids=ids),
        {"input_features": UNIT, "decoder_input_ids": None}, vocab_size=30, d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, activation_function="relu", num_mel_bins=8, max_source_positions=10,
        max_target_positions=16, decoder_start_token_id=1, **special,
    )  # fmt: skip


def external_entries() -> dict[str, Entry]:
    """Entries by name; none for a package that is not installed."""
    found: list[Entry] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a foreign package warns about at import is its own affair
        if installed("pytorchcv"):
            found += [*residual_networks(), *plain_and_dense_networks(), *mobile_networks()]
        if installed("transformers"):
            found += transformer_networks()
    return {entry.name: entry for entry in found}
