//! The object graph of a round: random operations on objects, and a record of these operations.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tests::harness::Client;

/// The namespaces of all namespaced objects.
pub const NAMESPACES: [&str; 2] = ["one", "two"];
/// The finalizer that blocks the deletion of some objects.
pub const FINALIZER: &str = "example.com/hold";
/// Name prefix of the objects of a round; the test ignores other objects.
pub const NAME_PREFIX: &str = "gc-";

/// A kind of the graph. The kinds belong to three API groups and are namespaced or cluster-scoped.
pub struct Kind {
    pub kind: &'static str,
    pub plural: &'static str,
    stem: &'static str,
    pub namespaced: bool,
}

/// All kinds of the graph.
pub const KINDS: [Kind; 4] = [
    Kind { kind: "ConfigMap", plural: "configmaps", stem: "", namespaced: true },
    Kind { kind: "Secret", plural: "secrets", stem: "", namespaced: true },
    Kind { kind: "Lease", plural: "leases", stem: "coordination", namespaced: true },
    Kind { kind: "IngressClass", plural: "ingressclasses", stem: "networking", namespaced: false },
];

impl Kind {
    /// `apiVersion` with the neutral names.
    pub fn api_version(&self) -> String {
        if self.stem.is_empty() { "v1".to_owned() } else { format!("{}.svc.internal/v1", self.stem) }
    }

    /// The collection path in a namespace, or (`""`) across all namespaces.
    pub fn path(&self, namespace: &str) -> String {
        let root =
            if self.stem.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", self.api_version()) };
        match namespace {
            "" => format!("{root}/{}", self.plural),
            namespace => format!("{root}/namespaces/{namespace}/{}", self.plural),
        }
    }

    /// The kind with this name.
    pub fn by_name(kind: &str) -> &'static Kind {
        KINDS.iter().find(|k| k.kind == kind).expect("a kind of the graph")
    }
}

/// Whether the object has a deletion timestamp.
pub fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// A random uid, which no object has.
fn random_uid(rng: &mut SmallRng) -> String {
    let bits = format!("{:032x}", rng.random::<u128>());
    [&bits[..8], &bits[8..12], &bits[12..16], &bits[16..20], &bits[20..]].join("-")
}

/// A created object.
#[derive(Clone)]
struct CreatedObject {
    kind: &'static str,
    namespace: String,
    name: String,
    uid: String,
}

impl CreatedObject {
    fn path(&self) -> String {
        format!("{}/{}", Kind::by_name(self.kind).path(&self.namespace), self.name)
    }

    fn reference(&self, rng: &mut SmallRng) -> Value {
        let api_version = Kind::by_name(self.kind).api_version();
        let mut out =
            json!({"apiVersion": api_version, "kind": self.kind, "name": self.name, "uid": self.uid});
        if rng.random_bool(0.6) {
            out["blockOwnerDeletion"] = rng.random_bool(0.8).into();
        }
        out
    }
}

/// The objects of a round and the operations on them.
pub struct Graph {
    round: usize,
    created: Vec<CreatedObject>,
    /// Uids of objects that the test deleted (not the garbage collector).
    pub deleted: BTreeSet<String>,
    /// Uids of objects whose finalizer the test removed.
    pub released: BTreeSet<String>,
    /// The propagation policy of each delete request, by object uid.
    requested_policies: BTreeMap<String, Vec<String>>,
}

impl Graph {
    /// A graph without objects.
    pub fn new(round: usize) -> Self {
        Graph {
            round,
            created: Vec::new(),
            deleted: BTreeSet::new(),
            released: BTreeSet::new(),
            requested_policies: BTreeMap::new(),
        }
    }

    /// Creates an object without owners, with live owners, or with deleted or never-existing owners.
    pub async fn create(&mut self, client: &Client, rng: &mut SmallRng) {
        let kind = KINDS.choose(rng).expect("kinds");
        let namespace = if kind.namespaced { *NAMESPACES.choose(rng).expect("namespaces") } else { "" };
        let name = format!("{NAME_PREFIX}{}-{}", self.round, self.created.len());
        let mut owners: Vec<Value> = Vec::new();
        let many = *[0, 1, 1, 1, 2, 3].choose(rng).expect("numbers");
        for _ in 0..many {
            owners.extend(self.owner(namespace, rng));
        }
        let mut metadata = json!({"name": name});
        if !owners.is_empty() {
            metadata["ownerReferences"] = owners.into();
        }
        if rng.random_ratio(1, 6) {
            metadata["finalizers"] = json!([FINALIZER]);
        }
        let mut body = json!({"metadata": metadata});
        if kind.kind == "IngressClass" {
            body["spec"] = json!({"controller": "example.com/none"});
        }
        let object = client.post(&kind.path(namespace), &body).await.expect(201);
        let uid = object["metadata"]["uid"].as_str().expect("a uid").to_owned();
        self.created.push(CreatedObject { kind: kind.kind, namespace: namespace.to_owned(), name, uid });
    }

    /// A valid owner reference for an object of the namespace, rarely to an owner that never existed.
    fn owner(&self, namespace: &str, rng: &mut SmallRng) -> Option<Value> {
        if rng.random_ratio(1, 15) {
            let never =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": random_uid(rng)});
            return Some(never).filter(|_| !namespace.is_empty());
        }
        let is_possible_owner =
            |created: &&CreatedObject| created.namespace.is_empty() || created.namespace == namespace;
        let fitting: Vec<_> = self.created.iter().filter(is_possible_owner).collect();
        let owner = fitting.choose(rng)?;
        let mut reference = owner.reference(rng);
        if rng.random_ratio(1, 30) {
            // The reference names this object, but has a different uid, as if the object had been replaced.
            reference["uid"] = random_uid(rng).into();
        }
        Some(reference)
    }

    /// Deletes a random object with a random propagation policy.
    pub async fn delete(&mut self, client: &Client, rng: &mut SmallRng) {
        let Some(created) = self.created.choose(rng).cloned() else { return };
        let how = match rng.random_range(0..6) {
            0 => json!({}),
            1 | 2 => json!({"propagationPolicy": "Background"}),
            3 => json!({"propagationPolicy": "Orphan"}),
            _ => json!({"propagationPolicy": "Foreground"}),
        };
        let headers = [("content-type", "application/json")];
        let response = client.request("DELETE", &created.path(), &headers, how.to_string().as_bytes()).await;
        match response.status {
            200 => {
                let policy = how["propagationPolicy"].as_str().unwrap_or("").to_owned();
                self.requested_policies.entry(created.uid.clone()).or_default().push(policy);
                self.deleted.insert(created.uid);
            }
            404 => {}
            other => panic!("unexpected status from {}: {other} {}", created.path(), response.text()),
        }
    }

    /// Removes the finalizer from a random object.
    pub async fn release(&mut self, client: &Client, rng: &mut SmallRng) {
        let Some(created) = self.created.choose(rng).cloned() else { return };
        self.remove_finalizer(client, &created).await;
    }

    /// Removes the finalizer from all objects.
    pub async fn release_all(&mut self, client: &Client) {
        for created in self.created.clone() {
            self.remove_finalizer(client, &created).await;
        }
    }

    async fn remove_finalizer(&mut self, client: &Client, created: &CreatedObject) {
        // The garbage collector writes concurrently; retry conflicts.
        loop {
            let response = client.get(&created.path()).await;
            if response.status == 404 {
                return;
            }
            let object = response.expect(200);
            let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            if !finalizers.contains(&json!(FINALIZER)) {
                return;
            }
            let rest: Vec<_> = finalizers.into_iter().filter(|f| f != FINALIZER).collect();
            let metadata = &object["metadata"];
            let patch = json!({"metadata": {
                "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": rest,
            }});
            self.released.insert(created.uid.clone());
            let response = client.patch(&created.path(), "application/merge-patch+json", &patch).await;
            match response.status {
                409 => {}
                200 | 404 => return,
                other => panic!("unexpected status from {}: {other} {}", created.path(), response.text()),
            }
        }
    }

    /// Adds an owner, possibly a terminating one, to a random object.
    pub async fn adopt(&mut self, client: &Client, rng: &mut SmallRng) {
        let Some(created) = self.created.choose(rng).cloned() else { return };
        let response = client.get(&created.path()).await;
        let Some(owner) = self.owner(&created.namespace, rng).filter(|_| response.status == 200) else {
            return;
        };
        let object = response.json();
        if object["metadata"]["uid"] == owner["uid"] {
            return;
        }
        let metadata = &object["metadata"];
        let mut owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        owners.retain(|other| other["uid"] != owner["uid"]);
        owners.push(owner);
        let patch =
            json!({"metadata": {"resourceVersion": metadata["resourceVersion"], "ownerReferences": owners}});
        client.patch(&created.path(), "application/merge-patch+json", &patch).await;
    }

    /// The propagation policies of the delete requests for an object, `""` for none.
    pub fn requested_policies(&self, uid: &str) -> &[String] {
        self.requested_policies.get(uid).map_or(&[], Vec::as_slice)
    }

    /// Deletes the remaining objects.
    pub async fn clear(&mut self, client: &Client) {
        for created in &self.created {
            client.delete(&created.path()).await;
        }
    }
}
