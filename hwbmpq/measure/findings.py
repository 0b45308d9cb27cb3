"""What a measurement shows about bits and time, in sentences; every number in them was measured."""

import statistics

from hwbmpq.measure.measurement import MeasuredLayer, Measurement
from hwbmpq.measure.programs import FLOAT, INT8, QDQ16, UINT8, WEIGHT_ONLY, Program

_ALIKE = 0.05
"""Shares of float's time that differ by less count as equal."""
_TINY_US = 20.0
"""In layers that take less in float, calling the kernel is most of the time."""
_ONLY_TINY = " (only layers of a few microseconds were measured)"
_DOUBTFUL = 0.5
"""Estimates of unmeasured layers with a larger relative error are guesses."""
_KINDS = {"conv2d": "convolutions", "dwconv2d": "depthwise convolutions", "linear": "linear layers"}


def findings(measurement: Measurement) -> tuple[str, ...]:
    """The caveats of a measured profile."""
    return (
        *(sentence for op in measurement.ops for sentence in _about_integers(measurement, op)),
        *_about_narrow_weights(measurement),
        *_about_sixteen_bits(measurement),
        *_about_weight_only(measurement),
        *_about_missing(measurement),
        _about_conditions(measurement),
    )


def _ratios(measurement: Measurement, program: Program, op: str) -> list[tuple[float, MeasuredLayer]]:
    """Every layer that this program and float were measured for, with its share of float's time."""
    layers = [layer for layer in measurement.layers if layer.geometry.op == op]
    floats = {layer.geometry: layer.timing.us for layer in layers if layer.program == FLOAT.name}
    return [
        (layer.timing.us / floats[layer.geometry], layer)
        for layer in layers
        if layer.program == program.name and layer.geometry in floats
    ]


def _is_tiny(ratio: float, layer: MeasuredLayer) -> bool:
    return layer.timing.us / ratio < _TINY_US


def _share(measurement: Measurement, program: Program, op: str) -> tuple[float, str] | None:
    """The share of float's time that all layers take together, and a reservation.

    Tiny layers count only if there are no others.
    """
    found = _ratios(measurement, program, op)
    large = [item for item in found if not _is_tiny(*item)]
    counted = large or found
    if not counted:
        return None
    float_us = sum(layer.timing.us / ratio for ratio, layer in counted)
    return sum(layer.timing.us for _, layer in counted) / float_us, "" if large else _ONLY_TINY


def _about_integers(measurement: Measurement, op: str) -> list[str]:
    narrow, wide = (_share(measurement, program, op) for program in (INT8, UINT8))
    kind = _KINDS.get(op, op)
    if measurement.results.machine.accumulates_int32:
        wide = narrow  # the signed kernel runs all widths
    if narrow and wide and abs(narrow[0] - wide[0]) >= _ALIKE:
        return [
            f"{kind[0].upper()}{kind[1:]} with weights of 7 bits or fewer take {narrow[0]:.2f} of float's time here; with "
            f"8-bit weights beside 8-bit activations {wide[0]:.2f}, since signed bytes could overflow there and another "
            f"kernel runs{wide[1]}."
        ]
    found = wide or narrow
    if found is None:
        return []
    return [
        f"8-bit {kind} take {found[0]:.2f} of float's time here, without quantizing and dequantizing around them{found[1]}."
    ]


def _about_narrow_weights(measurement: Measurement) -> list[str]:
    precisions = measurement.results.manifest.precisions
    widths = sorted({pair.weight_bits for pair in precisions if pair.activation_bits <= 8})
    widest = 8 if measurement.results.machine.accumulates_int32 else 7
    alike = [f"{bits}-bit" for bits in widths if bits <= widest]
    if len(widths) < 2 or not alike:
        return []
    listed = " and ".join(filter(None, [", ".join(alike[:-1]), alike[-1]]))
    return [
        f"{listed} weights beside 8-bit activations run as int8: up to {widest} bits, fewer bits buy size, not time."
    ]


def _about_sixteen_bits(measurement: Measurement) -> list[str]:
    shares = {op: share for op in measurement.ops if (share := _share(measurement, QDQ16, op))}
    large = {op: share for op, share in shares.items() if not share[1]}
    listed = ", ".join(f"{share:.2f} ({_KINDS.get(op, op)})" for op, (share, _) in (large or shares).items())
    if not listed:
        return []
    remark = "" if large else _ONLY_TINY
    return [f"16-bit layers are computed in float, with conversions: {listed} of float's time{remark}."]


def _about_weight_only(measurement: Measurement) -> list[str]:
    """Where reading the weights is most of the work, narrow ones beside float activations can win."""
    largest = {
        bits: max(found, key=lambda item: item[1].geometry.macs)
        for bits, program in WEIGHT_ONLY.items()
        if (found := _ratios(measurement, program, "linear"))
    }
    if not largest:
        return []
    shares = ", ".join(f"{bits} bits {ratio:.2f}" for bits, (ratio, _) in largest.items())
    best = min(ratio for ratio, _ in largest.values())
    verdict = "they buy time as well as size" if best < 1 - _ALIKE else "they buy size, not time"
    ratio, layer = next(iter(largest.values()))
    remark = _ONLY_TINY if _is_tiny(ratio, layer) else ""
    size = f"{layer.geometry.in_channels}→{layer.geometry.out_channels}{remark}"
    return [
        f"Narrow weights beside float activations (MatMulNBits) in the largest linear layer, {size}: {shares} of "
        f"float's time; {verdict}."
    ]


def _about_missing(measurement: Measurement) -> list[str]:
    """What an interruption left out, and whether the rest is enough to estimate it."""
    results = measurement.results
    if results.is_complete:
        return []
    sentence = f"The measurement was interrupted: {measurement.missing} of {len(results.manifest.kernels)} kernels are missing"
    if measurement.fewest_rounds < results.settings.rounds:
        sentence += f", and some have only {measurement.fewest_rounds} of {results.settings.rounds} rounds"
    sentences = [f"{sentence}."]
    misses = {program: error for program, error in measurement.estimate_errors.items() if error > _DOUBTFUL}
    if misses:
        listed = ", ".join(f"{error:.0%} ({program})" for program, error in misses.items())
        sentences.append(
            f"Predictions are not to be trusted: a layer that was not measured is missed by {listed} in the median."
        )
    return sentences


def _about_conditions(measurement: Measurement) -> str:
    spread = statistics.median(layer.timing.std / layer.timing.us for layer in measurement.layers)
    machine = measurement.results.machine
    return (
        f"Measured with batch 1 and {measurement.results.settings.threads} thread(s) on {machine.date}; single rounds spread by "
        f"{spread:.0%} in the median. Other runtimes, versions and thread counts have other times."
    )
