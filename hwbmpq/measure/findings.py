"""What a measurement says about bits and time, in sentences; every number in them was measured."""

import json
import statistics
from collections.abc import Iterable

from hwbmpq.measure.programs import FLOAT, INT8, QDQ16, UINT8, WEIGHT_ONLY, Program
from hwbmpq.measure.tables import MeasuredLayer, Measurement

_ALIKE = 0.05
"""Shares of float's time that differ by less are called equal."""
_TINY_US = 20.0
"""Layers that take less in float mostly measure the call of a kernel."""
_ONLY_TINY = " (only layers of a few microseconds were measured)"
_DOUBTFUL = 0.5
"""Where unmeasured layers are missed by more than this share, predictions are guesses."""
_KINDS = {"conv2d": "convolutions", "dwconv2d": "depthwise convolutions", "linear": "linear layers"}


def findings(measurement: Measurement) -> tuple[str, ...]:
    """The caveats of a measured profile."""
    found = [
        *(sentence for op in measurement.ops if (sentence := _about_integers(measurement, op))),
        *_about_narrow_weights(measurement),
        *_about_sixteen_bits(measurement),
        *_about_weight_only(measurement),
        *_about_missing(measurement),
        _about_conditions(measurement),
    ]
    return tuple(found)


def ratios(measurement: Measurement, program: Program, op: str) -> list[tuple[float, MeasuredLayer]]:
    """For every layer that was measured both ways: its share of float's time."""
    floats = {_key(layer): layer.timing.us for layer in _of(measurement, FLOAT, op)}
    return [
        (layer.timing.us / floats[_key(layer)], layer)
        for layer in _of(measurement, program, op)
        if _key(layer) in floats
    ]


def _of(measurement: Measurement, program: Program, op: str) -> Iterable[MeasuredLayer]:
    return (layer for layer in measurement.layers if layer.entry.program == program.name and layer.op == op)


def _key(layer: MeasuredLayer) -> str:
    return json.dumps(layer.entry.geometry)


def _share(measurement: Measurement, program: Program, op: str) -> float | None:
    """All layers together: the share of float's time that they take; tiny ones count only if there are no others."""
    found = ratios(measurement, program, op)
    found = [item for item in found if not _is_tiny(*item)] or found
    float_us = sum(layer.timing.us / ratio for ratio, layer in found)
    return sum(layer.timing.us for _, layer in found) / float_us if found else None


def _is_tiny(ratio: float, layer: MeasuredLayer) -> bool:
    return layer.timing.us / ratio < _TINY_US


def _remark(measurement: Measurement, program: Program, op: str) -> str:
    """A reservation about a share."""
    found = ratios(measurement, program, op)
    return _ONLY_TINY if found and all(_is_tiny(*item) for item in found) else ""


def _about_integers(measurement: Measurement, op: str) -> str:
    narrow, wide = (_share(measurement, program, op) for program in (INT8, UINT8))
    kind = _KINDS.get(op, op)
    if measurement.results.machine.accumulates_int32:
        wide = narrow  # the signed kernel runs all widths
    if wide is None and narrow is None:
        return ""
    if narrow is None or wide is None or abs(narrow - wide) < _ALIKE:
        share = wide if wide is not None else narrow
        remark = _remark(measurement, INT8, op) or _remark(measurement, UINT8, op)
        return (
            f"8-bit {kind} take {share:.2f} of float's time here, without quantizing and dequantizing around "
            f"them{remark}."
        )
    return (
        f"{kind[0].upper()}{kind[1:]} with weights of 7 bits or fewer take {narrow:.2f} of float's time here; with 8-bit weights "
        f"beside 8-bit activations {wide:.2f}, since signed bytes could overflow there and another kernel runs"
        f"{_remark(measurement, UINT8, op)}."
    )


def _about_narrow_weights(measurement: Measurement) -> list[str]:
    widths = sorted(
        {
            precision.weight_bits
            for precision in measurement.results.manifest.precisions
            if precision.activation_bits <= 8
        }
    )
    widest = 8 if measurement.results.machine.accumulates_int32 else 7
    alike = [bits for bits in widths if bits <= widest]
    if len(widths) < 2 or not alike:
        return []
    *others, last = (f"{bits}-bit" for bits in alike)
    alike_text = f"{', '.join(others)} and {last}" if others else last
    return [
        f"{alike_text} weights beside 8-bit activations run as int8: up to {widest} bits, fewer bits buy size, not time."
    ]


def _about_sixteen_bits(measurement: Measurement) -> list[str]:
    shares = {op: _share(measurement, QDQ16, op) for op in measurement.ops}
    known = {op: share for op, share in shares.items() if share is not None}
    telling = {op: share for op, share in known.items() if not _remark(measurement, QDQ16, op)}
    found_shares = [f"{share:.2f} ({_KINDS.get(op, op)})" for op, share in (telling or known).items()]
    if not found_shares:
        return []
    remark = "" if telling else _ONLY_TINY
    return [
        f"16-bit layers are computed in float, with conversions: {', '.join(found_shares)} of float's time{remark}."
    ]


def _about_weight_only(measurement: Measurement) -> list[str]:
    """Where reading the weights is most of the work, narrow ones beside float activations can win."""
    found_shares = []
    for bits, program in WEIGHT_ONLY.items():
        found = ratios(measurement, program, "linear")
        if found:
            ratio, layer = max(found, key=lambda item: item[1].entry.macs)
            geometry = layer.entry.geometry or {}
            remark = _ONLY_TINY if _is_tiny(ratio, layer) else ""
            size = f"{geometry['in_channels']}→{geometry['out_channels']}{remark}"
            found_shares.append((bits, ratio, size))
    if not found_shares:
        return []
    shares = ", ".join(f"{bits} bits {ratio:.2f}" for bits, ratio, _ in found_shares)
    best = min(ratio for _, ratio, _ in found_shares)
    verdict = "they buy time as well as size" if best < 1 - _ALIKE else "they buy size, not time"
    return [
        f"Narrow weights beside float activations (MatMulNBits) in the largest linear layer, {found_shares[0][2]}: {shares} of "
        f"float's time; {verdict}."
    ]


def _about_missing(measurement: Measurement) -> list[str]:
    """What an interruption left out, and whether the rest is enough to estimate it."""
    if measurement.results.is_complete:
        return []
    total = len(measurement.results.manifest.kernels)
    rounds = f"{measurement.fewest_rounds} of {measurement.results.settings.rounds}"
    sentences = [
        f"The measurement was interrupted: {measurement.missing} of {total} kernels are missing, and some have only "
        f"{rounds} rounds."
        if measurement.fewest_rounds < measurement.results.settings.rounds
        else f"The measurement was interrupted: {measurement.missing} of {total} kernels are missing."
    ]
    misses = {program: error for program, error in measurement.estimate_errors.items() if error > _DOUBTFUL}
    if misses:
        found_shares = ", ".join(f"{error:.0%} ({program})" for program, error in misses.items())
        sentences.append(
            f"Predictions are not to be trusted: a layer that was not measured is missed by {found_shares} in the median."
        )
    return sentences


def _about_conditions(measurement: Measurement) -> str:
    spread = statistics.median(layer.timing.std / layer.timing.us for layer in measurement.layers)
    machine = measurement.results.machine
    return (
        f"Measured with batch 1 and {measurement.results.settings.threads} thread(s) on {machine.date}; single rounds spread by "
        f"{spread:.0%} in the median. Other runtimes, versions and thread counts have other times."
    )
