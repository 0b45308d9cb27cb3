"""Builds the documentation as a site: ``python docs/build_site.py`` writes ``site/``, configured by ``mkdocs.yml``.

The pages of ``docs/`` read well on GitHub as they are. For the site they are copied to ``build/docs/``, together with the two
pages at the top that they link to and with the reference, which is generated and not committed. Formulas become MathML,
which browsers draw by themselves: nothing is loaded from elsewhere.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import generate_reference
import latex2mathml.converter

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
STAGE = ROOT / "build" / "docs"
TOP_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_MATH = re.compile(
    r"^```math\n(?P<fenced>.*?)^```$|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^\s$][^$\n]*)\$"
    r"|^```.*?^```$|`[^`\n]+`",  # code is left alone: what looks like a formula there is a shell's variable
    re.MULTILINE | re.DOTALL,
)


def stage(folder: Path) -> None:
    """Write all pages of the site into an empty folder."""
    shutil.copytree(DOCS / "images", folder / "images")
    for page in DOCS.glob("*.md"):
        (folder / page.name).write_text(_staged(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name in TOP_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / name).write_text(_staged(text.replace("](docs/", "](")), encoding="utf-8")
    generate_reference.write(folder)


def _staged(text: str) -> str:
    """Links to the top stay in the folder; generated pages, which GitHub does not have, are linked."""
    for name in TOP_PAGES:
        text = text.replace(f"](../{name}", f"]({name}")
    for name in generate_reference.PAGES:
        text = text.replace(f"`{name}`", f"[{name}]({name})")
    return _MATH.sub(_formula, text)


def _formula(match: re.Match[str]) -> str:
    block = match["fenced"] or match["display"]
    if block:
        return latex2mathml.converter.convert(block, display="block")
    if match["inline"]:  # in a span: Markdown takes a line that begins with <math> for a block
        return f"<span>{latex2mathml.converter.convert(match['inline'])}</span>"
    return match[0]


def main() -> int:
    """Stage the pages and build the site; a broken link is an error."""
    shutil.rmtree(STAGE, ignore_errors=True)
    STAGE.mkdir(parents=True)
    stage(STAGE)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run([*command, "--config-file", str(ROOT / "mkdocs.yml")], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
