"""``hwbmpq inspect`` as a person types it."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

import hwbmpq
from hwbmpq.cli.commands import inspect
from hwbmpq.cli.main import main
from hwbmpq.cli.render.tables import bar, compact, print_graph, shorten
from hwbmpq.models.zoo import NETWORKS
from hwbmpq.values import UNCOVERED_REASONS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_resnet18_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspect", "--model", "timm:resnet18", "--input", "3x224x224", "--json")
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert len(content["layers"]) == 21
    assert content["totals"]["weights"] == 11_678_912
    assert content["totals"]["layer_macs"] == pytest.approx(1.82e9, rel=0.01)
    assert [group["layers"] for group in content["ties"]] == [
        ["layer1.1.conv2", "layer2.0.downsample.0"],
        ["layer2.1.conv2", "layer3.0.downsample.0"],
        ["layer3.1.conv2", "layer4.0.downsample.0"],
    ]
    assert content["traced_by"] == "fx"
    assert {entry["reason"] for entry in content["uncovered"]} == {"norm", "bias"}
    assert (content["model"], content["input_size"]) == ("timm:resnet18", [3, 224, 224])


def test_tables_say_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = run(capsys, "inspect", "--model", "hwbmpq:resnet20_b")
    assert code == 0
    for fact in (
        "hwbmpq:resnet20_b at 3x32x32",
        "layer3.0.shortcut.0",
        "64x32x1x1",
        "22 layers",
        "270,896 weights",
        "traced by fx",
        "downsample layer2.0.shortcut.0 follows its input layer layer1.2.conv2",
        "Left in float",
        "scales and shifts of normalisation layers",
    ):
        assert fact in out


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_tables_fit_the_terminal(width: int) -> None:
    model = hwbmpq.models.load_model("timm:resnet18", device="meta")
    file = io.StringIO()
    graph = hwbmpq.describe(model.network, model.example_input())
    print_graph(Console(width=width, file=file), graph, title="resnet18")
    lines = file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    if width >= 80:
        assert any(
            line.split()[:3] == ["layer4.1.conv2", "conv2d", "512x512x3x3" if width >= 120 else "2,359,296"]
            for line in lines
        )


def test_a_large_network_shows_its_largest_layers_unless_all_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, short, _ = run(capsys, "inspect", "--model", "timm:densenet121")
    model = hwbmpq.models.load_model("timm:densenet121", device="meta")
    sizes = sorted(layer.parameters for layer in hwbmpq.describe(model.network, model.example_input()))
    hidden = sum(sizes[:61]) / sum(sizes)
    assert f"61 smaller layers with {hidden:.1%} of the weights are not shown" in short
    assert "classifier" in short  # the largest of them all
    _, long, _ = run(capsys, "inspect", "--model", "timm:densenet121", "--all")
    assert "smaller layers" not in long
    assert len(long.splitlines()) >= len(short.splitlines()) + 60


def test_tie_policy_reaches_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "inspect", "--model", "hwbmpq:resnet8_b", "--tie", "none", "--json")
    assert json.loads(out)["ties"] == []


def test_networks_that_look_at_values_fall_back_to_real_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x) if x.sum() > 0 else self.fc(-x)\n"
    )
    code, out, _ = run(capsys, "inspect", "--model", f"file:{tmp_path}/net.py:Net", "--input", "4", "--json")
    assert (code, json.loads(out)["traced_by"]) == (0, "hooks")


def test_local_weights_are_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    network = hwbmpq.models.load_model("hwbmpq:resnet8").network
    torch.save({"state_dict": network.state_dict()}, tmp_path / "w.pt")
    arguments = ("inspect", "--model", "hwbmpq:resnet8", "--weights", f"{tmp_path}/w.pt", "--json")
    assert run(capsys, *arguments)[0] == 0
    code, out, err = run(capsys, *arguments, "--num-classes", "7")
    assert (code, out) == (2, "")
    assert "linear.weight is (10, 64), the model has (7, 64)" in err


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--model", "timm:resnt18"], "no timm model named 'resnt18': did you mean resnet18", ""),
        (["--model", "resnet18"], "cannot read the model specification", "timm:NAME"),
        (
            ["--model", "hwbmpq:vgg16", "--input", "3x8x8"],
            "does not run on an input of 3x8x8",
            "--input CxHxW",
        ),
        (
            ["--model", "hwbmpq:resnet8", "--input", "1x32x32"],
            "does not run on an input of 1x32x32",
            "--input",
        ),
        (["--model", "hwbmpq:resnet8", "--input", "big"], "cannot read the input size 'big'", "3x224x224"),
        (["--model", "hwbmpq:resnet8", "--weights", "gone.pt"], "no weights file gone.pt", ""),
        (["--model", "file:gone.py:make"], "no file gone.py", ""),
    ],
)
def test_bad_input_is_a_sentence_on_stderr_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    code, out, err = run(capsys, "inspect", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert hint in err
    assert "Traceback" not in err


def test_a_network_without_layers_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\ndef make():\n    return torch.nn.ReLU()\n")
    code, _, err = run(capsys, "inspect", "--model", f"file:{tmp_path}/net.py:make", "--input", "3x4x4")
    assert code == 2
    assert "error: ReLU has no layer to quantize" in err
    assert "try: hwbmpq quantizes convolutions, matrix products and embeddings" in err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(hwbmpq.HwbmpqError):
        main(["inspect", "--model", "hwbmpq:nothing", "--debug"])


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["inspect", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        assert "examples:" in capsys.readouterr().out


def test_bars_and_names() -> None:
    assert bar(0, 4) == "    "
    assert bar(1, 4) == "████"
    assert bar(0.5, 4) == "██  "
    assert bar(0.09375, 4) == "▍   "
    assert shorten("stages.2.blocks.0.conv1", 12) == "sta….0.conv1"
    assert shorten("conv1", 12) == "conv1"


def test_what_a_factory_prints_does_not_mix_with_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef make():\n    print('building')\n    return torch.nn.Linear(4, 2)\n"
    )
    code, out, err = run(
        capsys, "inspect", "--model", f"file:{tmp_path}/net.py:make", "--input", "4", "--json"
    )
    assert code == 0
    assert json.loads(out)["totals"]["weights"] == 8
    assert "building" in err


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hwbmpq inspect --model hwbmpq:resnet56 --all | head -1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "resnet56" in result.stdout


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (640, "640"),
        (9216, "9.2 k"),
        (118_013_952, "118.0 M"),
        (1_820_000_000, "1.8 G"),
        (10**12, "1.0 T"),
    ],
)
def test_compact_numbers(count: int, text: str) -> None:
    assert compact(count) == text


def test_a_zoos_network_that_needs_values_is_built_again_with_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class LooksAtValues(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) if x.sum() > 0 else self.fc(-x)

    monkeypatch.setitem(NETWORKS, "values", lambda num_classes: LooksAtValues())
    code, out, _ = run(capsys, "inspect", "--model", "hwbmpq:values", "--input", "4", "--json")
    assert (code, json.loads(out)["traced_by"]) == (0, "hooks")


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "describe_model", interrupt)
    assert main(["inspect", "--model", "hwbmpq:resnet8"]) == 130


def test_messages_are_not_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[bold]x.py" in run(capsys, "inspect", "--model", "file:[bold]x.py:make")[2]


def test_every_reason_for_staying_in_float_is_explained() -> None:
    class Everything(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))
            self.kernel = torch.nn.Parameter(torch.ones(8, 8))
            self.table = torch.nn.Embedding(3, 8)
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.norm = torch.nn.LayerNorm(8)
            self.unused = torch.nn.Linear(3, 3)
            self.fc = torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.nn.functional.linear(x * self.scale + self.table.weight[0], self.kernel.tanh())
            x = self.norm(self.attention(x, x, x, need_weights=False)[0])
            return self.fc(x @ x.transpose(1, 2) @ x)

    graph = hwbmpq.describe(Everything(), torch.randn(1, 5, 8))
    reasons = {entry.reason for entry in graph.uncovered}
    assert reasons == set(UNCOVERED_REASONS)
    file = io.StringIO()
    print_graph(Console(width=140, file=file), graph, title="all")
    assert all(UNCOVERED_REASONS[reason] in file.getvalue() for reason in reasons)


def test_figures_of_a_row_and_of_the_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 12, bias=False))
    file = io.StringIO()
    print_graph(Console(width=140, file=file), hwbmpq.describe(model, torch.randn(1, 4)), title="two")
    rows = [line.split() for line in file.getvalue().splitlines()]
    assert ["2", "linear", "12x4", "12", "48", "75.0%", "████████████", "48", "75.0%", "████████████"] in rows
    assert "2 layers, 64 weights (94.12% of 68 parameters), 64 MACs (100.00% of all)" in file.getvalue()


def test_kinds_name_depthwise_grouped_and_repeated_layers() -> None:
    twice = torch.nn.Conv2d(4, 4, 1, groups=2)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1, groups=4), twice, twice)
    file = io.StringIO()
    print_graph(Console(width=140, file=file), hwbmpq.describe(model, torch.randn(1, 4, 2, 2)), title="kinds")
    assert "conv2d dw " in file.getvalue()
    assert "conv2d /2 x2" in file.getvalue()
