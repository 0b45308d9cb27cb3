"""The graph pass: from a network to its weighted layers, their ties, and what stays in float."""

from hwbmpq.graph.describe import describe as describe
from hwbmpq.graph.describe import describe_trace as describe_trace
from hwbmpq.graph.layergraph import LayerGraph as LayerGraph
from hwbmpq.graph.trace import trace as trace
