"""File systems in memory that are small or read-only; root alone may mount them."""

import subprocess
from pathlib import Path


class SmallDisk:
    """A tmpfs of so many KiB, for as long as the block lasts."""

    def __init__(self, path: Path, kibibytes: int) -> None:
        self.path, self._kibibytes = path, kibibytes

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={self._kibibytes}k", "tmpfs", str(self.path))
        return self

    def __exit__(self, *problem: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True, capture_output=True)

    def resize(self, kibibytes: int) -> None:
        self._remount(f"size={kibibytes}k")

    def make_read_only(self) -> None:
        self._remount("ro")

    def make_writable(self) -> None:
        self._remount("rw")

    def _remount(self, option: str) -> None:
        _mount("-o", f"remount,{option}", str(self.path))


def why_no_disk(folder: Path) -> str:
    """Empty if file systems can be mounted here."""
    probe = folder / "probe"
    try:
        with SmallDisk(probe, 64):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return f"no tmpfs can be mounted here: {detail.strip()}"
    return ""


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, text=True)
