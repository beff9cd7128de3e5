#!/usr/bin/env python3
"""CPU instructions of apid for one get, create or list of ConfigMaps or Secrets of 1 kB, counted by callgrind in user mode.

    PROFILE_DIR=target/release tests/bench/request_instructions.py [--request get|create|list] [--count N] [--caches]
        [--resource configmaps|secrets] [--profile FILE] [--flag FLAG]...

The count depends on the build and hardly on the machine, so two builds compare without paired runs. One HTTP/1.1
connection sends the requests. FILE receives the profile for `callgrind_annotate`. Needs valgrind.

`--caches` also simulates the caches and the branch prediction, and prints the misses of the first-level caches. A
request runs most of its code once, so the code does not stay in the instruction cache. Builds with equal instruction
counts can therefore differ in CPU time.

apid is about 50 times slower under callgrind, so a turn of a connection (0.1 ms) ends within one request: the count
includes passes of the connection that real requests seldom have.

Exit status: 0 measured, 2 could not run.
"""
import argparse, http.client, json, os, pathlib, re, signal, ssl, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADERS = {"Authorization": "Bearer bench-token", "Content-Type": "application/json"}
NAMESPACE = "/api/v1/namespaces/default"
# Number of requests before the measurement, which fill the caches.
WARM_UP = 300
# Number of objects of a list.
LISTED = 100
START_SECONDS = 120


def start(programs, data, options, profile, log):
    """Starts apid under callgrind, with authd beside it."""
    data.mkdir()
    tokens = data / "tokens.csv"
    tokens.write_text("bench-token,bench,bench,system:masters\n")
    # Fair scheduling: otherwise one thread can keep valgrind's lock while the others wait.
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=yes",
                f"--callgrind-out-file={profile}"]
    if options.caches:
        valgrind += ["--cache-sim=yes", "--branch-sim=yes"]
    flags = ["--spawn-authd", f"--data-dir={data / 'store'}", "--bind-address=127.0.0.1", "--secure-port=0",
             "--authorization-mode=RBAC", f"--token-auth-file={tokens}", *options.flag]
    return subprocess.Popen([*valgrind, str(programs / "apid"), *flags], stdout=log, stderr=log)


def connect(process, data):
    """A connection to the server, as soon as it is ready."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port_file = data / "store" / "apid.port"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.3)
        try:
            connection = http.client.HTTPSConnection("127.0.0.1", int(port_file.read_text()), context=context, timeout=60)
            if send(connection, "GET", "/readyz") == 200:
                return connection
        except (OSError, ValueError, http.client.HTTPException):
            continue
    raise RuntimeError("apid was not ready in time")


def send(connection, method, path, body=None):
    """-> status"""
    connection.request(method, path, body, HEADERS)
    response = connection.getresponse()
    response.read()
    return response.status


def body(resource, name):
    # The value is base64, too.
    kind = {"configmaps": "ConfigMap", "secrets": "Secret"}[resource]
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": {"k": "v" * 900}})


def send_many(connection, options, first, count):
    """Sends requests with the numbers `first` to `first + count - 1`."""
    request, collection = options.request, f"{NAMESPACE}/{options.resource}"
    for number in range(first, first + count):
        if request == "create":
            status = send(connection, "POST", collection, body(options.resource, f"created-{number}"))
            expected = 201
        else:
            path = f"{collection}/listed-0" if request == "get" else collection
            status, expected = send(connection, "GET", path), 200
        if status != expected:
            raise RuntimeError(f"{request}: {status}")


def control(process, *arguments):
    subprocess.run(["callgrind_control", *arguments, str(process.pid)], check=True, capture_output=True)


def measure(process, data, options):
    """Sends the requests while callgrind counts."""
    connection = connect(process, data)
    for number in range(LISTED):
        collection = f"{NAMESPACE}/{options.resource}"
        status = send(connection, "POST", collection, body(options.resource, f"listed-{number}"))
        if status != 201:
            raise RuntimeError(f"create: {status}")
    send_many(connection, options, 0, WARM_UP)
    # The tasks of the start come to an end.
    time.sleep(2)
    control(process, "-i", "on")
    send_many(connection, options, WARM_UP, options.count)
    control(process, "-i", "off")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--request", choices=["get", "create", "list"], default="get")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--resource", choices=["configmaps", "secrets"], default="configmaps")
    parser.add_argument("--caches", action="store_true")
    parser.add_argument("--profile", type=pathlib.Path)
    parser.add_argument("--flag", action="append", default=[], help="a further flag of apid; repeatable")
    options = parser.parse_args()
    programs = ROOT / os.environ.get("PROFILE_DIR", "target/release")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        log_file = folder / "log"
        with log_file.open("w") as log:
            process = start(programs, folder / "data", options, options.profile or folder / "profile", log)
            try:
                measure(process, folder / "data", options)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        output = log_file.read_text()
    events, counts = re.search(r"Events +: (.+)", output), re.search(r"Collected : (.+)", output)
    if events is None or counts is None:
        raise RuntimeError("callgrind printed no count")
    names, values = events[1].split(), counts[1].split()
    if len(names) != len(values):
        raise RuntimeError(f"callgrind printed {len(values)} counts for {len(names)} events")
    counts = {name: int(value) / options.count for name, value in zip(names, values)}
    print(f"instructions of apid for one {options.request}: {counts['Ir']:,.0f}")
    if options.caches:
        print(f"misses of the first-level instruction cache: {counts['I1mr']:,.0f}")
        print(f"misses of the first-level data cache: {counts['D1mr'] + counts['D1mw']:,.0f}")
        print(f"mispredicted branches: {counts['Bcm'] + counts['Bim']:,.0f}")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"request_instructions: {error}", file=sys.stderr)
        sys.exit(2)
