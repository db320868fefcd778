"""Makes a library that was linked on a newer glibc run on glibc 2.28 (RHEL 8, Debian 10, Ubuntu 20.04).

Static archives of Debian cannot be linked anew into a shared library (libgomp's and HDF5's code is for programs), so the tables of what stands are changed: a symbol whose
version is newer loses it, and the loader takes the oldest one, or the only one, of that name. That is the same function: glibc 2.34 moved `dlopen` and
`pthread_create` into libc, 2.29 gave `exp`, `log` and `pow` no wrapper for errno. What glibc 2.28 lacks stands in older_glibc.c.
"""
from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

NEWEST = (2, 28)
STAND_IN = "libassay_older_glibc.so"
MOVED = {"pthread_": "libpthread.so.0", "dl": "libdl.so.2"}  # where glibc 2.28 has what is in libc now
DYNSYM, VERSIONS_NEEDED, VERSION_OF_SYMBOL = 11, 0x6FFFFFFE, 0x6FFFFFFF  # types of sections


def objdump(what: str, library: Path) -> str:
    return subprocess.run(["objdump", what, str(library)], capture_output=True, text=True, check=True).stdout


def symbols(library: Path, undefined: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Names and versions of glibc; () where a definition has none."""
    found = []
    for line in objdump("-T", library).splitlines():
        if (m := re.search(r"(?:\(?GLIBC_([\d.]+)\)?|Base|\.text\s+\w+)\s+(\S+)$", line)) and ("*UND*" in line) == undefined:
            found.append((m[2], tuple(map(int, m[1].split("."))) if m[1] else ()))
    return found


def needs(library: Path) -> tuple[int, ...]:
    """The newest version of glibc that the loader asks for."""
    return max((tuple(map(int, v.split("."))) for v in re.findall(r" GLIBC_(\d+\.\d+)", objdump("-p", library))), default=NEWEST)


def lower(library: Path, glibc: list[Path], stand_in: Path) -> list[str]:
    """What it must name as needed besides. A version stays where one of its symbols has nothing older, and the wheel's tag with it."""
    older = {name for path in glibc for name, version in symbols(path, False) if () < version <= NEWEST}
    ours = {name for name, _ in symbols(stand_in, False)}
    newer = [(name, version) for name, version in symbols(library, True) if version > NEWEST]
    kept = {version for name, version in newer if name not in older | ours}
    lowered = {name for name, version in newer if version not in kept}
    rewrite(library, lowered, {"GLIBC_" + ".".join(map(str, version)) for _, version in newer if version not in kept})
    more = {where for name in lowered - ours for start, where in MOVED.items() if name.startswith(start)}
    return sorted(more | ({STAND_IN} if lowered & ours else set()))


def rewrite(library: Path, names: set[str], versions: set[str]) -> None:
    """Takes the version from these undefined symbols, and asks for GLIBC_2.2.5, which every library of glibc has, in the place of the versions."""
    content = bytearray(library.read_bytes())
    start, count = struct.unpack_from("<Q", content, 0x28)[0], struct.unpack_from("<H", content, 0x3C)[0]
    headers = [struct.unpack_from("<IIQQQQIIQQ", content, start + 64 * i) for i in range(count)]
    sections = {header[1]: header for header in headers}  # one of each type below
    if not names:
        return
    strings = headers[sections[DYNSYM][6]][4]

    def text(offset: int) -> str:
        return content[strings + offset : content.index(b"\0", strings + offset)].decode()

    for i in range(sections[DYNSYM][5] // 24):
        name, _, _, section = struct.unpack_from("<IBBH", content, sections[DYNSYM][4] + 24 * i)
        if section == 0 and text(name) in names:
            struct.pack_into("<H", content, sections[VERSION_OF_SYMBOL][4] + 2 * i, 1)  # of no version

    entries = {}  # where: version
    file = sections[VERSIONS_NEEDED][4]
    for _ in range(sections[VERSIONS_NEEDED][7]):
        _, entry_count, _, first, next_file = struct.unpack_from("<HHIII", content, file)
        entry = file + first
        for _ in range(entry_count):
            entries[entry] = text(struct.unpack_from("<I", content, entry + 8)[0])
            entry += struct.unpack_from("<I", content, entry + 12)[0]
        file += next_file
    oldest = next(entry for entry, version in entries.items() if version == "GLIBC_2.2.5")
    for entry, version in entries.items():
        if version in versions:
            content[entry : entry + 4], content[entry + 8 : entry + 12] = content[oldest : oldest + 4], content[oldest + 8 : oldest + 12]
    library.write_bytes(content)
