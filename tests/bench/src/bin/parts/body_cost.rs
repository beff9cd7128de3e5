//! CPU time and peak memory of creates with the largest request bodies within the decode limits.
//!
//! Each case runs in its own process. The default decode limits follow from the results.
//!
//! Each body runs through the steps of a create: decode, conform, default, manage fields, validate, encode.

use std::process::Command;
use std::{env, fs};

use apimachinery::clock::{SeededRng, SystemClock};
use apimachinery::codec::{Limits, json};
use apimachinery::names::{Names, Preset};
use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::set::Set;
use apply::update::{ManagedWrite, OneVersion};
use kinds::{Context, Registry};

/// Flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Decode limit: values of a body
    #[arg(long, default_value_t = Limits::BODY.elements)]
    elements: usize,
    /// Decode limit: bytes of the decoded body
    #[arg(long, default_value_t = Limits::BODY.tree_bytes)]
    tree_bytes: usize,
    /// Run only this case, in this process
    #[arg(long, hide = true)]
    case: Option<usize>,
}

/// A kind of request body whose size grows with the number of its items.
struct Case {
    name: &'static str,
    /// Group, version, resource.
    resource: [&'static str; 3],
    before: &'static str,
    item: fn(usize) -> String,
    after: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "pod, empty containers",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a"},"spec":{"containers":["#,
        item: |_| "{}".to_owned(),
        after: "]}}",
    },
    Case {
        name: "pod, null containers",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a"},"spec":{"containers":["#,
        item: |_| "null".to_owned(),
        after: "]}}",
    },
    Case {
        name: "pod, valid containers",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a"},"spec":{"containers":["#,
        item: |i| format!(r#"{{"name":"c{i}","image":"a"}}"#),
        after: "]}}",
    },
    Case {
        name: "pod, containers with probes",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a"},"spec":{"containers":["#,
        item: |i| {
            format!(
                r#"{{"name":"c{i}","image":"a","livenessProbe":{{}},"readinessProbe":{{}},"startupProbe":{{}},"securityContext":{{}}}}"#
            )
        },
        after: "]}}",
    },
    Case {
        name: "pod, volumes of every sort",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"a"}],"volumes":["#,
        item: |i| {
            format!(
                r#"{{"name":"v{i}","secret":{{}},"configMap":{{}},"downwardAPI":{{}},"projected":{{}},"hostPath":{{}},"iscsi":{{}},"rbd":{{}},"azureDisk":{{}},"scaleIO":{{}}}}"#
            )
        },
        after: "]}}",
    },
    Case {
        name: "pod, environment",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"a","env":["#,
        item: |i| format!(r#"{{"name":"E{i}"}}"#),
        after: "]}]}}",
    },
    Case {
        name: "pod, labels",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a","labels":{"a":"b""#,
        item: |i| format!(r#""l{i}":"v""#),
        after: r#"}},"spec":{"containers":[{"name":"c","image":"a"}]}}"#,
    },
    Case {
        name: "pod, invalid labels",
        resource: ["", "v1", "pods"],
        before: r#"{"metadata":{"name":"a","labels":{"a":"b""#,
        item: |i| format!(r#""/{i}":"_""#),
        after: r#"}},"spec":{"containers":[{"name":"c","image":"a"}]}}"#,
    },
    Case {
        name: "configmap, keys",
        resource: ["", "v1", "configmaps"],
        before: r#"{"metadata":{"name":"a"},"data":{"a":"b""#,
        item: |i| format!(r#""k{i}":"v""#),
        after: "}}",
    },
    Case {
        name: "endpoints, addresses",
        resource: ["", "v1", "endpoints"],
        before: r#"{"metadata":{"name":"a"},"subsets":[{"addresses":["#,
        item: |i| format!(r#"{{"ip":"10.1.1.1","targetRef":{{"kind":"Pod","name":"p{i}"}}}}"#),
        after: "]}]}",
    },
    Case {
        name: "stateful set, empty claims",
        resource: ["apps", "v1", "statefulsets"],
        before: r#"{"metadata":{"name":"a"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"a"}]}},"volumeClaimTemplates":["#,
        item: |_| "{}".to_owned(),
        after: "]}}",
    },
    Case {
        name: "service, ports",
        resource: ["", "v1", "services"],
        before: r#"{"metadata":{"name":"a"},"spec":{"ports":["#,
        item: |i| format!(r#"{{"port":{},"name":"p{i}"}}"#, i % 65_000 + 1),
        after: "]}}",
    },
    Case {
        name: "definition, properties",
        resource: ["apiextensions.k8s.io", "v1", "customresourcedefinitions"],
        before: r#"{"metadata":{"name":"as.b.c"},"spec":{"group":"b.c","scope":"Cluster","names":{"plural":"as","kind":"A"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{}"#,
        item: |i| format!(r#""p{i}":{{"type":"string"}}"#),
        after: "}}}}]}}",
    },
    Case {
        name: "role, rules",
        resource: ["rbac.authorization.k8s.io", "v1", "clusterroles"],
        before: r#"{"metadata":{"name":"a"},"rules":["#,
        item: |_| r#"{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}"#.to_owned(),
        after: "]}",
    },
];

impl Case {
    /// Returns the body with a number of items.
    fn body(&self, count: usize) -> Vec<u8> {
        let mut body = self.before.to_owned();
        for i in 0..count {
            if i > 0 || !self.before.ends_with('[') {
                body.push(',');
            }
            body.push_str(&(self.item)(i));
        }
        body.push_str(self.after);
        body.into_bytes()
    }

    /// Returns the largest number of items within the limits.
    fn largest_count(&self, limits: Limits) -> usize {
        let fits = |count: usize| json::decode(&self.body(count), limits).is_ok();
        let (mut low, mut high) = (0_usize, 2_000_000);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Runs all steps of a create except the store.
    fn create(&self, body: &[u8], limits: Limits) -> String {
        let names = Names::new(Preset::Kubernetes, "").expect("names");
        let registry = Registry::new(&names);
        let [group, version, resource] = self.resource;
        let resource = registry.find(group, version, resource).expect("a kind");
        let (clock, rng) = (SystemClock::new(), SeededRng::new(1));
        let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "" };
        let before = cpu_milliseconds();
        let decoded = json::decode(body, limits).expect("within the limits");
        let decode = cpu_milliseconds() - before;
        let mut object = Object::from_value(decoded.value).expect("an object");
        if let Err(error) = resource.conform(&mut object) {
            return format!("not conforming: {error}");
        }
        object.set_type(&resource.api_version(), resource.name());
        resource.default(&mut object, &ctx);
        let conform = cpu_milliseconds() - before - decode;
        let schema = resource.schema.table_type().expect("a schema");
        let versions = OneVersion { api_version: resource.api_version(), merge: schema.merge() };
        let (ignored, empty) = (Set::new(), schema.empty());
        let write = ManagedWrite {
            manager: "example",
            api_version: &versions.api_version,
            subresource: "",
            now: None,
            merge: &versions.merge,
            versions: &versions,
            ignored: &ignored,
            empty: &empty,
            reset_then_track: true,
        };
        write.update(None, &mut object).expect("owners");
        let ownership = cpu_milliseconds() - before - decode - conform;
        let namespace = if resource.namespaced { "default" } else { "" };
        if resource.namespaced {
            object.set_meta("namespace", namespace);
        }
        resource.prepare_create(&mut object, namespace, &ctx);
        let errors = resource.validate_create(&object, &ctx);
        let response = if errors.is_empty() {
            let stored = kinds::entry::encode(&object);
            let read = kinds::entry::decode(&stored, storage::Revision(1)).expect("an object");
            json::encode(&read.into_value())
        } else {
            json::encode(&Status::invalid(&resource.group_kind, "a", &errors).to_value())
        };
        let rest = cpu_milliseconds() - before - decode - conform - ownership;
        format!(
            "{} errors, response {} kB; decode {decode} ms, conform {conform}, owners {ownership}, rest {rest}",
            errors.len(),
            response.len() / 1024
        )
    }
}

/// Returns the CPU time of the process in milliseconds, in steps of 10.
fn cpu_milliseconds() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10
}

/// Returns the peak memory of the process in kilobytes.
fn peak_kilobytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kb| kb.parse().ok()).unwrap_or_default()
}

pub(crate) fn run(settings: Settings) {
    let limits = Limits { elements: settings.elements, tree_bytes: settings.tree_bytes, ..Limits::BODY };
    let Some(case) = settings.case else {
        for case in 0..CASES.len() {
            let program = env::current_exe().expect("this program");
            let mut command = Command::new(program);
            command.arg("body-cost").arg(format!("--elements={}", limits.elements));
            command.arg(format!("--tree-bytes={}", limits.tree_bytes)).arg(format!("--case={case}"));
            command.status().expect("a process");
        }
        return;
    };
    let case = CASES.get(case).expect("a case");
    let count = case.largest_count(limits);
    let body = case.body(count);
    drop(case.create(&case.body(1), limits));
    // The search for the largest number of items increased the peak memory, so the peak is reset here.
    fs::write("/proc/self/clear_refs", "5").expect("the peak is reset");
    let (memory, start) = (peak_kilobytes(), cpu_milliseconds());
    let report = case.create(&body, limits);
    let (kilobytes, milliseconds) = (peak_kilobytes() - memory, cpu_milliseconds() - start);
    println!(
        "{:<30} {count:>7} items, {:>4} kB: {milliseconds:>5} ms, {:>4} MB; {report}",
        case.name,
        body.len() / 1024,
        kilobytes / 1024
    );
}
