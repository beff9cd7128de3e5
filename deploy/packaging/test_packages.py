#!/usr/bin/env python3
"""Makes the test helpers as packages: a wheel and an npm package with both programs, a crate and a Go module as folders.

usage: test_packages.py --root REPOSITORY --programs FOLDER --version VERSION --glibc VERSION --out FOLDER --tree FOLDER

The wheel and the npm package go to OUT. The crate and the Go module go to TREE/testenv. All times come from
SOURCE_DATE_EPOCH, so that equal inputs give equal files.
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import tarfile
import time
import zipfile

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
LEVEL = int(os.environ.get("RELEASE_COMPRESSION", "9"))
DESCRIPTION = "A private Kubernetes-compatible API server for tests"


def wheel(arguments):
    """Writes the wheel: the module, and both programs in its folder bin."""
    root, programs = pathlib.Path(arguments.root), pathlib.Path(arguments.programs)
    tag = f"py3-none-manylinux_{arguments.glibc.replace('.', '_')}_x86_64"
    info = f"apid_testenv-{arguments.version}.dist-info"
    files = {
        "apid_testenv/__init__.py": ((root / "deploy/envtest/apid_testenv.py").read_bytes(), 0o644),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: apid-testenv\nVersion: {arguments.version}\nSummary: {DESCRIPTION}\n"
            "License: Apache-2.0\nRequires-Python: >=3.8\n".encode(), 0o644),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: apid\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
        f"{info}/LICENSE": ((root / "LICENSE").read_bytes(), 0o644),
        f"{info}/THIRD-PARTY-LICENCES.txt": (
            (pathlib.Path(arguments.tree) / "THIRD-PARTY-LICENCES.txt").read_bytes(), 0o644),
    }
    for name in ("apid", "authd"):
        files[f"apid_testenv/bin/{name}"] = ((programs / name).read_bytes(), 0o755)
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, (data, _) in sorted(files.items()))
    files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)
    moment = time.gmtime(max(EPOCH, 315532800))[:6]
    with zipfile.ZipFile(pathlib.Path(arguments.out) / f"apid_testenv-{arguments.version}-{tag}.whl", "w", compresslevel=LEVEL) as archive:
        for name, (data, mode) in sorted(files.items()):
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=LEVEL)


def npm(arguments):
    """Writes the npm package: the module, and both programs in its folder bin."""
    root, programs = pathlib.Path(arguments.root), pathlib.Path(arguments.programs)
    manifest = {"name": "apid-testenv", "version": arguments.version, "description": DESCRIPTION, "license": "Apache-2.0",
                "main": "index.js", "os": ["linux"], "cpu": ["x64"], "engines": {"node": ">=18"},
                "files": ["index.js", "bin", "LICENSE", "THIRD-PARTY-LICENCES.txt"]}
    files = {
        "package/package.json": (json.dumps(manifest, indent=2).encode() + b"\n", 0o644),
        "package/index.js": ((root / "deploy/envtest/apid_testenv.js").read_bytes(), 0o644),
        "package/LICENSE": ((root / "LICENSE").read_bytes(), 0o644),
        "package/THIRD-PARTY-LICENCES.txt": (
            (pathlib.Path(arguments.tree) / "THIRD-PARTY-LICENCES.txt").read_bytes(), 0o644),
    }
    for name in ("apid", "authd"):
        files[f"package/bin/{name}"] = ((programs / name).read_bytes(), 0o755)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), mode, EPOCH
            archive.addfile(entry, io.BytesIO(data))
    with open(pathlib.Path(arguments.out) / f"apid-testenv-{arguments.version}.tgz", "wb") as file:
        with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=LEVEL) as packed:
            packed.write(content.getvalue())


def crate(arguments):
    """Writes the crate with the versions of this workspace, so that it builds alone."""
    root, folder = pathlib.Path(arguments.root), pathlib.Path(arguments.tree) / "testenv/rust"
    workspace = (root / "Cargo.toml").read_text()
    own = (root / "deploy/testenv/Cargo.toml").read_text()
    field = lambda name: re.search(rf'^{name} = "(.*)"$', workspace, re.M)[1]
    names = re.findall(r"^([a-z_-]+)\.workspace = true$", own.split("[dependencies]")[1], re.M)
    line = lambda name: re.search(rf"^{name} = .*$", workspace, re.M)[0]
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "src/lib.rs").write_text((root / "deploy/testenv/src/lib.rs").read_text())
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "apid-testenv"\nversion = "{arguments.version}"\nedition = "{field("edition")}"\n'
        f'rust-version = "{field("rust-version")}"\nlicense = "{field("license")}"\ndescription = "{DESCRIPTION}"\n\n'
        '[lib]\nname = "testenv"\n\n[dependencies]\n' + "".join(line(name) + "\n" for name in names) + "\n[workspace]\n")


def module(arguments):
    """Writes the Go module."""
    root, folder = pathlib.Path(arguments.root), pathlib.Path(arguments.tree) / "testenv/go"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "testenv.go").write_text((root / "deploy/envtest/testenv.go").read_text())
    (folder / "go.mod").write_text("module apid/testenv\n\ngo 1.21\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("root", "programs", "version", "glibc", "out", "tree"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    for make in (wheel, npm, crate, module):
        make(arguments)


if __name__ == "__main__":
    main()
