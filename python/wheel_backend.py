"""Builds the wheel: libassay, the program, and the libraries that they stand on, in a package without compiled Python.

`ci/wheel` runs it as a program, `pip install ./python` as a PEP 517 backend; both need what ci/setup installs, and patchelf.
"""
from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import older_glibc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "release"
# Of glibc, which every Linux of the wheel's tag has; the rest goes along.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so\.\d+")
# What may go along, and under which licence. Nothing under the GPL alone: the wheel is Apache-2.0.
LICENCES = {
    "libaec": "BSD-2-Clause",
    "libassay_older_glibc": "Apache-2.0, functions of ours that glibc 2.28 lacks",
    "libcjson": "MIT",
    "libcrypto": "Apache-2.0",
    "libcurl": "Apache-2.0, a stand-in of ours without functions",
    "libgcc_s": "GPL-3.0 with the GCC Runtime Library Exception",
    "libgomp": "GPL-3.0 with the GCC Runtime Library Exception",
    "libhdf5_serial": "BSD",
    "libpng16": "libpng-2.0",
    "libquadmath": "LGPL-2.1, a file of its own, which you may replace",
    "libsleef": "BSL-1.0",
    "libsz": "BSD-2-Clause",
    "libxxhash": "BSD-2-Clause",
    "libyaml": "MIT",
    "libz": "Zlib",
}
COMMON = {"libquadmath": "LGPL-2.1", "libgomp": "GPL-3"}  # texts that Debian's copyright files refer to
NOTICE = """This package holds libassay and the program assay, under the Apache licence 2.0, into which Random123 (BSD-3-Clause) is compiled.
In assay/libs it holds libraries of Debian, unchanged but for their names and for the versions of glibc that they ask for. Their licences lie beside this file.

"""


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"wheel: {' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def build() -> tuple[Path, Path, dict[str, Path]]:
    """libassay.so, the program, and stand-ins of libraries by name."""
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", BUILD, "--target", "assay_python", "assay_no_curl", "assay_older_glibc", "assay")
    stand_ins = {name: (BUILD / "python" / name).resolve() for name in ("libcurl.so.4", older_glibc.STAND_IN)}
    return BUILD / "python" / "libassay.so", BUILD / "harness" / "assay", stand_ins


def needed(library: Path) -> list[str]:
    names = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", library))
    return [name for name in names if not SYSTEM.fullmatch(name)]


def found(library: Path) -> dict[str, Path]:
    """Where the loader finds what a library needs."""
    pairs = re.findall(r"(\S+) => (/\S+)", run("ldd", library))
    return {name: Path(path).resolve() for name, path in pairs}


def bundle(library: Path, program: Path, stand_ins: dict[str, Path], package: Path) -> dict[str, Path]:
    """Puts libassay.so and bin/assay into the package and what they need into its libs/, each under a name of its own, so that
    the same library of another package in the process is not taken for it. Returns where each came from."""
    (package / "libs").mkdir()
    (package / "bin").mkdir()
    paths = found(library) | found(program) | stand_ins
    ours = {package / "libassay.so": library, package / "bin" / "assay": program}
    for copy, built in ours.items():
        shutil.copyfile(built, copy)
        run("strip", "--strip-unneeded", copy)
    names: dict[str, str] = {}  # soname: name in the wheel
    waiting = list(ours)
    glibc = [paths["libc.so.6"], paths["libm.so.6"]]
    while waiting:
        library = waiting.pop()
        for soname in older_glibc.lower(library, glibc, stand_ins[older_glibc.STAND_IN]):
            run("patchelf", "--add-needed", soname, library)
        for soname in needed(library):
            if soname not in names:
                stem, rest = soname.split(".so", 1)
                content = paths[soname].read_bytes()
                names[soname] = f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}.so{rest}"
                copy = package / "libs" / names[soname]
                copy.write_bytes(content)
                run("patchelf", "--set-soname", names[soname], copy)
                run("patchelf", "--set-rpath", "$ORIGIN", copy)
                waiting.append(copy)
            run("patchelf", "--replace-needed", soname, names[soname], library)
    run("patchelf", "--set-rpath", "$ORIGIN/libs", package / "libassay.so")
    run("patchelf", "--set-rpath", "$ORIGIN/../libs", package / "bin" / "assay")
    return {names[soname]: paths[soname] for soname in sorted(names)}


def licences(sources: dict[str, Path], folder: Path) -> None:
    folder.mkdir()
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    shutil.copyfile("/usr/share/doc/librandom123-dev/copyright", folder / "random123.txt")
    notice = NOTICE
    for name, path in sources.items():
        stem = name.split("-")[0]
        if stem not in LICENCES:
            raise SystemExit(f"wheel: libassay needs {path.name}, which LICENCES of {Path(__file__).name} does not list")
        notice += f"{name}: {LICENCES[stem]}"
        if not path.is_relative_to(ROOT):
            # dpkg may know the file by its path of before /usr was merged.
            owners = [line for line in run("dpkg", "-S", f"*/{path.name}").splitlines() if line.endswith("/" + path.name)]
            owner = owners[0].split(":")[0]
            notice += f"; Debian's {owner} {run('dpkg-query', '-W', '-f=${Version}', owner)}"
            shutil.copyfile(f"/usr/share/doc/{owner}/copyright", folder / f"{stem}.txt")
        if stem in COMMON:
            shutil.copyfile(f"/usr/share/common-licenses/{COMMON[stem]}", folder / f"{COMMON[stem]}.txt")
        notice += "\n"
    (folder / "NOTICE").write_text(notice)


def version() -> str:
    found = re.search(r"project\(assay VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1]


def metadata() -> str:
    return f"""Metadata-Version: 2.1
Name: assay
Version: {version()}
Summary: The reference that MoE and MLA kernels are tried against, in a pytest
License: Apache-2.0
Classifier: Framework :: Pytest
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Description-Content-Type: text/markdown

{description()}"""


def description() -> str:
    """The chapter of docs/your-kernel.md on tests in Python, as a page of its own."""
    chapter = (ROOT / "docs" / "your-kernel.md").read_text().split("\n## A test in Python\n")[1].split("\n## ")[0]
    return "# assay in Python\n" + chapter.replace("\n### ", "\n## ") + "\n"


def record(files: dict[str, Path], name: str) -> str:
    lines = []
    for path, file in files.items():
        content = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}")
    return "\n".join([*lines, f"{name},,", ""])


def make(wheel_directory: Path) -> Path:
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work)
        shutil.copytree(HERE / "assay", tree / "assay", ignore=shutil.ignore_patterns("__pycache__", "*.so", "libs"))
        sources = bundle(*build(), tree / "assay")
        package = tree / "assay"
        libraries = [package / "libassay.so", package / "bin" / "assay", *sorted((package / "libs").iterdir())]
        major, minor = max(older_glibc.NEWEST, *map(older_glibc.needs, libraries))
        tag = f"py3-none-manylinux_{major}_{minor}_x86_64"
        info = tree / f"assay-{version()}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata())
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: assay\nRoot-Is-Purelib: false\nTag: {tag}\n")
        (info / "entry_points.txt").write_text("[pytest11]\nassay = assay.pytest_plugin\n\n[console_scripts]\nassay = assay.__main__:main\n")
        licences(sources, info / "licenses")
        files = {str(file.relative_to(tree)): file for file in sorted(tree.rglob("*")) if file.is_file()}
        (info / "RECORD").write_text(record(files, f"{info.name}/RECORD"))
        files[f"{info.name}/RECORD"] = info / "RECORD"
        wheel = wheel_directory / f"assay-{version()}-{tag}.whl"
        wheel_directory.mkdir(parents=True, exist_ok=True)
        unfinished = wheel.with_suffix(".part")
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path, file in files.items():
                entry = zipfile.ZipInfo(path)  # of 1980: the same content gives the same wheel
                entry.external_attr = (0o100755 if file in libraries else 0o100644) << 16  # a regular file: pip looks
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
        unfinished.replace(wheel)
    return wheel


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    return make(Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    raise SystemExit("wheel: the source is the whole tree; there is no sdist of python/ alone")


if __name__ == "__main__":
    made = make(Path(sys.argv[1]))
    print(f"wheel: {made} ({made.stat().st_size / 1e6:.1f} MB)")
