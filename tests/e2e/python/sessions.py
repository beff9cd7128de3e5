"""Sessions of the unmodified Python package `kubernetes` with a server whose kubeconfig file is in KUBECONFIG.

The first argument names the session. Actions that only the test can perform (restart the server, compact its history) are
requested by a line on standard output and confirmed by a line on standard input. A session that finds a violation raises, and
the process ends with a code other than 0.
"""

import json
import sys
import threading
import time

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException

DEADLINE = 60
LABEL = "part=reflected"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def ask(what):
    """Requests an action of the test on the server, and waits until it is done."""
    print(what, flush=True)
    answer = sys.stdin.readline()
    assert answer == "done\n", f"the response to {what!r} is {answer!r}"


def refusal(call, *arguments, **options):
    """Code and reason of a rejected call."""
    try:
        answer = call(*arguments, **options)
    except ApiException as error:
        return error.status, json.loads(error.body)["reason"]
    raise AssertionError(f"not rejected: {answer}")


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def config_map(name, data=None, labels=None):
    return client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name=name, labels=labels or {"part": "reflected"}), data=data
    )


def typed():
    """Life cycle of config maps, pods and deployments."""
    version = client.VersionApi().get_code()
    equal((version.major, version.minor), ("1", "33"))
    core, apps = client.CoreV1Api(), client.AppsV1Api()
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="typed")))

    made = core.create_namespaced_config_map("typed", config_map("one", {"a": "1", "b": "2"}))
    equal(made.data, {"a": "1", "b": "2"})
    assert made.metadata.uid and made.metadata.creation_timestamp.tzinfo, made.metadata
    equal(refusal(core.create_namespaced_config_map, "typed", config_map("one")), (409, "AlreadyExists"))
    equal(refusal(core.read_namespaced_config_map, "none", "typed"), (404, "NotFound"))
    tried = core.create_namespaced_config_map("typed", config_map("tried"), dry_run="All")
    assert tried.metadata.uid
    equal(refusal(core.read_namespaced_config_map, "tried", "typed"), (404, "NotFound"))

    # The package sends an object as a strategic merge patch, a list as a JSON patch.
    patch = core.patch_namespaced_config_map
    equal(patch("one", "typed", {"data": {"c": "3", "a": None}}).data, {"b": "2", "c": "3"})
    operations = [{"op": "test", "path": "/data/b", "value": "2"}, {"op": "remove", "path": "/data/b"}]
    equal(patch("one", "typed", operations).data, {"c": "3"})
    equal(refusal(patch, "one", "typed", operations)[0], 422)

    stale = core.read_namespaced_config_map("one", "typed")
    fresh = core.read_namespaced_config_map("one", "typed")
    fresh.data["e"] = "5"
    fresh = core.replace_namespaced_config_map("one", "typed", fresh)
    equal(refusal(core.replace_namespaced_config_map, "one", "typed", stale), (409, "Conflict"))

    for index in range(7):
        core.create_namespaced_config_map("typed", config_map(f"paged-{index}", labels={"paged": "yes"}))
    names, token = [], None
    while token != "":
        page = core.list_namespaced_config_map("typed", label_selector="paged", limit=3, _continue=token)
        assert len(page.items) <= 3
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue or ""
    equal(names, [f"paged-{index}" for index in range(7)])
    chosen = core.list_config_map_for_all_namespaces(field_selector="metadata.name=paged-2")
    equal([item.metadata.namespace for item in chosen.items], ["typed"])
    core.delete_collection_namespaced_config_map("typed", label_selector="paged")
    equal(core.list_namespaced_config_map("typed", label_selector="paged").items, [])
    equal(core.delete_namespaced_config_map("one", "typed").status, "Success")

    containers = [client.V1Container(name=name, image=f"{name}:1") for name in ("crust", "crumb")]
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(name="loaf", labels={"app": "loaf"}), spec=client.V1PodSpec(containers=containers)
    )
    core.create_namespaced_pod("typed", pod)
    changed = core.patch_namespaced_pod(
        "loaf", "typed", {"spec": {"containers": [{"name": "crumb", "image": "crumb:2"}]}}
    )
    equal([container.image for container in changed.spec.containers], ["crust:1", "crumb:2"])
    core.patch_namespaced_pod_status("loaf", "typed", {"status": {"phase": "Running", "podIP": "192.0.2.7"}})
    equal(core.read_namespaced_pod_status("loaf", "typed").status.pod_ip, "192.0.2.7")
    running = core.list_namespaced_pod("typed", field_selector="status.phase=Running")
    equal([item.metadata.name for item in running.items], ["loaf"])
    core.delete_namespaced_pod("loaf", "typed", grace_period_seconds=0)

    labels = {"app": "web"}
    deployment = client.V1Deployment(
        metadata=client.V1ObjectMeta(name="web"),
        spec=client.V1DeploymentSpec(
            replicas=2,
            selector=client.V1LabelSelector(match_labels=labels),
            template=client.V1PodTemplateSpec(
                metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=containers)
            ),
        ),
    )
    apps.create_namespaced_deployment("typed", deployment)
    apps.patch_namespaced_deployment_scale("web", "typed", {"spec": {"replicas": 5}})
    equal(apps.read_namespaced_deployment_scale("web", "typed").spec.replicas, 5)
    live = apps.read_namespaced_deployment("web", "typed")
    equal((live.spec.replicas, live.metadata.generation), (5, 2))
    live.status = client.V1DeploymentStatus(replicas=5, ready_replicas=4, observed_generation=2)
    apps.replace_namespaced_deployment_status("web", "typed", live)
    equal(apps.read_namespaced_deployment("web", "typed").status.ready_replicas, 4)
    apps.delete_namespaced_deployment("web", "typed", propagation_policy="Background")

    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=client.V1ResourceAttributes(verb="delete", resource="pods", namespace="typed")
        )
    )
    assert client.AuthorizationV1Api().create_self_subject_access_review(review).status.allowed
    core.delete_namespace("typed")


def any_kind():
    """Kinds found by discovery, and untyped objects."""
    untyped = dynamic.DynamicClient(client.ApiClient())
    listed = 0
    for resources in untyped.resources.search():
        kind = getattr(resources, "kind", "")
        if kind.endswith("List") or "list" not in (getattr(resources, "verbs", None) or []):
            continue
        listing = untyped.get(resources)
        assert listing.metadata.resourceVersion is not None, kind
        listed += 1
    assert listed > 45, f"{listed} kinds listed"

    leases = untyped.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "lock", "labels": {"held": "yes"}},
        "spec": {"holderIdentity": "a"},
    }
    made = leases.create(body=body, namespace="default")
    equal(made.spec.holderIdentity, "a")
    body["spec"]["holderIdentity"] = "b"
    equal(leases.patch(body=body, namespace="default", content_type=MERGE).spec.holderIdentity, "b")
    live = leases.get(name="lock", namespace="default")
    live.spec.leaseDurationSeconds = 15
    equal(leases.replace(body=live.to_dict(), namespace="default").spec.leaseDurationSeconds, 15)
    equal([item.metadata.name for item in leases.get(namespace="default", label_selector="held=yes").items], ["lock"])
    events = leases.watch(namespace="default", resource_version="0", timeout=5)
    first = next(iter(events))
    equal((first["type"], first["object"].metadata.name), ("ADDED", "lock"))
    pods = untyped.resources.get(api_version="v1", kind="Pod")
    crust, crumb = ({"name": name, "image": f"{name}:1"} for name in ("crust", "crumb"))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loaf"}, "spec": {"containers": [crust, crumb]}}
    pods.create(body=pod, namespace="default")
    change = {"metadata": {"name": "loaf"}, "spec": {"containers": [{"name": "crumb", "image": "crumb:2"}]}}
    images = [c.image for c in pods.patch(body=change, namespace="default", content_type=STRATEGIC).spec.containers]
    equal(images, ["crust:1", "crumb:2"])
    change = {"metadata": {"name": "loaf", "labels": {"baked": "yes"}, "annotations": None}}
    equal(dict(pods.patch(body=change, namespace="default", content_type=MERGE).metadata.labels), {"baked": "yes"})
    pods.delete(name="loaf", namespace="default")

    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": {"a": "1"}}
    maps = untyped.resources.get(api_version="v1", kind="ConfigMap")
    maps.server_side_apply(body=applied, namespace="default", field_manager="left")
    applied["data"] = {"a": "2"}
    try:
        maps.server_side_apply(body=applied, namespace="default", field_manager="right")
    except dynamic.exceptions.ConflictError as error:
        assert "left" in str(error.body), error.body
    else:
        raise AssertionError("no conflict between two field managers")
    taken = maps.server_side_apply(body=applied, namespace="default", field_manager="right", force_conflicts=True)
    equal((taken.data.a, taken.metadata.managedFields[0].manager), ("2", "right"))

    leases.delete(name="lock", namespace="default")
    try:
        leases.get(name="lock", namespace="default")
    except dynamic.exceptions.NotFoundError as error:
        equal(error.status, 404)
    else:
        raise AssertionError("the lease still exists")


class Reflector:
    """Config maps as seen by a list and later watches: version by name."""

    def __init__(self, core):
        self.core = core
        self.lists = 0
        self.told = {}
        self.relist()

    def relist(self):
        listing = self.core.list_namespaced_config_map("default", label_selector=LABEL, limit=300)
        items, self.version = list(listing.items), listing.metadata.resource_version
        while listing.metadata._continue:
            listing = self.core.list_namespaced_config_map(
                "default", label_selector=LABEL, limit=300, _continue=listing.metadata._continue
            )
            items += listing.items
        self.state = {item.metadata.name: item.metadata.resource_version for item in items}
        self.lists += 1

    def until(self, expected):
        """Watches from the last version until the state is the expected one."""
        end = time.monotonic() + DEADLINE
        while self.state != expected:
            assert time.monotonic() < end, f"{len(self.state)} of {len(expected)} within {DEADLINE} s"
            try:
                self.watch_once(expected)
            except ApiException as error:
                if error.status != 410:
                    raise
                self.relist()
            except Exception as error:  # the server is down: urllib3 reports this in many ways
                print(f"watch: {error}", file=sys.stderr)
                time.sleep(0.05)

    def watch_once(self, expected):
        stream = watch.Watch().stream(
            self.core.list_namespaced_config_map,
            "default",
            label_selector=LABEL,
            resource_version=self.version,
            allow_watch_bookmarks=True,
            timeout_seconds=5,
        )
        for event in stream:
            if event["type"] == "BOOKMARK":
                self.version = event["raw_object"]["metadata"]["resourceVersion"]
                continue
            metadata = event["object"].metadata
            self.version = metadata.resource_version
            told = self.told.setdefault(metadata.name, [])
            assert not told or int(told[-1]) < int(self.version), f"{metadata.name}: {told} and {self.version}"
            told.append(self.version)
            if event["type"] == "DELETED":
                self.state.pop(metadata.name)
            else:
                equal(event["type"], "MODIFIED" if metadata.name in self.state else "ADDED")
                self.state[metadata.name] = self.version
            if self.state == expected:
                return


def versions(core):
    listing = core.list_namespaced_config_map("default", label_selector=LABEL)
    return {item.metadata.name: item.metadata.resource_version for item in listing.items}


def change(core, rounds):
    for index in range(rounds * 20, rounds * 20 + 10):
        core.patch_namespaced_config_map(f"object-{index}", "default", {"data": {"round": str(rounds)}})
        core.delete_namespaced_config_map(f"object-{index + 10}", "default")
        core.create_namespaced_config_map("default", config_map(f"late-{rounds}-{index}"))


def watched():
    """A watch continues after restarts from the last version: no second list, no duplicate and no missing event."""
    core = client.CoreV1Api()
    for index in range(200):
        core.create_namespaced_config_map("default", config_map(f"object-{index}"))
    reflector = Reflector(core)
    equal(len(reflector.state), 200)
    # One round while the watch is open, so that the watch delivers live events.
    changing = threading.Thread(target=change, args=(client.CoreV1Api(), 0))
    changing.start()
    while changing.is_alive():
        reflector.until(versions(core))
    changing.join()
    reflector.until(versions(core))
    for rounds, event in ((1, "restart"), (2, "kill")):
        ask(event)
        change(core, rounds)
        reflector.until(versions(core))
        equal(len(reflector.state), 200)
    equal(reflector.lists, 1)


def trimmed():
    """After compaction a watch and a paged list return 410, and a client lists again."""
    core = client.CoreV1Api()
    for index in range(20):
        core.create_namespaced_config_map("default", config_map(f"object-{index}"))
    reflector = Reflector(core)
    page = core.list_namespaced_config_map("default", label_selector=LABEL, limit=5)
    old = page.metadata.resource_version
    ask("trim")

    reflector.until(versions(core))
    equal(reflector.lists, 2)
    # The rest of the old list is compacted; the client may continue at a newer version.
    body = refusal(
        core.list_namespaced_config_map, "default", label_selector=LABEL, limit=5, _continue=page.metadata._continue
    )
    equal(body, (410, "Expired"))
    # `NotOlderThan` pages: rejected for the compacted version, served for a newer one.
    pages = {"label_selector": LABEL, "limit": 5, "resource_version_match": "NotOlderThan"}
    try:
        page = core.list_namespaced_config_map("default", resource_version=old, **pages)
    except ApiException as error:
        equal(error.status, 410)
        newer = core.list_namespaced_config_map("default", label_selector=LABEL).metadata.resource_version
        page = core.list_namespaced_config_map("default", resource_version=newer, **pages)
    equal(len(page.items), 5)
    equal(refusal(
        core.list_namespaced_config_map, "default", resource_version=old, resource_version_match="Exact"
    ), (410, "Expired"))
    equal(len(core.list_namespaced_config_map("default", label_selector=LABEL, limit=5).items), 5)


FINALIZER = "shop.example.com/stock"
LAST_HANDLED = "shop.example.com/last-handled"


class Operator:
    """An operator of shops in the style of kopf: one watch, a finalizer, the last handled spec in an annotation, and
    results in the status, all by merge patches."""

    def __init__(self):
        self.shops = client.CustomObjectsApi()
        self.core = client.CoreV1Api()
        self.handled = []

    def run(self, until):
        """Handles events until the condition holds."""
        end = time.monotonic() + DEADLINE
        listing = self.shops.list_namespaced_custom_object(*SHOPS)
        for shop in listing["items"]:
            self.handle(shop)
        version = listing["metadata"]["resourceVersion"]
        while not until():
            assert time.monotonic() < end, f"not in time; handled: {self.handled}"
            stream = watch.Watch().stream(
                self.shops.list_namespaced_custom_object, *SHOPS, resource_version=version, timeout_seconds=1
            )
            for event in stream:
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "DELETED":
                    self.handle(event["object"])

    def handle(self, shop):
        metadata, spec = shop["metadata"], json.dumps(shop["spec"], sort_keys=True)
        name, finalizers = metadata["name"], metadata.get("finalizers", [])
        if "deletionTimestamp" in metadata:
            if FINALIZER in finalizers:
                self.core.delete_namespaced_config_map(name, "default")
                self.handled.append(("delete", name))
                self.patch(name, {"metadata": {"finalizers": [f for f in finalizers if f != FINALIZER]}})
        elif FINALIZER not in finalizers:
            self.patch(name, {"metadata": {"finalizers": finalizers + [FINALIZER]}})
        elif (last := metadata.get("annotations", {}).get(LAST_HANDLED)) != spec:
            stock = config_map(name, {"size": str(shop["spec"]["size"])})
            if last is None:
                self.core.create_namespaced_config_map("default", stock)
            else:
                self.core.patch_namespaced_config_map(name, "default", stock)
            self.handled.append(("update" if last else "create", name))
            self.patch(name, {"metadata": {"annotations": {LAST_HANDLED: spec}}})
            observed = {"status": {"observed": shop["spec"]["size"]}}
            self.shops.patch_namespaced_custom_object_status(*SHOPS, name, observed)

    def patch(self, name, body):
        self.shops.patch_namespaced_custom_object(*SHOPS, name, body)


SHOPS = ("shop.example.com", "v1", "default", "shops")


def operator():
    """An operator of a custom kind handles creation, change and deletion once each, and its definition ends."""
    extensions = client.ApiextensionsV1Api()
    number = {"type": "integer"}
    schema = {"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {"size": number}},
        "status": {"type": "object", "properties": {"observed": number}},
    }}
    extensions.create_custom_resource_definition({
        "metadata": {"name": "shops.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Namespaced", "names": {"plural": "shops", "kind": "Shop"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                               "schema": {"openAPIV3Schema": schema}}]},
    })

    def is_established():
        definition = extensions.read_custom_resource_definition("shops.shop.example.com")
        conditions = definition.status.conditions or []
        return any(c.type == "Established" and c.status == "True" for c in conditions)

    end = time.monotonic() + DEADLINE
    while not is_established():
        assert time.monotonic() < end, "the definition is not established in time"
        time.sleep(0.01)
    loop = Operator()
    shops = loop.shops
    shop = {"apiVersion": "shop.example.com/v1", "kind": "Shop", "metadata": {"name": "corner"}, "spec": {"size": 3}}
    equal(refusal(shops.create_namespaced_custom_object, *SHOPS, {**shop, "spec": {}})[0], 422)
    shops.create_namespaced_custom_object(*SHOPS, shop)

    def observed():
        return shops.get_namespaced_custom_object(*SHOPS, "corner").get("status", {}).get("observed")

    loop.run(lambda: observed() == 3)
    shops.patch_namespaced_custom_object(*SHOPS, "corner", {"spec": {"size": 5}})
    loop.run(lambda: observed() == 5)
    equal(loop.core.read_namespaced_config_map("corner", "default").data, {"size": "5"})
    equal(shops.get_namespaced_custom_object(*SHOPS, "corner")["metadata"]["generation"], 2)
    shops.delete_namespaced_custom_object(*SHOPS, "corner")
    loop.run(lambda: not shops.list_namespaced_custom_object(*SHOPS)["items"])
    equal(loop.handled, [("create", "corner"), ("update", "corner"), ("delete", "corner")])
    extensions.delete_custom_resource_definition("shops.shop.example.com")
    while True:
        try:
            shops.list_namespaced_custom_object(*SHOPS)
        except ApiException as error:
            equal(error.status, 404)
            return
        assert time.monotonic() < end, "the kind remains after its definition"
        time.sleep(0.01)


SESSIONS = {"typed": typed, "dynamic": any_kind, "watched": watched, "trimmed": trimmed, "operator": operator}

if __name__ == "__main__":
    config.load_kube_config()
    SESSIONS[sys.argv[1]]()
