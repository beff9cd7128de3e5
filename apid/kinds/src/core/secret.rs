//! Secret: confidential data as keys and values. Some types require certain keys.
//!
//! # Invariants
//!
//! INVARIANT (no secrets in errors): no message of this module contains a value of `data`. The exception is the
//! one character at which the JSON of a Docker configuration is malformed.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::config_map::{base64_bytes, entries};
use super::immutable::{self, DATA_MAX};
use super::tls_secret;
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, immutable_fields, json_syntax, text};
use crate::{BuiltInKind, Column, Context, Strategy, format};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    selectable_fields: &["type"],
    columns: &[
        NAME,
        Column::text("Type", "Type of the secret, which determines its keys.").text_at("type"),
        Column::text("Data", "Number of keys.").with_source(Source::Length("data")),
        AGE,
    ],
    strategy: &Secret,
    ..BuiltInKind::namespaced("core/v1.Secret", "secrets")
};

/// Default secret type, without required keys.
const OPAQUE: &str = "Opaque";

/// A secret type and its required keys.
struct TypedSecret {
    /// Name of the type without its domain.
    name: &'static str,
    keys: KeyRule,
}

/// The rule for the keys of a secret type.
enum KeyRule {
    /// All keys are required.
    All(&'static [&'static str]),
    /// At least one of the keys is required. If all keys are missing, there is one error for each key.
    Any(&'static [&'static str]),
    /// The key is required and must not be empty.
    NonEmpty(&'static str),
    /// The key is required and must hold a JSON object or `null`.
    Json(&'static str),
    /// An annotation with this name and the domain of label keys is required. A controller sets the keys
    /// later.
    Annotation(&'static str),
}

const TYPED_SECRETS: &[TypedSecret] = &[
    TypedSecret { name: "service-account-token", keys: KeyRule::Annotation("service-account.name") },
    TypedSecret { name: "dockercfg", keys: KeyRule::Json(".dockercfg") },
    TypedSecret { name: "dockerconfigjson", keys: KeyRule::Json(".dockerconfigjson") },
    TypedSecret { name: "basic-auth", keys: KeyRule::Any(&["username", "password"]) },
    TypedSecret { name: "ssh-auth", keys: KeyRule::NonEmpty("ssh-privatekey") },
    TypedSecret { name: "tls", keys: KeyRule::All(&["tls.crt", "tls.key"]) },
];

struct Secret;

impl Strategy for Secret {
    /// Writes `stringData` into `data` and removes `stringData`, which apid never stores.
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(Value::Object(plain)) = object.remove("stringData") {
            let data = object.0.entry("data").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(data) = data {
                for (key, value) in plain {
                    data.insert(key, BASE64.encode(value.as_str().unwrap_or("")).into());
                }
            }
        }
        if object.str_at(&["type"]).unwrap_or("").is_empty() {
            object.set("type", OPAQUE);
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let path = FieldPath::new("data");
        let data = entries(object, "data");
        let mut errors = FieldErrors::new();
        for (key, entry) in Field::new(object.get("data"), "data").entries() {
            text::check_name(&entry, key, format::config_key, &mut errors);
        }
        if base64_bytes(data) > DATA_MAX {
            errors.push(FieldError::too_long(&path, DATA_MAX));
        }
        errors.extend(validate_type(object, &path, ctx.names));
        errors
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        if new.str_at(&["type"]) != Some(&*ctx.names.label_key("tls")) {
            return Vec::new();
        }
        let value = |key: &str| new.str_at(&["data", key]).unwrap_or("");
        tls_secret::defect(value("tls.crt"), value("tls.key")).into_iter().collect()
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = immutable_fields(new, old, &["type"]);
        errors.extend(immutable::validate_update(new, old, &["data"]));
        errors
    }
}

fn validate_type(object: &Object, path: &FieldPath, names: &Names) -> FieldErrors {
    let kind = object.str_at(&["type"]).unwrap_or("");
    let Some(secret_type) = TYPED_SECRETS.iter().find(|d| names.label_key(d.name) == kind) else {
        return FieldErrors::new();
    };
    let value = |key: &str| entries(object, "data").and_then(|data| data.get(key)).and_then(Value::as_str);
    let required = |key: &str| FieldError::required(&path.key(key), "");
    match secret_type.keys {
        KeyRule::All(keys) => keys.iter().filter(|k| value(k).is_none()).map(|k| required(k)).collect(),
        KeyRule::Any(keys) if keys.iter().any(|k| value(k).is_some()) => FieldErrors::new(),
        KeyRule::Any(keys) => keys.iter().map(|k| required(k)).collect(),
        KeyRule::NonEmpty(key) if value(key).unwrap_or("").is_empty() => required(key).into(),
        KeyRule::NonEmpty(_) => FieldErrors::new(),
        KeyRule::Json(key) => match value(key) {
            None => required(key).into(),
            Some(text) => {
                let bytes = BASE64.decode(text).unwrap_or_default();
                let error = json_syntax::object_error(&bytes);
                let invalid = |detail: String| {
                    FieldError::invalid(&path.key(key), "<secret contents redacted>", &detail)
                };
                error.map(invalid).into_iter().collect()
            }
        },
        KeyRule::Annotation(name) => {
            let key = names.label_key(name);
            let missing = object.annotation(&key).unwrap_or("").is_empty();
            let path = FieldPath::new("metadata.annotations").key(&key);
            missing.then(|| FieldError::required(&path, "")).into_iter().collect()
        }
    }
}
