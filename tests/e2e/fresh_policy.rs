//! End-to-end test of INVARIANT (fresh policy).
//!
//! A request that arrives after the acknowledgment of a policy write is never decided on older policy.
//!
//! Concurrent workers, each in a separate namespace, grant a right, use it, revoke it and use it again. They
//! cover every way to grant a right in RBAC. The test with fault injection also covers pods of a node, tokens
//! and webhook decisions. `ROUNDS` sets the number of rounds of two trials (default 1,000), `WORKERS` the
//! number of workers (default 8), `READERS` the number of clients that each worker asks at once after a write (default
//! 1). Each test prints its seed; `SEED` repeats the random choices of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tests::harness::{
    Client, Cluster, ControlPlane, DEADLINE, Disturbance, Options, Session, TestResponse, request_body,
};

use super::faulty_webhook::{FaultyWebhook, ResponseMode};

/// The number in an environment variable, or the default without the variable.
pub(super) fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Number of concurrent workers.
fn workers() -> usize {
    usize::try_from(env_number("WORKERS", 8)).expect("a number of workers")
}

/// Number of clients that ask at once after each write of a worker.
fn readers() -> usize {
    usize::try_from(env_number("READERS", 1)).expect("a number of clients")
}

/// Seed of random tests, which `SEED` sets.
pub(super) fn seed() -> u64 {
    let seed = env_number("SEED", rand::random());
    println!("SEED={seed}");
    seed
}

/// Number of rounds without `ROUNDS`.
const DEFAULT_ROUNDS: u64 = 1_000;

/// Minimum number of disturbances of a run.
const MIN_DISTURBANCES: u64 = 3;

/// Ports of the servers that clients use; servers may restart on new ports.
type Ports = Arc<[AtomicU16]>;

/// Time limit of a request; a paused server does not respond.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(8);

/// A client that sends each request to a random server.
struct RetryingClient {
    token: String,
    ports: Ports,
    sessions: Vec<Option<Session>>,
    /// Requests without a decision: connection errors and 503 responses.
    undecided: Arc<AtomicU64>,
}

impl RetryingClient {
    fn new(token: String, ports: &Ports, undecided: &Arc<AtomicU64>) -> Self {
        let sessions = ports.iter().map(|_| None).collect();
        RetryingClient { token, ports: Arc::clone(ports), sessions, undecided: Arc::clone(undecided) }
    }

    async fn try_once(&mut self, method: &str, path: &str, body: &[u8]) -> Option<TestResponse> {
        let server = rand::random_range(0..self.ports.len());
        // A request that is not complete loses its session.
        let session = self.sessions[server].take();
        let attempt = async {
            let mut session = match session {
                Some(session) => session,
                None => {
                    let port = self.ports[server].load(Ordering::SeqCst);
                    Client::new(port, Some(self.token.clone())).connect().await.ok()?
                }
            };
            let response = session.request(method, path, body).await.ok()?;
            Some((session, response))
        };
        let (session, response) = tokio::time::timeout(REQUEST_TIME_LIMIT, attempt).await.ok()??;
        self.sessions[server] = Some(session);
        // A write without a known outcome has 500 or 504 in a cluster, where the store is another process.
        let is_undecided = response.status == 503 || self.ports.len() > 1 && response.status >= 500;
        (!is_undecided).then_some(response)
    }

    fn become_user(&mut self, token: String) {
        self.token = token;
        self.sessions.fill_with(|| None);
    }

    /// Repeats a request until a response with a decision. Returns the response, and whether the request was repeated.
    async fn request_until_decided(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> (TestResponse, bool) {
        let body = request_body(body);
        let decision = async {
            let mut is_repeated = false;
            loop {
                if let Some(response) = self.try_once(method, path, &body).await {
                    return (response, is_repeated);
                }
                is_repeated = true;
                self.undecided.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, decision)
            .await
            .unwrap_or_else(|_| panic!("no response to {method} {path}"))
    }

    /// Writes until the write is acknowledged. Returns whether the write was repeated.
    ///
    /// A repeated write may find the effect of an earlier write whose response was lost.
    async fn write(&mut self, method: &str, path: &str, body: &Value) -> bool {
        let (response, is_repeated) = self.request_until_decided(method, path, body).await;
        let done = match (method, response.status) {
            (_, 200 | 201) => true,
            ("POST", 409) | ("DELETE", 404) => is_repeated,
            _ => false,
        };
        assert!(done, "{method} {path}: {} {}", response.status, response.text());
        is_repeated
    }
}

/// A worker owns one namespace and the cluster-scoped objects with its name.
struct Worker {
    admin: RetryingClient,
    users: Vec<RetryingClient>,
    /// Kubelets of the node with the worker's name.
    nodes: Vec<RetryingClient>,
    /// Clients with the worker's bootstrap token.
    tokens: Vec<RetryingClient>,
    name: String,
    /// In a cluster: the number of further names; None for one server. See [`Worker::succeed`].
    generations: Option<usize>,
    rbac: String,
    grant_kinds: &'static [GrantKind],
    /// The authorization webhook; None without the mode Webhook.
    webhook: Option<Arc<FaultyWebhook>>,
    /// Number of decisions after a grant or a revocation.
    trials: Arc<AtomicU64>,
    rng: SmallRng,
}

/// A kind of grant, by which the workers grant and revoke a right.
#[derive(Clone, Copy, Debug)]
enum GrantKind {
    /// Create and delete a RoleBinding to an existing Role.
    RoleBinding,
    /// Create and delete a RoleBinding to a ClusterRole.
    RoleBindingToClusterRole,
    /// Create and delete a ClusterRoleBinding.
    ClusterRoleBinding,
    /// Change the rules of a bound Role.
    Rules,
    /// Change the subjects of a binding.
    Subjects,
    /// Create and delete a bound Role.
    Role,
    /// Add and remove the label by which a bound ClusterRole aggregates a second ClusterRole.
    Aggregation,
    /// Create and delete a pod on a node that refers to an object.
    Pod,
    /// Create and delete a bootstrap token.
    Token,
    /// Change the decision of a webhook without a decision cache.
    Webhook,
}

/// All kinds of grants; those of the modes Node and RBAC come first.
const GRANT_KINDS: [GrantKind; 10] = [
    GrantKind::RoleBinding,
    GrantKind::RoleBindingToClusterRole,
    GrantKind::ClusterRoleBinding,
    GrantKind::Rules,
    GrantKind::Subjects,
    GrantKind::Role,
    GrantKind::Aggregation,
    GrantKind::Pod,
    GrantKind::Token,
    GrantKind::Webhook,
];

/// The kinds of grants of the modes Node and RBAC.
const POLICY_GRANT_KINDS: &[GrantKind] = GRANT_KINDS.split_at(8).0;

impl Worker {
    fn namespaced(&self, resource: &str) -> String {
        format!("{}/namespaces/{}/{resource}", self.rbac, self.name)
    }

    fn cluster(&self, resource: &str) -> String {
        format!("{}/{resource}", self.rbac)
    }

    fn rule() -> Value {
        json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}])
    }

    fn subject(&self) -> Value {
        let group = self.rbac.split('/').nth(2).unwrap_or_default();
        json!([{"kind": "User", "apiGroup": group, "name": self.name}])
    }

    fn binding(&self, name: &str, kind: &str, role: &str, subjects: Value) -> Value {
        let group = self.rbac.split('/').nth(2).unwrap_or_default();
        json!({
            "metadata": {"name": name},
            "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        })
    }

    /// Creates the roles and bindings that the grants need and that alone grant nothing.
    async fn prepare(&mut self) {
        let name = self.name.clone();
        let namespace = json!({"metadata": {"name": name}});
        self.admin.write("POST", "/api/v1/namespaces", &namespace).await;
        let map = json!({"metadata": {"name": "x"}});
        self.admin.write("POST", &format!("/api/v1/namespaces/{name}/configmaps"), &map).await;
        let robot = json!({"metadata": {"name": "robot"}});
        self.admin.write("POST", &format!("/api/v1/namespaces/{name}/serviceaccounts"), &robot).await;
        let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
        let (roles, bindings) = (self.namespaced("roles"), self.namespaced("rolebindings"));
        let cluster_roles = self.cluster("clusterroles");
        self.admin.write("POST", &roles, &role("full", Self::rule())).await;
        self.admin.write("POST", &cluster_roles, &role(&format!("{name}-full"), Self::rule())).await;
        self.admin.write("POST", &roles, &role("rules", json!([]))).await;
        let bound = self.binding("rules", "Role", "rules", self.subject());
        self.admin.write("POST", &bindings, &bound).await;
        let nobody = self.binding("subjects", "Role", "full", json!([]));
        self.admin.write("POST", &bindings, &nobody).await;
        let dangling = self.binding("role", "Role", "comes-and-goes", self.subject());
        self.admin.write("POST", &bindings, &dangling).await;
        let part = role(&format!("{name}-part"), Self::rule());
        self.admin.write("POST", &cluster_roles, &part).await;
        let whole = json!({
            "metadata": {"name": format!("{name}-whole")},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"part-of": name}}]},
        });
        self.admin.write("POST", &cluster_roles, &whole).await;
        let bound = self.binding("whole", "ClusterRole", &format!("{name}-whole"), self.subject());
        self.admin.write("POST", &bindings, &bound).await;
    }

    /// The id of the worker's bootstrap token, and the token.
    fn bootstrap_token(name: &str) -> (String, String) {
        let id = format!("{name:0>6}");
        let token = format!("{id}.0123456789abcdef");
        (id, token)
    }

    fn bootstrap_secret(&self) -> Value {
        let (id, token) = Self::bootstrap_token(&self.name);
        json!({
            "metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {"token-id": id, "token-secret": token[7..], "usage-bootstrap-authentication": "true"},
        })
    }

    fn pod(&self) -> Value {
        json!({
            "metadata": {"name": "p"},
            "spec": {
                "nodeName": self.name, "serviceAccountName": "robot", "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false, "volumes": [{"name": "c", "configMap": {"name": "x"}}],
                "containers": [{"name": "c", "image": "registry.example/c:1"}],
            },
        })
    }

    /// Grants or revokes the right and waits for the acknowledgment.
    ///
    /// Returns whether the write was repeated.
    async fn set_grant(&mut self, grant_kind: GrantKind, granted: bool) -> bool {
        let name = self.name.clone();
        let bindings = self.namespaced("rolebindings");
        let roles = self.namespaced("roles");
        let create_or_delete = |collection: String, object: Value| {
            let item = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
            if granted { ("POST", collection, object) } else { ("DELETE", item, Value::Null) }
        };
        let (method, path, body) = match grant_kind {
            GrantKind::RoleBinding => {
                create_or_delete(bindings, self.binding("b", "Role", "full", self.subject()))
            }
            GrantKind::RoleBindingToClusterRole => {
                let role = format!("{name}-full");
                create_or_delete(bindings, self.binding("c", "ClusterRole", &role, self.subject()))
            }
            GrantKind::ClusterRoleBinding => {
                let binding = self.binding(
                    &format!("{name}-b"),
                    "ClusterRole",
                    &format!("{name}-full"),
                    self.subject(),
                );
                create_or_delete(self.cluster("clusterrolebindings"), binding)
            }
            GrantKind::Rules => {
                let rules = if granted { Self::rule() } else { json!([]) };
                ("PUT", format!("{roles}/rules"), json!({"metadata": {"name": "rules"}, "rules": rules}))
            }
            GrantKind::Subjects => {
                let subjects = if granted { self.subject() } else { json!([]) };
                ("PUT", format!("{bindings}/subjects"), self.binding("subjects", "Role", "full", subjects))
            }
            GrantKind::Role => create_or_delete(
                roles,
                json!({"metadata": {"name": "comes-and-goes"}, "rules": Self::rule()}),
            ),
            GrantKind::Aggregation => {
                let labels = if granted { json!({"part-of": name}) } else { json!({}) };
                let part = format!("{name}-part");
                let body = json!({"metadata": {"name": part, "labels": labels}, "rules": Self::rule()});
                ("PUT", format!("{}/{part}", self.cluster("clusterroles")), body)
            }
            GrantKind::Pod => create_or_delete(format!("/api/v1/namespaces/{name}/pods"), self.pod()),
            GrantKind::Token => {
                create_or_delete("/api/v1/namespaces/kube-system/secrets".to_owned(), self.bootstrap_secret())
            }
            GrantKind::Webhook => {
                self.webhook.as_ref().expect("mode Webhook is in force").set(&name, granted);
                return false;
            }
        };
        self.admin.write(method, &path, &body).await
    }

    /// Runs one round: after an acknowledged grant no request is denied, after a revocation none is allowed.
    async fn round(&mut self) {
        let grant_kind = self.grant_kinds[self.rng.random_range(0..self.grant_kinds.len())];
        for granted in [true, false] {
            let is_repeated = self.set_grant(grant_kind, granted).await;
            if is_repeated && self.generations.is_some() {
                return self.succeed().await;
            }
            for _ in 0..self.rng.random_range(1..3) {
                self.check_access(grant_kind, granted).await;
            }
        }
    }

    /// Goes on with the next name and new objects.
    ///
    /// A lost write to etcd can take effect after its repetition, for example when a new leader is elected. A late grant would
    /// look like stale policy, and only the objects of the earlier name can have one.
    async fn succeed(&mut self) {
        let left = self.generations.expect("a worker of a cluster");
        let left = left.checked_sub(1).expect("more names: raise ROUNDS");
        self.generations = Some(left);
        let base = self.name.split('g').next().unwrap_or_default().to_owned();
        self.name = format!("{base}g{left}");
        for user in &mut self.users {
            user.become_user(format!("{}-token", self.name));
        }
        for node in &mut self.nodes {
            node.become_user(format!("node-{}-token", self.name));
        }
        self.prepare().await;
    }

    /// Requires the decision that follows from the last write from all readers, at once.
    async fn check_access(&mut self, grant_kind: GrantKind, granted: bool) {
        let one = format!("/api/v1/namespaces/{}/configmaps/x", self.name);
        let all = format!("/api/v1/namespaces/{}/configmaps", self.name);
        let path = match grant_kind {
            GrantKind::Token => "/version/",
            GrantKind::Pod => &one,
            _ if self.rng.random_bool(0.5) => &one,
            _ => &all,
        };
        let expected = match grant_kind {
            _ if granted => 200,
            GrantKind::Token => 401,
            _ => 403,
        };
        let (name, webhook, trials) = (&self.name, &self.webhook, &self.trials);
        let readers = match grant_kind {
            GrantKind::Pod => &mut self.nodes,
            GrantKind::Token => &mut self.tokens,
            _ => &mut self.users,
        };
        let failures = || webhook.as_ref().map_or(0, |webhook| webhook.failures(name));
        let checks = readers.iter_mut().map(async |reader| {
            loop {
                let before = failures();
                let (response, _) = reader.request_until_decided("GET", path, &Value::Null).await;
                // A 403 after a webhook failure is not a decision of the webhook.
                if matches!(grant_kind, GrantKind::Webhook) && response.status == 403 && failures() > before {
                    continue;
                }
                assert_eq!(response.status, expected, "{name} by {grant_kind:?}: {}", response.text());
                trials.fetch_add(1, Ordering::SeqCst);
                return;
            }
        });
        futures_util::future::join_all(checks).await;
    }
}

/// Workers of a server, or of a cluster.
struct Run<P> {
    plane: P,
    ports: Ports,
    undecided: Arc<AtomicU64>,
    trials: Arc<AtomicU64>,
    workers: Vec<Worker>,
    /// Keeps the token file, which authd reads again after a restart.
    _dir: tempfile::TempDir,
}

/// Writes the tokens of the users and nodes with these names.
fn write_tokens(file: &std::path::Path, names: impl Iterator<Item = String>) {
    let users = names.map(|name| {
        format!("{name}-token,{name},{name}\nnode-{name}-token,system:node:{name},node-{name},system:nodes\n")
    });
    let text = format!("admin-token,admin,admin,system:masters\n{}", users.collect::<String>());
    std::fs::write(file, text).expect("the token file");
}

impl Run<ControlPlane> {
    async fn start_as(
        seed: u64,
        options: Options,
        grant_kinds: &'static [GrantKind],
        webhook: Option<Arc<FaultyWebhook>>,
    ) -> Run<ControlPlane> {
        let dir = tempfile::tempdir().expect("a folder for the token file");
        let tokens = dir.path().join("tokens.csv");
        write_tokens(&tokens, (0..workers()).map(|i| format!("w{i}")));
        let plane =
            ControlPlane::start(options.flag(&format!("--token-auth-file={}", tokens.display()))).await;
        let ports: Ports = Arc::new([AtomicU16::new(plane.admin().port())]);
        let rbac = plane.api("rbac.authorization", "v1");
        Run::prepare(seed, plane, ports, &rbac, grant_kinds, webhook, None, dir).await
    }

    /// Starts a server with the modes Node and RBAC.
    async fn start(seed: u64) -> Run<ControlPlane> {
        Run::start_as(seed, Options::kubernetes(), POLICY_GRANT_KINDS, None).await
    }
}

impl<P> Run<P> {
    /// Creates the workers of running servers and their objects.
    async fn prepare(
        seed: u64,
        plane: P,
        ports: Ports,
        rbac: &str,
        grant_kinds: &'static [GrantKind],
        webhook: Option<Arc<FaultyWebhook>>,
        generations: Option<usize>,
        dir: tempfile::TempDir,
    ) -> Run<P> {
        let (undecided, trials) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let client = |token: String| RetryingClient::new(token, &ports, &undecided);
        let readers = |token: String| (0..readers()).map(|_| client(token.clone())).collect();
        let mut workers: Vec<Worker> = (0..workers())
            .map(|i| Worker {
                admin: client("admin-token".to_owned()),
                users: readers(format!("w{i}-token")),
                nodes: readers(format!("node-w{i}-token")),
                tokens: readers(Worker::bootstrap_token(&format!("w{i}")).1),
                name: format!("w{i}"),
                generations,
                rbac: rbac.to_owned(),
                grant_kinds,
                webhook: webhook.clone(),
                trials: Arc::clone(&trials),
                rng: SmallRng::seed_from_u64(seed.wrapping_add(i as u64)),
            })
            .collect();
        futures_util::future::join_all(workers.iter_mut().map(Worker::prepare)).await;
        Run { plane, ports, undecided, trials, workers, _dir: dir }
    }

    /// Number of requests without a decision, and number of trials.
    fn counts(&self) -> (u64, u64) {
        (self.undecided.load(Ordering::SeqCst), self.trials.load(Ordering::SeqCst))
    }

    /// Runs the rounds and calls `disturb` repeatedly until they end. Workers add rounds until `disturb` has been called
    /// [`MIN_DISTURBANCES`] times, so that a fast machine does not end the test earlier. Returns the number of calls.
    async fn rounds(&mut self, rounds: u64, mut disturb: impl AsyncFnMut(&mut P, &AtomicU16)) -> u64 {
        let done = Arc::new(AtomicU64::new(0));
        let disturbances = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for mut worker in self.workers.drain(..) {
            let (done, disturbances) = (Arc::clone(&done), Arc::clone(&disturbances));
            tasks.spawn(async move {
                while done.fetch_add(1, Ordering::SeqCst) < rounds
                    || disturbances.load(Ordering::SeqCst) < MIN_DISTURBANCES
                {
                    worker.round().await;
                }
            });
        }
        let finished = Arc::clone(&over);
        let all = async move {
            while let Some(task) = tasks.join_next().await {
                task.expect("no worker finds stale policy");
            }
            finished.store(true, Ordering::SeqCst);
        };
        let disturbing = async {
            while !over.load(Ordering::SeqCst) {
                disturb(&mut self.plane, &self.ports[0]).await;
                disturbances.fetch_add(1, Ordering::SeqCst);
            }
        };
        tokio::join!(all, disturbing);
        disturbances.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_grant_and_revocation_take_effect_immediately() {
    let mut run = Run::start(seed()).await;
    let rounds = env_number("ROUNDS", DEFAULT_ROUNDS);
    run.rounds(rounds, async |_, _| tokio::time::sleep(Duration::from_millis(5)).await).await;
    let (undecided, trials) = run.counts();
    assert_eq!(undecided, 0, "without restarts, every request gets a decision");
    println!("{rounds} rounds, {trials} trials, no stale decision");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_policy_holds_under_repeated_authd_kills() {
    let mut run = Run::start(seed()).await;
    let rounds = env_number("ROUNDS", DEFAULT_ROUNDS);
    let mut killed = std::collections::BTreeSet::new();
    run.rounds(rounds, async |plane, _| {
        tokio::time::sleep(Duration::from_millis(700)).await;
        killed.extend(plane.kill_authd());
    })
    .await;
    let (undecided, trials) = run.counts();
    println!(
        "{trials} trials, {} killed processes of authd, {undecided} requests without a response, no stale decision",
        killed.len()
    );
    assert!(killed.len() >= 2, "authd was killed, and its successor too: {killed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_policy_holds_under_repeated_apid_kills() {
    let mut run = Run::start(seed()).await;
    let rounds = env_number("ROUNDS", DEFAULT_ROUNDS);
    let undecided = Arc::clone(&run.undecided);
    let kills = run
        .rounds(rounds, async |plane, port| {
            tokio::time::sleep(Duration::from_millis(600)).await;
            let before = undecided.load(Ordering::SeqCst);
            plane.kill();
            // The workers send requests during the first kills. A later kill can follow the last request.
            let failed_request = async {
                while undecided.load(Ordering::SeqCst) == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(5), failed_request).await;
            launch(plane, port).await;
        })
        .await;
    let (undecided, trials) = run.counts();
    println!(
        "{trials} trials, {kills} kills of apid, {undecided} requests without a response, no stale decision"
    );
    assert!(kills >= MIN_DISTURBANCES && undecided > 0, "apid was killed while requests were sent");
}

async fn restart(plane: &mut ControlPlane, port: &AtomicU16) {
    plane.kill();
    launch(plane, port).await;
}

async fn launch(plane: &mut ControlPlane, port: &AtomicU16) {
    plane.launch().await;
    port.store(plane.admin().port(), Ordering::SeqCst);
}

/// Modes Node, ABAC, RBAC and Webhook with random kills of both processes and random webhook failures.
///
/// The webhook decision cache is disabled, so that webhook decisions change as fast as the policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_policy_holds_under_random_failures() {
    let seed = seed();
    let webhook = FaultyWebhook::start().await;
    let dir = tempfile::tempdir().expect("a folder for policies");
    let policies = dir.path().join("abac.jsonl");
    let policy = json!({
        "apiVersion": "abac.authorization.k8s.io/v1beta1", "kind": "Policy",
        "spec": {"user": "w0", "namespace": "w1", "resource": "configmaps", "apiGroup": "*"},
    });
    std::fs::write(&policies, policy.to_string()).expect("the policy file");
    let options = Options { mode: "Node,ABAC,RBAC,Webhook".to_owned(), ..Options::kubernetes() }
        .flag(&format!("--authorization-policy-file={}", policies.display()))
        .flag(&format!("--authorization-webhook-config-file={}", webhook.config().display()))
        .flag("--authorization-webhook-cache-authorized-ttl=0")
        .flag("--authorization-webhook-cache-unauthorized-ttl=0")
        .flag("--enable-bootstrap-token-auth")
        .flag("--history-retention=30s");
    let mut run = Run::start_as(seed, options, &GRANT_KINDS, Some(Arc::clone(&webhook))).await;
    let rounds = env_number("ROUNDS", DEFAULT_ROUNDS);
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut authd, mut apid, mut both) = (0, 0, 0);
    let begun = std::time::Instant::now();
    let trials = Arc::clone(&run.trials);
    run.rounds(rounds, async |plane, port| {
        let pause = Duration::from_millis(rng.random_range(20..300));
        match rng.random_range(0..100) {
            0..3 => {
                plane.kill_authd();
                authd += 1;
            }
            3..5 => {
                restart(plane, port).await;
                apid += 1;
                println!("{:?}: {} trials", begun.elapsed(), trials.load(Ordering::SeqCst));
            }
            5 => {
                plane.kill_authd();
                restart(plane, port).await;
                both += 1;
            }
            6..8 => webhook.set_mode_for(ResponseMode::ServerError, pause / 10).await,
            8 => webhook.set_mode_for(ResponseMode::NoResponse, pause / 10).await,
            9..40 => webhook.set_mode_for(ResponseMode::InvalidBody, pause).await,
            40..70 => webhook.set_mode_for(ResponseMode::Forbidden, pause).await,
            _ => {}
        }
        tokio::time::sleep(pause).await;
    })
    .await;
    let (undecided, trials) = run.counts();
    let failures = webhook.total_failures();
    println!(
        "{rounds} rounds, {trials} trials in {:?}; kills: {authd} of authd, {apid} of apid, {both} of both; {failures} \
         failures of the webhook; {undecided} requests without a response; no stale decision",
        begun.elapsed()
    );
}

/// Number of names that a worker of a cluster can take, one after each lost write.
fn generations() -> usize {
    usize::try_from(100 + env_number("ROUNDS", 0) / 100).expect("a number of names")
}

/// Three servers on three members of etcd: grants and revocations on one server, requests on others, while servers, their
/// authd and members are killed or paused and the network is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_policy_holds_over_three_servers_under_failures() {
    let seed = seed();
    let dir = tempfile::tempdir().expect("a folder for the token file");
    let tokens = dir.path().join("tokens.csv");
    let names = |worker| {
        let further = (0..generations()).map(move |generation| format!("w{worker}g{generation}"));
        std::iter::once(format!("w{worker}")).chain(further)
    };
    write_tokens(&tokens, (0..workers()).flat_map(names));
    let options = Options::kubernetes().flag(&format!("--token-auth-file={}", tokens.display()));
    let Some(cluster) = Cluster::start_with_network(options, 3, 3).await else { return };
    let (ports, rbac) = (cluster.live_ports(), cluster.server(0).api("rbac.authorization", "v1"));
    let generations = Some(generations());
    let mut run = Run::prepare(seed, cluster, ports, &rbac, POLICY_GRANT_KINDS, None, generations, dir).await;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut disturbances = 0;
    let begun = std::time::Instant::now();
    let trials = Arc::clone(&run.trials);
    let rounds = env_number("ROUNDS", 300);
    run.rounds(rounds, async |cluster, _| {
        tokio::time::sleep(Duration::from_millis(rng.random_range(200..2_000))).await;
        let chosen = Disturbance::choose(cluster, &mut rng);
        chosen.iter().for_each(|disturbance| disturbance.begin(cluster));
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..2_500))).await;
        for disturbance in chosen {
            disturbance.end(cluster).await;
        }
        disturbances += 1;
        if disturbances % 20 == 0 {
            println!(
                "{:?}: {} trials, {disturbances} disturbances",
                begun.elapsed(),
                trials.load(Ordering::SeqCst)
            );
        }
    })
    .await;
    let (undecided, trials) = run.counts();
    println!(
        "{trials} trials in {:?}, {disturbances} disturbances, {undecided} requests without a response, no stale decision",
        begun.elapsed()
    );
    // A round with a lost write has no trial.
    assert!(
        trials > rounds / 2,
        "the workers try grants and revocations: {trials} trials in {rounds} rounds"
    );
}
