"""Where profiles are, and reading files from there only."""

import os
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import platformdirs

from hwbmpq.errors import UnknownNameError
from hwbmpq.hardware.problems import Place, ProfileError

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
        folder for folder in user_folders() if os.environ.get(FOLDER_VARIABLE) and not is_there(folder)
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
    for spec, mode in ((target, ""), target.rpartition("@")[::2]):
        if not spec or (spec != target and not mode):
            continue
        is_path = os.sep in spec or (os.altsep is not None and os.altsep in spec)
        if is_path or (spec.endswith(SUFFIXES) and is_there(Path(spec))):
            if is_there(Path(spec)):
                return Path(spec), mode
        else:
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


def is_there(path: Path) -> bool:
    """Whether something is at a path; False for one that cannot be (too long, a null character)."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _stem(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def named_files(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Files of that name. A name is not a path: separators do not match."""
    if not name or Path(name).name != name or name in (".", ".."):
        return
    for folder in folders:
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            if is_there(path) and path.is_file():
                yield path


def is_inside(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a regular file lies in one of the folders, links followed."""
    try:
        real = path.resolve()
        return path.is_file() and any(real.is_relative_to(folder.resolve()) for folder in folders)
    except (OSError, ValueError):  # no such place, a loop of links, a null character
        return False


def read_bytes(path: Path, most: int, allowed: Sequence[Path] | None = None) -> bytes:
    """At most ``most`` bytes and one, of a regular file (which ends) in one of the allowed folders."""
    message = ""
    try:
        if not is_there(path):
            message = "no such file"
        elif not path.is_file():
            message = "not a regular file"
        elif allowed is not None and not is_inside(path, allowed):
            message = "leads outside the profile's folder and the search path"
        else:
            with path.open("rb") as file:
                return file.read(most + 1)
    except (OSError, ValueError) as error:
        message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ProfileError.at(Place(file=str(path)), message)
