"""Debian packages that are taken along: what a minimal system has, and the index of a folder."""

from __future__ import annotations

from ansible.module_utils.container_engine_debian import index, minimal_system, named_in, stanzas

STATUS = """\
Package: base
Status: install ok installed
Priority: required
Depends: libc (>= 2) | other, virtual
Description: long
 text
 .

Package: libc
Status: install ok installed
Priority: optional
Pre-Depends: libgcc:any

Package: libgcc
Status: install ok installed
Priority: optional

Package: provider
Status: install ok installed
Priority: optional
Provides: virtual (= 1), more

Package: gone
Status: deinstall ok config-files
Priority: required

Package: extra
Status: install ok installed
Priority: optional
"""


def test_a_minimal_system_is_what_is_required_and_what_that_depends_on() -> None:
    kept = stanzas(minimal_system(STATUS))
    assert [each["Package"] for each in kept] == ["base", "libc", "libgcc", "provider"]
    assert kept[0]["Description"] == "long\n text\n ."


def test_the_index_of_a_folder_names_each_file_with_its_checksum() -> None:
    (entry,) = stanzas(index([("Package: a\nVersion: 1\nDepends: b\n", "a_1_all.deb", 12, "f" * 64)]))
    assert entry == {
        "Package": "a",
        "Version": "1",
        "Depends": "b",
        "Filename": "./a_1_all.deb",
        "Size": "12",
        "SHA256": "f" * 64,
    }


def test_files_are_read_from_what_apt_prints() -> None:
    said = "Reading lists...\n'http://mirror/pool/a_1%3a2_amd64.deb' a_1%3a2_amd64.deb 123 SHA256:ab\n"
    assert named_in(said) == ["a_1%3a2_amd64.deb"]
