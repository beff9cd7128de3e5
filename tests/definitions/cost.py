#!/usr/bin/env python3
"""Cost of definitions and of custom objects, measured on the processes.

    PROFILE_DIR=target/release tests/definitions/cost.py [--definitions N] [--objects N]

| figure | bound |
|---|---|
| time to apply 2,000 definitions of 60 fields until all are established | 20 s |
| memory of these definitions in apid | 120 MB |
| time from the start to the readiness of a server with them | 1 s |
| longest time from Established to the first successful list, of 100 more definitions | 20 ms |
| CPU time of the creation of a custom object of 2 kB, beside a ConfigMap of the same size | 1.3 times |

Exit status: 0 within the bounds, 1 otherwise, 2 could not run. Debug programs exceed the bounds.
"""
import argparse, concurrent.futures, os, pathlib, signal, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import check

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


# Number of definitions that one client applies afterwards, so the threads of this program do not delay each other.
LATER = 100
# Number of turns of each kind in the comparison of creations.
ROUNDS = 20


def definition(number):
    """A definition of 60 fields."""
    texts = {f"field{i}": {"type": "string", "maxLength": 256, "description": f"The text {i} of the object."} for i in range(56)}
    fields = {**texts, "replicas": {"type": "integer"}, "paused": {"type": "boolean"},
              "labels": {"type": "object", "additionalProperties": {"type": "string"}}, "names": {"type": "array", "items": {"type": "string"}}}
    group, plural = f"g{number % 50}.example.com", f"things{number}"
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": f"Thing{number}"},
                     "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                                   "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                                       "spec": {"type": "object", "properties": fields}}}}}]}}


def memory(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def cpu(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def apply(client, number):
    """Applies a definition and returns the time from Established to the first successful list."""
    one = definition(number)
    check.expect("create", client.send("POST", check.DEFINITIONS, one), 201)
    path = f"{check.DEFINITIONS}/{one['metadata']['name']}"
    check.wait("Established", lambda: check.established(client.send("GET", path)[1]))
    begin = time.monotonic()
    spec = one["spec"]
    objects = f"/apis/{spec['group']}/v1/{spec['names']['plural']}"
    check.wait("served", lambda: client.send("GET", objects)[0] == 200)
    return time.monotonic() - begin


def apply_all(client, count):
    """Applies the definitions with several clients at once."""
    with concurrent.futures.ThreadPoolExecutor(check.CLIENTS) as pool:
        list(pool.map(lambda number: apply(client, number), range(count)))


def create_costs(client, pid, kinds, count):
    """CPU seconds of apid for each creation, for each pair of path and example. The kinds take turns."""
    seconds, size = [0.0] * len(kinds), count // ROUNDS
    for turn in range(ROUNDS):
        for index, (path, example) in enumerate(kinds):
            begin = cpu(pid)
            for number in range(turn * size, (turn + 1) * size):
                body = {**example, "metadata": {"name": f"o{number}"}}
                check.expect("create", client.send("POST", path, body), 201)
            seconds[index] += cpu(pid) - begin
    return [each / (size * ROUNDS) for each in seconds]


def restart(server):
    """Stops and starts the server on the same data. -> time to readiness"""
    process = server.process
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    port_file = pathlib.Path(server.dir.name, "data", "apid.port")
    port_file.unlink(missing_ok=True)
    begin = time.monotonic()
    server.process = check.subprocess.Popen(process.args, stdout=server.log, stderr=server.log, stdin=check.subprocess.DEVNULL)
    server.url(begin + 120)
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--definitions", type=int, default=2000)
    parser.add_argument("--objects", type=int, default=5000)
    args = parser.parse_args()
    share = args.definitions / 2000
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as tokens:
        tokens.write(f'{check.TOKEN},check,check,"system:masters"\n')
        tokens.flush()
        server = check.server_class()("kubernetes", tokens.name)
        try:
            client = check.Client(server.url(time.monotonic() + 60))
            check.wait("the namespace", lambda: client.send("GET", "/api/v1/namespaces/default")[0] == 200)
            pid = server.process.pid
            before, begin = memory(pid), time.monotonic()
            apply_all(client, args.definitions)
            took = time.monotonic() - begin
            grown = memory(pid) - before
            served = max(apply(client, args.definitions + number) for number in range(LATER))
            text = "x" * 200
            maps, things = create_costs(client, pid, [
                ("/api/v1/namespaces/default/configmaps",
                 {"apiVersion": "v1", "kind": "ConfigMap", "data": {f"field{i}": text for i in range(9)}}),
                ("/apis/g0.example.com/v1/namespaces/default/things0",
                 {"apiVersion": "g0.example.com/v1", "kind": "Thing0", "spec": {f"field{i}": text for i in range(9)}}),
            ], args.objects)
            ready = restart(server)
        finally:
            server.stop()
    figures = [
        (f"{args.definitions} definitions applied", took, 20 * share, "s"),
        ("memory of the definitions", grown / 1e6, 120 * share, "MB"),
        ("ready after a restart", ready, 1, "s"),
        ("served after Established", served * 1e3, 20, "ms"),
        ("creation of a custom object beside a ConfigMap", things / max(maps, 1e-9), 1.3, "times"),
    ]
    for name, value, bound, unit in figures:
        print(f"{name}: {value:.2f} {unit} (bound {bound:.2f}){'' if value <= bound else ' EXCEEDED'}")
    return int(any(value > bound for _, value, bound, _ in figures))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (check.Failed, RuntimeError, OSError) as error:
        print(f"cost: {error}", file=sys.stderr)
        sys.exit(2)
