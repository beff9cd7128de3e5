#!/usr/bin/env python3
"""Replay the recorded exchanges against a server of our own, once for each names preset, and compare the steps that
differ with the list of known differences.

    check.py --cases DIR [--preset kubernetes|svc] [--only AREA/] [--update] [-v]

DIR holds replay.py, tokens.csv and cases/. The programs are taken from target/debug (or PROFILE_DIR). Each case file has a
server of its own, several at a time.

differences.csv lists every step that differs, with the presets and the reason. areas.csv lists the number of steps of each
area. The check fails when

- a step differs that is not listed (its case file is replayed once more before that counts),
- more than 1 % of the steps differ in the first replay and are equal in the second: each of them is printed,
- a listed step is equal: remove it, the list may only shrink,
- an area of areas.csv has fewer steps than areas.csv says, or is missing.

The recordings are made elsewhere and grow: steps beyond the number in areas.csv and areas that it does not list are
printed as news, and differences of areas that it does not list do not fail the check. --update writes the numbers.

--update removes the steps that are equal now and writes the numbers of steps. It never adds a difference: whoever adds one
writes its line and its reason by hand.

Exit status: 0 as listed, 1 not as listed, 2 could not run.
"""
import argparse, concurrent.futures, csv, json, os, pathlib, signal, ssl, subprocess, sys, tempfile, time, urllib.error, urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DIFFERENCES = HERE / "differences.csv"
AREAS = HERE / "areas.csv"
PRESETS = ("kubernetes", "svc")
# Share of steps that may differ in the first replay only. More of them hide a fault that occurs now and then.
UNSTABLE_SHARE = 0.01


class Server:
    """apid with its authd, on a port of the system's choice and a data directory of its own."""

    # The controllers of the recorded server. The quota controller was not among them: with it, the status of a new
    # ResourceQuota depends on time.
    CONTROLLERS = "*,-root-ca-certificate-publisher-controller,-resourcequota-controller,tokencleaner,bootstrapsigner"

    def __init__(self, preset, tokens, controllers=CONTROLLERS):
        self.dir = tempfile.TemporaryDirectory(prefix="replay-")
        self.log = open(os.path.join(self.dir.name, "server.log"), "w+")
        programs = pathlib.Path(os.environ.get("PROFILE_DIR", ROOT / "target" / "debug"))
        self.process = subprocess.Popen(
            [programs / "apid", "--spawn-authd", "--names", preset, "--data-dir", os.path.join(self.dir.name, "data"),
             "--bind-address", "127.0.0.1", "--secure-port", "0", "--token-auth-file", tokens,
             "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
             "--service-account-issuer", "https://issuer.example.test", "--enable-bootstrap-token-auth",
             "--controllers", controllers],
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
    """One case file against a server of its own. -> {area: [equal, steps]}, the steps, the whole output."""
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
        area = areas.setdefault(area_of(step["step"]), [0, 0])
        area[0] += not step["differences"]
        area[1] += 1
    return areas, steps, out.stdout


def case_files(args):
    return sorted(pathlib.Path(args.cases, "cases").glob("*.json"))


def replay_all(presets, args):
    """Every case file under every preset, several at a time: most of a replay is waiting. -> {preset: (areas, steps, outputs)}"""
    files = case_files(args)
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


def read_differences():
    """-> {(preset, step): reason}"""
    listed = {}
    with open(DIFFERENCES, newline="") as file:
        for row in csv.DictReader(file):
            for preset in PRESETS if row["preset"] == "both" else (row["preset"],):
                listed[preset, row["step"]] = row["reason"]
    return listed


def write_differences(listed):
    steps = {}
    for (preset, step), reason in listed.items():
        steps.setdefault((step, reason), set()).add(preset)
    with open(DIFFERENCES, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("step", "preset", "reason"))
        for (step, reason), presets in sorted(steps.items()):
            writer.writerow((step, "both" if len(presets) == len(PRESETS) else presets.pop(), reason))


def read_areas():
    """-> {preset: {area: number of steps}}"""
    with open(AREAS, newline="") as file:
        rows = list(csv.DictReader(file))
    return {preset: {row["area"]: int(row[preset]) for row in rows} for preset in PRESETS}


def write_areas(areas):
    with open(AREAS, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("area", *PRESETS))
        for area in sorted(set().union(*areas.values())):
            writer.writerow((area, *(areas[preset].get(area, 0) for preset in PRESETS)))


def replay_again(preset, unlisted, args):
    """Steps that differ in a second replay of their case files, too. Time decides the result of a few steps."""
    again = set()
    for file in case_files(args):
        text = file.read_text()
        names = {case["name"] for case in json.loads(text)["cases"]}
        if any(case_of(step) in names for step in unlisted):
            again |= {step["step"] for step in replay(preset, file, args)[1] if step["differences"]}
    return [step for step in unlisted if step in again]


def case_of(step):
    """The name of the case of a step, which is called `CASE #NUMBER METHOD PATH`."""
    return step.split(" #", 1)[0]


def area_of(step):
    """The area of a step: the first part of the name of its case."""
    return step.split("/", 1)[0]


def news(preset, areas, expected):
    """-> what the recordings have and areas.csv does not, one line each."""
    return ["new: area %s under %s has %d steps, %d of them equal; %s says %d (--update)"
            % (area, preset, count, equal, AREAS.name, expected.get(area, 0))
            for area, (equal, count) in sorted(areas.items()) if count > expected.get(area, 0)]


def unstable_excess(preset, unstable, count):
    """-> a line if too many steps differ in the first replay only.

    >>> unstable_excess("svc", ["a"] * 30, 3000)
    []
    >>> unstable_excess("svc", ["a"] * 31, 3000)
    ['31 of 3000 steps under svc differ in the first replay only, at most 30 may']
    """
    allowed = int(count * UNSTABLE_SHARE)
    if len(unstable) <= allowed:
        return []
    return ["%d of %d steps under %s differ in the first replay only, at most %d may" % (len(unstable), count, preset, allowed)]


def compare(preset, areas, steps, listed, expected, args):
    """-> what is not as listed, one line each."""
    different = [step["step"] for step in steps if step["differences"]]
    unlisted = [step for step in different if (preset, step) not in listed and area_of(step) in expected]
    unstable = []
    if unlisted:
        again = replay_again(preset, unlisted, args)
        unstable, unlisted = [step for step in unlisted if step not in again], again
    print("".join("unstable: %s under %s differs in the first replay only\n" % (step, preset) for step in unstable), end="")
    found = unstable_excess(preset, unstable, len(steps))
    found += ["%s under %s differs and is not in %s" % (step, preset, DIFFERENCES.name) for step in unlisted]
    replayed = {step["step"] for step in steps}
    equal = [step for of, step in listed if of == preset and step in replayed and step not in set(different)]
    found += ["%s under %s is equal: remove it from %s (--update)" % (step, preset, DIFFERENCES.name) for step in equal]
    if args.only:
        return found
    found += ["%s under %s is in %s and was not replayed" % (step, preset, DIFFERENCES.name)
              for of, step in listed if of == preset and step not in replayed]
    for area, wanted in sorted(expected.items()):
        have = areas.get(area, [0, 0])[1]
        if have < wanted:
            found.append("area %s under %s has %d steps, %s says %d" % (area, preset, have, AREAS.name, wanted))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=str(ROOT.parent / "shared" / "conformance"))
    parser.add_argument("--preset", choices=PRESETS, action="append")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--json", metavar="FILE", help="write the result of every step to FILE.<preset>")
    parser.add_argument("--jobs", type=int, default=8, help="servers at a time")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    if not os.path.exists(os.path.join(args.cases, "replay.py")):
        print("no recorded exchanges at %s: set CONFORMANCE_DIR, or CONFORMANCE_DIR=none to leave them out" % args.cases)
        return 2
    listed, expected, wrong = read_differences(), read_areas(), []
    try:
        results = replay_all(args.preset or PRESETS, args)
        for preset, (areas, steps, outputs) in results.items():
            if args.verbose:
                print("".join(outputs))
            print("-- names: %s" % preset)
            for area, (equal, count) in sorted(areas.items()):
                print("%-16s %4d / %4d steps %6.1f%%" % (area, equal, count, 100.0 * equal / count))
            equal = [step for step in steps if not step["differences"]]
            same_text = sum(not step["messages"] for step in equal)
            print("%d / %d steps equal (%d with the same message text)" % (len(equal), len(steps), same_text))
            if args.json:
                pathlib.Path(args.json + "." + preset).write_text(json.dumps(steps, indent=1))
            if not args.only:
                print("".join(line + "\n" for line in news(preset, areas, expected[preset])), end="")
            wrong += compare(preset, areas, steps, listed, expected[preset], args)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error)
        return 2
    if args.update:
        for preset, (_, steps, _) in results.items():
            for step in steps:
                if not step["differences"]:
                    listed.pop((preset, step["step"]), None)
        write_differences(listed)
        if not args.only and not args.preset:
            write_areas({preset: {a: n for a, (_, n) in areas.items()} for preset, (areas, _, _) in results.items()})
    print("\n".join(wrong) or "all differences are listed, and all listed steps differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
