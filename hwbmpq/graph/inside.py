"""What an operation keeps in memory beside what it reads and makes, while it runs."""

from math import prod

from torch import nn

from hwbmpq.graph.operations import Operation

_RECURRENT = ("rnn", "gru", "lstm")
"""How the kinds of recurrent operations begin."""


def elements_inside(model: nn.Module, operation: Operation) -> int:
    """Elements of an operation's working set that no other operation of the trace shows.

    Recurrent networks run one time step after the other, as on a device: their states and the gates of one step. Of
    anything else that hides several products, such as attention, all but the last are in memory at once.
    """
    if not operation.kind.startswith(_RECURRENT):
        return operation.inside
    module = model.get_submodule(operation.module)
    if isinstance(module, nn.RNNBase):
        return _recurrent(module, operation.shape)
    if isinstance(module, nn.RNNCellBase):
        gates = module.weight_hh.shape[0] // module.hidden_size
        states = 2 if isinstance(module, nn.LSTMCell) else 1
        return prod(operation.shape) * (gates + states)
    return operation.inside


def _recurrent(module: nn.RNNBase, shape: tuple[int, ...]) -> int:
    batch = shape[0 if module.batch_first else 1] if len(shape) == 3 else 1
    stacked = module.num_layers * (2 if module.bidirectional else 1)
    states = stacked * (2 if isinstance(module, nn.LSTM) else 1)
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    # A layer after the first reads the whole output of the one before.
    between = prod(shape) if module.num_layers > 1 else 0
    return batch * module.hidden_size * (states + gates) + between
