//! Helm with the Kubernetes preset: a chart with a definition, its objects and a workload.
//!
//! The test skips without Helm: `helm` of `target/python` or on PATH.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use testenv::Server;
use tests::harness::Client;

use crate::e2e::env_tests::servers::test_server;

/// Path of Helm, or `None` if the test is skipped.
fn helm() -> Option<PathBuf> {
    let root = prerequisites::repository();
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let folders = [root.join("target/python/bin")].into_iter().chain(on_path.unwrap_or_default());
    let found = folders.map(|folder| folder.join("helm")).find(|file| file.is_file());
    if found.is_none() {
        prerequisites::skip("helm", "no `helm` in target/python/bin or on PATH; see tests/README.md");
    }
    found
}

struct Helm<'s> {
    program: PathBuf,
    server: &'s Server,
}

impl Helm<'_> {
    fn output(&self, arguments: &[&str]) -> Output {
        let folder = self.server.directory();
        Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", self.server.kubeconfig())
            .env("HELM_CACHE_HOME", folder.join("helm-cache"))
            .env("HELM_CONFIG_HOME", folder.join("helm-config"))
            .env("HELM_DATA_HOME", folder.join("helm-data"))
            .env("HOME", folder)
            .stdin(Stdio::null())
            .output()
            .expect("helm starts")
    }

    /// Runs a command that succeeds; returns its output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {arguments:?}: {text}\n{errors}");
        text
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_upgrades_and_rolls_back_chart_with_definition() {
    let Some(program) = helm() else { return };
    let server = test_server();
    let helm = Helm { program, server: &server };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/helm/chart").display().to_string();
    let client = Client::new(port(&server), Some(server.token().to_owned()));
    let base = "/apis/workshop.example.com/v1/namespaces/shop/tools/bench-hammer";
    let color = async || client.get(base).await.expect(200)["spec"]["color"].clone();

    let installed = helm.run(&["install", "bench", &chart, "--namespace", "shop", "--create-namespace"]);
    assert!(installed.contains("STATUS: deployed"), "{installed}");
    let tool = client.get(base).await.expect(200);
    assert_eq!((tool["spec"]["color"].as_str(), tool["spec"]["size"].as_i64()), (Some("blue"), Some(3)));

    helm.run(&["upgrade", "bench", &chart, "-n", "shop", "--set", "color=green,extra=x,replicas=2"]);
    assert_eq!(color().await, "green");
    let deployment = "/apis/apps/v1/namespaces/shop/deployments/bench";
    let workload = client.get(deployment).await.expect(200);
    assert_eq!(workload["spec"]["replicas"], 2);
    assert_eq!(workload["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"], "green");
    client.get("/api/v1/namespaces/shop/secrets/bench-extra").await.expect(200);

    // A value that the schema of the definition rejects: the release fails and nothing of it applies.
    let failed = helm.output(&["upgrade", "bench", &chart, "-n", "shop", "--set", "color=mauve,extra=x"]);
    let errors = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && errors.contains("Unsupported value: \"mauve\""), "{errors}");
    assert_eq!(color().await, "green");

    helm.run(&["rollback", "bench", "1", "-n", "shop"]);
    assert_eq!(color().await, "blue");
    assert_eq!(client.get(deployment).await.expect(200)["spec"]["replicas"], 1);
    client.get("/api/v1/namespaces/shop/secrets/bench-extra").await.expect(404);
    let history = helm.run(&["history", "bench", "-n", "shop"]);
    assert!(history.contains("Rollback to 1"), "{history}");

    helm.run(&["uninstall", "bench", "-n", "shop"]);
    client.get(base).await.expect(404);
    client
        .get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tools.workshop.example.com")
        .await
        .expect(200);
}

/// The chart of this repository: accepted by Helm without a warning, and by the strict validation of the server.
#[tokio::test(flavor = "multi_thread")]
async fn chart_of_the_repository_is_valid_and_installs_hardened_pods() {
    let Some(program) = helm() else { return };
    let server = test_server();
    let helm = Helm { program, server: &server };
    let root = prerequisites::repository();
    let chart = root.join("deploy/helm/apid").display().to_string();
    let lint = helm.run(&["lint", "--strict", &chart]);
    assert!(lint.contains("0 chart(s) failed") && !lint.contains("[WARNING]"), "{lint}");
    let manifests = helm.run(&["template", "apid", &chart, "--namespace", "apid"]);
    let file = root.join("deploy/kubernetes/apid.yaml");
    let head = "# The chart deploy/helm/apid with its default values; `UPDATE=1 cargo test -p tests --test system chart_of` writes\n\
                # this file. Create the namespace apid first: kubectl create namespace apid\n";
    let expected = format!("{head}{manifests}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &expected).expect("the file can be written");
    }
    assert!(!manifests.contains("podManagementPolicy"), "an upgrade of a release cannot change this field");
    let current = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(current, expected, "{} is outdated: run the test with UPDATE=1", file.display());
    for values in [
        "storage.persistent=false",
        "etcd.servers={https://etcd-0:2379,https://etcd-1:2379},etcd.tlsSecret=etcd-client",
        "etcd.servers={https://etcd-0:2379},certificates.secret=apid,replicas=3",
        "certificates.secret=apid",
        "networkPolicy.enabled=false,hosts={a.example}",
        "apidFlags={--v=4},authdFlags={--v=4},image.pullSecrets[0].name=x,storage.storageClassName=fast",
    ] {
        helm.run(&["template", "apid", &chart, "--set", values]);
    }
    let several = "etcd.servers={https://etcd-0:2379},certificates.secret=apid,replicas=3";
    let several = helm.run(&["template", "apid", &chart, "--set", several]);
    // Pods with the same objects and keys have nothing of their own to keep.
    for text in [
        "replicas: 3",
        "maxUnavailable: 1",
        "podManagementPolicy: Parallel",
        "              name: apid\n",
        "--tls-cert-file=",
        "--service-account-key-file=",
    ] {
        assert!(several.contains(text), "{text}: {several}");
    }
    for text in ["volumeClaimTemplates", "initContainers", "generated-key-file", "ca.key"] {
        assert!(!several.contains(text), "{text}: {several}");
    }
    // The probes go on while the cluster of Events is down.
    let probes = [
        r#"path: "/livez?exclude=etcd-override-0""#,
        r#"path: "/readyz?exclude=etcd-override-0&exclude=etcd-override-readiness-0""#,
    ];
    for (values, checks) in [("names=kubernetes", "etcd-"), ("names=svc", "storage-")] {
        let values = format!("etcd.servers={{https://etcd-0:2379}},{values}");
        let text = helm.run(&["template", "apid", &chart, "--set", &values]);
        for probe in probes {
            assert!(text.contains(&probe.replace("etcd-", checks)), "{values}: {text}");
        }
    }
    let list = several.split("optional: true").nth(1).expect("an optional key of the Secret");
    assert!(list.trim_start().starts_with("items: [{key: ca.crl, path: ca.crl}]"), "{list}");
    let authd = several.split("- name: authd-certificates").nth(1).expect("the Secret of authd");
    assert!(authd.contains("service-account.key") && !authd.contains("tls.key"), "{authd}");
    for values in
        ["replicas=2", "replicas=2,etcd.servers={https://etcd-0:2379}", "replicas=2,certificates.secret=apid"]
    {
        let failed = helm.output(&["template", "apid", &chart, "--set", values]);
        assert!(!failed.status.success(), "{values}");
        let error = String::from_utf8_lossy(&failed.stderr);
        assert!(error.contains("set etcd.servers and certificates.secret"), "{error}");
    }
    let monitor = helm.run(&["template", "apid", &chart, "--set", "serviceMonitor.enabled=true"]);
    assert!(monitor.contains("kind: ServiceMonitor"), "{monitor}");
    // The token goes only to the server of the chart.
    assert!(monitor.contains("serverName: apid.default.svc") && monitor.contains("key: ca.crt"), "{monitor}");
    assert!(!monitor.contains("insecureSkipVerify"), "{monitor}");

    helm.run(&["install", "pair", &chart, "--namespace", "pair", "--create-namespace"]);
    let client = Client::new(port(&server), Some(server.token().to_owned()));
    // The level `restricted` of Pod Security has no objection to the pods.
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    client.patch("/api/v1/namespaces/pair", "application/merge-patch+json", &label).await.expect(200);
    let set = client.get("/apis/apps/v1/namespaces/pair/statefulsets/pair").await.expect(200);
    let template = &set["spec"]["template"];
    let pod = json!({"metadata": {"name": "pair-0", "labels": template["metadata"]["labels"]}, "spec": template["spec"]});
    let mut pod = pod;
    let volumes = pod["spec"]["volumes"].as_array_mut().expect("volumes");
    volumes.push(json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-pair-0"}}));
    client.post("/api/v1/namespaces/pair/pods", &pod).await.expect(201);
    for container in template["spec"]["containers"].as_array().expect("containers") {
        let context = &container["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{container}");
    }
    // authd reaches neither the store nor the keys of the CA and of the server.
    let containers = template["spec"]["containers"].as_array().expect("containers");
    let authd = containers.iter().find(|container| container["name"] == "authd").expect("authd");
    let mounts = authd["volumeMounts"].as_array().expect("mounts");
    let folders: Vec<&Value> =
        mounts.iter().filter(|mount| mount["name"] == "data").map(|mount| &mount["subPath"]).collect();
    assert_eq!(folders, ["authd", "pki/public"], "{mounts:?}");
    let budget = "/apis/policy/v1/namespaces/pair/poddisruptionbudgets/pair";
    client.get(budget).await.expect(200);
    client.get("/apis/networking.k8s.io/v1/namespaces/pair/networkpolicies/pair").await.expect(200);
    helm.run(&["uninstall", "pair", "-n", "pair"]);
    client.get(budget).await.expect(404);
}

/// Agents with the network of their node: container ports without hostPort in pod templates.
#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_and_upgrades_daemon_sets_with_host_network() {
    let Some(program) = helm() else { return };
    let server = test_server();
    let helm = Helm { program, server: &server };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/helm/host-network").display().to_string();
    let client = Client::new(port(&server), Some(server.token().to_owned()));
    let sets = "/apis/apps/v1/namespaces/agents/daemonsets";
    let ports = async |name: &str| {
        let set = client.get(&format!("{sets}/{name}")).await.expect(200);
        set["spec"]["template"]["spec"]["containers"][0]["ports"].clone()
    };

    helm.run(&["install", "node", &chart, "--namespace", "agents", "--create-namespace"]);
    // A template has no default for hostPort; each of its pods has.
    let exporter = |port: u16| json!([{"name": "metrics", "containerPort": port, "protocol": "TCP"}]);
    assert_eq!(ports("node-exporter").await, exporter(9100));
    assert_eq!(
        ports("node-speaker").await,
        json!([
            {"name": "monitoring", "containerPort": 9100, "protocol": "TCP"},
            {"name": "members-tcp", "containerPort": 7946, "protocol": "TCP"},
            {"name": "members-udp", "containerPort": 7946, "protocol": "UDP"},
        ])
    );
    helm.run(&["upgrade", "node", &chart, "-n", "agents", "--set", "metricsPort=9101"]);
    assert_eq!(ports("node-exporter").await, exporter(9101));
    helm.run(&["rollback", "node", "1", "-n", "agents"]);
    assert_eq!(ports("node-exporter").await, exporter(9100));
    helm.run(&["uninstall", "node", "-n", "agents"]);
    client.get(&format!("{sets}/node-speaker")).await.expect(404);
}

fn port(server: &Server) -> u16 {
    server.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port in the URL")
}
