"""Which tensors can be negative: decides between the unsigned and the signed activation quantizer."""

from collections.abc import Iterable

from hwbmpq.graph.operations import Operation, TensorSource

_NEVER_NEGATIVE = frozenset(
    "relu relu6 sigmoid hardsigmoid softmax softmax2d softplus abs absolute square exp sqrt rsqrt".split()
)

# Results are non-negative where all tensors they come from are.
_KEEP_SIGN = frozenset(
    """
    maxpool1d maxpool2d maxpool3d maxpool1dwithindices maxpool2dwithindices maxpool3dwithindices
    avgpool1d avgpool2d avgpool3d adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d
    adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d
    flatten unflatten view viewas reshape permute transpose t contiguous squeeze unsqueeze expand expandas
    movedim swapaxes narrow select slice getitem unbind chunk split splitwithsizes tensorsplit
    cat concat concatenate stack hstack vstack repeat repeatinterleave tile roll flip rot90
    dropout dropout1d dropout2d dropout3d featuredropout identity clone detach to float double
    add iadd radd mul imul rmul mean sum amax amin max min maximum minimum
    pad constantpadnd zeropad2d reflectionpad2d replicationpad2d pixelshuffle pixelunshuffle
    channelshuffle upsamplenearest2d upsamplebilinear2d
    """.split()
)


def nonnegative_tensors(operations: Iterable[Operation]) -> set[str]:
    """Names of the operations whose results cannot be negative."""
    found: set[str] = set()
    for operation in operations:
        if operation.source is not TensorSource.OPERATION:
            continue  # inputs, parameters and buffers may hold anything
        keeps = (
            operation.kind in _KEEP_SIGN
            and not operation.negates
            and bool(operation.inputs)
            and all(name in found for name in operation.inputs)
        )
        if operation.kind in _NEVER_NEGATIVE or operation.clamps_negatives or keeps:
            found.add(operation.name)
    return found
