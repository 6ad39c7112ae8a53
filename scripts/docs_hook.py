"""A hook of MkDocs: files outside of docs/ that the pages link to become pages or files of the site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")  # in the repository, and in the site
FOLDERS = ("examples", "benchmarks/results", "scripts")
HOME = {"README.md": "index.md"}  # the repository's front page, and the site's
_LINK = re.compile(r"\]\((?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files under the paths that they have in the repository."""
    root = Path(config.config_file_path).parent
    inside = [path.relative_to(root).as_posix() for folder in FOLDERS for path in (root / folder).glob("*.*")]
    for path in (*PAGES, "LICENSE", *inside):
        files.append(File.generated(config, path, abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write links for the site, where docs/ and the repository's root are one folder; the front page has the width."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    site = page.file.src_uri
    source = site if site in PAGES else f"docs/{site}"

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["path"]))
        target = HOME.get(target, target).removeprefix("docs/")
        path = posixpath.relpath(target, posixpath.dirname(site) or ".")
        return f"]({path}{found['anchor'] or ''})"

    return _LINK.sub(link, markdown)
