"""A manager of tools with leader election, on a server whose kubeconfig file is in KUBECONFIG.

The first argument is the identity of this instance. The election is that of the unmodified package `kubernetes`; its lock is a
Lease. The leader keeps a ConfigMap for each tool, with the color of the tool and the identity of the leader. A leader that
cannot renew the Lease ends the process. A request whose connection breaks is repeated; any other failure ends the process.

LEASE_SECONDS is the duration of the Lease (default 3); the other times of the election follow it.
"""

import datetime
import os
import sys
import time
import traceback

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from urllib3.exceptions import HTTPError

TOOLS = ("workshop.example.com", "v1", "default", "tools")


class LeaseLock:
    """The lock of the election. An update fails if another instance has written the Lease since the last read."""

    def __init__(self, identity):
        self.name, self.namespace, self.identity = "tools-manager", "default", identity
        self.leases = client.CoordinationV1Api()
        self.lease = None

    def get(self, name, namespace):
        try:
            self.lease = persistent(self.leases.read_namespaced_lease, name, namespace)
        except ApiException as error:
            return False, error
        spec = self.lease.spec
        times = (spec.acquire_time, spec.renew_time)
        return True, LeaderElectionRecord(spec.holder_identity, spec.lease_duration_seconds, *times)

    def create(self, name, namespace, election_record):
        now = datetime.datetime.now(datetime.timezone.utc)
        spec = client.V1LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=int(election_record.lease_duration),
            acquire_time=now,
            renew_time=now,
            lease_transitions=0,
        )
        lease = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=spec)
        return succeeds(self.leases.create_namespaced_lease, namespace, lease)

    def update(self, name, namespace, updated_record):
        spec = self.lease.spec
        spec.renew_time = datetime.datetime.now(datetime.timezone.utc)
        if spec.holder_identity != self.identity:
            spec.holder_identity, spec.acquire_time = self.identity, spec.renew_time
            spec.lease_transitions += 1
        return succeeds(self.leases.replace_namespaced_lease, name, namespace, self.lease)


def persistent(request, *arguments):
    """Repeats a request until a response."""
    while True:
        try:
            return request(*arguments)
        except HTTPError as error:
            print(f"reconnect: {error}", file=sys.stderr)
            time.sleep(0.05)


def succeeds(write, *arguments):
    """Whether a write succeeds; it may lose a race against the other instance."""
    try:
        persistent(write, *arguments)
    except ApiException as error:
        if error.status != 409:
            raise
        return False
    return True


def reconcile(identity):
    """Reconciles all tools, over broken connections. A failure ends the process."""
    try:
        while True:
            persistent(reconcile_events, identity)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def reconcile_events(identity):
    """Creates or replaces the ConfigMap of each tool that exists or changes."""
    tools, core = client.CustomObjectsApi(), client.CoreV1Api()
    for event in watch.Watch().stream(tools.list_namespaced_custom_object, *TOOLS):
        tool = event["object"]
        name = tool["metadata"]["name"]
        owner = client.V1OwnerReference(
            api_version=tool["apiVersion"], kind=tool["kind"], name=name, uid=tool["metadata"]["uid"], controller=True
        )
        metadata = client.V1ObjectMeta(name=name, owner_references=[owner])
        stock = client.V1ConfigMap(metadata=metadata, data={"color": tool["spec"]["color"], "by": identity})
        if not succeeds(core.create_namespaced_config_map, "default", stock):
            persistent(core.replace_namespaced_config_map, name, "default", stock)


if __name__ == "__main__":
    config.load_kube_config()
    own_identity = sys.argv[1]
    seconds = int(os.environ.get("LEASE_SECONDS", "3"))
    LeaderElection(Config(
        lock=LeaseLock(own_identity),
        lease_duration=seconds,
        renew_deadline=seconds * 2 // 3,
        retry_period=max(1, seconds // 7),
        onstarted_leading=lambda: reconcile(own_identity),
        onstopped_leading=lambda: os._exit(1),
    )).run()
