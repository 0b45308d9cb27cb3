"""A network's outline: its layers, joins, inputs and outputs, without what stands in between."""

import networkx as nx


def outline(operations: nx.DiGraph) -> nx.DiGraph:
    """The operations that have a layer, several sources or no reader; edges skip the others. Attributes stay."""
    kept = nx.DiGraph()
    sources: dict[str, list[str]] = {}
    for node in nx.topological_sort(operations):
        before = list(dict.fromkeys(s for p in operations.predecessors(node) for s in sources[p]))
        data = operations.nodes[node]
        is_end = not before or data.get("is_output") or not operations.out_degree(node)
        if data.get("layer") or len(before) > 1 or is_end:
            kept.add_node(node, **data)
            kept.add_edges_from((source, node) for source in before)
            sources[node] = [node]
        else:
            sources[node] = before
    return kept
