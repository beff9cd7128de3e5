//! kubectl with a manifest directory of over forty kinds: create, apply, get, describe, change, delete.
//!
//! `tables.txt` has the expected `get -A -o wide` output of each kind; `UPDATE=1` rewrites the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};
use tests::harness::ControlPlane;

use super::table::{parse, render};
use super::{Kubectl, with_each_release};

pub(super) const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/manifests");
const TABLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/kubectl/tables.txt");

/// One manifest.
struct Manifest(Value);

impl Manifest {
    fn field(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn kind(&self) -> &str {
        self.field("/kind")
    }

    fn name(&self) -> &str {
        self.field("/metadata/name")
    }

    fn namespace(&self) -> &str {
        self.field("/metadata/namespace")
    }

    /// The fully qualified resource argument, for example `ingress.v1.networking.k8s.io`.
    fn resource(&self) -> String {
        let kind = self.kind().to_lowercase();
        match self.field("/apiVersion").split_once('/') {
            Some((group, version)) => format!("{kind}.{version}.{group}"),
            None => kind,
        }
    }
}

/// The manifests as kubectl reads them.
fn manifests(kubectl: &Kubectl) -> Vec<Manifest> {
    let text = kubectl.ok(&format!("create --dry-run=client -o json -f {DIRECTORY}"), "");
    let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    documents.map(|document| Manifest(document.expect("kubectl prints JSON"))).collect()
}

/// Groups the objects of the output lines by the last word of the line. Standard error is not included.
fn by_verdict(out: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut verdicts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (object, verdict) in out.lines().filter_map(|line| line.rsplit_once(' ')) {
        verdicts.entry(verdict.to_owned()).or_default().insert(object.to_owned());
    }
    verdicts
}

/// Runs a command on the whole directory, and checks that every output line ends with this word.
fn run_on_directory(kubectl: &Kubectl, line: &str, stdin: &str, verdict: &str, count: usize) {
    let out = kubectl.ok(line, stdin);
    let verdicts = by_verdict(&out);
    let counts: Vec<(&str, usize)> =
        verdicts.iter().map(|(v, objects)| (v.as_str(), objects.len())).collect();
    assert_eq!(counts, [(verdict, count)], "kubectl {line}\n{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_create_apply_and_diff_of_manifest_directory() {
    with_each_release(create_apply_and_diff).await;
}

fn create_apply_and_diff(_: &ControlPlane, kubectl: &Kubectl) {
    let manifests = manifests(kubectl);
    let count = manifests.len();
    let kinds: BTreeSet<&str> = manifests.iter().map(Manifest::kind).collect();
    assert!(kinds.len() == count && count > 40, "one manifest per kind: {kinds:?}");

    run_on_directory(kubectl, &format!("create -f {DIRECTORY}"), "", "created", count);
    let again = kubectl.must_fail(&format!("create -f {DIRECTORY}"));
    assert_eq!(again.matches("(AlreadyExists)").count(), count, "{again}");

    let list: Value =
        serde_json::from_str(&kubectl.ok(&format!("get -f {DIRECTORY} -o json"), "")).expect("JSON");
    let live = list["items"].as_array().expect("items");
    for (manifest, live) in manifests.iter().zip(live) {
        assert_contains(live, &manifest.0, manifest.kind());
        assert!(live["metadata"]["uid"].is_string(), "{live}");
    }

    // The first apply adds the last-applied annotation. The second apply sends patches only for fields that
    // kubectl does not compare: atomic lists with server defaults, an atomic selector, and Secret text that the
    // server encodes. These patches change nothing on the server.
    let apply = format!("apply -f {DIRECTORY}");
    run_on_directory(kubectl, &apply, "", "configured", count);
    let sent_again = [
        "mutatingwebhookconfiguration.admissionregistration.k8s.io/glaze.bakery.example",
        "poddisruptionbudget.policy/shop",
        "secret/till",
        "statefulset.apps/ledger",
        "validatingadmissionpolicy.admissionregistration.k8s.io/small-loaves.bakery.example",
        "validatingwebhookconfiguration.admissionregistration.k8s.io/taste.bakery.example",
    ];
    let versions = |kubectl: &Kubectl| {
        sent_again.map(|object| {
            kubectl.ok(&format!("get {object} -n bakery -o jsonpath={{.metadata.resourceVersion}}"), "")
        })
    };
    let before = versions(kubectl);
    let verdicts = by_verdict(&kubectl.ok(&apply, ""));
    let configured: Vec<&String> = verdicts.get("configured").into_iter().flatten().collect();
    assert!(configured.iter().all(|object| sent_again.contains(&object.as_str())), "{configured:?}");
    let unchanged = verdicts.get("unchanged").map_or(0, BTreeSet::len);
    assert_eq!(unchanged + configured.len(), count, "{verdicts:?}");
    assert_eq!(versions(kubectl), before, "a patch without changes keeps the resourceVersion");

    let same = kubectl.run(&format!("diff -f {DIRECTORY}"), "");
    assert_eq!((same.status.code(), same.out.as_str()), (Some(0), ""), "{same}");
    let shop = fs::read_to_string(format!("{DIRECTORY}/06-shop.yaml")).expect("the manifest");
    let shop = shop.replace("shop:1.4.2", "shop:1.5.0").replace("minAvailable: 2", "minAvailable: 1");
    let changed = kubectl.run("diff -f -", &shop);
    assert_eq!(changed.status.code(), Some(1), "{changed}");
    let lines: BTreeSet<&str> = changed.out.lines().collect();
    for line in [
        "-        image: registry.bakery.example/shop:1.4.2",
        "+        image: registry.bakery.example/shop:1.5.0",
        "-  minAvailable: 2",
        "+  minAvailable: 1",
    ] {
        assert!(lines.contains(line), "{line} in {changed}");
    }
    let applied = by_verdict(&kubectl.ok("apply -f -", &shop));
    assert!(applied["configured"].contains("deployment.apps/shop"), "{applied:?}");
    let last = kubectl.ok("apply view-last-applied deployment shop -n bakery", "");
    assert!(last.contains("shop:1.5.0"), "{last}");
}

/// Panics if a field of the manifest is absent from the live object.
///
/// The server returns Secret text (`stringData`) as base64.
fn assert_contains(live: &Value, sent: &Value, at: &str) {
    match (live, sent) {
        (Value::Object(live), Value::Object(sent)) => {
            for (key, value) in sent.iter().filter(|(key, _)| *key != "stringData") {
                assert_contains(live.get(key).unwrap_or(&Value::Null), value, &format!("{at}.{key}"));
            }
        }
        (Value::Array(live), Value::Array(sent)) => {
            assert_eq!(live.len(), sent.len(), "{at}");
            for (index, (live, sent)) in live.iter().zip(sent).enumerate() {
                assert_contains(live, sent, &format!("{at}[{index}]"));
            }
        }
        _ => assert_eq!(live, sent, "{at}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_get_prints_expected_tables_of_every_kind() {
    with_each_release(get_tables_of_every_kind).await;
}

fn get_tables_of_every_kind(_: &ControlPlane, kubectl: &Kubectl) {
    let manifests = manifests(kubectl);
    kubectl.ok(&format!("create -f {DIRECTORY}"), "");

    // Controllers update quota usage and conditions asynchronously.
    for awaited in [
        "jsonpath={.status.used.pods}=1 resourcequota/flour -n bakery",
        "jsonpath={.status.used.persistentvolumeclaims}=1 resourcequota/flour -n bakery",
        "jsonpath={.status.used.count/deployments\\.apps}=1 resourcequota/flour -n bakery",
        "condition=Available apiservice/v1.orders.bakery.example",
        "condition=Dangling=False flowschema/customers",
    ] {
        kubectl.ok(&format!("wait --timeout=30s --for={awaited}"), "");
    }
    let mut printed = String::new();
    for manifest in &manifests {
        let table = kubectl.ok(&format!("get -A -o wide {}", manifest.resource()), "");
        let (columns, rows) = parse(&table);
        let is_ours = |row: &&super::table::Row| {
            row["NAME"] == manifest.name() && row.get("NAMESPACE").is_none_or(|n| n == manifest.namespace())
        };
        let row = rows.iter().find(is_ours).unwrap_or_else(|| panic!("{} in\n{table}", manifest.name()));
        printed.push_str(&format!("# {}\n{}\n", manifest.resource(), render(&columns, row)));
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(TABLES, &printed).expect("the file is written");
    }
    let expected = fs::read_to_string(TABLES).expect("the file of tables");
    for (printed, expected) in printed.split("\n\n").zip(expected.split("\n\n")) {
        assert_eq!(printed, expected);
    }
    assert_eq!(printed.len(), expected.len());

    // The same objects in all other output formats.
    let names = kubectl.ok(&format!("get -f {DIRECTORY} -o name"), "");
    let columns = "custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid";
    let cells = kubectl.ok(&format!("get -f {DIRECTORY} --no-headers -o {columns}"), "");
    let path = r#"jsonpath={range.items[*]}{.kind}{"="}{.metadata.name}{"\n"}{end}"#;
    let pairs = kubectl.ok(&format!("get -f {DIRECTORY} -o {path}"), "");
    let yaml = kubectl.ok(&format!("get -f {DIRECTORY} -o yaml"), "");
    let template = "go-template={{range.items}}{{.kind}}/{{.metadata.name}};{{end}}";
    let filled = kubectl.ok(&format!("get -f {DIRECTORY} -o {template}"), "");
    for (index, manifest) in manifests.iter().enumerate() {
        let (kind, name) = (manifest.kind(), manifest.name());
        let line = |text: &str| text.lines().nth(index).unwrap_or_default().to_owned();
        assert!(line(&names).to_lowercase().starts_with(&kind.to_lowercase()), "{}", line(&names));
        assert!(line(&names).ends_with(&format!("/{name}")), "{}", line(&names));
        let cells: Vec<String> = line(&cells).split_whitespace().map(str::to_owned).collect();
        assert_eq!(cells[..2], [kind, name]);
        assert_eq!(cells[2].len(), 36, "a uid");
        assert_eq!(line(&pairs), format!("{kind}={name}"));
        assert!(yaml.contains(&format!("\n  kind: {kind}\n")), "{kind} in\n{yaml}");
        assert_eq!(filled.split(';').nth(index), Some(format!("{kind}/{name}").as_str()));
    }
    // kubectl sorts the objects, the server applies selectors.
    let sorted = kubectl.ok("get serviceaccounts -n bakery --sort-by=.metadata.name -o name", "");
    assert_eq!(sorted, "serviceaccount/baker\nserviceaccount/default\n");
    let chosen = kubectl.ok("get configmaps,deployments,pods -n bakery -l app=shop -o name", "");
    assert_eq!(chosen, "configmap/recipes\ndeployment.apps/shop\n");
    let pending =
        kubectl.ok("get pods -A --field-selector=status.phase=Pending,metadata.namespace=bakery -o name", "");
    assert_eq!(pending, "pod/taster\n");
    let labels = kubectl.ok("get deployment shop -n bakery --show-labels -L app", "");
    assert!(labels.contains("LABELS") && labels.contains("app=shop"), "{labels}");
    let everything = kubectl.ok("get all -n bakery -o name", "");
    for name in ["pod/taster", "service/shop", "daemonset.apps/thermometer", "cronjob.batch/sourdough"] {
        assert!(everything.lines().any(|line| line == name), "{name} in\n{everything}");
    }
}

/// Kinds that these releases describe through a beta API version that Kubernetes 1.33 does not serve.
const DESCRIBED_BY_OLD_VERSION: [(&str, &[&str]); 2] =
    [("1.27", &["IPAddress"]), ("1.30", &["IPAddress", "ServiceCIDR"])];

/// Expected lines of `kubectl describe` by kind, without surrounding blanks.
const DESCRIBED: [(&str, &[&str]); 20] = [
    ("Namespace", &["Status: Active", "Container cpu - 2 100m 500m -"]),
    ("Node", &["PodCIDR: 10.64.0.0/24", "Unschedulable: false"]),
    ("LimitRange", &["Container memory - 1Gi 64Mi 256Mi -"]),
    ("Role", &["configmaps [] [] [get list watch]"]),
    ("ClusterRoleBinding", &["Group inspectors"]),
    ("ConfigMap", &["oven.degrees:", "stamp.bin: 4 bytes"]),
    ("Secret", &["password: 14 bytes", "Type: Opaque"]),
    ("PersistentVolume", &["Capacity: 5Gi", "Path: /srv/shelf-1"]),
    ("PersistentVolumeClaim", &["StorageClass: pantry", "Used By: <none>"]),
    ("StorageClass", &["ReclaimPolicy: Retain", "Parameters: shelf=dry"]),
    ("CSINode", &["Node ID: cellar-1"]),
    (
        "Deployment",
        &["RollingUpdateStrategy: 0 max unavailable, 1 max surge", "Image: registry.bakery.example/cache:7"],
    ),
    ("Ingress", &["shop-tls terminates shop.bakery.example"]),
    ("HorizontalPodAutoscaler", &["Reference: Deployment/shop", "Max replicas: 8"]),
    ("PodDisruptionBudget", &["Min available: 2"]),
    ("NetworkPolicy", &["PodSelector: app=shop", "To Port: 8080/TCP"]),
    ("Pod", &["Status: Pending", "/recipes from recipes (ro)", "Priority Class Name: breakfast"]),
    ("CronJob", &["Schedule: 30 3 * * 1-6", "Concurrency Policy: Forbid"]),
    ("EndpointSlice", &["http 8080 TCP", "NodeName: oven-1"]),
    (
        "CertificateSigningRequest",
        &["Requesting User: admin", "Common Name: oven-1.bakery", "Requested Duration: 24h"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_describes_every_kind() {
    with_each_release(describe_every_kind).await;
}

fn describe_every_kind(_: &ControlPlane, kubectl: &Kubectl) {
    let by_old_version = DESCRIBED_BY_OLD_VERSION.iter().find(|(release, _)| *release == kubectl.release());
    let by_old_version = by_old_version.map_or(&[][..], |(_, kinds)| kinds);
    let manifests = manifests(kubectl);
    kubectl.ok(&format!("create -f {DIRECTORY}"), "");
    for manifest in &manifests {
        let (kind, name) = (manifest.kind(), manifest.name());
        let namespace = match manifest.namespace() {
            "" => String::new(),
            namespace => format!("-n {namespace}"),
        };
        let line = format!("describe {} {name} {namespace}", manifest.resource());
        if by_old_version.contains(&kind) {
            assert!(kubectl.must_fail(&line).contains("NotFound"), "{kind}");
            continue;
        }
        let text = kubectl.ok(&line, "");
        let lines: BTreeSet<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(lines.contains(&format!("Name: {name}")), "{kind}:\n{text}");
        let further =
            DESCRIBED.iter().find(|(described, _)| *described == kind).map_or(&[][..], |(_, lines)| lines);
        for line in further {
            assert!(lines.contains(*line), "`{line}` of {kind}:\n{text}");
        }
    }
    // kubectl relies on server defaults.
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "bare", "namespace": "bakery"},
        "endpoints": [{"addresses": ["10.64.0.18"]}], "ports": [{"port": 8080}],
    });
    kubectl.ok("create -f -", &slice.to_string());
    let text = kubectl.ok("describe endpointslice bare -n bakery", "");
    assert!(text.contains("<unset>") && text.contains("8080") && text.contains("TCP"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_annotate_replace_and_delete_of_manifest_directory() {
    with_each_release(annotate_replace_and_delete).await;
}

fn annotate_replace_and_delete(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok(&format!("create -f {DIRECTORY}"), "");
    let count = manifests(kubectl).len();
    run_on_directory(kubectl, &format!("label -f {DIRECTORY} season=autumn"), "", "labeled", count);
    // kubectl 1.27 prints `annotate`.
    let annotated = if kubectl.release() == "1.27" { "annotate" } else { "annotated" };
    run_on_directory(
        kubectl,
        &format!("annotate -f {DIRECTORY} bakery.example/note=counted"),
        "",
        annotated,
        count,
    );

    // A changed list replaces the objects; a second replacement with the same resourceVersions conflicts.
    let mut list: Value =
        serde_json::from_str(&kubectl.ok(&format!("get -f {DIRECTORY} -o json"), "")).expect("JSON");
    for object in list["items"].as_array_mut().expect("items") {
        assert_eq!(object["metadata"]["labels"]["season"], "autumn");
        object["metadata"]["labels"]["season"] = json!("winter");
    }
    run_on_directory(kubectl, "replace -f -", &list.to_string(), "replaced", count);
    let seasons =
        kubectl.ok(&format!("get -f {DIRECTORY} -o jsonpath={{.items[*].metadata.labels.season}}"), "");
    assert_eq!(seasons.split(' ').filter(|season| *season == "winter").count(), count, "{seasons}");
    let stale = kubectl.must_fail_with_stdin("replace -f -", &list.to_string());
    assert_eq!(stale.matches("(Conflict)").count(), count, "{stale}");

    // kubectl deletes the namespace first; the namespace controller may delete some objects before kubectl
    // does.
    let deleted = kubectl.ok(&format!("delete -f {DIRECTORY} --ignore-not-found --wait=false"), "");
    assert!(deleted.contains("namespace \"bakery\" deleted"), "{deleted}");
    // The server removes the protection finalizers of unused volumes and claims.
    kubectl.ok(&format!("wait --for=delete --timeout=30s -f {DIRECTORY}"), "");
    assert_eq!(kubectl.ok(&format!("get --ignore-not-found -o name -f {DIRECTORY}"), ""), "");
}
