//! The record of this program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use apimachinery::names::{Names, Preset};
use kinds::{Registry, Storage};
use schema::facts::{self, Shape};
use serving::gates::{GATES, Stage};

use super::rules::Record;

/// Collects the record from the registry, the type table, the feature gates and the documents.
pub(super) fn record() -> Record {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let registry = Registry::new(&names);
    let mut types = BTreeSet::new();
    let mut discovery = Vec::new();
    for resource in registry.resources() {
        let stem = names.stem(&resource.group_resource.group).unwrap();
        for version in resource.versions() {
            let is_stored = resource.storage == Storage::Stored && version == resource.version();
            let role = if is_stored { "stored" } else { "served" };
            discovery
                .push([stem, version, resource.plural(), resource.name(), role].map(str::to_owned).to_vec());
        }
        if let Some(name) = type_name(resource) {
            add_types(name, &mut types);
        }
    }
    discovery.sort();
    let mut fields = Vec::new();
    let mut values = BTreeSet::new();
    for name in &types {
        for field in facts::fields(name).into_iter().flatten() {
            let required = if field.required { "required" } else { "optional" };
            let shape = shape_text(&field.shape, &mut values);
            let default = field.default.unwrap_or_default().replace(',', ";");
            fields.push(vec![name.clone(), field.name.to_owned(), shape, required.to_owned(), default]);
        }
    }
    let values = values.into_iter().map(|(name, value)| vec![name, value]).collect();
    let mut elements = gates();
    elements.extend(metrics());
    elements.extend(flags());
    elements.extend(keys());
    elements.sort();
    Record { discovery, fields, values, elements }
}

fn type_name(resource: &kinds::Kind) -> Option<&'static str> {
    resource.schema.type_name()
}

/// Adds a type and the types of its fields.
fn add_types(name: &str, types: &mut BTreeSet<String>) {
    let Some(fields) = facts::fields(name) else { return };
    if types.insert(name.to_owned()) {
        for field in fields {
            let mut shape = &field.shape;
            while let Shape::Pointer(inner) | Shape::List(inner) | Shape::Map(inner) = shape {
                shape = inner;
            }
            if let Shape::Named(name) = shape {
                add_types(name, types);
            }
        }
    }
}

/// Returns a shape in the notation of the type table. Adds the values of enumerated types to `values`.
fn shape_text(outer: &Shape, values: &mut BTreeSet<(String, String)>) -> String {
    match outer {
        Shape::Pointer(inner) => format!("*{}", shape_text(inner, values)),
        Shape::List(inner) => format!("[]{}", shape_text(inner, values)),
        Shape::Map(inner) => format!("{{}}{}", shape_text(inner, values)),
        Shape::String(name) => {
            for value in facts::values(name).into_iter().flatten() {
                values.insert(((*name).to_owned(), value.to_owned()));
            }
            format!("string({name})")
        }
        Shape::Named(name) => (*name).to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn element(class: &str, name: &str, stage: &str, since: Option<u32>, deprecated: Option<u32>) -> Vec<String> {
    let release = |minor: Option<u32>| minor.map_or_else(String::new, |minor| format!("1.{minor}"));
    vec![
        class.to_owned(),
        name.to_owned(),
        stage.to_owned(),
        release(since),
        release(deprecated),
        String::new(),
    ]
}

/// Feature gates. A stable or deprecated gate is deprecated since it entered its stage.
fn gates() -> Vec<Vec<String>> {
    let row = |gate: &serving::gates::GateDefinition| {
        let stage = gate.current().unwrap().stage;
        let is_deprecated = matches!(stage, Stage::Stable | Stage::Deprecated);
        element("gate", gate.name, stage.as_str(), gate.since(), gate.since().filter(|_| is_deprecated))
    };
    GATES.iter().map(row).collect()
}

/// Keys of annotations and labels. The stage of a key is in its name: `alpha`, `beta`, or neither.
fn keys() -> Vec<Vec<String>> {
    let stage = |name: &str| match name {
        _ if name.contains("alpha") => "ALPHA",
        _ if name.contains("beta") => "BETA",
        _ => "GA",
    };
    super::keys::keys().iter().map(|name| element("key", name, stage(name), None, None)).collect()
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Served metrics, with the stability level of a metric as its stage.
fn metrics() -> Vec<Vec<String>> {
    let table = document("metrics.csv");
    let rows = table.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.filter(|row| row.get(4) != Some(&"absent"))
        .map(|row| element("metric", row.first().unwrap(), row.get(2).unwrap(), None, None))
        .collect()
}

/// Flags with an effect: implemented flags of kube-apiserver. A flag without a mark of its stage is stable.
fn flags() -> Vec<Vec<String>> {
    let text = document("flags.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `--"));
    rows.filter_map(|row| {
        let mut cells = row.split(" | ");
        let name = cells.next()?.trim_end_matches('`');
        let (state, meaning) = (cells.next()?, cells.next()?);
        let stage = match meaning {
            _ if meaning.contains("ALPHA") => "ALPHA",
            _ if meaning.contains("BETA") => "BETA",
            _ => "GA",
        };
        (state == "implemented").then(|| element("admin-flag", name, stage, None, None))
    })
    .collect()
}
