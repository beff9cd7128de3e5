#!/usr/bin/env python3
"""Writes the SBOM (CycloneDX 1.5) and the licences of the packages that both programs contain.

The packages are those of Cargo.lock that apid and authd need for Linux x86-64, without build and test dependencies.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import uuid

PROGRAMS = ("apid", "authd")
LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)([-._].*)?$", re.IGNORECASE)


def metadata(root):
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True).stdout)


def contained(data):
    """Returns the packages that are linked into a program, and their dependencies by id."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    todo = [package["id"] for package in data["packages"] if package["name"] in PROGRAMS and not package["source"]]
    edges = {}
    while todo:
        current = todo.pop()
        if current in edges:
            continue
        edges[current] = sorted(
            dep["pkg"] for dep in nodes[current]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
        )
        todo.extend(edges[current])
    return {key: packages[key] for key in edges}, edges


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def checksums(root):
    """Returns the SHA-256 of each package in Cargo.lock."""
    entries = pathlib.Path(root, "Cargo.lock").read_text().split("[[package]]")[1:]
    field = lambda entry, name: (re.search(rf'^{name} = "(.*)"$', entry, re.M) or [None, None])[1]
    return {(field(entry, "name"), field(entry, "version")): field(entry, "checksum") for entry in entries}


def sbom(root, packages, edges):
    sums = checksums(root)
    own = [package for package in packages.values() if not package["source"]]
    version = next(package["version"] for package in own if package["name"] == "apid")

    def component(package):
        result = {"type": "library", "bom-ref": reference(package), "name": package["name"],
                  "version": package["version"], "purl": reference(package)}
        if package["license"]:
            result["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            result["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return result

    components = sorted((component(package) for package in packages.values()), key=lambda item: item["bom-ref"])
    dependencies = [
        {"ref": reference(packages[key]), "dependsOn": sorted(reference(packages[other]) for other in edges[key])}
        for key in edges
    ]
    lock = pathlib.Path(root, "Cargo.lock").read_bytes()
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, lock.hex())}",
        "metadata": {"component": {"type": "application", "bom-ref": "apid", "name": "apid", "version": version}},
        "components": components,
        "dependencies": sorted(dependencies, key=lambda item: item["ref"]),
    }


def licences(packages):
    """Returns one text: the packages with each licence text, equal texts once."""
    texts, missing = {}, []
    for package in sorted(packages.values(), key=lambda package: (package["name"], package["version"])):
        if not package["source"]:
            continue
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name))
        label = f"{package['name']} {package['version']} ({package['license'] or 'see the text'})"
        if not files:
            missing.append(f"{label}: {package['repository'] or 'no repository'}; authors: {', '.join(package['authors'])}")
        for path in files:
            text = path.read_text(errors="replace").replace("\r\n", "\n").strip()
            texts.setdefault(text, []).append(label)
    parts = ["apid and authd contain the following packages. Each package is under the licence that its line names.\n"]
    for text, labels in sorted(texts.items(), key=lambda item: item[1]):
        parts.append("=" * 100 + "\n" + "\n".join(dict.fromkeys(labels)) + "\n" + "-" * 100 + "\n" + text + "\n")
    if missing:
        parts.append("=" * 100 + "\nPackages without a licence file, under the licence that their manifest names:\n" + "\n".join(missing) + "\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--sbom", required=True)
    parser.add_argument("--licences", required=True)
    arguments = parser.parse_args()
    packages, edges = contained(metadata(arguments.root))
    document = json.dumps(sbom(arguments.root, packages, edges), indent=1, sort_keys=True)
    pathlib.Path(arguments.sbom).write_text(document + "\n")
    pathlib.Path(arguments.licences).write_text(licences(packages))
    os.chmod(arguments.sbom, 0o644)


if __name__ == "__main__":
    main()
