#!/usr/bin/env python3
"""Reintroduces each known bug and requires that the model test detects the bug.

    tests/patches/run.py                  all patches, after a control run without any
    tests/patches/run.py 03 07            selected patches
    tests/patches/run.py --list           test and checks that must detect each bug
    tests/patches/run.py --seconds 120    time limit per patch (default 60)
    tests/patches/run.py --test cluster 03 04 05 06 07 10
                                          patches outside of the engines, on three servers and etcd

The first line of a patch describes the bug. The line `Test: kill` names the model test that must detect the bug. The line
`Check: Resumable, Snapshot` names the checks that the bug violates. The script applies the patch to a copy of the last commit
under `target/known-bugs`. The builds of the copy are separate from the working tree and are kept between runs. The model test
itself is built from the working tree. The seeds are fixed.

A bug is caught if the model reports a violation of one of its checks. Any other failure, for example a server that does not
start, does not count. The control run, without a patch, comes first and must pass.

Exit status 0: the control run passes and every bug is caught.
"""

import argparse
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests" / "patches"
WORK = ROOT / "target" / "known-bugs"
TREE = WORK / "tree"
BUILD = WORK / "build"
SEEDS = [1, 2]
# Seconds in addition to four times the time limit, after which a run counts as hanging.
HANG_SECONDS = 300
VIOLATION = re.compile(r"^([A-Z][A-Za-z]+): (.*)", re.M)


def checks():
    """The names of the model's checks.

    >>> {"Linearizable", "Bookmarkable"} <= checks()
    True
    """
    text = (ROOT / "tests" / "model" / "check" / "mod.rs").read_text()
    return set(re.findall(r"^    (\w+),$", text[text.index("pub enum Check") :].split("}")[0], re.M))


def parse_header(patch):
    """Parses the header of a patch: the test that must detect the bug, and the violated checks.

    >>> parse_header("The bug.\\n\\nTest: kill\\nCheck: Ordered, Unique\\n\\n--- a/x")
    ('kill', ['Ordered', 'Unique'])
    >>> parse_header("The bug.\\n\\nTest: kill\\nCheck: Panicked\\n")
    Traceback (most recent call last):
    ValueError: no check of the model: Panicked
    >>> parse_header("The bug.\\n\\nTest: kill\\n")
    Traceback (most recent call last):
    ValueError: the patch names no check
    """
    test, names = (re.search(rf"^{word}: (.+)$", patch, re.M) for word in ["Test", "Check"])
    if test is None or names is None:
        raise ValueError("the patch names no " + ("check" if test else "test"))
    names = names.group(1).split(", ")
    if unknown := set(names) - checks():
        raise ValueError("no check of the model: " + ", ".join(sorted(unknown)))
    return test.group(1), names


def violations(text):
    """Parses the violations in the output of a failed run: pairs of check and text.

    >>> violations("thread 'kill' panicked:\\n2 violations\\nUnique: delivered again\\n    of a watch\\nSnapshot: it lacks x")
    [('Unique', 'delivered again'), ('Snapshot', 'it lacks x')]

    Other failures are not violations.

    >>> violations("thread 'kill' panicked:\\nStart: the server does not start: Unique: x")
    []
    >>> violations("thread 'kill' panicked at model/session.rs:\\na client: JoinError")
    []
    """
    known = checks()
    return [(check, what) for check, what in VIOLATION.findall(text) if check in known]


def verdict(result, wanted):
    """Decides whether a run caught a bug, and describes the verdict.

    `result` is None for a run that passed; otherwise it is the violations and the end of the output.

    >>> verdict(([("Unique", "delivered again"), ("Snapshot", "it lacks x")], ""), ["Snapshot"])
    (True, 'caught by Snapshot (also Unique)\\n    it lacks x')
    >>> verdict(([("Unique", "delivered again")], ""), ["Snapshot"])
    (False, 'NOT CAUGHT by Snapshot: the model reports Unique\\n    delivered again')
    >>> verdict(([], "exit 101"), ["Snapshot"])
    (False, 'NOT CAUGHT by Snapshot: the run failed without a violation\\n    exit 101')
    >>> verdict(None, ["Snapshot"])
    (False, 'NOT CAUGHT by Snapshot: the model reports no violation')
    """
    if result is None:
        return False, f"NOT CAUGHT by {', '.join(wanted)}: the model reports no violation"
    reports, output = result
    seen = list(dict.fromkeys(check for check, _ in reports))
    named = [check for check in seen if check in wanted]
    others = ", ".join(check for check in seen if check not in wanted)
    if named:
        what = next(what for check, what in reports if check in named)
        return True, f"caught by {', '.join(named)}" + (f" (also {others})" if others else "") + f"\n    {what}"
    if reports:
        return False, f"NOT CAUGHT by {', '.join(wanted)}: the model reports {others}\n    {reports[0][1]}"
    return False, f"NOT CAUGHT by {', '.join(wanted)}: the run failed without a violation\n    {output}"


def build_model_test():
    """Builds the model test binary and returns the path of a copy, which other builds do not overwrite."""
    command = ["cargo", "test", "-p", "tests", "--test", "system", "--no-run", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "system":
            WORK.mkdir(parents=True, exist_ok=True)
            return shutil.copy(message["executable"], WORK / "model")
    sys.exit("cargo reported no test binary")


def copy_commit(commit):
    """Updates the copy to a commit; unchanged files are not written."""
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
    # The copy is not a git repository, although it is inside one.
    environment = dict(os.environ, GIT_CEILING_DIRECTORIES=str(TREE.parent))
    subprocess.run(["git", "apply", *options, str(patch)], cwd=TREE, env=environment, check=True)


def build_programs():
    environment = dict(os.environ, CARGO_TARGET_DIR=str(BUILD))
    command = ["cargo", "build", "--quiet", "-p", "apid", "-p", "authd"]
    subprocess.run(command, cwd=TREE, env=environment, check=True)


def run_model(binary, test, seconds):
    """Runs the model until a seed fails; returns (violations, end of output) or None if all passed, and the seconds."""
    begun = time.monotonic()
    for seed in SEEDS:
        environment = dict(
            os.environ,
            PROFILE_DIR=str(BUILD / "debug"),
            MODEL_SEED=str(seed),
            MODEL_SECONDS=str(seconds // len(SEEDS)),
            RUST_BACKTRACE="0",
        )
        command = [binary, f"model::{test}::", "--nocapture"]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            run = subprocess.run(command, cwd=ROOT, env=environment, timeout=HANG_SECONDS + 4 * seconds, **pipes)
        except subprocess.TimeoutExpired:
            sys.exit(f"the model does not end: MODEL_SEED={seed}, {test}")
        if run.returncode != 0:
            text = run.stdout.decode(errors="replace")
            return (violations(text), text[-1500:]), time.monotonic() - begun
    return None, time.monotonic() - begun


def main():
    arguments = argparse.ArgumentParser(description="reintroduce known bugs; the model test must detect each bug")
    arguments.add_argument("numbers", nargs="*", help="only these patches, by number")
    arguments.add_argument("--seconds", type=int, default=60, help="time limit per patch")
    arguments.add_argument("--test", help="the model test, instead of that of each patch")
    arguments.add_argument("--commit", default="HEAD", help="commit of the copy")
    arguments.add_argument("--list", action="store_true", help="print the test and the checks that must detect each bug")
    wanted = arguments.parse_args()
    patches = sorted(PATCHES.glob("*.patch"))
    if wanted.numbers:
        patches = [patch for patch in patches if patch.name[:2] in wanted.numbers]
    declarations = {patch: parse_header(patch.read_text()) for patch in patches}
    if wanted.test:
        declarations = {patch: (wanted.test, names) for patch, (_, names) in declarations.items()}
    if wanted.list:
        for patch, (test, names) in declarations.items():
            print(f"{patch.stem}: {test}: {', '.join(names)}")
        return
    binary = build_model_test()
    copy_commit(wanted.commit)
    failed = False
    build_programs()
    for test in sorted({test for test, _ in declarations.values()}):
        result, took = run_model(binary, test, wanted.seconds)
        failed |= result is not None
        print(f"control, {test}: {'passes' if result is None else f'FAILS: {result}'} ({took:.0f} s)", flush=True)
    for patch, (test, names) in declarations.items():
        apply(patch)
        try:
            build_programs()
            result, took = run_model(binary, test, wanted.seconds)
        finally:
            apply(patch, "--reverse")
        caught, what = verdict(result, names)
        failed |= not caught
        print(f"{patch.stem} ({test}, {took:.0f} s): {what}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
