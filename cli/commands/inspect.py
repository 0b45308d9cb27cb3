"""Show a network's layers, ties and coverage.

Show a network's weighted layers with their parameters and multiply-accumulates (MACs),
which of them must share a bit width, and what is not quantized.

examples:
  hwbmpq inspect --model timm:resnet18
  hwbmpq inspect --model torchvision:mobilenet_v2 --input 3x96x96 --num-classes 10
  hwbmpq inspect --model hwbmpq:resnet20 --weights resnet20.pt --json
  hwbmpq inspect --model file:net.py:make_net --input 1x28x28
  hwbmpq inspect --model file:model.pt2
"""

import argparse

from hwbmpq.cli.options.common import add_output_options
from hwbmpq.cli.options.network import describe_model
from hwbmpq.cli.options.settings import add_model_options
from hwbmpq.cli.render.tables import OutputConsole, print_graph, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_output_options(parser, rows="layer of a large network")


def run(args: argparse.Namespace) -> None:
    model, graph = describe_model(args)
    if args.json:
        content = {"model": model.spec, "input_size": list(model.input_size), **graph.to_dict()}
        print_json(content)
    else:
        print_graph(OutputConsole(), graph, title=model.title, all_rows=args.all)
