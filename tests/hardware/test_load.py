"""Where profiles are found, and how they are put together."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.errors import UnknownNameError
from hwbmpq.hardware import ProfileError, check_profile, list_profiles, load_profile, shipped_folder

Write = Callable[..., Path]
CLOCK = "clock: {{core: {{value: {}, kind: assumed}}}}\n"


def core_hz(path: Path | str) -> float:
    figure = load_profile(path).clock.core_hz
    assert figure is not None
    return figure.value


@pytest.mark.parametrize("target", ["jetson_nano", "jetson_nano.yaml", "jetson_nano.yml"])
def test_a_name_finds_a_shipped_profile(target: str) -> None:
    profile = load_profile(target)
    assert (profile.name, profile.mode, profile.target) == ("jetson_nano", "", "jetson_nano")
    assert profile.files == (str(shipped_folder() / "jetson_nano.yaml"),)


@pytest.mark.parametrize("target", ["jetson_nano@5w", "jetson_nano.yaml@5w"])
def test_a_mode_overrides_figures(target: str) -> None:
    profile = load_profile(target)
    assert profile.clock.core_hz is not None
    assert (profile.target, profile.clock.core_hz.value) == ("jetson_nano@5w", 614.4e6)
    assert profile.clock.core_hz.kind == "reported"


def test_a_path_finds_a_file_with_or_without_a_mode(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(CLOCK.format("1 MHz") + "modes: {fast: {clock.core_hz: {value: 2.0e6, kind: assumed}}}")
    assert core_hz(path) == 1e6
    assert core_hz(f"{path}@fast") == 2e6
    monkeypatch.chdir(path.parent)
    assert core_hz("board.yaml") == 1e6
    assert core_hz("board.yaml@fast") == 2e6
    with pytest.raises(UnknownNameError):
        load_profile("board")  # a bare name is not looked for in the working folder


def test_the_users_folder_comes_before_the_shipped_profiles(write: Write) -> None:
    write(CLOCK.format("3 MHz"), name="mpic", folder="mine")
    assert core_hz("mpic") == 3e6
    assert [listing.name for listing in list_profiles()].count("mpic") == 1


def test_several_user_folders_are_searched_in_order(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(CLOCK.format("1 MHz"), name="own", folder="a")
    write(CLOCK.format("2 MHz"), name="own", folder="b")
    monkeypatch.setenv("HWBMPQ_PROFILES", os.pathsep.join([str(tmp_path / "b"), str(tmp_path / "a")]))
    assert core_hz("own") == 2e6


def test_without_the_variable_the_platforms_folder_is_searched(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HWBMPQ_PROFILES")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write(CLOCK.format("4 MHz"), name="own", folder="hwbmpq/profiles")
    assert core_hz("own") == 4e6


def test_an_unknown_name_suggests_the_close_one() -> None:
    with pytest.raises(
        UnknownNameError, match="no hardware profile named 'jetsn_nano': did you mean jetson_nano"
    ) as caught:
        load_profile("jetsn_nano")
    assert "looked in" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("jetson_nano@7w", "no mode '7w'; it has: 5w"),
        ("mpic@fast", "no mode 'fast'; it has none"),
        ("_pulp_core", "a base to extend, not a device"),
        ("./nothing.yaml", "no such file"),
    ],
)
def test_targets_that_cannot_be_used_say_why(target: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        load_profile(target)


def test_extends_merges_maps_and_replaces_figures_and_lists(write: Write) -> None:
    write(
        CLOCK.format("1 MHz")
        + """
sources: {a: {kind: code, title: A}}
memory: [{name: ram, holds: [weights]}, {name: rom, holds: [activations]}]
power: {active_w: {value: 1, kind: datasheet, src: a, note: old}, idle_w: {value: 2, kind: assumed}}
cost_models: {energy: {model: power_time, kind: upper_bound}, latency: {model: roofline}}
""",
        name="base",
    )
    child = write(
        """extends: base
sources: {b: {kind: code, title: B}}
memory: [{name: only, holds: [weights]}]
power: {active_w: {value: 3, kind: assumed}, idle_w: null}
cost_models: {energy: {model: energy_per_op}}
""",
        widths="",
    )
    profile = load_profile(child)
    assert list(profile.sources) == ["a", "b"]
    assert [level.name for level in profile.memory] == ["only"]
    assert profile.power.active_w is not None
    assert (profile.power.active_w.value, profile.power.active_w.note) == (3, None)
    assert profile.power.idle_w is None
    assert profile.clock.core_hz is not None
    assert profile.cost_models["energy"].options == {}
    assert profile.cost_models["latency"].model == "roofline"
    assert [Path(file).stem for file in profile.files] == ["base", "board"]


def test_a_base_may_be_abstract_and_its_child_is_not(write: Write) -> None:
    write("abstract: true\n", name="base")
    assert not load_profile(write("extends: base\n")).abstract


def test_a_block_default_of_the_base_does_not_vouch_for_the_child(write: Write) -> None:
    """`src` of a block holds for the numbers of that file only."""
    base = "sources: {a: {kind: code, title: A}}\npower: {kind: datasheet, src: [a], active_w: 1}\n"
    write(base, name="base")
    with pytest.raises(ProfileError, match=r"board.yaml:7:17: power.idle_w: a figure needs its origin"):
        load_profile(write("extends: base\npower: {idle_w: 1}\n"))


def test_a_users_profile_may_extend_the_shipped_one_of_its_name(write: Write) -> None:
    path = write("extends: mpic\n" + CLOCK.format("9 MHz"), name="mpic", folder="mine", widths="")
    profile = load_profile("mpic")
    assert profile.files == (
        str(shipped_folder() / "_pulp_core.yaml"),
        str(shipped_folder() / "mpic.yaml"),
        str(path),
    )
    assert len(profile.compute.table) == 9


def test_inheritance_cycles_and_missing_bases_are_named(write: Write) -> None:
    write("extends: b\n", name="a")
    write("extends: c\n", name="b")
    path = write("extends: a\n", name="c")
    with pytest.raises(ProfileError, match=r"b.yaml:6:10: extends: a cycle: c extends a extends b extends c"):
        load_profile(path)
    with pytest.raises(ProfileError, match="a profile cannot extend itself"):
        load_profile(write("extends: board\n"))
    with pytest.raises(ProfileError, match="no profile 'nobody' beside this file"):
        load_profile(write("extends: nobody\n"))


def test_problems_of_a_base_are_reported_in_the_base(write: Write) -> None:
    write("clock: {cor: 1}\n", name="base")
    with pytest.raises(ProfileError, match=r"base.yaml:6:9: clock.cor: unknown key: did you mean `core`"):
        load_profile(write("extends: base\n"))


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "sub/secret", "..", ".", "secret\\0", "link", "42"]
)
def test_extends_reads_nothing_outside(name: str, write: Write, tmp_path: Path) -> None:
    write(
        "caveats: [SECRET]\nwrong_key: SECRET\n", name="secret"
    )  # it would be complained about if it were read
    write("caveats: [SECRET]\nwrong_key: SECRET\n", name="secret", folder="here/sub")
    (tmp_path / "here" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    path = write(f'extends: "{name}"\n', folder="here")
    with pytest.raises(
        ProfileError, match=r"no profile|leads outside the profile's folder and the search path"
    ) as caught:
        load_profile(path)
    assert len(caught.value.problems) == 1


def test_modes_reach_into_lists_by_name_and_short_keys(write: Write) -> None:
    path = write(
        """
memory: [{name: ram, size: {value: 1 KiB, kind: assumed}}, {name: rom, size: {value: 2 KiB, kind: assumed}}]
modes:
  big: {memory.rom.size: 4 KiB, compute.units: 3, kind: assumed}
"""
    )
    profile = load_profile(f"{path}@big")
    sizes = {level.name: level.size_bytes.value for level in profile.memory if level.size_bytes}
    assert sizes == {"ram": 1024, "rom": 4096}
    assert profile.compute.units == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clock.cor: 1 MHz", "modes.m.clock.cor: unknown key: did you mean `core`"),
        ("memory.rom.size: 1 KiB", "no entry named 'rom'; there are: ram"),
        ("memory.ram: 1", "names a whole entry"),
        ("name: other", "unknown key"),
        ("title.x: 1", "`title` has no keys below it"),
        ("clock.core: 1", "1 has no unit"),
        ("clock.core_hz: 1.0e6", "a figure needs its origin"),
        ("compute.units: many", "expected a whole number, found 'many'"),
    ],
)
def test_wrong_overrides_of_a_mode_are_found_by_check(override: str, message: str, write: Write) -> None:
    path = write(f"memory: [{{name: ram}}]\nmodes: {{m: {{{override}}}}}\n")
    assert load_profile(path).name == "board"  # the mode is not used
    with pytest.raises(ProfileError, match=message):
        check_profile(path)


@pytest.mark.parametrize(
    "target", ["x" * 300, "a/" * 2000 + "b.yaml", "x" * 300 + "@mode", "\0", "\0/x.yaml", "@", ""]
)
def test_targets_that_cannot_be_paths_are_unknown(target: str) -> None:
    with pytest.raises((UnknownNameError, ProfileError), match=r"no hardware profile named|no such file"):
        load_profile(target)


def test_a_folder_that_cannot_be_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWBMPQ_PROFILES", "/" + "x" * 5000)
    assert load_profile("mpic").name == "mpic"
    assert list_profiles()


def test_extends_may_be_too_long_for_a_name(write: Write) -> None:
    with pytest.raises(ProfileError, match="extends: no profile"):
        load_profile(write(f"extends: {'x' * 500}\n"))


def test_many_modes_are_checked_quickly(write: Write) -> None:
    modes = "".join(
        f"  m{n}: {{compute.units: 2, clock.core: {{value: 1 MHz, kind: assumed}}}}\n" for n in range(64)
    )
    start = time.perf_counter()
    check_profile(write(f"modes:\n{modes}"))
    assert time.perf_counter() - start < 2


def test_a_mode_may_choose_another_cost_model_or_budget(write: Write) -> None:
    path = write(
        "cost_models: {latency: {model: roofline, weights_in: x}}\nmodes: {m: {cost_models.latency: {model: gap8}, budgets.flash: 1 MiB}}\n"
    )
    profile = load_profile(f"{path}@m")
    assert (profile.cost_models["latency"].model, profile.cost_models["latency"].options) == ("gap8", {})
    assert profile.budgets == {"flash": "1 MiB"}
    assert load_profile(path).budgets == {}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    (tmp_path / "folder.yaml").mkdir()
    for path in (pipe, tmp_path / "folder.yaml"):
        with pytest.raises(ProfileError, match="not a regular file"):
            load_profile(path)
    with pytest.raises(ProfileError, match="not a regular file"):
        load_profile("/dev/zero")


def test_unreadable_files_say_so(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ProfileError, match="cannot be read: Permission denied"):
        load_profile(path)


def test_a_broken_profile_of_the_user_is_listed_as_broken(write: Write) -> None:
    write("nonsense: 1\n", name="broken", folder="mine")
    (listing,) = [listing for listing in list_profiles() if listing.name == "broken"]
    assert listing.profile is None
    assert listing.error is not None
    assert "unknown key" in str(listing.error)


def test_a_large_file_is_not_read_whole(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("")
    with path.open("ab") as file:
        file.truncate(10 << 20)
    asked: list[int] = []
    real_open = Path.open

    def watched(self: Path, *arguments: object, **named: object) -> object:
        opened = real_open(self, *arguments, **named)  # type: ignore[call-overload]
        real_read = opened.read
        opened_read = lambda size=-1: asked.append(size) or real_read(size)  # noqa: E731
        return type(
            "Watched",
            (),
            {
                "__enter__": lambda s: type("R", (), {"read": staticmethod(opened_read)}),
                "__exit__": lambda s, *a: opened.close(),
            },
        )()

    monkeypatch.setattr(Path, "open", watched)
    with pytest.raises(ProfileError, match="larger than 1 MiB"):
        load_profile(path)
    assert asked == [(1 << 20) + 1]


def test_every_mode_is_checked(write: Write) -> None:
    path = write("modes: {good: {compute.units: 2}, bad: {compute.units: none}}\n")
    with pytest.raises(ProfileError, match="expected a whole number"):
        check_profile(path)


def test_profiles_are_listed_in_order_without_bases(write: Write) -> None:
    write("", name="zeta", folder="mine")
    write("", name="alpha", folder="mine")
    names = [listing.name for listing in list_profiles()]
    assert names[:2] == ["alpha", "zeta"]
    assert names[2:] == sorted(names[2:])
    with pytest.raises(UnknownNameError) as caught:
        load_profile("pulp_core")
    assert "_pulp_core" not in str(caught.value)


def test_empty_parts_and_a_tilde_in_the_variable(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("", name="own", folder="home/profiles")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HWBMPQ_PROFILES", f"{os.pathsep}~/profiles{os.pathsep}")
    assert load_profile("own").name == "own"
    monkeypatch.chdir(tmp_path / "home" / "profiles")
    monkeypatch.setenv("HWBMPQ_PROFILES", f"/nowhere{os.pathsep}")
    with pytest.raises(UnknownNameError):
        load_profile("own")  # an empty part is not the working folder


@pytest.mark.parametrize("key", ["schema", "modes", "extends"])
def test_a_mode_does_not_change_what_the_profile_is(key: str, write: Write) -> None:
    with pytest.raises(ProfileError, match=f"modes.m.{key}: unknown key"):
        check_profile(write(f"modes: {{m: {{{key}: x}}}}\n"))
