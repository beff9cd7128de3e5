#!/usr/bin/env python3
"""Puts each known bug back and demands that the model catches it.

    tests/patches/run.py                  all of them, after a control without any
    tests/patches/run.py 03 07            some of them
    tests/patches/run.py --seconds 120    how long the model may look for each (default 60)

A patch begins with a line that says what the bug is, and one that says which test of the model is to find it
(`Test: kill`). It is applied to a copy of the last commit under `target/known-bugs`, whose builds are kept apart from
those of the checkout and from one run to the next; the model itself is that of the checkout. The seeds are fixed.

Ends with 0 if the control passes and every bug is caught.
"""

import argparse
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests" / "patches"
PLACE = ROOT / "target" / "known-bugs"
TREE = PLACE / "tree"
BUILD = PLACE / "build"
SEEDS = [1, 2]
# Seconds after which a run, beside the time that it was given, is held to hang.
HANGS = 300
VIOLATION = re.compile(r"^([A-Z][A-Za-z]+): (.*)")


def model():
    """Builds the model's test binary and answers where it is."""
    command = ["cargo", "test", "-p", "tests", "--test", "model", "--no-run", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "model":
            return message["executable"]
    sys.exit("cargo names no test binary")


def copy_commit(commit):
    """Makes the copy what a commit is, without touching files that are already so."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    known = set()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        for member in files.getmembers():
            if not member.isfile():
                continue
            path, content = TREE / member.name, files.extractfile(member).read()
            known.add(path)
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    for path in TREE.rglob("*"):
        if path.is_file() and path not in known:
            path.unlink()


def apply(patch, *options):
    # The copy is no repository, though it lies in one.
    place = dict(os.environ, GIT_CEILING_DIRECTORIES=str(TREE.parent))
    subprocess.run(["git", "apply", *options, str(patch)], cwd=TREE, env=place, check=True)


def build():
    place = dict(os.environ, CARGO_TARGET_DIR=str(BUILD))
    command = ["cargo", "build", "--quiet", "-p", "apid", "-p", "authd"]
    subprocess.run(command, cwd=TREE, env=place, check=True)


def look(binary, test, seconds):
    """Runs the model; answers what it saw, None if nothing, and after how many seconds."""
    begun = time.monotonic()
    for seed in SEEDS:
        place = dict(
            os.environ,
            MODEL_PROGRAMS=str(BUILD / "debug"),
            MODEL_SEED=str(seed),
            MODEL_SECONDS=str(seconds // len(SEEDS)),
            RUST_BACKTRACE="0",
        )
        command = [binary, test + "::", "--nocapture"]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            run = subprocess.run(command, cwd=ROOT, env=place, timeout=HANGS + 4 * seconds, **pipes)
        except subprocess.TimeoutExpired:
            sys.exit(f"the model does not end: MODEL_SEED={seed}, {test}")
        if run.returncode != 0:
            text = run.stdout.decode(errors="replace")
            saw = [found.groups() for found in map(VIOLATION.match, text.splitlines()) if found]
            return saw or [("?", text[-1500:])], time.monotonic() - begun
    return None, time.monotonic() - begun


def main():
    arguments = argparse.ArgumentParser(description="put known bugs back; the model must catch each")
    arguments.add_argument("numbers", nargs="*", help="only these patches, by number")
    arguments.add_argument("--seconds", type=int, default=60, help="for each patch")
    arguments.add_argument("--commit", default="HEAD", help="of which the copy is made")
    wanted = arguments.parse_args()
    patches = sorted(PATCHES.glob("*.patch"))
    if wanted.numbers:
        patches = [patch for patch in patches if patch.name[:2] in wanted.numbers]
    binary = model()
    copy_commit(wanted.commit)
    failed = False
    if not wanted.numbers:
        build()
        for test in ["kill", "power"]:
            saw, took = look(binary, test, wanted.seconds)
            print(f"control, {test}: {saw or 'passes'} ({took:.0f} s)", flush=True)
            failed |= saw is not None
    for patch in patches:
        test = re.search(r"^Test: (\w+)", patch.read_text(), re.M).group(1)
        apply(patch)
        try:
            build()
            saw, took = look(binary, test, wanted.seconds)
        finally:
            apply(patch, "--reverse")
        if saw is None:
            failed = True
            print(f"{patch.stem}: NOT CAUGHT by {test} in {took:.0f} s", flush=True)
            continue
        checks = list(dict.fromkeys(check for check, _ in saw))
        print(f"{patch.stem}: caught by {', '.join(checks)} in {took:.0f} s ({test})\n    {saw[0][1]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
