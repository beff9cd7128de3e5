#!/usr/bin/env python3
"""Load of one apid over a single etcd: get, list, create, update and watch, with the CPU time of apid and authd.

    PROFILE_DIR=target/release tests/bench/etcd_load.py [--data DIR] [ARGUMENT OF load]...

etcd (the newest of target/etcd) syncs each write to DIR, a folder of a real disk; the default is a new folder below `target`.
The columns of `load` count the CPU time of apid and authd. The last lines have the CPU time of etcd in the same run, and the
rate of 32 connections that put 1 kB into this etcd without apid: the bound for creates and updates.

Exit status: that of `load`; 2 could not run.
"""
import argparse, base64, concurrent.futures, http.client, json, os, pathlib, socket, ssl, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKEN = "bench-token"
START_SECONDS = 60
# Connections and seconds of the measurement of etcd alone.
WRITERS, SECONDS = 32, 3


def free_port():
    """A port that no server uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_seconds(pid):
    """The CPU time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid):
    """The processes that a process started."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def start_etcd(folder, log):
    """Starts etcd with an empty store. Returns the process and the port."""
    programs = [ROOT / "target/etcd" / release / "etcd" for release in ["debian", "3.5.1"]]
    program = next((path for path in programs if path.is_file()), None)
    if program is None:
        sys.exit("no etcd below target/etcd: .ci/run installs it")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    flags = [f"--data-dir={folder}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
             f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
             "--quota-backend-bytes=8000000000", "--log-level=error"]
    return subprocess.Popen([str(program), *flags], stdout=log, stderr=log), client


def start_apid(programs, folder, etcd, log):
    """Starts apid with authd. Returns the process and the URL when the server is ready."""
    tokens = folder / "tokens.csv"
    tokens.write_text(f"{TOKEN},bench,bench,system:masters\n")
    flags = ["--spawn-authd", f"--data-dir={folder / 'data'}", "--bind-address=127.0.0.1", "--secure-port=0",
             "--authorization-mode=Node,RBAC", f"--token-auth-file={tokens}", f"--etcd-servers={etcd}"]
    process = subprocess.Popen([str(programs / "apid"), *flags], stdout=log, stderr=log)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        try:
            port = int((folder / "data" / "apid.port").read_text())
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
            if connection.getresponse().status == 200:
                return process, f"https://127.0.0.1:{port}"
        except (OSError, ValueError, http.client.HTTPException):
            continue
    process.kill()
    sys.exit("apid was not ready in time")


def put_until(etcd, writer, deadline):
    """Puts 1 kB again and again over the JSON gateway of etcd. Returns the number of writes."""
    connection = http.client.HTTPConnection(etcd.removeprefix("http://"), timeout=10)
    value, count = base64.b64encode(b"x" * 1000).decode(), 0
    while time.monotonic() < deadline:
        key = base64.b64encode(f"bench/{writer}/{count}".encode()).decode()
        connection.request("POST", "/v3/kv/put", json.dumps({"key": key, "value": value}))
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            sys.exit(f"etcd rejects a write: {response.status}")
        count += 1
    return count


def main():
    arguments = argparse.ArgumentParser(description="load of one apid over a single etcd; see tests/README.md")
    arguments.add_argument("--data", type=pathlib.Path, help="folder on the disk to measure, for a new folder of etcd")
    options, rest = arguments.parse_known_args()
    programs = ROOT / os.environ.get("PROFILE_DIR", "target/release")
    if not (programs / "load").is_file():
        sys.exit(f"{programs / 'load'} is missing: cargo build --release -p apid -p authd -p bench")
    with tempfile.TemporaryDirectory(dir=options.data or ROOT / "target", prefix="etcd-load-") as name:
        folder = pathlib.Path(name)
        with open(folder / "log", "wb") as log:
            etcd, url = start_etcd(folder / "etcd", log)
            try:
                apid, server = start_apid(programs, folder, url, log)
                try:
                    pids = [apid.pid, *children(apid.pid)]
                    counted = [argument for pid in pids for argument in ("--pid", str(pid))]
                    before, begun = cpu_seconds(etcd.pid), time.monotonic()
                    command = [programs / "load", "--server", server, "--token", TOKEN, *counted, *rest]
                    status = subprocess.run(command, check=False).returncode
                    used, took = cpu_seconds(etcd.pid) - before, time.monotonic() - begun
                    print(f"etcd: {used:.1f} CPU seconds in {took:.1f} s")
                finally:
                    apid.kill()
                    apid.wait()
                deadline = time.monotonic() + SECONDS
                with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
                    counts = pool.map(lambda writer: put_until(url, writer, deadline), range(WRITERS))
                    print(f"etcd alone: {sum(counts) / SECONDS:.0f} writes of 1 kB each second over its JSON gateway")
            finally:
                etcd.kill()
                etcd.wait()
    sys.exit(status)


if __name__ == "__main__":
    main()
