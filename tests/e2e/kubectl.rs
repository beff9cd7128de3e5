//! kubectl, unmodified, under Kubernetes' names. Skips with a line that says so when kubectl 1.33 is not installed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{Options, Plane};

/// kubectl of one release: `kubectl` on PATH if it is of that release, or `kubectl.<release>` beside it.
pub fn installed(release: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let first = std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.exists())?;
    let beside = first.canonicalize().ok()?.with_file_name(format!("kubectl.{release}"));
    if beside.exists() {
        return Some(beside);
    }
    let output = Command::new(&first).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: Value = serde_json::from_slice(&output.stdout).ok()?;
    let found = version["clientVersion"]["gitVersion"].as_str()?.to_owned();
    found.starts_with(&format!("v{release}.")).then_some(first)
}

/// kubectl with a configuration file for one user of the plane.
pub struct Kubectl {
    program: PathBuf,
    config: PathBuf,
}

impl Kubectl {
    /// As a user of the plane.
    pub fn new(program: PathBuf, plane: &Plane, user: &str) -> Self {
        let config = plane.dir().join(format!("{user}.kubeconfig"));
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": {"server": plane.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": user, "user": {"token": format!("{user}-token")}}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": user}}],
        });
        fs::write(&config, content.to_string()).expect("the configuration file");
        Kubectl { program, config }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", self.config.parent().expect("a folder"))
            .arg("--kubeconfig")
            .arg(&self.config)
            .args(line.split_whitespace());
        command
    }

    fn output(&self, line: &str, stdin: &str) -> Output {
        let mut command = self.command(line);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        child.stdin.take().expect("a pipe").write_all(stdin.as_bytes()).expect("kubectl reads");
        child.wait_with_output().expect("kubectl ends")
    }

    /// Runs a command that must succeed; gives what it printed.
    pub fn ok(&self, line: &str, stdin: &str) -> String {
        let output = self.output(line, stdin);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {line}\n{out}{err}");
        out.into_owned()
    }

    /// Runs a command that must fail; gives what it complained of.
    pub fn refused(&self, line: &str) -> String {
        self.refused_given(line, "")
    }

    /// The same with something to read.
    pub fn refused_given(&self, line: &str, stdin: &str) -> String {
        let output = self.output(line, stdin);
        assert!(
            !output.status.success(),
            "kubectl {line} succeeded: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_1_33_manages_objects() {
    let Some(program) = installed("1.33") else {
        println!("skipped: kubectl 1.33 is neither on PATH nor beside the kubectl there");
        return;
    };
    let plane = Plane::start(Options::kubernetes()).await;
    let kubectl = Kubectl::new(program, &plane, "admin");

    assert!(kubectl.ok("create namespace shop", "").contains("namespace/shop created"));
    for manifest in manifests() {
        let (kind, name) = (
            manifest["kind"].as_str().expect("a kind"),
            manifest["metadata"]["name"].as_str().expect("a name"),
        );
        let resource = format!("{}/{name}", kind.to_lowercase());
        kubectl.ok("create -n shop -f -", &manifest.to_string());
        assert!(
            kubectl.ok(&format!("get -n shop {}", kind.to_lowercase()), "").lines().count() >= 2,
            "a table of {kind}"
        );
        let listed = kubectl.ok(&format!("get -n shop {} -o name", kind.to_lowercase()), "");
        assert!(listed.contains(name), "{kind} in the list:\n{listed}");
        let yaml = kubectl.ok(&format!("get -n shop {resource} -o yaml"), "");
        assert!(yaml.contains(&format!("kind: {kind}")) && yaml.contains("uid: "), "{yaml}");
        let replaced = yaml.replacen("metadata:\n", "metadata:\n  labels:\n    touched: \"yes\"\n", 1);
        kubectl.ok("replace -n shop -f -", &replaced);
        let label =
            kubectl.ok(&format!("get -n shop {resource} -o jsonpath={{.metadata.labels.touched}}"), "");
        assert_eq!(label, "yes", "{kind} replaced");
        kubectl.ok(&format!("delete -n shop {resource}"), "");
        assert!(kubectl.refused(&format!("get -n shop {resource}")).contains("NotFound"), "{kind} deleted");
    }
}

/// One object of each kind that a user makes, apart from namespaces.
fn manifests() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let rule = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    let subject = json!([{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}]);
    vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"color": "blue"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"user": "me"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}),
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "happened"}, "reason": "Tested", "type": "Normal",
               "involvedObject": {"kind": "ConfigMap", "namespace": "shop", "name": "settings"}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lock"}, "spec": {"holderIdentity": "a"}}),
        json!({"apiVersion": rbac, "kind": "Role", "metadata": {"name": "reader"}, "rules": rule}),
        json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "e2e-reader"}, "rules": rule}),
        json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": "readers"}, "subjects": subject,
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}}),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "e2e-readers"}, "subjects": subject,
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_1_33_grants_and_asks() {
    let Some(program) = installed("1.33") else {
        println!("skipped: kubectl 1.33 is neither on PATH nor beside the kubectl there");
        return;
    };
    let plane = Plane::start(Options::kubernetes()).await;
    let admin = Kubectl::new(program.clone(), &plane, "admin");
    let alice = Kubectl::new(program, &plane, "alice");

    assert!(alice.ok("auth whoami", "").contains("alice"));
    assert!(alice.refused("get configmaps -n default").contains("Forbidden"));
    assert!(alice.refused("auth can-i get configmaps -n default").contains("no"));
    admin.ok("create role reader -n default --verb=get,list,watch --resource=configmaps", "");
    admin.ok("create rolebinding readers -n default --role=reader --user=alice", "");
    assert!(alice.ok("auth can-i get configmaps -n default", "").contains("yes"));
    alice.ok("get configmaps -n default", "");
    admin.ok("delete rolebinding readers -n default", "");
    assert!(alice.refused("get configmaps -n default").contains("Forbidden"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_1_33_watches() {
    let Some(program) = installed("1.33") else {
        println!("skipped: kubectl 1.33 is neither on PATH nor beside the kubectl there");
        return;
    };
    let plane = Plane::start(Options::kubernetes()).await;
    let kubectl = Kubectl::new(program, &plane, "admin");
    let mut watch = kubectl
        .command("get configmaps -n default -w -o name")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("kubectl starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    // The watch is open when the first line came: an object made before it started is listed, one made after is an event.
    kubectl.ok("create configmap first -n default --from-literal=a=b", "");
    assert_eq!(lines.next().expect("a line").expect("text"), "configmap/first");
    kubectl.ok("create configmap second -n default --from-literal=a=b", "");
    assert_eq!(lines.next().expect("a line").expect("text"), "configmap/second");
    watch.kill().expect("kubectl is stopped");
    watch.wait().expect("kubectl ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_1_33_changes_objects_by_patches() {
    let Some(program) = installed("1.33") else {
        println!("skipped: kubectl 1.33 is neither on PATH nor beside the kubectl there");
        return;
    };
    let plane = Plane::start(Options::kubernetes()).await;
    let kubectl = Kubectl::new(program, &plane, "admin");
    let deployment = |containers: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
               "spec": {"selector": {"matchLabels": {"app": "web"}},
                        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}}})
        .to_string()
    };
    let images = "get deployment web -n default -o jsonpath={.spec.template.spec.containers[*].image}";
    kubectl
        .ok("apply -f -", &deployment(json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}])));
    kubectl.ok("set image deployment/web -n default a=a:2", "");
    assert_eq!(kubectl.ok(images, ""), "a:2 b:1", "containers merge by name");
    kubectl.ok("apply -f -", &deployment(json!([{"name": "a", "image": "a:3"}])));
    assert_eq!(kubectl.ok(images, ""), "a:3", "a container that is applied no more is gone");
    kubectl.ok("label deployment web -n default tier=front", "");
    kubectl.ok("annotate deployment web -n default note=x", "");
    kubectl.ok("patch deployment web -n default -p {\"spec\":{\"replicas\":2}}", "");
    let shown =
        kubectl.ok("get deployment web -n default -o jsonpath={.metadata.labels.tier}{.spec.replicas}", "");
    assert_eq!(shown, "front2");
}
