"""Run folders that a stranger may send."""

import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from hostile import Place, case

from hwbmpq.training.checkpoint import _NO_COMMENT, FORMAT, _comment
from hwbmpq.training.run_directory import RunDirectory

DRAWING = "\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp.exe\x7f"
EVALUATE = ["evaluate", "../sent/run"]
REPORT = ["report", "../sent/run"]
PAGE = [*REPORT, "--html", "page.html"]


def copy(place: Place) -> Path:
    shutil.copytree(place.run, place.sent / "run")
    return place.sent / "run"


def set_config(run: Path, **settings: str) -> None:
    """Replace whole lines of config.yaml, or add them."""
    path = run / "config.yaml"
    text = path.read_text()
    for name, value in settings.items():
        text = re.sub(rf"^{name}:.*\n(?:[ -].*\n)*", "", text, flags=re.MULTILINE) + f"{name}: {value}\n"
    path.write_text(text)


def bomb(levels: int = 9, width: int = 9, first: str = "[x, x]") -> str:
    """Lists of lists by aliases, which are enormous when they are followed."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def checkpoint(run: Path, content: Any, name: str = "checkpoint.pt") -> None:
    """A checkpoint whose checksum is right, whatever is in it."""
    for old in run.glob("checkpoint*.pt"):
        old.unlink()
    buffer = io.BytesIO()
    if isinstance(content, bytes):
        buffer.write(content)
    else:
        torch.save(content, buffer)
    archive = buffer.getvalue()
    comment = _comment(archive)
    whole = archive[: -len(_NO_COMMENT)] + struct.pack("<H", len(comment)) + comment
    (run / name).write_bytes(whole)


def change_json(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# config.yaml


@case("--trust")
def config_names_code(place: Place) -> list[str]:
    (place.sent / "evil.py").write_text(f"{place.evil_code}\ndef make_net(): pass\n")
    set_config(copy(place), model=f"file:{place.sent}/evil.py:make_net")
    return EVALUATE


@case("--trust")
def config_names_code_of_the_folder_itself(place: Place) -> list[str]:
    run = copy(place)
    (run / "evil.py").write_text(f"{place.evil_code}\ndef make_net(): pass\n")
    set_config(run, model="file:../sent/run/evil.py:make_net")
    return ["export", "../sent/run"]


@case("--trust")
def config_names_code_for_its_data(place: Place) -> list[str]:
    (place.sent / "evil.py").write_text(f"{place.evil_code}\ndef make(): pass\n")
    set_config(copy(place), data=f"file:{place.sent}/evil.py:make")
    return ["benchmark", "../sent/run"]


@case("--trust")
def config_names_code_for_its_task(place: Place) -> list[str]:
    (place.sent / "evil.py").write_text(f"{place.evil_code}\nclass Task: pass\n")
    set_config(copy(place), task=f"file:{place.sent}/evil.py:Task")
    return ["compress", "--resume", "../sent/run"]


@case("--trust")
def settings_file_names_code(place: Place) -> list[str]:
    (place.sent / "evil.py").write_text(f"{place.evil_code}\ndef make_net(): pass\n")
    text = f"model: file:{place.sent}/evil.py:make_net\ntarget: mpic\n"
    (place.sent / "settings.yaml").write_text(text)
    return ["compress", "--config", "../sent/settings.yaml"]


@case("config.yaml")
def config_has_python_tags(place: Place) -> list[str]:
    set_config(copy(place), device=f"!!python/object/apply:builtins.eval [{json.dumps(place.evil_code)}]")
    return EVALUATE


@case("config.yaml")
def config_of_aliases(place: Place) -> list[str]:
    run = copy(place)
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + bomb())
    return EVALUATE


@case("config.yaml")
def config_of_aliases_as_a_value(place: Place) -> list[str]:
    run = copy(place)
    (run / "config.yaml").write_text(
        bomb(6).replace("a5: &a5", "lr: &a5") + (run / "config.yaml").read_text()
    )
    return EVALUATE


@case("config.yaml")
def config_of_merged_keys(place: Place) -> list[str]:
    lines = ["m0: &m0 {a: 1}"]
    lines += [f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    run = copy(place)
    (run / "config.yaml").write_text("\n".join(lines) + "\n")
    return EVALUATE


@case("config.yaml")
def config_of_brackets(place: Place) -> list[str]:
    (copy(place) / "config.yaml").write_text("epochs: " + "[" * 100_000)
    return EVALUATE


@case("config.yaml")
def config_of_four_gigabytes(place: Place) -> list[str]:
    with (copy(place) / "config.yaml").open("wb") as file:
        file.truncate(1 << 28)  # as large as the limits of the test allow
    return EVALUATE


@case()
def config_of_huge_numbers(place: Place) -> list[str]:
    set_config(copy(place), epochs="9" * 30, interval_epochs="1", seed="9" * 30, batch_size="9" * 30)
    return EVALUATE


@case("epochs")
def config_of_wrong_types(place: Place) -> list[str]:
    set_config(copy(place), epochs="{a: [1, 2]}", budgets="5", bits="{}", lr="[]", model="7")
    return EVALUATE


@case("budgets")
def config_of_long_values(place: Place) -> list[str]:
    set_config(copy(place), budgets=f"[{'x' * 500_000}]")
    return EVALUATE


@case()
def config_that_asks_for_a_huge_network(place: Place) -> list[str]:
    set_config(copy(place), num_classes="2000000000")
    return EVALUATE


@case()
def config_that_asks_for_huge_images(place: Place) -> list[str]:
    set_config(copy(place), input="3x60000x60000")
    return EVALUATE


@case("values in an input")
def config_that_asks_for_large_images(place: Place) -> list[str]:
    set_config(copy(place), input="3x4096x4096")
    return EVALUATE


@case("fake")
def config_that_asks_for_many_images(place: Place) -> list[str]:
    set_config(copy(place), data="fake", test_images="200000000")
    return EVALUATE


@case()
def config_that_draws(place: Place) -> list[str]:
    set_config(copy(place), data=json.dumps(f"folder:{DRAWING}"))
    return EVALUATE


# checkpoints


class _Runs:
    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> Any:
        return eval, (self._code,)


@case("checkpoint.pt")
def checkpoint_runs_code(place: Place) -> list[str]:
    checkpoint(copy(place), {"format": FORMAT, "model": _Runs(place.evil_code)})
    return EVALUATE


@case("checkpoint.pt")
def checkpoint_is_a_bare_pickle(place: Place) -> list[str]:
    checkpoint(copy(place), pickle.dumps(_Runs(place.evil_code)) + b"\0\0")
    return EVALUATE


@case("checkpoint")
def checkpoint_is_a_list(place: Place) -> list[str]:
    checkpoint(copy(place), [1, 2, 3])
    return EVALUATE


@case("checkpoint")
def checkpoint_holds_numbers_for_weights(place: Place) -> list[str]:
    checkpoint(copy(place), {"format": FORMAT, "model": 5, "progress": {"epoch": 1}})
    return EVALUATE


@case("checkpoint")
def checkpoint_holds_lists_for_weights(place: Place) -> list[str]:
    run = copy(place)
    state, _ = RunDirectory(run).load_checkpoint()
    state["model"] = {name: [1.0] for name in state["model"]}
    checkpoint(run, state)
    return EVALUATE


@case("checkpoint")
def checkpoint_without_progress(place: Place) -> list[str]:
    run = copy(place)
    state, _ = RunDirectory(run).load_checkpoint()
    checkpoint(run, {"format": FORMAT, "model": state["model"], "progress": [None]})
    return EVALUATE


@case("checkpoint")
def checkpoint_of_another_structure_is_resumed(place: Place) -> list[str]:
    run = copy(place)
    state, _ = RunDirectory(run).load_checkpoint()
    checkpoint(run, {**state, "allocator": {**state["allocator"], "history": 3}})
    return ["compress", "--resume", "../sent/run"]


@case("checkpoint")
def checkpoint_that_unpacks_to_gigabytes(place: Place) -> list[str]:
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "model": {"x": torch.zeros(4)}}, buffer)
    packed = io.BytesIO()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            is_storage = "/data/" in entry.filename
            new.writestr(entry.filename, bytes(1 << 30) if is_storage else old.read(entry))
    checkpoint(copy(place), packed.getvalue())
    return EVALUATE


def doubled_key() -> bytes:
    """An archive of torch's with a key of 2**40 leaves: a tuple of a tuple twice, and so on."""
    key = b"K\0" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(40))
    buffer, new_buffer = io.BytesIO(), io.BytesIO()
    torch.save({}, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(new_buffer, "w") as new:
        for name in old.namelist():
            is_pickle = name.endswith(".pkl")
            new.writestr(name, b"\x80\x02}" + key + b"K\1s." if is_pickle else old.read(name))
    return new_buffer.getvalue()


@case("repeats values")
def checkpoint_whose_key_never_hashes(place: Place) -> list[str]:
    checkpoint(copy(place), doubled_key())
    return EVALUATE


@case("checkpoint")
def checkpoint_is_a_pipe(place: Place) -> list[str]:
    run = copy(place)
    (run / "checkpoint.previous.pt").unlink()
    (run / "checkpoint.pt").unlink()
    os.mkfifo(run / "checkpoint.pt")
    return EVALUATE


@case("checkpoint")
def checkpoint_is_endless(place: Place) -> list[str]:
    run = copy(place)
    (run / "checkpoint.previous.pt").unlink()
    (run / "checkpoint.pt").unlink()
    (run / "checkpoint.pt").symlink_to("/dev/zero")
    return EVALUATE


@case("config.yaml")
def config_is_a_pipe(place: Place) -> list[str]:
    run = copy(place)
    (run / "config.yaml").unlink()
    os.mkfifo(run / "config.yaml")
    return EVALUATE


# what is written


@case()
def exported_file_is_a_link(place: Place) -> list[str]:
    run = copy(place)
    (run / "model.safetensors").unlink()
    (run / "model.safetensors").symlink_to(place.outside / "victim")
    return ["export", "../sent/run", "--format", "packed"]


@case()
def unfinished_export_is_a_link(place: Place) -> list[str]:
    run = copy(place)
    (run / "model.safetensors.unfinished").symlink_to(place.outside / "victim")
    return ["export", "../sent/run", "--format", "packed"]


# what a report reads


def _draw(content: Any) -> Any:
    """Every name of a layer, title, source and note draws."""
    text = json.dumps(content)
    for name in ("conv1", "mpic", "hwbmpq:resnet8 at", "MPIC", "enbg"):
        text = text.replace(name, json.dumps(name + DRAWING + "<script>alert(1)</script>[red]$x_1$")[1:-1])
    return json.loads(text)


def _drawing_run(place: Place) -> Path:
    run = copy(place)
    for name in ("facts.json", "allocation.json"):
        (run / name).write_text(json.dumps(_draw(json.loads((run / name).read_text()))))
    lines = (run / "history.jsonl").read_text().splitlines()
    (run / "history.jsonl").write_text(
        "\n".join(json.dumps(_draw(json.loads(line))) for line in lines) + "\n"
    )
    return run


@case()
def names_that_draw_in_the_terminal(place: Place) -> list[str]:
    _drawing_run(place)
    return [*REPORT, "--all"]


@case()
def names_that_draw_in_json(place: Place) -> list[str]:
    _drawing_run(place)
    return [*REPORT, "--json"]


@case()
def names_that_draw_in_the_page(place: Place) -> list[str]:
    _drawing_run(place)
    return PAGE


@case()
def folder_with_a_name_that_draws(place: Place) -> list[str]:
    copy(place)
    name = f"r\x1b[31m\n\udcff{DRAWING}[red]"
    os.rename(os.fsencode(place.sent / "run"), os.fsencode(place.sent / name))
    return ["report", os.fsdecode(os.fsencode(f"../sent/{name}")), "--html", "page.html"]


@case("run")
def facts_of_wrong_types(place: Place) -> list[str]:
    change_json(copy(place) / "facts.json", lambda facts: facts.update(layers={"a": 1}, tables=[[]]))
    return REPORT


@case()
def facts_of_huge_numbers(place: Place) -> list[str]:
    def grow(facts: Any) -> None:
        for layer in facts["layers"]:
            layer["parameters"] = 10**400
        facts["parameters"] = facts["macs"] = -(10**4000)

    change_json(copy(place) / "facts.json", grow)
    return PAGE


@case("history.jsonl")
def history_is_a_pipe(place: Place) -> list[str]:
    run = copy(place)
    (run / "history.jsonl").unlink()
    os.mkfifo(run / "history.jsonl")
    return REPORT


@case("run")
def history_of_wrong_types(place: Place) -> list[str]:
    run = copy(place)
    lines = [json.dumps(line) for line in ([], 5, {"epoch": "x", "bits": {}, "decision": [1]})]
    (run / "history.jsonl").write_text("\n".join(lines) + "\n")
    return REPORT


@case("history.jsonl")
def history_of_brackets(place: Place) -> list[str]:
    (copy(place) / "history.jsonl").write_text("[" * 200_000 + "\n")
    return REPORT


@case("history.jsonl")
def history_of_a_million_lines(place: Place) -> list[str]:
    run = copy(place)
    line = (run / "history.jsonl").read_text().splitlines()[-1]
    (run / "history.jsonl").write_text(f"{line}\n" * 200_000)
    return REPORT


@case("run")
def allocation_of_wrong_types(place: Place) -> list[str]:
    def spoil(result: Any) -> None:
        result["costs"]["memory"] = [None]
        result["allocation"] = {"bits": 3}

    change_json(copy(place) / "allocation.json", spoil)
    return REPORT


@case()
def packed_account_of_wrong_types(place: Place) -> list[str]:
    change_json(copy(place) / "allocation.json", lambda result: result.update(packed_file={"lines": 7}))
    return PAGE
