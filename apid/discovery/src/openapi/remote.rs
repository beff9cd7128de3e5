//! OpenAPI documents of servers behind APIServices, and their merge into the documents of apid.
//!
//! # Contract
//!
//! [`RemoteSpec::read`] keeps the paths of one API group of an OpenAPI 2 document, and the definitions that they refer
//! to. [`merge`] renames the definitions that collide: a definition with the name of another one and with another
//! content gets a suffix, `_v2` first. Definitions that refer to a renamed one are renamed too, because their meaning
//! differs. OpenAPI 3 documents are not merged: apid lists their URLs and forwards the requests. A server without such a
//! document gets one from its OpenAPI 2 document; see [`super::converted`].
//!
//! # Reference
//!
//! kube-aggregator: paths that exist already stay as they are; equal definitions are shared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

/// Prefix of references to definitions.
pub(super) const DEFINITIONS: &str = "#/definitions/";
/// Prefix of references to parameters.
const PARAMETERS: &str = "#/parameters/";

/// The OpenAPI documents of all servers behind APIServices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteOpenApi {
    /// The parts of OpenAPI 2 documents, in the order of their merge.
    pub specs: Vec<Arc<RemoteSpec>>,
    /// The URLs of OpenAPI 3 documents by path: `apis/<group>/<version>`.
    pub v3_urls: BTreeMap<String, String>,
    /// The OpenAPI 2 documents by path, of servers without OpenAPI 3: apid converts these.
    pub converted: BTreeMap<String, Arc<RemoteSpec>>,
    /// The paths of all versions that other servers serve. Kinds of apid in these versions are in no document.
    pub versions: BTreeSet<String>,
}

/// The paths of one API group in the OpenAPI 2 document of a server, with their definitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteSpec {
    /// Title and version of the document.
    pub(super) info: Value,
    pub(super) paths: BTreeMap<String, Value>,
    pub(super) definitions: BTreeMap<String, Value>,
}

impl RemoteSpec {
    /// Reads the part of an OpenAPI 2 document for an API group; None if the document has no path of the group.
    ///
    /// Shared parameters become part of the operations, so they collide with no others.
    pub fn read(document: &Value, group: &str) -> Option<Self> {
        let prefix = format!("/apis/{group}/");
        let parameters = document.get("parameters");
        let all = document.get("definitions").and_then(Value::as_object);
        let mut paths = BTreeMap::new();
        for (path, item) in document.get("paths")?.as_object()? {
            if path.starts_with(&prefix) && item.is_object() {
                let mut item = item.clone();
                inline_parameters(&mut item, parameters);
                paths.insert(path.clone(), item);
            }
        }
        if paths.is_empty() {
            return None;
        }
        let definitions = referenced_definitions(paths.values(), |name| all?.get(name));
        let definitions = definitions.into_iter().map(|(name, found)| (name, found.clone())).collect();
        let info = document.get("info").cloned().unwrap_or_default();
        Some(RemoteSpec { info, paths, definitions })
    }
}

/// Paths and definitions that a merge adds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Merged {
    /// The added path items.
    pub(super) paths: BTreeMap<String, Value>,
    /// The added definitions, under their final names.
    pub(super) definitions: BTreeMap<String, Value>,
}

/// Merges documents in order. `own_definition` returns a definition of apid, and `has_path` whether apid has a path.
pub(super) fn merge(
    specs: &[Arc<RemoteSpec>],
    own_definition: impl Fn(&str) -> Option<Value>,
    has_path: impl Fn(&str) -> bool,
) -> Merged {
    let mut merged = Merged::default();
    for spec in specs {
        let existing = |name: &str| merged.definitions.get(name).cloned().or_else(|| own_definition(name));
        let renamed = renamed_definitions(spec, existing);
        for (name, definition) in &spec.definitions {
            let final_name = renamed.get(name).unwrap_or(name);
            if renamed.contains_key(name) || own_definition(name).is_none() {
                let definition = with_renamed(definition, &renamed);
                merged.definitions.entry(final_name.clone()).or_insert(definition);
            }
        }
        for (path, item) in spec.paths.iter().filter(|(path, _)| !has_path(path)) {
            merged.paths.entry(path.clone()).or_insert_with(|| with_renamed(item, &renamed));
        }
    }
    merged
}

/// Returns the new names of the definitions of a document that collide with existing ones. A definition that an
/// earlier document brought under a new name keeps that name.
fn renamed_definitions(
    spec: &RemoteSpec,
    existing: impl Fn(&str) -> Option<Value>,
) -> BTreeMap<String, String> {
    let taken: BTreeMap<&String, Value> =
        spec.definitions.keys().filter_map(|name| Some((name, existing(name)?))).collect();
    // The taken definitions that refer to each definition.
    let mut users: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for name in taken.keys() {
        let mut references = BTreeSet::new();
        if let Some(definition) = spec.definitions.get(*name) {
            collect_references(definition, &mut references);
        }
        for reference in references {
            users.entry(reference).or_default().push(*name);
        }
    }
    let differs = |(name, known): &(&&String, &Value)| spec.definitions.get(**name) != Some(*known);
    let mut colliding: Vec<&String> = taken.iter().filter(differs).map(|(name, _)| *name).collect();
    let mut known: BTreeSet<&String> = colliding.iter().copied().collect();
    // In this order each definition follows the definitions to which it refers, except in circles.
    let mut next = 0;
    while let Some(name) = colliding.get(next).copied() {
        next += 1;
        colliding.extend(users.get(name).into_iter().flatten().copied().filter(|user| known.insert(*user)));
    }
    let mut renamed = BTreeMap::new();
    for name in colliding {
        let definition = spec.definitions.get(name).map(|definition| with_renamed(definition, &renamed));
        let is_usable = |candidate: &String| match existing(candidate) {
            Some(known) => Some(&known) == definition.as_ref(),
            None => !spec.definitions.contains_key(candidate),
        };
        let mut candidates = (2_u32..).map(|number| format!("{name}_v{number}"));
        if let Some(new_name) = candidates.find(is_usable) {
            renamed.insert(name.clone(), new_name);
        }
    }
    renamed
}

/// Returns the value with references to the new names.
fn with_renamed(value: &Value, renamed: &BTreeMap<String, String>) -> Value {
    let mut value = value.clone();
    if !renamed.is_empty() {
        visit_references(&mut value, &mut |reference| {
            let new_name = reference.strip_prefix(DEFINITIONS).and_then(|name| renamed.get(name));
            if let Some(new_name) = new_name {
                *reference = format!("{DEFINITIONS}{new_name}");
            }
        });
    }
    value
}

/// Returns the definitions to which path items refer, directly or through other definitions. `find` returns a definition
/// by its name.
pub(super) fn referenced_definitions<'a>(
    items: impl IntoIterator<Item = &'a Value>,
    find: impl Fn(&str) -> Option<&'a Value>,
) -> BTreeMap<String, &'a Value> {
    let mut pending = BTreeSet::new();
    items.into_iter().for_each(|item| collect_references(item, &mut pending));
    let mut definitions = BTreeMap::new();
    while let Some(name) = pending.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        if let Some(definition) = find(&name) {
            collect_references(definition, &mut pending);
            definitions.insert(name, definition);
        }
    }
    definitions
}

/// Adds the names of the definitions to which a value refers.
fn collect_references(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(reference) if name == "$ref" => {
                        names.extend(reference.strip_prefix(DEFINITIONS).map(str::to_owned));
                    }
                    field => collect_references(field, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, names)),
        _ => {}
    }
}

pub(super) fn visit_references(value: &mut Value, visit: &mut impl FnMut(&mut String)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(reference) if name == "$ref" => visit(reference),
                    field => visit_references(field, visit),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit_references(item, visit)),
        _ => {}
    }
}

/// Replaces references to shared parameters in a path item by the parameters.
fn inline_parameters(item: &mut Value, parameters: Option<&Value>) {
    let Some(item) = item.as_object_mut() else { return };
    inline_list(item, parameters);
    for operation in item.values_mut().filter_map(Value::as_object_mut) {
        inline_list(operation, parameters);
    }
}

fn inline_list(owner: &mut Map<String, Value>, parameters: Option<&Value>) {
    let Some(Value::Array(list)) = owner.get_mut("parameters") else { return };
    for entry in list {
        let name = entry.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix(PARAMETERS));
        if let Some(parameter) = name.and_then(|name| parameters?.get(name)) {
            *entry = parameter.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reference(name: &str) -> Value {
        json!({"$ref": format!("{DEFINITIONS}{name}")})
    }

    fn document() -> Value {
        json!({
            "paths": {
                "/apis/e.com/v1/flavors": {
                    "get": {"parameters": [{"$ref": "#/parameters/limit"}], "responses": {"200": {"schema": reference("Flavor")}}},
                },
                "/apis/other.com/v1/things": {"get": {"responses": {"200": {"schema": reference("Thing")}}}},
                "/version/": {"get": {}},
            },
            "parameters": {"limit": {"name": "limit", "in": "query"}},
            "definitions": {
                "Flavor": {"properties": {"metadata": reference("Meta"), "color": reference("Color")}},
                "Meta": {"type": "object", "description": "other"},
                "Color": {"type": "string"},
                "Thing": {"type": "object"},
            },
        })
    }

    #[test]
    fn paths_of_one_group_are_kept_with_their_definitions() {
        let spec = Arc::new(RemoteSpec::read(&document(), "e.com").unwrap());
        assert_eq!(spec.paths.keys().collect::<Vec<_>>(), ["/apis/e.com/v1/flavors"]);
        assert_eq!(spec.definitions.keys().collect::<Vec<_>>(), ["Color", "Flavor", "Meta"]);
        let parameter = spec.paths["/apis/e.com/v1/flavors"].pointer("/get/parameters/0");
        assert_eq!(parameter, Some(&json!({"name": "limit", "in": "query"})));
        assert_eq!(RemoteSpec::read(&document(), "absent.com"), None);
    }

    #[test]
    fn colliding_definitions_and_their_users_are_renamed() {
        let spec = Arc::new(RemoteSpec::read(&document(), "e.com").unwrap());
        // The own Flavor has the same text and another meaning, because its Meta differs.
        let own = |name: &str| match name {
            "Meta" => Some(json!({"type": "object"})),
            "Color" => Some(json!({"type": "string"})),
            "Flavor" => {
                Some(json!({"properties": {"metadata": reference("Meta"), "color": reference("Color")}}))
            }
            "Meta_v2" => Some(json!({"type": "integer"})),
            _ => None,
        };
        let merged = merge(&[spec.clone(), spec.clone()], own, |_| false);
        let expected = BTreeMap::from([
            (
                "Flavor_v2".to_owned(),
                json!({"properties": {"metadata": reference("Meta_v3"), "color": reference("Color")}}),
            ),
            ("Meta_v3".to_owned(), json!({"type": "object", "description": "other"})),
        ]);
        assert_eq!(merged.definitions, expected);
        let schema = merged.paths["/apis/e.com/v1/flavors"].pointer("/get/responses/200/schema");
        assert_eq!(schema, Some(&reference("Flavor_v2")));
        assert!(merge(&[spec], |_| None, |_| true).paths.is_empty());
    }

    #[test]
    fn equal_definitions_of_two_servers_are_shared() {
        let spec = Arc::new(RemoteSpec::read(&document(), "e.com").unwrap());
        let merged = merge(&[spec.clone(), spec.clone()], |_| None, |_| false);
        assert_eq!(merged.definitions, spec.definitions);
    }
}
