//! End-to-end tests of admission: quotas under concurrent writers, plugin configuration, default plugins.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

const CLIENTS: usize = 32;
const QUOTA: usize = 100;

fn pod(name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "a:1", "resources": {"requests": {"cpu": cpu}}}],
        },
    })
}

/// Creates a namespace and waits for its default service account.
async fn namespace(admin: &Client, name: &str) {
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
    eventually("the default service account", || async {
        (admin.get(&account).await.status == 200).then_some(())
    })
    .await;
}

/// Creates a quota with this `spec.hard`, waits for its first status, and returns its path.
async fn quota(admin: &Client, namespace: &str, hard: Value) -> String {
    let quotas = format!("/api/v1/namespaces/{namespace}/resourcequotas");
    let object = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    admin.post(&quotas, &object).await.expect(201);
    let path = format!("{quotas}/q");
    eventually("the first quota status", || async {
        (admin.get(&path).await.json()["status"]["hard"] == object["spec"]["hard"]).then_some(())
    })
    .await;
    path
}

async fn wait_for_usage(admin: &Client, quota: &str, expected: Value) {
    let last = std::cell::RefCell::new(Value::Null);
    eventually(&format!("usage {expected}"), || async {
        let used = admin.get(quota).await.json()["status"]["used"].clone();
        *last.borrow_mut() = used.clone();
        (used == expected).then_some(())
    })
    .await;
}

async fn count(admin: &Client, path: &str) -> usize {
    admin.get(path).await.expect(200)["items"].as_array().map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creates_never_exceed_quota_and_deletes_release_it() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    namespace(&admin, "team").await;
    let hard = json!({"pods": QUOTA.to_string(), "requests.cpu": "50", "count/configmaps": "1k"});
    let quota = quota(&admin, "team", hard).await;
    let pods = "/api/v1/namespaces/team/pods";

    // The writers create more pods than the quota allows.
    let made = Arc::new(AtomicUsize::new(0));
    let writers = (0..CLIENTS).map(|writer| {
        let (admin, made) = (&admin, Arc::clone(&made));
        async move {
            let mut session = admin.connect().await.expect("a connection");
            for i in 0..8 {
                let body = pod(&format!("p-{writer}-{i}"), "500m").to_string();
                let response = session.request("POST", pods, body.as_bytes()).await.expect("a response");
                match response.status {
                    201 => {
                        made.fetch_add(1, Ordering::SeqCst);
                    }
                    403 => {
                        assert!(
                            response.text().contains("exceeded quota: q, requested: "),
                            "{}",
                            response.text()
                        )
                    }
                    other => panic!("{other}: {}", response.text()),
                }
            }
        }
    });
    futures_util::future::join_all(writers).await;
    assert_eq!(made.load(Ordering::SeqCst), QUOTA, "the created pods use exactly the quota");
    assert_eq!(count(&admin, pods).await, QUOTA);
    wait_for_usage(&admin, &quota, json!({"pods": "100", "requests.cpu": "50", "count/configmaps": "0"}))
        .await;

    // A create that fails after the quota charge (name conflict) releases the charge.
    let maps = "/api/v1/namespaces/team/configmaps";
    let map = json!({"metadata": {"name": "m"}});
    admin.post(maps, &map).await.expect(201);
    for _ in 0..5 {
        admin.post(maps, &map).await.expect(409);
    }
    wait_for_usage(&admin, &quota, json!({"pods": "100", "requests.cpu": "50", "count/configmaps": "1"}))
        .await;

    // Terminated pods do not count against the quota; new pods can use the released capacity.
    let listed = admin.get(pods).await.expect(200);
    let names: Vec<String> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    let ended = json!({"status": {"phase": "Succeeded"}});
    admin
        .patch(&format!("{pods}/{}/status", names[0]), "application/merge-patch+json", &ended)
        .await
        .expect(200);
    wait_for_usage(&admin, &quota, json!({"pods": "99", "requests.cpu": "49500m", "count/configmaps": "1"}))
        .await;
    admin.post(pods, &pod("after", "500m")).await.expect(201);
    admin.post(pods, &pod("more", "500m")).await.expect(403);

    // The quota controller recalculates the usage after a crash.
    plane.kill();
    plane.launch().await;
    let admin = plane.admin();
    for name in &names {
        admin.delete(&format!("{pods}/{name}")).await.expect(200);
    }
    wait_for_usage(&admin, &quota, json!({"pods": "1", "requests.cpu": "500m", "count/configmaps": "1"}))
        .await;
}

#[tokio::test]
async fn admission_configuration_file_configures_plugins_and_errors_exit_64() {
    let dir = tempfile::Builder::new().prefix("admission-").tempdir().expect("a folder");
    let file = dir.path().join("admission.yaml");
    let flag = format!("--admission-control-config-file={}", file.display());
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n";
    let limits = |limits: &str| {
        format!(
            "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: {limits}\n"
        )
    };
    let options = Options::kubernetes().flag("--enable-admission-plugins=EventRateLimit").flag(&flag);

    fs::write(dir.path().join("limits.yaml"), limits("[{type: Namespace, qps: 1, burst: 2}]"))
        .expect("a file");
    fs::write(&file, format!("{head}  path: limits.yaml\n")).expect("a file");
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    for (i, status) in [201, 201, 429].into_iter().enumerate() {
        let event = json!({
            "metadata": {"name": format!("e{i}")}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        });
        let response = admin.post("/api/v1/namespaces/default/events", &event).await;
        response.expect(status);
    }

    for (text, error) in [
        (format!("{head}  path: gone.yaml\n"), "plugins[0].path: No such file"),
        (format!("{head}  config: {{}}\n"), "unknown field \"plugins[0].config\""),
        (head.replace("EventRateLimit", "Nothing"), "plugin `Nothing` is unknown"),
        (format!("{head}  path: limits.yaml\n"), "limits[0].qps: must be a number above 0"),
    ] {
        fs::write(dir.path().join("limits.yaml"), limits("[{type: User, qps: 0, burst: 1}]"))
            .expect("a file");
        fs::write(&file, &text).expect("a file");
        let output = plane.command().output().expect("apid runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{text}: {stderr}");
        assert!(stderr.contains(error), "{text}: {stderr}");
    }
}

#[tokio::test]
async fn flags_enable_and_disable_admission_plugins() {
    let options = Options::default()
        .flag("--enable-admission-plugins=NamespaceAutoProvision")
        .flag("--disable-admission-plugins=LimitRanger,ServiceAccount,DefaultTolerationSeconds");
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    let range =
        json!({"metadata": {"name": "lr"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}});
    admin.post("/api/v1/namespaces/made/limitranges", &range).await.expect(201);
    let made = admin.post("/api/v1/namespaces/made/pods", &pod("p", "2")).await.expect(201);
    assert_eq!(admin.get("/api/v1/namespaces/made").await.expect(200)["status"]["phase"], "Active");
    assert!(
        made["spec"].get("serviceAccountName").is_none() && made["spec"].get("tolerations").is_none(),
        "{made}"
    );

    let plain = ControlPlane::start(Options::default()).await;
    let admin = plain.admin();
    admin.post("/api/v1/namespaces/made/pods", &pod("p", "2")).await.expect(404);
    namespace(&admin, "team").await;
    admin.post("/api/v1/namespaces/team/limitranges", &range).await.expect(201);
    let mut above_range = pod("p", "2");
    above_range["spec"]["containers"][0]["resources"]["limits"] = json!({"cpu": "2"});
    admin.post("/api/v1/namespaces/team/pods", &above_range).await.expect(403);
    let made = admin.post("/api/v1/namespaces/team/pods", &pod("p", "1")).await.expect(201);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert_eq!(made["spec"]["tolerations"].as_array().map(Vec::len), Some(2));
    assert_eq!(made["spec"]["priority"], 0);
}

/// Checks one effect of each default-enabled plugin, except webhooks and policies.
#[tokio::test]
async fn each_default_admission_plugin_takes_effect() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    namespace(&admin, "team").await;
    let team = |resource: &str| format!("/api/v1/namespaces/team/{resource}");

    let (storage, networking, node) =
        (plane.api("storage", "v1"), plane.api("networking", "v1"), plane.api("node", "v1"));
    let class = |name: &str, mark: &str| json!({"metadata": {"name": name, "annotations": {mark: "true"}}});
    let mut gold = class("gold", "storageclass.kubernetes.io/is-default-class");
    gold["provisioner"] = json!("x.example.com");
    admin.post(&format!("{storage}/storageclasses"), &gold).await.expect(201);
    let mut nginx = class("nginx", "ingressclass.kubernetes.io/is-default-class");
    nginx["spec"] = json!({"controller": "example.com/nginx"});
    admin.post(&format!("{networking}/ingressclasses"), &nginx).await.expect(201);
    let runtime =
        json!({"metadata": {"name": "sandbox"}, "handler": "s", "overhead": {"podFixed": {"cpu": "10m"}}});
    admin.post(&format!("{node}/runtimeclasses"), &runtime).await.expect(201);

    // DefaultStorageClass, StorageObjectInUseProtection, PersistentVolumeClaimResize.
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let made = admin.post(&team("persistentvolumeclaims"), &claim).await.expect(201);
    assert_eq!(made["spec"]["storageClassName"], "gold");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let path = team("persistentvolumeclaims/c");
    let rejected = admin.patch(&path, "application/merge-patch+json", &larger).await;
    assert!((400..500).contains(&rejected.status), "{}", rejected.text());

    // DefaultIngressClass, TaintNodesByCondition.
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": backend}});
    let made = admin.post(&format!("{networking}/namespaces/team/ingresses"), &ingress).await.expect(201);
    assert_eq!(made["spec"]["ingressClassName"], "nginx");
    let made = admin.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.expect(201);
    assert_eq!(
        made["spec"]["taints"],
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    );

    // ServiceAccount, Priority, DefaultTolerationSeconds, RuntimeClass, LimitRanger, PodSecurity.
    let limits = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}});
    admin.post(&team("limitranges"), &limits).await.expect(201);
    let mut sandboxed = pod("p", "1");
    sandboxed["spec"]["runtimeClassName"] = json!("sandbox");
    let made = admin.post(&team("pods"), &sandboxed).await.expect(201);
    let spec = &made["spec"];
    assert_eq!((&spec["serviceAccountName"], &spec["priority"]), (&json!("default"), &json!(0)));
    assert_eq!(spec["tolerations"].as_array().map(Vec::len), Some(2));
    assert_eq!(spec["overhead"], json!({"cpu": "10m"}));
    assert_eq!(spec["containers"][0]["resources"]["limits"], json!({"memory": "1Gi"}));
    let strict = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    admin.patch("/api/v1/namespaces/team", "application/merge-patch+json", &strict).await.expect(200);
    let mut privileged = pod("q", "1");
    privileged["spec"]["hostNetwork"] = json!(true);
    let rejected = admin.post(&team("pods"), &privileged).await.expect(403);
    assert!(
        rejected["message"].as_str().unwrap().contains("violates PodSecurity \"baseline:latest\""),
        "{rejected}"
    );

    // ResourceQuota, NamespaceLifecycle.
    quota(&admin, "team", json!({"count/secrets": "0"})).await;
    let secret = json!({"metadata": {"name": "s"}});
    admin.post(&team("secrets"), &secret).await.expect(403);
    admin.post("/api/v1/namespaces/gone/secrets", &secret).await.expect(404);
    admin.delete("/api/v1/namespaces/default").await.expect(403);
}
