"""Debian packages for a box without a network: what is taken along, and the index of a folder (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Stanza = dict[str, str]


def stanzas(text: str) -> list[Stanza]:
    """The paragraphs of a dpkg status file or a control file, by field name; continued lines are kept."""
    found: list[Stanza] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        fields: Stanza = {}
        name = ""
        for line in paragraph.splitlines():
            if line[:1] in (" ", "\t") and name:
                fields[name] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            found.append(fields)
    return found


def _alternatives(depends: str) -> list[list[str]]:
    """``a (>= 1) | b, c:any`` as [[a, b], [c]]."""
    groups = (group for group in depends.replace("\n", " ").split(",") if group.strip())
    return [[re.split(r"[\s(:\[]", each.strip())[0] for each in group.split("|")] for group in groups]


def minimal_system(status: str) -> str:
    """The part of a dpkg status file that every Debian has: required packages and what they depend on.

    What is needed beyond it is what has to be taken along to another machine.
    """
    every = [each for each in stanzas(status) if "ok installed" in each.get("Status", "")]
    providers: dict[str, Stanza] = {}
    for each in every:
        for name in re.split(r"[\s,]+", re.sub(r"\(.*?\)", "", each.get("Provides", ""))):
            providers.setdefault(name, each)
    named = {**providers, **{each["Package"]: each for each in every}}
    kept: dict[str, Stanza] = {}
    waiting = [e for e in every if e.get("Priority") == "required" or e.get("Essential") == "yes"]
    while waiting:
        each = waiting.pop()
        if each["Package"] in kept:
            continue
        kept[each["Package"]] = each
        for group in _alternatives(", ".join(filter(None, (each.get("Pre-Depends"), each.get("Depends"))))):
            waiting += [named[name] for name in group if name in named][:1]
    return "\n".join(_text(kept[name]) for name in sorted(kept))


def index(packages: Iterable[tuple[str, str, int, str]]) -> str:
    """The index of a folder of packages: of each its control file, file name, size in bytes and SHA-256."""
    entries = []
    for control, file, size, sha256 in packages:
        (fields,) = stanzas(control)
        entries.append(_text({**fields, "Filename": f"./{file}", "Size": str(size), "SHA256": sha256}))
    return "\n".join(entries)


def named_in(uris: str) -> list[str]:
    """The files that ``apt-get --print-uris`` names: quoted address, file, size and checksum in each line."""
    lines = (line.split() for line in uris.splitlines() if line.startswith("'"))
    return sorted(words[1] for words in lines if len(words) > 2)


def _text(fields: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in fields.items())
