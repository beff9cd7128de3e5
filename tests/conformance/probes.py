#!/usr/bin/env python3
"""Compare the recorded facts about single fields with a server of our own.

    probes.py [--facts DIR] [--preset kubernetes|svc] [-- ARGUMENT ...]

DIR holds probe.py and the facts; the default is ../shared/probes beside the repository, with the tokens in ../conformance.
The programs are taken from target/debug (or PROFILE_DIR). Arguments after `--` go to probe.py, for example
`-- --only core.Pod --show 20`. It prints, for each kind, the facts that are equal, and the messages that are equal.

Exit status: that of probe.py; 2 could not run.
"""
import argparse, pathlib, subprocess, sys, time

from check import PRESETS, ROOT, Server


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--facts", type=pathlib.Path, default=ROOT.parent / "shared" / "probes")
    parser.add_argument("--preset", choices=PRESETS, default="kubernetes")
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    program = args.facts / "probe.py"
    if not program.exists():
        sys.exit("probes.py: no probe.py in %s: set --facts to the folder of the recorded facts" % args.facts)
    # The facts were recorded without controllers: without `*`, none runs that is not named.
    server = Server(args.preset, args.facts.parent / "conformance" / "tokens.csv", controllers="-namespace")
    try:
        names = ["--names", "svc", "--api-domain", "svc.internal"] if args.preset == "svc" else []
        command = [sys.executable, program, "--server", server.url(time.monotonic() + 60), "--token", "admin-token", "--insecure"]
        return subprocess.run(command + names + args.arguments).returncode
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
