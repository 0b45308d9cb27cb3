"""Cost tables are cheap: every shipped model over a thousand layers and seven widths."""

import time

from hwbmpq.costs import cost_models, get_cost_model
from hwbmpq.hardware import load_profile
from hwbmpq.testing import conv_layer
from hwbmpq.values import Layer, Precision, Schedule, StoredTensor

WIDTHS = [Precision(weight_bits=bits, activation_bits=8) for bits in range(2, 9)]
# Each model on a profile that has what it needs, at all seven widths where the device runs them.
MODELS = {
    "activation_memory": "generic",
    "bit_serial": "pynq_z1_bismo",
    "bops": "generic",
    "energy_per_op": "gap9_ne16",
    "flash": "gap9_ne16",
    "gap8": "gap9_ne16",
    "latency": "gap9_ne16",
    "layer_working_set": "generic",
    "largest_input": "generic",
    "mac_energy": "generic",
    "memory": "generic",
    "ne16": "gap9_ne16",
    "ram": "gap9_ne16",
    "stored_memory": "generic",
    "weight_memory": "generic",
    "energy": "mpic",
    "power_time": "mpic",
    "throughput_table": "mpic",
    "lookup_table": "stm32h743",
    "roofline": "raspberry_pi_5",
}
NARROW_DEVICES = {"stm32h743": (4, 8), "raspberry_pi_5": (2, 4, 8)}


class Network(list[Layer]):
    """A thousand layers in a row with residual connections."""

    def __init__(self) -> None:
        super().__init__(
            conv_layer(
                16 * (1 + n % 32), 16 * (1 + n % 31), size=14, kernel_size=1 + 2 * (n % 2), name=f"layer{n}"
            )
            for n in range(1000)
        )
        names = tuple(layer.name for layer in self)
        tensors = tuple(
            StoredTensor(
                name=name,
                elements=1000 + n,
                made_at=n,
                last_read_at=min(n + 2, 999),
                readers=names[n + 1 : n + 3],
                feeds_addition=n % 3 == 0,
            )
            for n, name in enumerate(names)
        )
        self.schedule = Schedule(steps=names, tensors=tensors)


def test_every_model_is_timed() -> None:
    assert set(MODELS) | {"bit_fusion"} == set(cost_models())  # no shipped device is a Bit Fusion array


def test_all_models_over_a_thousand_layers_take_less_than_a_second() -> None:
    network = Network()
    profiles = {target: load_profile(target) for target in set(MODELS.values())}

    def seconds() -> float:
        start = time.perf_counter()
        for name, target in MODELS.items():
            widths = [p for p in WIDTHS if p.weight_bits in NARROW_DEVICES.get(target, range(2, 9))]
            table = get_cost_model(name).tabulate(network, profiles[target], widths)
            assert table.rows
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 1.0
