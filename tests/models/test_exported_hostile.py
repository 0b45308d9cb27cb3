"""Exported programs that somebody sent: they run no code, and take no more memory than a network needs."""

import io
import json
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwbmpq.errors import ModelLoadError
from hwbmpq.models import load_model
from hwbmpq.models.program_graph import UnsafeProgramError, clean_graph

GRAPH = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
Change = Callable[[Any], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv(x), approximate="tanh")
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "m.pt2"
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4, max=64)}
    program = torch.export.export(Net().eval(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=(sizes,))
    torch.export.save(program, path)
    assert load_model(f"file:{path}").network
    return path


def changed(good: Path, path: Path, changes: dict[str, Change], **added: bytes) -> Path:
    """A copy of the file in which JSON was changed, and records added."""
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w") as new:
        for full in old.namelist():
            root, _, name = full.partition("/")
            data = old.read(full)
            if name in changes:
                content = json.loads(data)
                changes[name](content)
                data = json.dumps(content).encode()
            if name not in added:
                new.writestr(full, data)
        for name, data in added.items():
            new.writestr(f"{root}/{name}", data)
    return path


def graph_of(program: Any) -> Any:
    return program["graph_module"]["graph"]


def node(program: Any, name: str) -> Any:
    return next(found for found in graph_of(program)["nodes"] if name in found["target"])


def shape_that_runs(code: str) -> Change:
    def change(program: Any) -> None:
        for value in graph_of(program)["tensor_values"].values():
            for size in value["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = code

    return change


def operator_that_runs(target: str, **arguments: Any) -> Change:
    def change(program: Any) -> None:
        first = graph_of(program)["nodes"][0]
        inputs = [{"name": "", "arg": {kind: value}, "kind": 1} for kind, value in arguments.items()]
        graph_of(program)["nodes"].insert(
            0, {**first, "target": target, "inputs": inputs, "outputs": [], "name": "first"}
        )

    return change


def renamed(old: str, new: str) -> Change:
    """All over the graph: an input, whose name torch writes into the source of the network."""

    def change(program: Any) -> None:
        text = json.dumps(program).replace(f'"{old}"', json.dumps(new))
        program.clear()
        program.update(json.loads(text))

    return change


def set_argument(name: str, kind: str, value: Any) -> Change:
    def change(program: Any) -> None:
        node(program, name)["inputs"][-1]["arg"] = {kind: value}

    return change


def nested_in(type_name: str, context: str) -> Change:
    def change(program: Any) -> None:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        version, tree = json.loads(signature["in_spec"])
        tree["children_spec"][1] = {"type": type_name, "context": context, "children_spec": []}
        signature["in_spec"] = json.dumps([version, tree])

    return change


HOSTILE: dict[str, tuple[Callable[[str], dict[str, Change]], str]] = {
    "a shape that runs code": (
        lambda code: {GRAPH: shape_that_runs(f"[{code}] and Symbol('s77', integer=True)")},
        "not the shape of a tensor",
    ),
    "a shape that runs code in an argument": (
        lambda code: {GRAPH: shape_that_runs(f"Symbol('s77', integer=[{code}] and True)")},
        "not the shape of a tensor",
    ),
    "an operator that is no operator": (
        lambda code: {GRAPH: operator_that_runs("torch.os.system", as_string="true")},
        "'torch.os.system' is not an operator",
    ),
    "an operator that loads a library": (
        lambda code: {GRAPH: operator_that_runs("torch.ops.load_library", as_string="/tmp/x.so")},
        "is not an operator",
    ),
    "an operator that opens a file": (
        lambda code: {GRAPH: operator_that_runs("torch.ops.aten.from_file.default", as_string="/tmp/x")},
        "is not an operator",
    ),
    "an operator that writes a file": (
        lambda code: {GRAPH: operator_that_runs("torch.ops.aten.save.default", as_string="/tmp/x")},
        "is not an operator",
    ),
    "an operator of Python's": (
        lambda code: {GRAPH: operator_that_runs("_operator.methodcaller", as_string="x")},
        "is not an operator",
    ),
    "a name that runs code": (lambda code: {GRAPH: renamed("x", f"x=[{code}]")}, "is not a name"),
    "a path that runs code": (
        lambda code: {GRAPH: renamed("conv.weight", f'w"), [{code}], ("')},
        "is not a name",
    ),
    "an argument nested in an enum": (
        lambda code: {
            GRAPH: nested_in("builtins.dict", '{"__enum__": true, "fqn": "antigravity:x", "name": "y"}')
        },
        "nests arguments in more than",
    ),
    "an argument nested in another type": (
        lambda code: {GRAPH: nested_in("collections.namedtuple", '"os.x"')},
        "nests arguments in more than",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_programs_that_would_run_code_are_refused(name: str, good: Path, tmp_path: Path) -> None:
    make, message = HOSTILE[name]
    proof = tmp_path / "proof"
    path = changed(good, tmp_path / "m.pt2", make(f"open({str(proof)!r}, 'w')"))
    with pytest.raises(ModelLoadError, match=re.escape(message)):
        load_model(f"file:{path}").network(torch.randn(2, 3, 8, 8))
    assert not proof.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data/aotinductor/model/x.so", "is not part of a network"),
        ("data/constants/custom_obj_0", "pickled objects"),
        ("models/other.json", "is not part of a network"),
        ("data/weights/other.pt", "is not part of a network"),
    ],
)
def test_other_content_is_refused_unread(name: str, message: str, good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path / "m.pt2", {}, **{name: pickle.dumps(1)})
    with pytest.raises(ModelLoadError, match=message):
        load_model(f"file:{path}")


def test_files_beside_the_network_are_left_out(good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path / "m.pt2", {}, **{"extra/notes.txt": b"notes"})
    assert load_model(f"file:{path}").network


def weights(**changes: Any) -> dict[str, Change]:
    return {WEIGHTS: lambda table: table["config"]["conv.weight"].update(changes)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (weights(use_pickle=True), "pickled objects"),
        (weights(path_name="../constants/x"), "is not a name"),
        (weights(path_name="weight_99"), "does not hold 'weight_99'"),
        (weights(tensor_meta=None), "does not hold 'weight_0'"),
        (
            {
                WEIGHTS: lambda table: table["config"]["conv.weight"]["tensor_meta"].update(
                    sizes=[{"as_int": 10**12}]
                )
            },
            "does not hold 'weight_0'",
        ),
    ],
)
def test_weights_are_plain_records_as_large_as_they_say(
    changes: dict[str, Change], message: str, good: Path, tmp_path: Path
) -> None:
    path = changed(good, tmp_path / "m.pt2", changes)
    with pytest.raises(ModelLoadError, match=message):
        load_model(f"file:{path}")


def test_a_text_argument_stays_a_text(good: Path, tmp_path: Path) -> None:
    """torch quotes it in the source that it writes."""
    proof = tmp_path / "proof"
    text = f"tanh'), open({str(proof)!r}, 'w'), ('"
    path = changed(good, tmp_path / "m.pt2", {GRAPH: set_argument("gelu", "as_string", text)})
    with pytest.raises((ModelLoadError, RuntimeError)):
        load_model(f"file:{path}").network(torch.randn(2, 3, 8, 8))
    assert not proof.exists()


# memory and time

LIMITED = """
import resource, sys, time, torch
from hwbmpq.errors import ModelLoadError
from hwbmpq.models import load_model
try:
    load_model("file:" + sys.argv[1])  # imports what reading takes
except ModelLoadError:
    raise SystemExit("the good one")
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
for path in sys.argv[2:]:
    start = time.process_time()
    try:
        load_model("file:" + path)
    except ModelLoadError as error:
        assert time.process_time() - start < 5, time.process_time() - start
        print(error)
"""


def zeros(count: int) -> Change:
    def change(program: Any) -> None:
        gelu = node(program, "gelu")
        made = {
            **gelu,
            "target": "torch.ops.aten.new_zeros.default",
            "inputs": [gelu["inputs"][0], {"name": "size", "arg": {"as_ints": [count]}, "kind": 1}],
            "outputs": [{"as_tensor": {"name": "made"}}],
            "name": "made",
        }
        graph = graph_of(program)
        graph["tensor_values"]["made"] = graph["tensor_values"]["conv2d"]
        graph["nodes"].insert(1 + graph["nodes"].index(node(program, "conv2d")), made)

    return change


def many_nodes(program: Any) -> None:
    nodes = graph_of(program)["nodes"]
    nodes += [nodes[-1]] * 9_000


def many_shapes(program: Any) -> None:
    size = {"as_expr": {"expr_str": "Symbol('s1', integer=True)", "hint": None}}
    next(iter(graph_of(program)["tensor_values"].values()))["sizes"] = [size] * 30_000


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_programs_that_ask_for_memory_or_time_are_refused(good: Path, tmp_path: Path) -> None:
    power = "Pow(" * 4 + "Integer(9)" + ", Integer(4))" * 4
    cases: dict[str, dict[str, Change]] = {
        "more than 2 GiB": {GRAPH: zeros(10**12)},
        "more than 8000 operations": {GRAPH: many_nodes},
        "20000 shapes": {GRAPH: many_shapes},
        "is not the shape": {GRAPH: shape_that_runs(power)},
        "too large to be a network's": {GRAPH: lambda program: program.update(metadata=[[]] * 1_000_000)},
        "its graph cannot be read": {},
        "compressed": {},
    }
    paths = []
    for number, changes in enumerate(cases.values()):
        paths.append(changed(good, tmp_path / f"{number}.pt2", changes))
    changed(good, paths[-2], {}, **{GRAPH: b"[" * 100_000})
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", b" " * (1 << 30))
    paths[-1].write_bytes(bomb.getvalue())
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, str(good), *map(str, paths)], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-3000:]
    messages = found.stdout.splitlines()
    assert len(messages) == len(cases), messages
    for message, expected in zip(messages, cases, strict=True):
        assert expected in message


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "Mul(Integer(24), Symbol('s53', positive=True, integer=True))",
        "Add(Mul(Integer(-1), FloorDiv(Symbol('u0', integer=True), Integer(2))), Integer(1))",
        "Pow(Symbol('s0', integer=True), Integer(2))",
        "Rational(1, 2)",
        "And(Equality(Symbol('s0', integer=True), Integer(1)), true)",
        "s0",
    ],
)
def test_shapes_as_torch_writes_them_pass(text: str) -> None:
    assert clean_graph({"expr_str": text}) == {"expr_str": text}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "Symbol('s0').__class__",
        "Symbol(__import__('os'))",
        "Symbol('s0', integer=exit())",
        "Symbol('x y')",
        "Integer('9' * 9)",
        "Integer(10000000000000000000000)",
        "factorial(Integer(100000))",
        "Pow(Integer(9), Integer(999999999))",
        "Pow(Integer(9), Symbol('s0'))",
        "Add(*[1])",
        "Add(x for x in [])",
        "lambda: 1",
        "[Integer(1)]",
        "1 if 1 else 1",
        "(y := 1)",
        "f'{1}'",
        "open",
        "Integer()",
        "",
        "(" * 1000,
        "Add(" * 1500,
    ],
)
def test_anything_else_does_not(text: str) -> None:
    with pytest.raises(UnsafeProgramError, match="not the shape of a tensor"):
        clean_graph({"expr_str": text})


# networks that people export


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 6, batch_first=True)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.gru(x.flatten(1, 2))[0])[0][:, -1])


class Mixed(nn.Module):
    """What exporters meet: views, joins, interpolation, a constant, einsum, a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.mix = nn.Conv2d(7, 4, 1)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0, 1.0]).view(1, 4, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = F.interpolate(F.silu(self.up(self.down(x))), scale_factor=1.0, mode="nearest")
        y = self.mix(torch.cat([x, y], dim=1)) * self.scale
        with torch.no_grad():
            mean = y.mean()
        z = self.encoder(torch.einsum("bchw->bhw", y))
        return {"mean": mean, "out": z.softmax(-1), "raw": F.pad(y, (1, 1)).amax((2, 3))}


class Named(nn.Module):
    """Names that no variable can have."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a-b": nn.Conv2d(3, 4, 3), "1 x": nn.Conv2d(4, 2, 3)})

    def forward(self, x: Tensor) -> Tensor:
        return self.parts["1 x"](self.parts["a-b"](x))


@pytest.mark.filterwarnings(
    "ignore:The tensor attributes:UserWarning"
)  # torch's, about its own recurrent layers
@pytest.mark.parametrize(
    ("network", "is_dynamic"), [(Recurrent(), True), (Mixed(), False), (Net(), True), (Named(), True)]
)
def test_networks_that_people_export_are_loaded(network: nn.Module, is_dynamic: bool, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 8, 8)
    sizes = ({0: torch.export.Dim("batch", max=1024)},) if is_dynamic else None
    program = torch.export.export(network.eval(), (images,), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "m.pt2")
    loaded = load_model(f"file:{tmp_path}/m.pt2").network.eval()
    torch.testing.assert_close(loaded(images), network(images))
    if is_dynamic:
        torch.testing.assert_close(loaded(images[:1]), network(images[:1]))
