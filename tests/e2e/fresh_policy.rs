//! INVARIANT (fresh policy), from the outside: a request that arrives after a policy write was acknowledged is never decided
//! on policy older than that write.
//!
//! Workers grant, use, revoke, use, in every way that RBAC has to give and take a right, each in a namespace of its own and
//! all at once. `ROUNDS` says how many rounds (default 2,000); the seed is printed, `SEED` repeats a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Answer, Client, DEADLINE, Options, Plane, Session};

/// Workers at a time.
const WORKERS: usize = 8;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn seed() -> u64 {
    let seed = number("SEED", rand::random());
    println!("SEED={seed}");
    seed
}

/// A user of the plane whose server may go away and come back on another port.
struct Caller {
    token: String,
    port: Arc<AtomicU16>,
    session: Option<Session>,
    /// Requests that found no server, or one that could not decide: neither is an answer.
    unanswered: Arc<AtomicU64>,
}

impl Caller {
    fn new(token: String, port: &Arc<AtomicU16>, unanswered: &Arc<AtomicU64>) -> Self {
        Caller { token, port: Arc::clone(port), session: None, unanswered: Arc::clone(unanswered) }
    }

    async fn try_once(&mut self, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
        if self.session.is_none() {
            let client = Client::new(self.port.load(Ordering::SeqCst), Some(self.token.clone()));
            self.session = Some(client.connect().await.ok()?);
        }
        let answer = self.session.as_mut()?.request(method, path, body).await;
        if answer.is_err() {
            self.session = None;
        }
        answer.ok().filter(|answer| answer.status != 503)
    }

    /// The first real answer.
    async fn ask(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let asked = async {
            loop {
                if let Some(answer) = self.try_once(method, path, &body).await {
                    return answer;
                }
                self.unanswered.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, asked).await.unwrap_or_else(|_| panic!("no answer to {method} {path}"))
    }

    /// A write that is acknowledged, or was by a server that went away before it could say so.
    async fn write(&mut self, method: &str, path: &str, body: &Value) {
        let before = self.unanswered.load(Ordering::SeqCst);
        let answer = self.ask(method, path, body).await;
        let repeated = self.unanswered.load(Ordering::SeqCst) > before;
        let done = match (method, answer.status) {
            (_, 200 | 201) => true,
            ("POST", 409) | ("DELETE", 404) => repeated,
            _ => false,
        };
        assert!(done, "{method} {path}: {} {}", answer.status, answer.text());
    }
}

/// What a worker may do: everything in one namespace, and cluster-wide objects that bear its name.
struct Worker {
    admin: Caller,
    user: Caller,
    name: String,
    rbac: String,
    rng: SmallRng,
}

/// The ways to give a right, and with the same to take it.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A RoleBinding comes and goes; the Role is there.
    RoleBinding,
    /// A RoleBinding to a ClusterRole comes and goes.
    RoleBindingToClusterRole,
    /// A ClusterRoleBinding comes and goes.
    ClusterRoleBinding,
    /// The rules of a bound Role change.
    Rules,
    /// The subjects of a binding change.
    Subjects,
    /// A bound Role comes and goes.
    Role,
    /// A bound ClusterRole begins and ceases to be aggregated from another by a label.
    Aggregation,
}

const WAYS: [Way; 7] = [
    Way::RoleBinding,
    Way::RoleBindingToClusterRole,
    Way::ClusterRoleBinding,
    Way::Rules,
    Way::Subjects,
    Way::Role,
    Way::Aggregation,
];

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

    /// What every way finds there: roles and bindings that grant nothing by themselves.
    async fn prepare(&mut self) {
        let name = self.name.clone();
        let namespace = json!({"metadata": {"name": name}});
        self.admin.write("POST", "/api/v1/namespaces", &namespace).await;
        let map = json!({"metadata": {"name": "x"}});
        self.admin.write("POST", &format!("/api/v1/namespaces/{name}/configmaps"), &map).await;
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

    /// Gives or takes the right, and returns when that is acknowledged.
    async fn set(&mut self, way: Way, granted: bool) {
        let name = self.name.clone();
        let bindings = self.namespaced("rolebindings");
        let roles = self.namespaced("roles");
        let come_and_go = |collection: String, object: Value| {
            let item = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
            if granted { ("POST", collection, object) } else { ("DELETE", item, Value::Null) }
        };
        let (method, path, body) = match way {
            Way::RoleBinding => come_and_go(bindings, self.binding("b", "Role", "full", self.subject())),
            Way::RoleBindingToClusterRole => {
                let role = format!("{name}-full");
                come_and_go(bindings, self.binding("c", "ClusterRole", &role, self.subject()))
            }
            Way::ClusterRoleBinding => {
                let binding = self.binding(
                    &format!("{name}-b"),
                    "ClusterRole",
                    &format!("{name}-full"),
                    self.subject(),
                );
                come_and_go(self.cluster("clusterrolebindings"), binding)
            }
            Way::Rules => {
                let rules = if granted { Self::rule() } else { json!([]) };
                ("PUT", format!("{roles}/rules"), json!({"metadata": {"name": "rules"}, "rules": rules}))
            }
            Way::Subjects => {
                let subjects = if granted { self.subject() } else { json!([]) };
                ("PUT", format!("{bindings}/subjects"), self.binding("subjects", "Role", "full", subjects))
            }
            Way::Role => {
                come_and_go(roles, json!({"metadata": {"name": "comes-and-goes"}, "rules": Self::rule()}))
            }
            Way::Aggregation => {
                let labels = if granted { json!({"part-of": name}) } else { json!({}) };
                let part = format!("{name}-part");
                let body = json!({"metadata": {"name": part, "labels": labels}, "rules": Self::rule()});
                ("PUT", format!("{}/{part}", self.cluster("clusterroles")), body)
            }
        };
        self.admin.write(method, &path, &body).await;
    }

    /// One round: 0 refusals after an acknowledged grant, 0 successes after an acknowledged revocation.
    async fn round(&mut self) {
        let way = WAYS[self.rng.random_range(0..WAYS.len())];
        let one = format!("/api/v1/namespaces/{}/configmaps/x", self.name);
        let all = format!("/api/v1/namespaces/{}/configmaps", self.name);
        for granted in [true, false] {
            self.set(way, granted).await;
            let path = if self.rng.random_bool(0.5) { &one } else { &all };
            for _ in 0..self.rng.random_range(1..3) {
                let answer = self.user.ask("GET", path, &Value::Null).await;
                let expected = if granted { 200 } else { 403 };
                assert_eq!(answer.status, expected, "{} by {way:?}: {}", self.name, answer.text());
            }
        }
    }
}

struct Run {
    plane: Plane,
    port: Arc<AtomicU16>,
    unanswered: Arc<AtomicU64>,
    workers: Vec<Worker>,
    /// Holds the token file, which is read again when authd starts again.
    _dir: tempfile::TempDir,
}

impl Run {
    async fn start(seed: u64) -> Run {
        let dir = tempfile::tempdir().expect("a folder for the token file");
        let tokens = dir.path().join("tokens.csv");
        let users = (0..WORKERS).map(|i| format!("w{i}-token,w{i},w{i}\n"));
        let text = format!("admin-token,admin,admin,system:masters\n{}", users.collect::<String>());
        std::fs::write(&tokens, text).expect("the token file");
        let options = Options::default().flag(&format!("--token-auth-file={}", tokens.display()));
        let plane = Plane::start(options).await;
        let port = Arc::new(AtomicU16::new(plane.admin().port()));
        let unanswered = Arc::new(AtomicU64::new(0));
        let caller = |token: &str| Caller::new(format!("{token}-token"), &port, &unanswered);
        let mut workers: Vec<Worker> = (0..WORKERS)
            .map(|i| Worker {
                admin: caller("admin"),
                user: caller(&format!("w{i}")),
                name: format!("w{i}"),
                rbac: plane.api("rbac.authorization", "v1"),
                rng: SmallRng::seed_from_u64(seed.wrapping_add(i as u64)),
            })
            .collect();
        futures_util::future::join_all(workers.iter_mut().map(Worker::prepare)).await;
        Run { plane, port, unanswered, workers, _dir: dir }
    }

    /// Runs the rounds; `disturb` is called again and again meanwhile.
    async fn rounds(&mut self, rounds: u64, mut disturb: impl AsyncFnMut(&mut Plane, &AtomicU16)) -> u64 {
        let done = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = tokio::task::JoinSet::new();
        for mut worker in self.workers.drain(..) {
            let done = Arc::clone(&done);
            tasks.spawn(async move {
                while done.fetch_add(1, Ordering::SeqCst) < rounds {
                    worker.round().await;
                }
            });
        }
        let finished = Arc::clone(&over);
        let all = async move {
            while let Some(task) = tasks.join_next().await {
                task.expect("a worker found stale policy");
            }
            finished.store(true, Ordering::SeqCst);
        };
        let mut disturbances = 0;
        let disturbing = async {
            while !over.load(Ordering::SeqCst) {
                disturb(&mut self.plane, &self.port).await;
                disturbances += 1;
            }
        };
        tokio::join!(all, disturbing);
        disturbances
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_and_a_revocation_count_from_their_answer_on() {
    let mut run = Run::start(seed()).await;
    let rounds = number("ROUNDS", 2000);
    run.rounds(rounds, async |_, _| tokio::time::sleep(Duration::from_millis(5)).await).await;
    assert_eq!(run.unanswered.load(Ordering::SeqCst), 0, "nothing was restarted: every request is decided");
    println!("{rounds} rounds, {WORKERS} workers, no stale decision");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_while_authd_is_killed_again_and_again() {
    let mut run = Run::start(seed()).await;
    let rounds = number("ROUNDS", 2000);
    let kills = run
        .rounds(rounds, async |plane, _| {
            tokio::time::sleep(Duration::from_millis(700)).await;
            plane.kill_authd();
        })
        .await;
    let unanswered = run.unanswered.load(Ordering::SeqCst);
    println!(
        "{rounds} rounds, {kills} kills of authd, {unanswered} requests without an answer, no stale decision"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_while_apid_is_killed_again_and_again() {
    let mut run = Run::start(seed()).await;
    let rounds = number("ROUNDS", 2000);
    let kills = run
        .rounds(rounds, async |plane, port| {
            tokio::time::sleep(Duration::from_millis(600)).await;
            plane.kill();
            plane.launch().await;
            port.store(plane.admin().port(), Ordering::SeqCst);
        })
        .await;
    let unanswered = run.unanswered.load(Ordering::SeqCst);
    println!(
        "{rounds} rounds, {kills} kills of apid, {unanswered} requests without an answer, no stale decision"
    );
}

/// Under steady writes a watch is revoked: everything delivered was written before the revocation, and the stream ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_watch_delivers_nothing_written_after_the_revocation() {
    let plane = Plane::start(Options::default()).await;
    let admin = plane.admin();
    let rbac = format!("{}/namespaces/default", plane.api("rbac.authorization", "v1"));
    let group = plane.names().group("rbac.authorization");
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}]);
    admin
        .post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules}))
        .await
        .expect(201);
    let binding = |subjects: Value| {
        let role = json!({"apiGroup": group, "kind": "Role", "name": "r"});
        json!({"metadata": {"name": "b"}, "subjects": subjects, "roleRef": role})
    };
    let alice = json!([{"kind": "User", "apiGroup": group, "name": "alice"}]);
    admin.post(&format!("{rbac}/rolebindings"), &binding(json!([]))).await.expect(201);
    let maps = "/api/v1/namespaces/default/configmaps";
    admin.post(maps, &json!({"metadata": {"name": "x"}})).await.expect(201);

    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (admin, stop) = (plane.admin(), Arc::clone(&stop));
        async move {
            let mut session = admin.connect().await.expect("a connection");
            let mut count = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                count += 1;
                let body = json!({"metadata": {"name": "x"}, "data": {"n": count.to_string()}}).to_string();
                let answer = session.request("PUT", &format!("{maps}/x"), body.as_bytes()).await;
                assert_eq!(answer.expect("an answer").status, 200);
            }
            count
        }
    });
    let mut delivered = 0;
    for round in 0..number("ROUNDS", 2000) / 50 {
        admin.put(&format!("{rbac}/rolebindings/b"), &binding(alice.clone())).await.expect(200);
        let mut watch = plane.user("alice").watch(&format!("{maps}?watch=1")).await;
        for _ in 0..round % 7 {
            watch.next().await.expect("the watch goes on while it is allowed");
        }
        let written = admin.put(&format!("{rbac}/rolebindings/b"), &binding(json!([]))).await.expect(200);
        let revoked: u64 = version(&written);
        let rest = async {
            let mut last = 0;
            while let Some(event) = watch.next().await {
                if event["type"] != "ERROR" {
                    last = version(&event["object"]);
                    assert!(last < revoked, "{last} was delivered, the revocation is {revoked}");
                    delivered += 1;
                }
            }
            last
        };
        tokio::time::timeout(DEADLINE, rest).await.expect("the stream ends");
    }
    stop.store(true, Ordering::SeqCst);
    let written = writer.await.expect("the writer ends well");
    println!(
        "{written} writes, {delivered} events delivered after a revocation was sent, none of them written after it"
    );
}

/// A watch on which nothing happens ends too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_watch_ends_when_it_is_revoked() {
    let plane = Plane::start(Options::default()).await;
    let admin = plane.admin();
    let rbac = plane.api("rbac.authorization", "v1");
    let group = plane.names().group("rbac.authorization");
    let binding = json!({
        "metadata": {"name": "alice-views"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "alice"}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
    });
    let bindings = format!("{rbac}/clusterrolebindings");
    admin.post(&bindings, &binding).await.expect(201);
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(plane.user("alice").watch("/api/v1/namespaces/default/configmaps?watch=1").await);
    }
    let other = plane.admin().watch("/api/v1/namespaces/default/configmaps?watch=1").await;
    let asked = std::time::Instant::now();
    admin.delete(&format!("{bindings}/alice-views")).await.expect(200);
    for watch in &mut watches {
        let ended = async { while watch.next().await.is_some() {} };
        tokio::time::timeout(DEADLINE, ended).await.expect("the stream ends");
    }
    println!("20 idle watches ended {:?} after the revocation was sent", asked.elapsed());
    drop(other);
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).expect("a resourceVersion")
}
