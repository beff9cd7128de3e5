//! Facts of all kinds, compared with recorded discovery documents of kube-apiserver.
//! A minimal object of every kind makes a round trip from body to store. The recordings are in
//! `CONFORMANCE_DIR`, default `../shared/conformance` beside the repository. Without recordings the test
//! prints a notice and passes.

use std::collections::BTreeSet;
use std::fs;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::time;
use kinds::entry::{self, Decoder};
use kinds::{BuiltInKind, Context, EnabledVersions, Registry, Source, Subresource, Verb};
use schema::facts::{self, Field, Shape};
use serde_json::json;
use storage::Revision;
use storage::cache::Decode as _;

#[test]
fn kind_facts_match_recorded_discovery() {
    let Some(recordings) = prerequisites::recordings() else { return };
    let text = fs::read_to_string(recordings.join("cases/system.json")).unwrap();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let registry = Registry::new(&names);
    let file: Value = serde_json::from_str(&text).unwrap();
    let steps = file["cases"].as_array().unwrap().iter().flat_map(|case| case["steps"].as_array().unwrap());
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for step in steps {
        let (path, body) = (step["path"].as_str().unwrap(), &step["answer"]["body"]);
        let Some(group_version) = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/")) else {
            continue;
        };
        // A placeholder stands for a group of custom kinds, whose name differs from run to run.
        if group_version.starts_with("${") {
            continue;
        }
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        for entry in body["resources"].as_array().into_iter().flatten() {
            let name = entry["name"].as_str().unwrap();
            let entry_name = format!("{group_version} {name}");
            let have = discovery_entry(&registry, group, version, name, &names);
            let mut want = entry.clone();
            want.as_object_mut().unwrap().remove("storageVersionHash");
            if have.as_ref() != Some(&want) {
                wrong.push(format!("{entry_name}: {have:?}, recorded {want}"));
            }
            seen.insert(entry_name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.len() > 90, "{} entries", seen.len());
    // apid lists no resource that kube-apiserver does not list.
    for resource in registry.resources() {
        let api_version = resource.api_version();
        let subresources = resource.subresources.iter().map(|s| format!("/{}", s.name));
        for part in subresources.chain([String::new()]) {
            let entry_name = format!("{api_version} {}{part}", resource.plural());
            // The recording has no resource list for these groups.
            let group_is_recorded = seen.iter().any(|s| s.starts_with(&format!("{api_version} ")));
            assert!(seen.contains(&entry_name) || !group_is_recorded, "{entry_name}");
        }
    }
}

/// Discovery entry of a resource or subresource in the format of kube-apiserver.
fn discovery_entry(
    registry: &Registry,
    group: &str,
    version: &str,
    name: &str,
    names: &Names,
) -> Option<Value> {
    let (resource, subresource) = name.split_once('/').map_or((name, None), |(r, s)| (r, Some(s)));
    let kind = registry.find(group, version, resource)?;
    let verbs = |verbs: &[Verb]| verbs.iter().map(|v| v.as_str()).collect::<Vec<_>>();
    let mut entry = json!({"name": name, "namespaced": kind.namespaced, "singularName": ""});
    let Some(subresource) = subresource else {
        entry["singularName"] = kind.names.singular.clone().into();
        entry["kind"] = kind.name().into();
        entry["verbs"] = verbs(kind.verbs).into();
        if !kind.names.short_names.is_empty() {
            entry["shortNames"] = kind.names.short_names.iter().map(String::as_str).collect();
        }
        if !kind.names.categories.is_empty() {
            entry["categories"] = kind.names.categories.iter().map(String::as_str).collect();
        }
        return Some(entry);
    };
    let found = kind.subresources.iter().find(|s| s.name == subresource)?;
    entry["kind"] = found.kind.into();
    entry["verbs"] = verbs(found.verbs).into();
    if let Some((stem, version)) = found.group_version {
        entry["group"] = names.group(stem).into();
        entry["version"] = version.into();
    }
    Some(entry)
}

#[test]
fn kind_with_tagged_fields_has_validation_tags() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    for resource in every_version(&names).resources() {
        let kind = resource.row().unwrap();
        let is_tagged = reaches_validation_tags(kind.schema, &mut BTreeSet::new());
        assert_eq!(kind.rules.has_validation_tags, is_tagged, "{}", kind.schema);
    }
}

/// Whether a field of a type or of the types of its fields has validation tags.
fn reaches_validation_tags(type_name: &'static str, seen: &mut BTreeSet<&'static str>) -> bool {
    let is_new = seen.insert(type_name);
    let is_tagged = |field: Field| {
        let mut shape = &field.shape;
        while let Shape::Pointer(inner) | Shape::List(inner) | Shape::Map(inner) = shape {
            shape = inner;
        }
        field.has_validation_tags
            || matches!(shape, Shape::Named(name) if reaches_validation_tags(name, seen))
    };
    is_new && facts::fields(type_name).into_iter().flatten().any(is_tagged)
}

/// Group order of kube-apiserver.
#[test]
fn discovery_groups_are_in_kubernetes_order() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let registry = every_version(&names);
    let mut stems: Vec<&str> = registry.resources().iter().filter_map(|r| r.stem()).collect();
    stems.dedup();
    assert_eq!(
        stems,
        [
            "",
            "apiregistration",
            "apps",
            "events",
            "authentication",
            "authorization",
            "autoscaling",
            "batch",
            "certificates",
            "networking",
            "policy",
            "rbac.authorization",
            "storage",
            "admissionregistration",
            "apiextensions",
            "scheduling",
            "coordination",
            "node",
            "discovery",
            "flowcontrol.apiserver",
            "internal.apiserver",
            "resource",
            "storagemigration",
            "explain",
        ]
    );
}

#[test]
fn deprecated_kinds_return_replacement_warning() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let registry = Registry::new(&names);
    let warnings = registry.resources().iter().filter_map(|r| r.deprecation.as_ref());
    assert_eq!(
        warnings.map(|deprecation| &*deprecation.warning).collect::<Vec<_>>(),
        [
            "v1 ComponentStatus is deprecated in v1.19+",
            "v1 Endpoints is deprecated in v1.33+; use discovery.example.test/v1 EndpointSlice",
        ]
    );
}

/// Round trip of a minimal object of every kind in both presets: conform, prepare, encode, decode.
#[test]
fn minimal_object_of_every_kind_round_trips() {
    for preset in [Preset::Svc, Preset::Kubernetes] {
        let names = Names::new(preset, "example.test").unwrap();
        for resource in every_version(&names).stored() {
            let object = create_object(resource, &names, json!({"metadata": {"name": "x"}}));
            let entry = Decoder::new(resource).decode("", &entry::encode(&object)).unwrap();
            let mut versioned = object.clone();
            versioned.set_meta("resourceVersion", "7");
            assert_eq!(entry.object(Revision(7)).unwrap(), versioned, "{}", resource.name());
            let mut json = Vec::new();
            entry.write_json(&mut json, Revision(7), true);
            assert_eq!(serde_json::from_slice::<Value>(&json).unwrap(), versioned.into_value());

            let mut again = object.clone();
            resource.conform(&mut again).unwrap();
            assert_eq!(again, object, "{}: conforming twice changes nothing", resource.name());
            let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
            let row = resource.row().unwrap();
            let computed = row.columns.iter().filter(|column| column.source == Source::Computed);
            assert_eq!((row.cells)(&object, &clock).len(), computed.count(), "{}", row.kind);
            assert!(resource.columns().iter().any(|c| c.format == "name"), "{}", resource.name());
            assert!(resource.columns().iter().all(|c| c.description.ends_with('.')), "{}", resource.name());
        }
    }
}

/// For every kind with the subresource `status`, writes to the main resource keep the status, and writes to
/// `status` keep the spec.
#[test]
fn spec_and_status_writes_are_separate_for_every_kind() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
    let rng = SeededRng::new(1);
    let mut count = 0;
    for resource in every_version(&names).stored().filter(|r| r.has_status()) {
        let name = resource.name();
        let old = create_object(resource, &names, json!({"metadata": {"name": "x", "labels": {"a": "old"}}}));
        // No schema contains these marker fields, so that only the rules that separate spec and status change
        // them.
        let mut marked = old.clone();
        marked.set("status", json!({"mark": "sent"}));
        marked.set("spec", json!({"mark": "sent"}));
        let write = |subresource| {
            let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource };
            let mut new = marked.clone();
            resource.prepare_update(&mut new, &old, &ctx);
            new
        };
        let main = write("");
        assert_eq!(main.get("status"), old.get("status"), "{name}: the main resource leaves the status");
        let status = write("status");
        assert_eq!(status.get("spec"), old.get("spec"), "{name}: status leaves the spec");
        assert_eq!(status.str_at(&["status", "mark"]), Some("sent"), "{name}");
        assert_eq!(status.generation(), old.generation(), "{name}: a status does not count");
        count += 1;
    }
    assert!(count > 20, "{count} kinds");
}

/// The registry with all versions, also those that are off by default.
fn every_version(names: &Names) -> Registry {
    let (versions, _) = EnabledVersions::parse(["api/all=true"], names).unwrap();
    Registry::with_versions(names, &versions)
}

fn create_object(resource: &kinds::Kind, names: &Names, body: Value) -> Object {
    let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
    let rng = SeededRng::new(1);
    let ctx = Context { names, clock: &clock, rng: &rng, subresource: "" };
    let mut object = Object::from_value(body).unwrap();
    object.set_type(&resource.api_version(), resource.name());
    let conformed = resource.conform(&mut object).unwrap();
    assert_eq!(conformed.unknown, [""; 0]);
    resource.default(&mut object, &ctx);
    resource.prepare_create(&mut object, "team", &ctx);
    resource.complete_new(&mut object, &ctx);
    resource.canonicalize(&mut object, &ctx);
    object
}

/// Complete definition of an additional kind: its facts, and one line at registration.
mod gadget {
    use super::*;

    pub(crate) const KINDS: &[BuiltInKind] = &[BuiltInKind {
        kind: "Gadget",
        short_names: &["ga"],
        subresources: &[Subresource::status("Gadget")],
        selectable_fields: &["data.color"],
        ..BuiltInKind::namespaced("apps/v1.ControllerRevision", "gadgets")
    }];
}

#[test]
fn additional_kind_needs_facts_and_one_registration() {
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let registry = Registry::with(&names, &[gadget::KINDS]);
    let gadgets = registry.find("apps", "v1", "gadgets").unwrap();
    assert_eq!(gadgets.key("team", "x"), "apps/gadgets/team/x");
    assert!(registry.of_key("apps/gadgets/team/x").is_some());
    assert!(registry.find_kind("apps", "Gadget").is_some());
    assert!(Registry::new(&names).find_kind("apps", "Gadget").is_none());
    let object = create_object(
        gadgets,
        &names,
        json!({"metadata": {"name": "x"}, "data": {"color": "red"}, "revision": 1}),
    );
    let entry = Decoder::new(gadgets).decode("", &entry::encode(&object)).unwrap();
    assert_eq!((entry.namespace(), entry.name(), entry.field("data.color")), ("team", "x", "red"));
}
