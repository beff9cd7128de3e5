//! Bodies at the size limit for every list and map of every kind, from the OpenAPI documents of the server.
//!
//! # Contract
//!
//! [`sites`] finds each list and map that the body of a create can have, once for each kind and schema.
//! [`Site::body`] builds a body of about [`LIMIT`] bytes in which that list or map is as long as possible,
//! with every other part minimal.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::client::Prepared;
use crate::dataset::NAMESPACE;

/// Bytes of a generated body; the server reads 3 MiB.
pub const LIMIT: usize = 3_000_000;

/// Maximum number of steps from a body to a list or map.
const MAX_STEPS: usize = 12;

/// Step from a body to a list or map inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Item,
    Entry,
}

/// Type of the elements of a list or the values of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Object,
    Text,
    Number,
    Flag,
    List,
    Unknown,
}

/// Elements of a generated body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Smallest elements that parse.
    Minimal,
    /// Unknown fields, invalid texts and keys.
    Invalid,
}

/// List or map in the body of a create.
#[derive(Clone, Debug)]
pub struct Site {
    /// Kind, for example `Pod`.
    pub kind: String,
    api_version: String,
    /// Path to which a create is sent.
    collection: String,
    steps: Vec<Step>,
    element: Element,
    is_map: bool,
}

/// Finds the lists and maps in the create bodies of all kinds of one OpenAPI v3 document.
pub fn sites(document: &Value) -> Vec<Site> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        let post = &item["post"];
        let kind = &post["x-kubernetes-group-version-kind"];
        let (Some(name), Some(version)) = (kind["kind"].as_str(), kind["version"].as_str()) else { continue };
        let content = post["requestBody"]["content"].as_object().into_iter().flatten().next();
        let Some(schema) = content.map(|(_, media)| &media["schema"]) else { continue };
        // A collection of one namespace is enough.
        let single = path.replace("{namespace}", NAMESPACE).replace("{name}", "target");
        if single.contains('{') {
            continue;
        }
        let group = kind["group"].as_str().unwrap_or_default();
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let mut walker =
            SchemaWalker { document, seen: BTreeSet::new(), stack: Vec::new(), found: Vec::new() };
        walker.visit(schema, &mut Vec::new());
        found.extend(walker.found.into_iter().map(|(steps, element, is_map)| Site {
            kind: name.to_owned(),
            api_version: api_version.clone(),
            collection: single.clone(),
            steps,
            element,
            is_map,
        }));
    }
    found
}

/// Walks the schema of a body and collects its lists and maps.
struct SchemaWalker<'a> {
    document: &'a Value,
    /// Schema and field of each list or map found so far, so that each occurs once in a kind.
    seen: BTreeSet<(String, String)>,
    stack: Vec<String>,
    found: Vec<(Vec<Step>, Element, bool)>,
}

impl<'a> SchemaWalker<'a> {
    /// Resolves a schema reference; returns the schema with its name.
    fn resolve(&self, schema: &'a Value) -> (&'a Value, String) {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        match reference.and_then(|text| text.rsplit('/').next()) {
            Some(name) => (&self.document["components"]["schemas"][name], name.to_owned()),
            None => (schema, String::new()),
        }
    }

    fn element_type(&self, schema: &'a Value) -> Element {
        match self.resolve(schema).0["type"].as_str() {
            Some("object") => Element::Object,
            Some("string") => Element::Text,
            Some("integer" | "number") => Element::Number,
            Some("boolean") => Element::Flag,
            Some("array") => Element::List,
            _ => Element::Unknown,
        }
    }

    fn visit(&mut self, schema: &'a Value, steps: &mut Vec<Step>) {
        let (schema, name) = self.resolve(schema);
        if steps.len() > MAX_STEPS || (!name.is_empty() && self.stack.contains(&name)) {
            return;
        }
        self.stack.push(name.clone());
        for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
            steps.push(Step::Field(field.clone()));
            self.visit_field(&name, field, inner, steps);
            steps.pop();
        }
        self.stack.pop();
    }

    fn visit_field(&mut self, owner: &str, field: &str, schema: &'a Value, steps: &mut Vec<Step>) {
        let (resolved, _) = self.resolve(schema);
        let (inner, step) = if resolved["items"].is_object() {
            (&resolved["items"], Step::Item)
        } else if resolved["additionalProperties"].is_object() {
            (&resolved["additionalProperties"], Step::Entry)
        } else {
            return self.visit(schema, steps);
        };
        if self.seen.insert((owner.to_owned(), field.to_owned())) {
            self.found.push((steps.clone(), self.element_type(inner), step == Step::Entry));
            steps.push(step);
            self.visit_field(owner, &format!("{field}[]"), inner, steps);
            steps.pop();
        }
    }
}

impl Site {
    /// Returns the path of the list or map.
    pub fn path(&self) -> String {
        self.steps.iter().fold(self.kind.clone(), |mut path, step| {
            let _ = match step {
                Step::Field(name) => write!(path, ".{name}"),
                Step::Item => write!(path, "[]"),
                Step::Entry => write!(path, "{{}}"),
            };
            path
        })
    }

    /// Builds the body.
    pub fn body(&self, variant: Variant) -> String {
        let mut body = format!(r#"{{"apiVersion":"{}","kind":"{}""#, self.api_version, self.kind);
        let mut closing = vec!["}"];
        if self.steps.first() != Some(&Step::Field("metadata".to_owned())) {
            body.push_str(r#","metadata":{"name":"generated"}"#);
        }
        for (depth, step) in self.steps.iter().enumerate() {
            let _ = match step {
                Step::Field(name) if depth == 0 && name == "metadata" => {
                    write!(body, r#","metadata":{{"name":"generated""#)
                }
                Step::Field(name) if depth == 0 => write!(body, r#","{name}":"#),
                Step::Field(name) if depth == 1 && body.ends_with(r#""name":"generated""#) => {
                    closing.push("}");
                    write!(body, r#","{name}":"#)
                }
                Step::Field(name) => {
                    closing.push("}");
                    write!(body, r#"{{"{name}":"#)
                }
                Step::Item => {
                    closing.push("]");
                    write!(body, "[")
                }
                Step::Entry => {
                    closing.push("}");
                    write!(body, r#"{{"key":"#)
                }
            };
        }
        let element = element_text(self.element, variant);
        body.push(if self.is_map { '{' } else { '[' });
        let mut number = 0;
        while body.len() + element.len() + 64 < LIMIT {
            if number > 0 {
                body.push(',');
            }
            if self.is_map {
                let key_prefix = if variant == Variant::Minimal { "k" } else { "?" };
                let _ = write!(body, r#""{key_prefix}{number}":"#);
            }
            body.push_str(element);
            number += 1;
        }
        body.push(if self.is_map { '}' } else { ']' });
        body.extend(closing.into_iter().rev());
        body
    }

    /// Methods of [`Site::requests`]: reviews and subresources do not support apply.
    pub fn methods(&self) -> &'static [&'static str] {
        let is_object = !self.collection.contains("reviews") && !self.collection.contains("/target/");
        if is_object { &["POST", "PATCH"] } else { &["POST"] }
    }

    /// Builds the requests with the body: dry runs of a create and, if the kind supports it, of an apply.
    pub fn requests(&self, variant: Variant) -> Vec<Prepared> {
        let body = bytes::Bytes::from(self.body(variant));
        let request = |method: &&'static str| match *method {
            "POST" => Prepared::post(format!("{}?dryRun=All", self.collection), body.clone()),
            method => {
                let path = format!("{}/generated?dryRun=All&fieldManager=generated", self.collection);
                Prepared::with_body(method, path, "application/apply-patch+yaml", body.clone())
            }
        };
        self.methods().iter().map(request).collect()
    }

    /// Whether every authenticated user may send the body.
    pub fn is_allowed_for_all_users(&self) -> bool {
        self.kind.starts_with("SelfSubject")
    }
}

fn element_text(element: Element, variant: Variant) -> &'static str {
    match (element, variant) {
        (Element::Object, Variant::Minimal) => "{}",
        (Element::Object, Variant::Invalid) => r#"{"?":0}"#,
        (Element::Text, Variant::Minimal) => r#""""#,
        (Element::Text, Variant::Invalid) => r#""?""#,
        (Element::Number | Element::Unknown, Variant::Minimal) => "0",
        (Element::Number | Element::Unknown, Variant::Invalid) => "-1",
        (Element::Flag, _) => "true",
        (Element::List, Variant::Minimal) => "[]",
        (Element::List, Variant::Invalid) => r#"["?"]"#,
    }
}

#[test]
fn generated_body_of_each_site_is_json_at_size_limit() {
    let document = serde_json::json!({
        "paths": {"/api/v1/namespaces/{namespace}/pods": {"post": {
            "x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestBody": {"content": {"*/*": {"schema": {"$ref": "#/components/schemas/Pod"}}}},
        }}},
        "components": {"schemas": {
            "Pod": {"type": "object", "properties": {
                "metadata": {"allOf": [{"$ref": "#/components/schemas/Meta"}], "default": {}},
                "spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}]},
            }},
            "Meta": {"type": "object", "properties": {
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "finalizers": {"type": "array", "items": {"type": "string"}},
            }},
            "Spec": {"type": "object", "properties": {
                "containers": {"type": "array", "items": {"$ref": "#/components/schemas/Container"}},
                "self": {"$ref": "#/components/schemas/Spec"},
            }},
            "Container": {"type": "object", "properties": {
                "ports": {"type": "array", "items": {"type": "integer"}},
                "extra": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
            }},
        }},
    });
    let sites = sites(&document);
    let paths: Vec<String> = sites.iter().map(Site::path).collect();
    assert_eq!(
        paths,
        [
            "Pod.metadata.finalizers",
            "Pod.metadata.labels",
            "Pod.spec.containers",
            "Pod.spec.containers[].extra",
            "Pod.spec.containers[].extra{}",
            "Pod.spec.containers[].ports",
        ]
    );
    for site in &sites {
        for variant in [Variant::Minimal, Variant::Invalid] {
            let body = site.body(variant);
            let object: Value = serde_json::from_str(&body).unwrap_or_else(|error| {
                panic!("{}: {error}: {}", site.path(), &body[..100]);
            });
            assert!(body.len() > LIMIT - 200 && body.len() <= LIMIT, "{}: {}", site.path(), body.len());
            assert_eq!(object["metadata"]["name"], "generated", "{}", site.path());
            let pointer: String = site.steps.iter().fold(String::new(), |path, step| match step {
                Step::Field(name) => format!("{path}/{name}"),
                Step::Item => format!("{path}/0"),
                Step::Entry => format!("{path}/key"),
            });
            let found = object.pointer(&pointer).expect("the list or map");
            let count = found.as_array().map(Vec::len).or(found.as_object().map(serde_json::Map::len));
            assert!(count > Some(150_000), "{}: {count:?}", site.path());
        }
    }
}
