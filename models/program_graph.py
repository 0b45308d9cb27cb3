"""The graph in a ``.pt2`` file, checked before torch reads it.

torch evaluates shape expressions, looks operators up as attributes of its modules, and pastes names into Python source:
each is a way to run code. What passes here is an identifier, an operator on tensors, or arithmetic on sizes.
"""

import ast
import json
import keyword
import re
from collections.abc import Callable
from typing import Any

import torch

MOST_NODES = 8_000
MOST_EXPRESSIONS = 20_000
_MOST_CHARACTERS = 2_000
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,499}")
_PART = r"(?!__)[\w:/@+ -]{1,300}"  # of a name in a ModuleDict; torch puts it between double quotes
_PATH = re.compile(rf"({_PART}(\.{_PART}){{0,60}})?", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_.+<=-]{0,100}")
_ATEN = re.compile(r"torch\.ops\.aten\.([a-z]\w*|_\w+)\.(\w+)", re.ASCII)
_DROPPED: dict[str, Any] = {"metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {}}
"""Where the code came from, in words, and checks written as Python source: neither is needed."""
_NOT_A_NUMBER = ("Infinity", "-Infinity", "NaN")


class UnsafeProgramError(ValueError):
    """Something that an exported network does not need, and that could run code."""


def clean_graph(program: Any) -> Any:
    """The JSON of an exported program, without what is not needed; ``UnsafeProgramError`` if it could do harm."""
    text = json.dumps(program)
    if text.count('"target"') > MOST_NODES or text.count('"expr_str"') > MOST_EXPRESSIONS:
        raise UnsafeProgramError(f"it has more than {MOST_NODES} operations or {MOST_EXPRESSIONS} shapes")
    return _clean(program, "")


def _clean(value: Any, key: str) -> Any:
    if key in _DROPPED:
        return _DROPPED[key]
    if isinstance(value, dict):
        return {_key(name, key): _clean(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [_clean(entry, key) for entry in value]
    if isinstance(value, str):
        _CHECKS.get(key, _check_path)(value)
    elif isinstance(value, int) and abs(value) >= 1 << 63:
        raise UnsafeProgramError(f"{key} is not a number of a tensor's: {str(value)[:40]}")
    return value


def _key(name: str, parent: str) -> str:
    """Names of nodes are keys of some objects; torch pastes them into the source."""
    (_check_name if parent.endswith("_values") else _check_path)(name)
    return name


def _check_name(text: str) -> None:
    if text and (not _NAME.fullmatch(text) or keyword.iskeyword(text)):
        raise UnsafeProgramError(f"{text!r:.80} is not a name")


def _check_path(text: str) -> None:
    if not _PATH.fullmatch(text):
        raise UnsafeProgramError(f"{text!r:.80} is not a name")


def _check_word(text: str) -> None:
    if not _WORD.fullmatch(text):
        raise UnsafeProgramError(f"{text!r:.80} is not a version")


def _check_number(text: str) -> None:
    if text not in _NOT_A_NUMBER:
        raise UnsafeProgramError(f"{text!r:.80} is not a number")


def _check_text(text: str) -> None:
    """An argument such as the equation of ``einsum``: torch quotes it."""
    if len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise UnsafeProgramError(f"{text!r:.80} is not an argument of an operator on tensors")


# operators


def _check_operator(text: str) -> None:
    found = _ATEN.fullmatch(text)
    if text in _OTHER_OPERATORS or (found and _is_harmless(*found.groups())):
        return
    raise UnsafeProgramError(f"{text!r:.80} is not an operator on tensors that a network needs")


def _is_harmless(name: str, overload: str) -> bool:
    """Whether an ATen operator computes tensors or sizes from tensors, and nothing else."""
    if name in _ASSERTIONS:
        return True
    if name in _REFUSED or (name.startswith("_") and name not in _INTERNAL):
        return False
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    schema = getattr(operator, "_schema", None)
    if schema is None or not torch._C._dispatch_has_kernel(f"aten::{name}" + _suffix(overload)):
        return False
    returned = [str(found.type) for found in schema.returns]
    return bool(returned) and all(kind in _RETURNED for kind in returned)


def _suffix(overload: str) -> str:
    return "" if overload == "default" else f".{overload}"


_RETURNED = ("Tensor", "List[Tensor]", "Optional[Tensor]", "int", "SymInt", "float", "bool", "number")
_REFUSED = frozenset("from_file set set_ set_data resize resize_ resize_as resize_as_ record_stream".split())
"""They open files, or take memory that no tensor has."""
_INTERNAL = frozenset(
    """__and__ __or__ __xor__ __lshift__ __rshift__ _adaptive_avg_pool2d _adaptive_avg_pool3d _cdist_forward _conj
    _convolution _fft_c2c _fft_c2r _fft_r2c _local_scalar_dense _log_softmax _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _prelu_kernel
    _scaled_dot_product_flash_attention_for_cpu _softmax _stack _to_copy _transformer_encoder_layer_fwd
    _native_multi_head_attention _unsafe_index _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa _weight_norm
    _weight_norm_interface""".split()
)
_ASSERTIONS = frozenset(
    "_assert_tensor_metadata _assert_scalar _assert_async sym_constrain_range sym_constrain_range_for_size".split()
)
_OTHER_OPERATORS = frozenset(
    [
        f"_operator.{name}"
        for name in "getitem add sub mul floordiv truediv mod neg pos eq ne lt le gt ge and_ or_".split()
    ]
    + [f"torch.sym_{name}" for name in "int float max min not ite".split()]
    + [f"math.{name}" for name in ("ceil", "floor", "trunc")]
    + [
        f"torch.ops.higher_order.{name}"
        for name in ("cond", "wrap_with_autocast", "wrap_with_set_grad_enabled")
    ]
)


# shapes


def _check_expression(text: str) -> None:
    """As sympy writes it: ``Mul(Integer(24), Symbol('s53', positive=True, integer=True))``."""
    try:
        tree = ast.parse(text if len(text) <= _MOST_CHARACTERS else "?", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UnsafeProgramError(f"{text!r:.80} is not the shape of a tensor") from None
    powers = sum(isinstance(node, ast.Name) and "Pow" in node.id for node in ast.walk(tree))
    if not _is_size(tree) or powers > _MOST_POWERS:
        raise UnsafeProgramError(f"{text!r:.80} is not the shape of a tensor")


def _is_size(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return bool(_SYMBOL.fullmatch(node.id)) or node.id in ("true", "false")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    name, arguments = node.func.id, node.args
    if name in _LITERALS:
        return _is_literal(arguments, _LITERALS[name]) and all(
            isinstance(word.value, ast.Constant) and isinstance(word.value.value, (bool, int))
            for word in node.keywords
        )
    exponent = arguments[-1] if arguments else None
    if "Pow" in name and ast.dump(exponent or node) not in _EXPONENTS:
        return False
    return name in _FUNCTIONS and not node.keywords and all(map(_is_size, arguments))


def _is_literal(arguments: list[ast.expr], is_right: Callable[[Any], bool]) -> bool:
    values = [_signed(argument) for argument in arguments]
    return bool(values) and all(value is not None and is_right(value) for value in values)


def _signed(node: ast.expr) -> Any:
    """The value of a constant; of ``-3`` too. None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = getattr(node.operand, "value", None)
        return -value if isinstance(value, (int, float)) else None
    return getattr(node, "value", None) if isinstance(node, ast.Constant) else None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


_SYMBOL = re.compile(r"[a-z]{1,4}[0-9]{1,6}")
_LITERALS: dict[str, Callable[[Any], bool]] = {
    "Symbol": lambda value: isinstance(value, str) and bool(_SYMBOL.fullmatch(value)),
    "Integer": _is_integer,
    "Rational": _is_integer,
    "Float": lambda value: (
        isinstance(value, (int, float)) or bool(re.fullmatch(r"[-+.0-9eE]{1,40}", str(value)))
    ),
}
_FUNCTIONS = frozenset(
    """Add Mul Pow PowByNatural Mod PythonMod Max Min FloorDiv CeilDiv CleanDiv ModularIndexing Where CeilToInt FloorToInt
    TruncToInt RoundToInt IntTrueDiv FloatTrueDiv ToFloat TruncToFloat Identity floor ceiling And Or Not Equality
    Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan Eq Ne Lt Le Gt Ge""".split()
)
_MOST_POWERS = 3
_EXPONENTS = frozenset(ast.dump(ast.parse(f"Integer({n})", mode="eval").body) for n in (-1, 2, 3, 4))


# how arguments are nested


def _check_treespec(text: str) -> None:
    try:
        version, tree = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise UnsafeProgramError(f"{text!r:.80} does not say how arguments are nested") from None
    if not isinstance(version, int) or not _is_nesting(tree):
        raise UnsafeProgramError(f"{text!r:.80} nests arguments in more than tuples, lists and dicts")


def _is_nesting(tree: Any) -> bool:
    if not isinstance(tree, dict) or set(tree) != {"type", "context", "children_spec"}:
        return False
    try:
        context = json.loads(tree["context"]) if tree["context"] is not None else None
    except (ValueError, TypeError, RecursionError):
        return False
    is_plain = context is None or (
        isinstance(context, list) and all(isinstance(n, (str, int)) for n in context)
    )
    return is_plain and tree["type"] in _CONTAINERS and all(map(_is_nesting, tree["children_spec"]))


_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")

_CHECKS: dict[str, Callable[[str], None]] = {
    "name": _check_name,
    "as_name": _check_name,
    "forward_arg_names": _check_name,
    "target": _check_operator,
    "as_operator": _check_operator,
    "expr_str": _check_expression,
    "in_spec": _check_treespec,
    "out_spec": _check_treespec,
    "as_string": _check_text,
    "as_strings": _check_text,
    "as_float": _check_number,
    "as_floats": _check_number,
    "torch_version": _check_word,
    "verifiers": _check_word,
}
"""By the field that a text stands in; others hold paths of modules and parameters."""
