"""What a measurement says about bits and time, in sentences; every number in them was measured."""

import json
import statistics
from collections.abc import Iterable

from hwbmpq.measure.forms import FLOAT, INT8, QDQ16, UINT8, WEIGHT_ONLY, Form
from hwbmpq.measure.tables import MeasuredLayer, Measurement

_ALIKE = 0.05
"""Shares of float's time that differ by less are called equal."""
_KINDS = {"conv2d": "convolutions", "dwconv2d": "depthwise convolutions", "linear": "linear layers"}


def findings(measurement: Measurement) -> tuple[str, ...]:
    """The caveats of a measured profile."""
    found = [
        *(sentence for op in measurement.ops if (sentence := _about_integers(measurement, op))),
        *_about_narrow_weights(measurement),
        *_about_sixteen_bits(measurement),
        *_about_weight_only(measurement),
        _about_conditions(measurement),
    ]
    return tuple(found)


def ratios(measurement: Measurement, form: Form, op: str) -> list[tuple[float, MeasuredLayer]]:
    """For every layer that was measured both ways: its share of float's time."""
    floats = {_key(layer): layer.timing.us for layer in _of(measurement, FLOAT, op)}
    return [
        (layer.timing.us / floats[_key(layer)], layer)
        for layer in _of(measurement, form, op)
        if _key(layer) in floats
    ]


def _of(measurement: Measurement, form: Form, op: str) -> Iterable[MeasuredLayer]:
    return (layer for layer in measurement.layers if layer.entry.form == form.name and layer.op == op)


def _key(layer: MeasuredLayer) -> str:
    return json.dumps(layer.entry.geometry)


def _share(measurement: Measurement, form: Form, op: str) -> float | None:
    """All layers together: the share of float's time that they take."""
    found = ratios(measurement, form, op)
    float_us = sum(layer.timing.us / ratio for ratio, layer in found)
    return sum(layer.timing.us for _, layer in found) / float_us if found else None


def _about_integers(measurement: Measurement, op: str) -> str:
    narrow, wide = (_share(measurement, form, op) for form in (INT8, UINT8))
    kind = _KINDS.get(op, op)
    if measurement.results.machine.wide_sums:
        wide = narrow  # the signed kernel runs all widths
    if wide is None and narrow is None:
        return ""
    if narrow is None or wide is None or abs(narrow - wide) < _ALIKE:
        share = wide if wide is not None else narrow
        return f"8-bit {kind} take {share:.2f} of float's time here, without quantizing and dequantizing around them."
    return (
        f"{kind[0].upper()}{kind[1:]} with weights of 7 bits or fewer take {narrow:.2f} of float's time here; with 8-bit weights "
        f"beside 8-bit activations {wide:.2f}, since signed bytes could overflow there and another kernel runs."
    )


def _about_narrow_weights(measurement: Measurement) -> list[str]:
    widths = sorted(
        {
            precision.weight_bits
            for precision in measurement.results.manifest.precisions
            if precision.activation_bits <= 8
        }
    )
    widest = 8 if measurement.results.machine.wide_sums else 7
    alike = [bits for bits in widths if bits <= widest]
    if len(widths) < 2 or not alike:
        return []
    *others, last = (f"{bits}-bit" for bits in alike)
    spoken = f"{', '.join(others)} and {last}" if others else last
    return [
        f"{spoken} weights beside 8-bit activations run as int8: up to {widest} bits, fewer bits buy size, not time."
    ]


def _about_sixteen_bits(measurement: Measurement) -> list[str]:
    shares = {op: _share(measurement, QDQ16, op) for op in measurement.ops}
    spoken = [f"{share:.2f} ({_KINDS.get(op, op)})" for op, share in shares.items() if share is not None]
    if not spoken:
        return []
    return [f"16-bit layers are computed in float, with conversions: {', '.join(spoken)} of float's time."]


def _about_weight_only(measurement: Measurement) -> list[str]:
    """Where reading the weights is most of the work, narrow ones beside float activations can win."""
    spoken = []
    for bits, form in WEIGHT_ONLY.items():
        found = ratios(measurement, form, "linear")
        if found:
            ratio, layer = max(found, key=lambda item: item[1].entry.macs)
            geometry = layer.entry.geometry or {}
            size = f"{geometry['in_channels']}→{geometry['out_channels']}"
            spoken.append((bits, ratio, size))
    if not spoken:
        return []
    shares = ", ".join(f"{bits} bits {ratio:.2f}" for bits, ratio, _ in spoken)
    best = min(ratio for _, ratio, _ in spoken)
    verdict = "they buy time as well as size" if best < 1 - _ALIKE else "they buy size, not time"
    return [
        f"Narrow weights beside float activations (MatMulNBits) in the largest linear layer, {spoken[0][2]}: {shares} of "
        f"float's time; {verdict}."
    ]


def _about_conditions(measurement: Measurement) -> str:
    spread = statistics.median(layer.timing.std / layer.timing.us for layer in measurement.layers)
    machine = measurement.results.machine
    return (
        f"Measured with batch 1 and {measurement.results.settings.threads} thread(s) on {machine.date}; single rounds spread by "
        f"{spread:.0%} in the median. Other runtimes, versions and thread counts have other times."
    )
