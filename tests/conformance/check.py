#!/usr/bin/env python3
"""Replays the recorded exchanges against apid, once for each names preset, and compares the result with the floor.

    check.py --cases DIR [--preset kubernetes|svc] [--only AREA/] [--raise-floor] [-v]

DIR contains replay.py, tokens.csv and cases/. The programs are those of target/debug (or PROFILE_DIR). Each line of floor.txt
has the name of an area, then the minimum percentage of equal steps under `kubernetes` and under `svc`; an area without a line
has no floor. Each case file runs on its own server, several in parallel. --raise-floor writes the measured percentage, minus
one percent or one step, where that exceeds the floor.

Exit status: 0 no area is below its floor, 1 an area is, 2 the replay could not run.
"""
import argparse, concurrent.futures, json, os, pathlib, signal, ssl, subprocess, sys, tempfile, time, urllib.error, urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FLOOR = HERE / "floor.txt"
PRESETS = ("kubernetes", "svc")


class Server:
    """apid with its authd, on a port chosen by the system, with its own data directory."""

    def __init__(self, preset, tokens):
        self.dir = tempfile.TemporaryDirectory(prefix="replay-")
        self.log = open(os.path.join(self.dir.name, "server.log"), "w+")
        programs = pathlib.Path(os.environ.get("PROFILE_DIR", ROOT / "target" / "debug"))
        self.process = subprocess.Popen(
            [programs / "apid", "--spawn-authd", "--names", preset, "--data-dir", os.path.join(self.dir.name, "data"),
             "--bind-address", "127.0.0.1", "--secure-port", "0", "--token-auth-file", tokens,
             "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
             "--service-account-issuer", "https://issuer.example.test", "--enable-bootstrap-token-auth",
             "--controllers", "*,tokencleaner,bootstrapsigner"],
            stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def url(self, deadline):
        port_file = pathlib.Path(self.dir.name, "data", "apid.port")
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError("apid ended with status %d:\n%s" % (self.process.returncode, self.tail()))
            if port_file.exists() and port_file.read_text().strip():
                url = "https://127.0.0.1:%s" % port_file.read_text().strip()
                if ready(url):
                    return url
            time.sleep(0.02)
        raise RuntimeError("apid was not ready in time:\n" + self.tail())

    def tail(self):
        self.log.flush()
        self.log.seek(0)
        return "".join(self.log.readlines()[-40:])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.dir.cleanup()


def ready(url):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return urllib.request.urlopen(url + "/readyz", context=context, timeout=2).status == 200
    except (urllib.error.URLError, OSError):
        return False


def replay(preset, cases, args):
    """Replays one case file against its own server. Returns {area: [equal, steps]}, the steps, the output."""
    server = Server(preset, os.path.join(args.cases, "tokens.csv"))
    result = os.path.join(server.dir.name, "result.json")
    try:
        command = [sys.executable, os.path.join(args.cases, "replay.py"), "--server", server.url(time.monotonic() + 60),
                   "--insecure", "--names", preset, "--json", result, str(cases)]
        command += [w for o in args.only for w in ("--only", o)] + (["-v"] if args.verbose else [])
        out = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if out.returncode not in (0, 1) or server.process.poll() is not None:
            raise RuntimeError("%s: the replay could not run: %s\n%s" % (cases, out.stderr, server.tail()))
        with open(result) as file:
            steps = json.load(file)
    finally:
        server.stop()
    areas = {}
    for step in steps:
        area = areas.setdefault(step["step"].split("/")[0], [0, 0])
        area[0] += not step["differences"]
        area[1] += 1
    return areas, steps, out.stdout


def replay_all(presets, args):
    """Replays every case file under every preset in parallel, because a replay mostly waits. Returns {preset: (areas, steps, outputs)}."""
    files = sorted(pathlib.Path(args.cases, "cases").glob("*.json"))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = {preset: [pool.submit(replay, preset, f, args) for f in files] for preset in presets}
        results = {}
        for preset, futures in jobs.items():
            areas, steps, outputs = {}, [], []
            for future in futures:
                of_file, new_steps, output = future.result()
                for area, (equal, count) in of_file.items():
                    total = areas.setdefault(area, [0, 0])
                    total[0], total[1] = total[0] + equal, total[1] + count
                steps += new_steps
                outputs.append(output)
            results[preset] = areas, steps, outputs
    return results


def read_floor():
    floor = {}
    for line in FLOOR.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            floor[words[0]] = dict(zip(PRESETS, map(float, words[1:])))
    return floor


def write_floor(floor):
    head = [line for line in FLOOR.read_text().splitlines() if line.startswith("#")]
    rows = ["%-16s %6.2f %6.2f" % (area, row.get("kubernetes", 0), row.get("svc", 0)) for area, row in sorted(floor.items())]
    FLOOR.write_text("\n".join(head + rows) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=str(ROOT.parent / "shared" / "conformance"))
    parser.add_argument("--preset", choices=PRESETS, action="append")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--json", metavar="FILE", help="write the result of every step to FILE.<preset>")
    parser.add_argument("--jobs", type=int, default=8, help="number of concurrent servers")
    parser.add_argument("--raise-floor", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    if not os.path.exists(os.path.join(args.cases, "replay.py")):
        print("no recorded exchanges at %s: set CONFORMANCE_DIR, or CONFORMANCE_DIR=none to skip them" % args.cases)
        return 2
    floor, fell = read_floor(), []
    try:
        results = replay_all(args.preset or PRESETS, args)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error)
        return 2
    for preset, (areas, steps, outputs) in results.items():
        if args.verbose:
            print("".join(outputs))
        print("-- names: %s" % preset)
        for area, (equal, count) in sorted(areas.items()):
            percent, wanted = 100.0 * equal / count, floor.get(area, {}).get(preset, 0)
            print("%-16s %4d / %4d steps %6.1f%%  floor %5.1f%%" % (area, equal, count, percent, wanted))
            if percent < wanted and not args.only:
                fell.append("%s under %s: %.1f%% of the steps are equal, the floor is %.1f%%" % (area, preset, percent, wanted))
            room = max(1, 101 / count)  # tolerance of one failed step
            if args.raise_floor and percent - room > wanted:
                floor.setdefault(area, {})[preset] = percent - room
        same = sum(not s["differences"] for s in steps), sum(not s["differences"] and not s["messages"] for s in steps)
        print("%d / %d steps equal (%d with the same message text)" % (same[0], len(steps), same[1]))
        if args.json:
            pathlib.Path(args.json + "." + preset).write_text(json.dumps(steps, indent=1))
    if args.raise_floor:
        write_floor(floor)
    print("\n".join(fell) or "no area is below its floor")
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
