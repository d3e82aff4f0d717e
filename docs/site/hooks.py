"""Makes pages for a site of files that are written for a repository.

- Links to files outside of docs/ lead to the repository's web address (`repo_url`). Without one they become text.
- A link to a directory leads to its README.
- A fence such as "```sh n1 background" gets a title of what tests know it by: the machine, and that the command stays.
- A page that would load a script, a style, a font or a picture from another host ends the build.
- llms.txt lists the pages of the menu, each with its first sentence, for programs that read the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.nav import Section

# The menu of the site that is being made.
menu = None

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.M | re.S)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^( *```sh) ([\w-]+)( background)?$", re.M)
MACHINE = re.compile(r"n\d")
FROM_ELSEWHERE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)[^>]*\bhref=\"?(?:https?:)?//")


def on_config(config):
    # With an address in its header, a page of this theme asks some Git hosts how many stars the repository has.
    config.extra["repository"], config.repo_url = config.repo_url, None
    return config


def on_page_markdown(markdown, page, config, files):
    code = [match.span() for match in CODE.finditer(markdown)]

    def rewritten(match):
        # A label may be code; the place where it ends may not.
        at = match.start("target")
        if any(begin <= at < end for begin, end in code):
            return match[0]
        return link(match, page.file.src_uri, config.extra["repository"])

    return FENCE.sub(titled, LINK.sub(rewritten, markdown))


def titled(match):
    fence, label, background = match.groups()
    parts = [label] if MACHINE.fullmatch(label) else []
    if background:
        parts.append("a terminal of its own")
    return f'{fence} title="{", ".join(parts)}"' if parts else fence


def link(match, page, repository):
    """The link as it is, to the README of a directory, to the repository, or as text."""
    path, _, anchor = match["target"].partition("#")
    if "://" in match["target"] or match["target"].startswith("mailto:") or not path:
        return match[0]
    target = (DOCS / posixpath.dirname(page) / path).resolve()
    if not target.is_relative_to(ROOT) or not target.exists():
        raise PluginError(f"{page} links to {path}, which is not in the repository")
    anchor = anchor and f"#{anchor}"
    if target.is_relative_to(DOCS):
        if not target.is_dir():
            return match[0]
        return f"[{match['text']}]({posixpath.join(path, 'README.md')}{anchor})"
    if match["image"]:
        raise PluginError(f"{page} shows {path}, which is not below docs/")
    name = target.relative_to(ROOT).as_posix()
    if repository:
        kind = "tree" if target.is_dir() else "blob"
        return f"[{match['text']}]({repository.rstrip('/')}/{kind}/main/{name}{anchor})"
    return match["text"] if name in match["text"] else f"{match['text']} (`{name}`)"


def on_post_page(output, page, config):
    found = FROM_ELSEWHERE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def on_nav(nav, config, files):
    global menu
    menu = nav
    return nav


def on_post_build(config):
    home, *others = menu.pages
    lines = [f"# {config.site_name}", "", f"> {first_paragraph(home)}"]
    for item in menu.items:
        lines += listed(item) if isinstance(item, Section) else []
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n")


def listed(section, above=""):
    """A heading, and a line for each page of a section; sections in it follow."""
    title = f"{above}{section.title}"
    pages = [f"- [{page.title}]({page.url}): {first_sentence(page)}" for page in section.children if page.is_page]
    lines = ["", f"## {title}", "", *pages] if pages else []
    for inner in section.children:
        lines += listed(inner, f"{title}: ") if isinstance(inner, Section) else []
    return lines


def first_sentence(page):
    return re.split(r"(?<=[.:]) ", first_paragraph(page), maxsplit=1)[0].rstrip(":")


def first_paragraph(page):
    """The first paragraph as plain text: no heading, table, list, picture or code."""
    for block in re.split(r"\n\s*\n", page.markdown):
        # A decision begins with a label, which says nothing alone.
        text = re.sub(r"^\*\*\w+\.\*\* ", "", " ".join(LINK.sub(r"\g<text>", block).split()))
        if text and not re.match(r"[#|!<>-]|```|\d+\. ", text) and not block.lstrip("\n").startswith("    "):
            return re.sub(r"\*+", "", text)
    raise PluginError(f"{page.file.src_uri} has no paragraph that llms.txt could have")
