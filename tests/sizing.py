#!/usr/bin/env python3
"""Measures resident memory and store size for each object, watch, binding and definition: the table in docs/operations.md.

usage: tests/sizing.py FOLDER-WITH-PROGRAMS [--scale 1.0]

Starts apid and authd on a temporary store, creates the objects over HTTP/1.1 with TLS, and prints one line for each kind.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import ssl
import subprocess
import tempfile
import time


class Server:
    def __init__(self, programs):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        certs = self.folder / "certs"
        apid = pathlib.Path(programs, "apid")
        subprocess.run([apid, "certs", f"--cert-dir={certs}", "--client=admin", "--group=system:masters"],
                       check=True, stdout=subprocess.DEVNULL)
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(
            [apid, "--spawn-authd", "--names=kubernetes", f"--data-dir={self.folder}", "--bind-address=127.0.0.1",
             "--secure-port=0", f"--client-ca-file={certs}/ca.crt", "--authorization-mode=Node,RBAC"],
            stderr=self.log)
        self.context = ssl.create_default_context(cafile=certs / "ca.crt")
        self.context.load_cert_chain(certs / "admin.crt", certs / "admin.key")
        for _ in range(300):
            time.sleep(0.1)
            try:
                self.port = int((self.folder / "apid.port").read_text())
                if self.call(self.connect(), "GET", "/readyz")[0] == 200:
                    break
            except (OSError, ValueError):
                pass
        self.authd = int(subprocess.run(["pgrep", "--parent", str(self.process.pid)], capture_output=True, check=True).stdout)

    def connect(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context)

    def call(self, connection, method, path, body=None):
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()

    def create(self, path, objects):
        def run(part):
            connection = self.connect()
            for item in part:
                status, text = self.call(connection, "POST", path, item)
                assert status == 201, (status, text)
            connection.close()

        parts = [objects[start::16] for start in range(16)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(run, parts))

    def memory(self, pid):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def sizes(self):
        """Resident memory of apid and of authd, size of the store, and descriptors of apid, at rest."""
        time.sleep(4)
        store = sum(path.stat().st_blocks * 512 for path in (self.folder / "store").rglob("*") if path.is_file())
        descriptors = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return [self.memory(self.process.pid), self.memory(self.authd), store, descriptors]

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs")
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    count = lambda number: max(16, int(number * arguments.scale))
    server = Server(arguments.programs)
    idle = server.sizes()
    print(f"idle: apid {idle[0] >> 20} MiB, authd {idle[1] >> 20} MiB, {idle[3]} descriptors of apid")

    def measure(name, number, step):
        before = server.sizes()
        kept = step(number)
        after = server.sizes()
        each = [(new - old) / number for old, new in zip(before, after)]
        print(f"{name}: {number}, each {each[0]:.0f} bytes in apid, {each[1]:.0f} in authd, {each[2]:.0f} on disk, "
              f"{each[3]:.2f} descriptors")
        return kept

    config_maps = "/api/v1/namespaces/default/configmaps"
    measure("ConfigMap of 1 kB", count(20000), lambda n: server.create(
        config_maps, [{"metadata": {"name": f"small-{i}"}, "data": {"value": os.urandom(350).hex()}} for i in range(n)]))
    measure("ConfigMap of 10 kB", count(2000), lambda n: server.create(
        config_maps, [{"metadata": {"name": f"large-{i}"}, "data": {"value": os.urandom(4900).hex()}} for i in range(n)]))
    group = "rbac.authorization.k8s.io"
    measure("RoleBinding", count(10000), lambda n: server.create(
        f"/apis/{group}/v1/namespaces/default/rolebindings",
        [{"metadata": {"name": f"b-{i}"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
          "subjects": [{"apiGroup": group, "kind": "User", "name": f"user-{i}"}]} for i in range(n)]))

    def definitions(number):
        schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {
            f"field{i}": {"type": "string", "description": "a field of the example", "maxLength": 100} for i in range(40)}}}}
        server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", [
            {"metadata": {"name": f"kind{i}s.size.example.com"},
             "spec": {"group": "size.example.com", "scope": "Namespaced",
                      "names": {"plural": f"kind{i}s", "singular": f"kind{i}", "kind": f"Kind{i}", "listKind": f"Kind{i}List"},
                      "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}}
            for i in range(number)])

    measure("definition with 40 fields", count(200), definitions)

    def watches(number):
        kept = []
        for _ in range(number):
            connection = server.connect()
            connection.request("GET", f"{config_maps}?watch=1&resourceVersion=0&fieldSelector=metadata.name=none")
            kept.append((connection, connection.getresponse()))
        return kept

    kept = measure("watch on its own connection", count(1000), watches)
    for connection, _ in kept:
        connection.close()
    server.stop()


if __name__ == "__main__":
    main()
