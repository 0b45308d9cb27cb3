"""A broad sample of timm's classifiers: every one inspects, and its figures add up.

A dozen run every time. ``-m slow`` runs them all; with HWBMPQ_RESULTS naming a folder, the way each
was traced is written there as ``timm_inspect.json``.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import hwbmpq
from hwbmpq.data.torchvision_import import import_timm

SAMPLE = """
    beit_base_patch16_224 halonet50ts gernet_s cait_s24_224 coat_tiny convit_tiny convmixer_768_32
    convnext_atto cpubone_s0 crossvit_18_240 csatv2 cspresnet50 davit_tiny deepseek_vit_412m
    deit_tiny_patch16_224 densenet121 dla34 dpn68 edgenext_small efficientformer_l1 efficientformerv2_s0
    mixnet_s efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fasternet_s
    fastvit_s12 focalnet_base_srf gcvit_tiny gemma4_vit_167m ghostnet_050 hardcorenas_a hgnet_tiny
    hiera_tiny_224 hieradet_small hrnet_w18 iformer_s inception_next_atto inception_resnet_v2
    inception_v3 inception_v4 lcnetv2_small levit_384_s8 lowformer_b0 mambaout_tiny maxvit_nano_rw_256
    caformer_s18 gmlp_s16_224 lcnet_050 mobilenetv5_300m mobilevit_s mvitv2_tiny
    naflexvit_base_patch16_siglip nasnetalarge nest_tiny nextvit_small nf_resnet50 pit_s_224
    pnasnet5large pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnety_040_sgn repghostnet_050 repvit_m1
    res2net50d resnest50d resnet18 resnetv2_18 rexnet_150 selecsls42 legacy_senet154 sequencer2d_s
    shvit_s1 skresnet18 starnet_s1 swiftformer_s swin_s3_base_224 swinv2_tiny_window8_256
    swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_patch16_224 tresnet_l twins_svt_base vgg11 visformer_tiny
    flexivit_small vit_base_r26_s32_224 vit_relpos_small_patch16_224 samvit_base_patch16
    vitamin_small_224 volo_d1_224 ese_vovnet19b_slim legacy_xception xception41 xcit_nano_12_p8_224
    vgg16_bn mobilevit_xs resnet50 resnext50_32x4d efficientnet_b0 tf_efficientnet_b0 mobilenetv2_100
    mobilenetv3_small_100 resnetv2_50x1_bit vit_tiny_patch16_224 repvgg_a0 seresnet50 convnextv2_atto
""".split()

QUICK = """
    vgg16_bn mobilevit_s resnet18 mobilenetv2_100 densenet121 efficientnet_b0 regnety_040_sgn convnext_atto
    vit_tiny_patch16_224 deit_tiny_patch16_224 xcit_nano_12_p8_224 nf_resnet50
""".split()

LOOKS_AT_VALUES = {"gemma4_vit_167m"}  # its forward pass cannot run without data


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, dict[str, object]]]:
    rows: dict[str, dict[str, object]] = {}
    yield rows
    if folder := os.environ.get("HWBMPQ_RESULTS"):
        content = {"timm": import_timm().__version__, "torch": torch.__version__, "networks": rows}
        Path(folder, "timm_inspect.json").write_text(json.dumps(content, indent=1) + "\n")


def check_figures(name: str, record: dict[str, dict[str, object]]) -> None:
    with torch.device("cpu" if name in LOOKS_AT_VALUES else "meta"):
        model = import_timm().create_model(name)
        example = torch.empty(1, *model.pretrained_cfg["input_size"]).normal_()
    start = time.perf_counter()
    graph = hwbmpq.describe(model, example)
    record[name] = {
        "family": type(model).__module__.rpartition(".")[2],
        "traced_by": graph.traced_by,
        "seconds": round(time.perf_counter() - start, 2),
        **graph.to_dict()["totals"],
    }
    total = sum(parameter.numel() for parameter in model.parameters())
    assert graph.weights + sum(entry.parameters for entry in graph.uncovered) == total
    counted = macs_by_module(model, example)
    assert sum(layer.macs for layer in graph) > 0
    for layer in graph:
        assert layer.macs == pytest.approx(counted[layer.name], rel=0.01), layer.name


def macs_by_module(model: nn.Module, example: torch.Tensor) -> dict[str, int]:
    """What torch's own counter says of each module, while the network simply runs."""
    model.requires_grad_(False)  # the counter stumbles over views of parameters
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(example)
    prefix = type(model).__name__ + "."
    return {
        path.removeprefix(prefix): sum(by_operator.values()) // 2
        for path, by_operator in counter.get_flop_counts().items()
    }


@pytest.mark.parametrize("name", QUICK)
def test_a_dozen_networks_inspect_and_add_up(name: str, record: dict[str, dict[str, object]]) -> None:
    check_figures(name, record)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_the_broad_sample_inspects_and_adds_up(name: str, record: dict[str, dict[str, object]]) -> None:
    check_figures(name, record)


def test_networks_that_fx_cannot_trace_are_traced_all_the_same() -> None:
    for name in ("vgg16_bn", "mobilevit_s"):
        with torch.device("meta"):
            model = import_timm().create_model(name)
        graph = hwbmpq.describe(model, torch.empty(1, *model.pretrained_cfg["input_size"]))
        assert graph.traced_by == "export"
        assert graph.notes[0].startswith("fx: TraceError")
