#!/usr/bin/env python3
"""CPU instructions of apid for one GET of a ConfigMap of 1 kB, counted by callgrind in user mode.

    PROFILE_DIR=target/release tests/bench/get_instructions.py [--gets N] [--profile FILE]

The count depends on the build and hardly on the machine, so two builds compare without paired runs. One HTTP/1.1
connection sends the requests. FILE receives the profile for `callgrind_annotate`. Needs valgrind.

Exit status: 0 measured, 2 could not run.
"""
import argparse, http.client, json, os, pathlib, re, signal, ssl, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADERS = {"Authorization": "Bearer bench-token", "Content-Type": "application/json"}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
# Number of requests before the measurement, which fill the caches.
WARM_UP = 300
START_SECONDS = 120


def start(programs, data, profile, log):
    """Starts apid under callgrind, with authd beside it."""
    data.mkdir()
    tokens = data / "tokens.csv"
    tokens.write_text("bench-token,bench,bench,system:masters\n")
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={profile}"]
    flags = ["--spawn-authd", f"--data-dir={data / 'store'}", "--bind-address=127.0.0.1", "--secure-port=0",
             "--authorization-mode=RBAC", f"--token-auth-file={tokens}"]
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


def get_many(connection, count):
    for _ in range(count):
        status = send(connection, "GET", f"{CONFIG_MAPS}/measured")
        if status != 200:
            raise RuntimeError(f"GET: {status}")


def control(process, *arguments):
    subprocess.run(["callgrind_control", *arguments, str(process.pid)], check=True, capture_output=True)


def measure(process, data, gets):
    """Sends the requests while callgrind counts."""
    connection = connect(process, data)
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "measured"}, "data": {"k": "v" * 900}}
    status = send(connection, "POST", CONFIG_MAPS, json.dumps(config_map))
    if status != 201:
        raise RuntimeError(f"create: {status}")
    get_many(connection, WARM_UP)
    # The tasks of the start come to an end.
    time.sleep(2)
    control(process, "-i", "on")
    get_many(connection, gets)
    control(process, "-i", "off")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gets", type=int, default=3000)
    parser.add_argument("--profile", type=pathlib.Path)
    options = parser.parse_args()
    programs = ROOT / os.environ.get("PROFILE_DIR", "target/release")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        log_file = folder / "log"
        with log_file.open("w") as log:
            process = start(programs, folder / "data", options.profile or folder / "profile", log)
            try:
                measure(process, folder / "data", options.gets)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        collected = re.search(r"Collected : (\d+)", log_file.read_text())
    if collected is None:
        raise RuntimeError("callgrind printed no count")
    print(f"instructions of apid for one GET: {int(collected[1]) / options.gets:,.0f}")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"get_instructions: {error}", file=sys.stderr)
        sys.exit(2)
