#!/usr/bin/env python3
"""Real definitions: applies the definitions of well-known projects to one server and uses every kind.

    check.py [--packages DIR] [--least N] [-v]

DIR is the node_modules of the packages of package.json (default target/definitions/node_modules). The programs are taken
from target/debug (or PROFILE_DIR). For each definition the check

- applies the definition and waits for the condition Established,
- creates the smallest valid object in every version and reads it in the storage version,
- sees the object in a watch,
- applies the object with two field managers: a conflict, a forced apply, and both owners,
- finds the kind with its description in OpenAPI v3, from which kubectl explains it,
- deletes all definitions and sees their kinds leave discovery.

Without the packages the check prints a line and passes, unless ALLOWED_SKIPS names a file that does not list `definitions`.

Exit status: 0 every definition works, 1 some do not, 2 could not run.
"""
import argparse, collections, concurrent.futures, importlib.util, json, os, pathlib, ssl, subprocess, sys, tempfile, threading, time, http.client

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import schemas

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TOKEN = "definitions-check"
JSON, APPLY = "application/json", "application/apply-patch+yaml"
CLIENTS = 8


def server_class():
    """The server of the replay, which differs from that of this check only in its tokens."""
    spec = importlib.util.spec_from_file_location("replay_check", ROOT / "tests" / "conformance" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Server


class Client:
    """One connection for each thread."""

    def __init__(self, url):
        self.address = url.removeprefix("https://")
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.local = threading.local()

    def send(self, method, path, body=None, media_type=JSON):
        """-> status, document"""
        headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": media_type}
        data = None if body is None else json.dumps(body)
        for attempt in (1, 2):
            if getattr(self.local, "connection", None) is None:
                self.local.connection = http.client.HTTPSConnection(self.address, context=self.context, timeout=60)
            try:
                self.local.connection.request(method, path, data, headers)
                answer = self.local.connection.getresponse()
                text = answer.read()
                return answer.status, (json.loads(text) if text.startswith(b"{") else text.decode())
            except (http.client.HTTPException, OSError):
                self.local.connection = None
                if attempt == 2:
                    raise

    def first_event(self, path):
        """-> status, first event of a watch, which is then closed; or the document of a failure"""
        connection = http.client.HTTPSConnection(self.address, context=self.context, timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": "Bearer " + TOKEN})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.readline())
        finally:
            connection.close()


class Failed(Exception):
    """A step with an unexpected result."""


def expect(step, result, *statuses):
    status, document = result
    if status not in statuses:
        message = document.get("message", document) if isinstance(document, dict) else document
        raise Failed(f"{step}: {status}: {str(message)[:600]}")
    return document


def established(definition):
    return any(c["type"] == "Established" and c["status"] == "True" for c in (definition.get("status") or {}).get("conditions") or [])


def wait(step, poll, seconds=60):
    deadline = time.monotonic() + seconds
    while not poll():
        if time.monotonic() > deadline:
            raise Failed(step + ": not in time")
        time.sleep(0.02)


def use(client, definition):
    """All steps of one definition -> number of completed steps, reason of a failure or None"""
    counts = collections.Counter()
    try:
        use_all(client, definition, counts)
    except Failed as failure:
        return counts, str(failure)
    except Exception as error:  # an unexpected document fails its definition, not the check
        return counts, f"{type(error).__name__}: {error}"
    return counts, None


def use_all(client, definition, counts):
    spec, name = definition["spec"], definition["metadata"]["name"]
    path = f"{DEFINITIONS}/{name}"
    expect("apply the definition", client.send("PATCH", path + "?fieldManager=check", definition, APPLY), 201)
    wait("Established", lambda: established(client.send("GET", path)[1]))
    counts["definitions"] += 1
    kind, plural = spec["names"]["kind"], spec["names"]["plural"]
    stored = next(v for v in spec["versions"] if v["storage"])["name"]
    for version in spec["versions"]:
        api = f"{spec['group']}/{version['name']}"
        schema = version["schema"]["openAPIV3Schema"]
        objects = f"/apis/{api}/namespaces/default/{plural}"
        own_name = "example-" + version["name"]
        example = {**schemas.smallest(schema), "apiVersion": api, "kind": kind, "metadata": {"name": own_name}}
        created = expect(f"create in {version['name']}", client.send("POST", objects + "?fieldValidation=Strict", example), 201)
        counts["objects"] += 1
        in_storage_version = f"/apis/{spec['group']}/{stored}/namespaces/default/{plural}/{own_name}"
        read = expect("read in the storage version", client.send("GET", in_storage_version), 200)
        if read["apiVersion"] != f"{spec['group']}/{stored}" or read["metadata"]["uid"] != created["metadata"]["uid"]:
            raise Failed("read in the storage version: another object")
        event = expect("watch", client.first_event(f"{objects}?watch=1&fieldSelector=metadata.name%3D{own_name}"), 200)
        if event["type"] != "ADDED" or event["object"]["apiVersion"] != api:
            raise Failed(f"watch in {version['name']}: {event['type']}")
        counts["watched"] += 1
        for manager, value, force, status in (("one", "1", "", 200), ("two", "2", "", 409), ("two", "2", "&force=true", 200)):
            intent = {**example, "metadata": {"name": own_name, "labels": {"owner": value, manager: "x"}}}
            if manager == "two":
                intent = {"apiVersion": api, "kind": kind, "metadata": intent["metadata"], **{k: v for k, v in example.items() if k == "spec"}}
            force = "&force=true" if manager == "one" else force
            applied = expect(f"apply as {manager}", client.send("PATCH", f"{objects}/{own_name}?fieldManager={manager}{force}", intent, APPLY), status)
        owners = {entry["manager"] for entry in applied["metadata"]["managedFields"]}
        if not {"one", "two"} <= owners or applied["metadata"]["labels"] != {"owner": "2", "one": "x", "two": "x"}:
            raise Failed(f"apply: owners {sorted(owners)}")
        counts["applied by two managers"] += 1
        document = expect("OpenAPI", client.send("GET", f"/openapi/v3/apis/{api}"), 200)
        of_kind = [s for s in document["components"]["schemas"].values()
                   if any(g["kind"] == kind for g in s.get("x-kubernetes-group-version-kind", []))]
        if not of_kind or of_kind[0].get("description") != schema["description"] or "metadata" not in of_kind[0]["properties"]:
            raise Failed("OpenAPI: the kind or its description is missing")
        counts["explained"] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", default=str(ROOT / "target" / "definitions" / "node_modules"))
    parser.add_argument("--least", type=int, default=100, help="least number of definitions")
    parser.add_argument("--only", help="definitions whose name contains this text")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    if not pathlib.Path(args.packages, "@kubernetes-models").is_dir():
        reason = f"no packages in {args.packages}: run `npm ci` there with tests/definitions/package*.json"
        allowed = os.environ.get("ALLOWED_SKIPS")
        if allowed and "definitions" not in [line.split("#")[0].strip() for line in (ROOT / allowed).read_text().splitlines()]:
            print("definitions: " + reason)
            return 2
        print("skipped: definitions: " + reason)
        if os.environ.get("SKIPPED"):
            with open(os.environ["SKIPPED"], "a") as skipped:
                skipped.write(f"definitions: {reason}\n")
        return 0
    definitions = schemas.definitions(args.packages)
    if args.only:
        definitions = {name: d for name, d in definitions.items() if args.only in name}
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as tokens:
        tokens.write(f'{TOKEN},check,check,"system:masters"\n')
        tokens.flush()
        server = server_class()("kubernetes", tokens.name)
        try:
            client = Client(server.url(time.monotonic() + 60))
            wait("the namespace", lambda: client.send("GET", "/api/v1/namespaces/default")[0] == 200)
            counts, failures = collections.Counter(), {}
            begin = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                jobs = {name: pool.submit(use, client, d) for name, d in definitions.items()}
                for name, job in jobs.items():
                    completed, failure = job.result()
                    counts += completed
                    if failure is not None:
                        failures[name] = failure
            for name, failure in sorted(failures.items()):
                print(f"{name}: {failure}")
            print(", ".join(f"{count} {what}" for what, count in counts.items()), f"in {time.monotonic() - begin:.1f} s")
            expect("delete all definitions", client.send("DELETE", DEFINITIONS), 200)
            groups = lambda: {g["name"] for g in client.send("GET", "/apis")[1]["groups"]}
            own = {d["spec"]["group"] for d in definitions.values()}
            wait("discovery without the definitions", lambda: not own & groups(), 120)
        finally:
            server.stop()
    if failures or (counts["definitions"] < args.least and not args.only):
        print(f"{len(failures)} definitions do not work; {counts['definitions']} of at least {args.least} were applied")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, RuntimeError, OSError) as error:
        print(f"definitions: {error}", file=sys.stderr)
        sys.exit(2)
