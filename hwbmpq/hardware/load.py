"""Reads profiles: finds them, puts them together from their bases, checks them, and reads their tables."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import platformdirs

from hwbmpq.errors import UnknownNameError
from hwbmpq.hardware import lookup_table, yaml_reader
from hwbmpq.hardware.checks import validate
from hwbmpq.hardware.document import Place, ProfileError, ProfileProblem, YamlNode
from hwbmpq.hardware.lookup_table import LookupTable, parse_lookup_table
from hwbmpq.hardware.normalise import apply_mode, merge, normalise
from hwbmpq.hardware.profile import HardwareProfile
from hwbmpq.hardware.schema import is_name
from hwbmpq.hardware.yaml_reader import parse_document

SUFFIXES = (".yaml", ".yml")
FOLDER_VARIABLE = "HWBMPQ_PROFILES"


def shipped_folder() -> Path:
    """Where the profiles that come with hwbmpq are."""
    return Path(str(resources.files("hwbmpq.hardware_profiles")))


def user_folders() -> tuple[Path, ...]:
    """Where the user's own profiles are: ``HWBMPQ_PROFILES`` (several with the path separator), or the
    platform's configuration folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return tuple(Path(folder).expanduser() for folder in named.split(os.pathsep) if folder)
    return (Path(platformdirs.user_config_dir("hwbmpq", appauthor=False)) / "profiles",)


def missing_folders() -> tuple[Path, ...]:
    """Folders that ``HWBMPQ_PROFILES`` names and that are not there."""
    return tuple(
        folder for folder in user_folders() if os.environ.get(FOLDER_VARIABLE) and not os.path.exists(folder)
    )


def search_folders() -> tuple[Path, ...]:
    """Where a name is looked up, in this order."""
    return (*user_folders(), shipped_folder())


def profile_files() -> Iterator[Path]:
    """Every profile file of the search path, bases included."""
    for folder in search_folders():
        try:
            yield from sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
        except OSError:  # no such folder, or not for us to read: the others may have it
            continue


def locate(target: str) -> tuple[Path, str]:
    """The file of a target, and its mode."""
    before, _, after = target.rpartition("@")
    for spec, mode in [(target, ""), *([(before, after)] if before and after else [])]:
        is_path = Path(spec).name != spec
        if (is_path or spec.endswith(SUFFIXES)) and os.path.exists(spec):
            return Path(spec), mode
        found = next(named_files(_stem(spec), search_folders()), None)
        if found is not None:
            return found, mode
    if os.sep in target:
        raise ProfileError.at(Place(file=target), "no such file")
    folders = ", ".join(map(str, search_folders()))
    name = _stem(target.partition("@")[0])
    known = {path.stem for path in profile_files() if not path.stem.startswith("_")}
    raise UnknownNameError(
        "hardware profile", name, known, hint=f"`hwbmpq targets list` shows them all; looked in {folders}"
    )


def _stem(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def named_files(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Files of that name. A name is not a path: separators do not match."""
    if name and Path(name).name == name and name not in (".", ".."):
        paths = (folder / f"{name}{suffix}" for folder in folders for suffix in SUFFIXES)
        yield from (path for path in paths if os.path.isfile(path))


def is_inside(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a regular file lies in one of the folders, links followed."""
    real = Path(os.path.realpath(path)) if os.path.isfile(path) else None
    return real is not None and any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def read_bytes(path: Path, most: int, allowed: Sequence[Path] | None = None) -> bytes:
    """At most ``most`` bytes and one, of a regular file (which ends) in one of the allowed folders."""
    if not os.path.exists(path):
        message = "no such file"
    elif not os.path.isfile(path):
        message = "not a regular file"
    elif allowed is not None and not is_inside(path, allowed):
        message = "leads outside the profile's folder and the search path"
    else:
        try:
            with path.open("rb") as file:
                return file.read(most + 1)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
    raise ProfileError.at(Place(file=str(path)), message)


MOST_MODES = 64
MOST_TABLES = 16
MOST_BYTES_OF_A_NAME = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """A profile that was found, or why it cannot be used."""

    name: str
    path: Path
    profile: HardwareProfile | None
    error: ProfileError | None


def list_profiles() -> tuple[Listing, ...]:
    """Every profile that a name can select, the user's before the shipped ones."""
    found: dict[str, Listing] = {}
    for path in profile_files():
        if path.stem in found:
            continue  # an earlier folder has one of this name
        try:
            profile = _read(path, "")
        except ProfileError as error:
            found[path.stem] = Listing(name=path.stem, path=path, profile=None, error=error)
        else:
            if not profile.abstract:
                found[path.stem] = Listing(name=path.stem, path=path, profile=profile, error=None)
    return tuple(found.values())


def load_profile(target: str | Path) -> HardwareProfile:
    """The profile that ``--target`` names: a name, ``name.yaml``, ``name@mode`` or a path.

    A name is looked up in the user's folder first, then among the shipped profiles.
    """
    path, mode = locate(str(target))
    profile = _read(path, mode)
    if profile.abstract:
        raise ProfileError.at(Place(file=str(path)), "a base to extend, not a device", field="abstract")
    return profile


def check_profile(target: str | Path) -> HardwareProfile:
    """Read a profile with all its modes; ``ProfileError`` lists everything that is wrong with any of them."""
    path = Path(target)
    if not os.path.exists(path) and path.suffix not in SUFFIXES:
        path, _ = locate(str(target))
    return _read(path, "", all_modes=True)


def _read(path: Path, mode: str, *, all_modes: bool = False) -> HardwareProfile:
    problems: list[ProfileProblem] = []
    chain = _chain(path, problems)
    root = chain[0][1]
    for _, child in chain[1:]:
        root = merge(root, child)
    own = chain[-1][1]
    _check_name(own, path, problems)
    modes = list(root.mapping["modes"].mapping) if "modes" in root.mapping else []
    if mode and mode not in modes:
        known = f"it has: {', '.join(modes)}" if modes else "it has none"
        raise ProfileError.at(root.find("modes").place, f"no mode {mode!r}; {known}", field="modes")
    if len(modes) > MOST_MODES:
        message = f"{len(modes)} modes; a profile has at most {MOST_MODES}"
        raise ProfileError.at(root.find("modes").place, message, field="modes")
    for other in modes if all_modes else ():
        changed = apply_mode(root, other, problems)
        # Without the modes themselves: checking n of them n times over would take long.
        validate(
            changed.holding({key: node for key, node in changed.mapping.items() if key != "modes"}), problems
        )
    root = apply_mode(root, mode, problems) if mode else root
    profile = validate(root, problems)
    tables = _tables(root, [folder for folder, _ in chain], problems)
    if profile is None or problems:
        raise ProfileError(problems)
    profile.attach(mode=mode, files=tuple(node.place.file for _, node in chain), tables=tables, root=root)
    return profile


def _check_name(node: YamlNode, path: Path, problems: list[ProfileProblem]) -> None:
    name = node.mapping.get("name")
    if name is not None and isinstance(name.value, str) and name.value != path.stem:
        message = f"{name.value[:80]!r} in a file called {path.name}: write `name: {path.stem}`"
        if not is_name(path.stem):
            message = f"the file has to be called {name.value[:80]}.yaml"
        problems.append(name.problem(message))


def _chain(path: Path, problems: list[ProfileProblem]) -> list[tuple[Path, YamlNode]]:
    """The profile and its bases, the farthest first, each with its folder; in canonical form."""
    found: list[tuple[Path, YamlNode]] = []
    seen: list[Path] = []
    current: Path | None = path
    allowed: list[Path] | None = None  # the first file is the user's choice, wherever it is
    while current is not None:
        content = read_bytes(current, yaml_reader.MOST_BYTES, allowed)
        node = normalise(parse_document(content, str(current)), HardwareProfile, problems)
        found.append((current.parent, node))
        seen.append(current.resolve())
        extends = node.mapping.get("extends")
        if extends is None or extends.value is None:
            break
        allowed = [current.parent, *search_folders()]
        current = _base(extends, current, allowed, seen)
    return found[::-1]


def _base(extends: YamlNode, child: Path, folders: list[Path], seen: list[Path]) -> Path:
    name = str(extends.value)[:MOST_BYTES_OF_A_NAME]
    # A user's profile may extend the shipped one of the same name: the file itself is passed over.
    others = [path for path in named_files(name, folders) if path.resolve() != child.resolve()]
    message = ""
    if not others and child.stem == name:
        message = "a profile cannot extend itself"
    elif not others:
        message = f"no profile {name[:80]!r} beside this file, in your folder or among the shipped ones"
    elif others[0].resolve() in seen:
        message = f"a cycle: {' extends '.join(path.stem for path in [*seen, others[0]])}"
    if message:
        raise ProfileError.at(extends.place, message, field="extends")
    return others[0]


def _tables(root: YamlNode, folders: list[Path], problems: list[ProfileProblem]) -> dict[str, LookupTable]:
    """The lookup tables that a profile names, from the folders of the files that make it up."""
    listed = root.find("lookup_tables")
    if len(listed.items) > MOST_TABLES:
        problems.append(listed.problem(f"{len(listed.items)} tables; a profile has at most {MOST_TABLES}"))
        return {}
    found: dict[str, LookupTable] = {}
    left = lookup_table.MOST_BYTES
    for ref in listed.items:
        entries = ref.plain() if ref.mapping else {}
        name, file, sha256 = (entries.get(key) for key in ("id", "file", "sha256"))
        if not isinstance(name, str) or not isinstance(file, str):
            continue  # the schema says so
        try:
            path = _table_file(ref.mapping["file"], file, folders)
            content = read_bytes(path, left)
            left -= len(content)
            if left < 0:
                most = f"{lookup_table.MOST_BYTES >> 20} MiB"
                raise ProfileError.at(
                    Place(file=str(path)), f"the tables of a profile are larger than {most} together"
                )
            found[name] = parse_lookup_table(
                content, str(path), sha256=sha256 if isinstance(sha256, str) else None
            )
        except ProfileError as error:
            problems += error.problems
    return found


def _table_file(node: YamlNode, file: str, folders: list[Path]) -> Path:
    """The file of a table: beside the profile that names it, beside its bases, or in the search path."""
    allowed = list(dict.fromkeys([Path(node.place.file).parent, *folders[::-1], *search_folders()]))
    found = next((folder / file for folder in allowed if is_inside(folder / file, allowed)), None)
    if found is None:
        message = f"no file {file[:80]!r} in the profile's folder or the search path"
        raise ProfileError([node.problem(message)])
    return found
