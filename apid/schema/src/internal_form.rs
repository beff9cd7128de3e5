//! JSON texts of values in the form of the internal types of kube-apiserver, which some messages show.
//!
//! # Contract
//!
//! [`InternalForm`] derives the internal type from the type of the table. The field names are those of Go, and
//! no field is omitted. An absent pointer, list or map is `null`; any other absent value is the zero of its
//! type. An empty list is `null` too, except in types that keep empty lists. Types of the group `meta` have no
//! internal form; they keep their JSON names and omit absent fields.
//!
//! The tables below hold the differences between the declarations of the types.

use apimachinery::object::{Map, Value};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::key_order::OrderedFields;
use crate::table::{Ref, Schema, SchemaField, Type};

/// Fields at another position of the internal type: the type, the field, and the field before it.
const MOVED: &[(&str, &str, &str)] = &[
    ("apiextensions/v1.JSONSchemaProps", "nullable", "type"),
    ("core/v1.PersistentVolumeSpec", "flexVolume", "iscsi"),
    ("core/v1.PersistentVolumeSpec", "quobyte", "rbd"),
    ("core/v1.PodSecurityContext", "fsGroupChangePolicy", "fsGroup"),
    ("core/v1.PodSpec", "setHostnameAsFQDN", "subdomain"),
    ("core/v1.PodSpec", "preemptionPolicy", "priority"),
    ("core/v1.PodSpec", "overhead", "runtimeClassName"),
    ("core/v1.Volume", "quobyte", "rbd"),
];

/// Fields of a pod spec that the internal type declares in the security context.
const HOST_FIELDS: &[&str] = &["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];

/// First words of field names that Go writes in capitals.
const INITIALISMS: &[&str] = &[
    "api", "aws", "ca", "csi", "dns", "fc", "fqdn", "fs", "gce", "gmsa", "grpc", "http", "id", "ip", "iqn",
    "iscsi", "json", "nfs", "os", "pd", "rbd", "ssl", "tcp", "ttl", "tty", "uid", "url",
];

/// Go names that the JSON name does not determine: the start of the name of the type, the JSON name, and the
/// Go name.
const GO_NAMES: &[(&str, &str, &str)] = &[
    ("apiextensions/v1.", "openAPIV3Schema", "OpenAPIV3Schema"),
    ("core/v1.AzureDisk", "diskURI", "DataDiskURI"),
    ("core/v1.FC", "wwids", "WWIDs"),
    ("core/v1.Glusterfs", "endpoints", "EndpointsName"),
    ("core/v1.ISCSI", "chapAuthDiscovery", "DiscoveryCHAPAuth"),
    ("core/v1.ISCSI", "chapAuthSession", "SessionCHAPAuth"),
    ("core/v1.PhotonPersistentDisk", "pdID", "PdID"),
    ("core/v1.RBD", "image", "RBDImage"),
    ("core/v1.RBD", "monitors", "CephMonitors"),
    ("core/v1.RBD", "pool", "RBDPool"),
    ("core/v1.RBD", "user", "RadosUser"),
    ("core/v1.", "cephfs", "CephFS"),
    ("core/v1.", "seLinuxChangePolicy", "SELinuxChangePolicy"),
    ("core/v1.", "seLinuxOptions", "SELinuxOptions"),
    ("core/v1.", "storageos", "StorageOS"),
    ("networking/v1.", "cidrs", "CIDRs"),
];

/// A value that serializes in the form of the internal type.
#[derive(Clone, Copy)]
pub struct InternalForm<'a> {
    value: Option<&'a Value>,
    ty: InternalType<'a>,
}

/// The type that decides the form of a value.
#[derive(Clone, Copy)]
enum InternalType<'a> {
    /// A type of a field.
    Declared(&'static Type),
    /// A struct type.
    Struct(&'static Schema),
    /// The fields of a struct type that belong to one of its embedded types.
    Embedded(&'static Schema, &'a str),
    /// A value in the form of the request.
    Plain,
    /// The security context of a pod spec, with the fields of the spec.
    SecurityContext(Option<&'a Map<String, Value>>),
}

impl<'a> InternalForm<'a> {
    /// A value of a type of the table. An absent value is the zero of the type.
    pub fn new(value: Option<&'a Value>, type_name: &str) -> Self {
        InternalForm { value, ty: Schema::of(type_name).map_or(InternalType::Plain, InternalType::Struct) }
    }

    /// The value of a field of a type of the table.
    pub fn of_field(value: Option<&'a Value>, type_name: &str, field: &str) -> Self {
        let schema = Schema::of(type_name);
        match schema.and_then(|schema| Some((schema, schema.field(field)?))) {
            Some((schema, field)) => Self::declared(value, schema, field),
            None => Self::plain(value),
        }
    }

    /// The part of a value of a type of the table that an embedded type declares.
    pub fn of_embedded(value: Option<&'a Value>, type_name: &str, embedded: &'a str) -> Self {
        let ty = Schema::of(type_name)
            .map_or(InternalType::Plain, |schema| InternalType::Embedded(schema, embedded));
        InternalForm { value, ty }
    }

    /// The value of a declared field. Except in types that keep empty lists, an empty list counts as absent.
    fn declared(value: Option<&'a Value>, owner: &'static Schema, field: &'static SchemaField) -> Self {
        let is_empty_list = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        let value = value.filter(|value| owner.keeps_empty_lists || !is_empty_list(value));
        InternalForm { value, ty: InternalType::Declared(&field.ty) }
    }

    fn plain(value: Option<&'a Value>) -> Self {
        InternalForm { value, ty: InternalType::Plain }
    }

    /// A value of a struct type; the zero of the type if absent.
    fn referenced(value: Option<&'a Value>, r: &Ref) -> Self {
        InternalForm { value, ty: r.schema().map_or(InternalType::Plain, InternalType::Struct) }
    }

    /// A schema in a union; `null` if the union holds another value.
    fn schema_of_union(value: &'a Value, r: &Ref) -> Self {
        if value.is_object() { Self::referenced(Some(value), r) } else { Self::plain(None) }
    }
}

impl Serialize for InternalForm<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.value.filter(|value| !value.is_null());
        match self.ty {
            InternalType::Plain => value.serialize(serializer),
            InternalType::Struct(schema) => serialize_struct(value, schema, None, serializer),
            InternalType::Embedded(schema, embedded) => {
                serialize_struct(value, schema, Some(embedded), serializer)
            }
            InternalType::Declared(ty) => serialize_declared(value, ty, serializer),
            InternalType::SecurityContext(spec) => serialize_security_context(spec, serializer),
        }
    }
}

fn serialize_declared<S: Serializer>(
    value: Option<&Value>,
    ty: &'static Type,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let declared = |value, ty| InternalForm { value, ty: InternalType::Declared(ty) };
    match (ty, value) {
        (Type::Pointer(inner), Some(_)) => declared(value, inner).serialize(serializer),
        (Type::Struct(r), _) => InternalForm::referenced(value, r).serialize(serializer),
        (Type::SchemaOrBool(r), Some(value)) => {
            let mut map = serializer.serialize_map(Some(2))?;
            map.serialize_entry("Allows", &(value != &Value::Bool(false)))?;
            map.serialize_entry("Schema", &InternalForm::schema_of_union(value, r))?;
            map.end()
        }
        (Type::SchemaOrArray(r), Some(value)) => {
            let schemas = value.as_array().map(|items| {
                items.iter().map(|item| InternalForm::referenced(Some(item), r)).collect::<Vec<_>>()
            });
            let mut map = serializer.serialize_map(Some(2))?;
            map.serialize_entry("Schema", &InternalForm::schema_of_union(value, r))?;
            map.serialize_entry("JSONSchemas", &schemas)?;
            map.end()
        }
        (Type::SchemaOrStrings(r), Some(value)) => {
            let mut map = serializer.serialize_map(Some(2))?;
            map.serialize_entry("Schema", &InternalForm::schema_of_union(value, r))?;
            map.serialize_entry("Property", &value.as_array())?;
            map.end()
        }
        (Type::List(inner), Some(Value::Array(items))) => {
            serializer.collect_seq(items.iter().map(|item| declared(Some(item), inner)))
        }
        (Type::Map(inner), Some(Value::Object(entries))) => {
            serializer.collect_map(entries.iter().map(|(key, value)| (key, declared(Some(value), inner))))
        }
        (
            Type::String(_)
            | Type::Bool
            | Type::Int32
            | Type::Int64
            | Type::Float64
            | Type::IntOrString
            | Type::Quantity,
            None,
        ) => ty.zero().serialize(serializer),
        _ => value.serialize(serializer),
    }
}

/// Serializes the fields of a struct type, or only those of the type `embedded` in it.
fn serialize_struct<S: Serializer>(
    value: Option<&Value>,
    schema: &'static Schema,
    embedded: Option<&str>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let empty = Map::new();
    let fields = value.and_then(Value::as_object);
    if schema.name.starts_with("meta/") {
        return OrderedFields::of_type(fields.unwrap_or(&empty), schema).serialize(serializer);
    }
    let is_pod = schema.name == "core/v1.PodSpec";
    let mut map = serializer.serialize_map(None)?;
    let is_shown = |field: &&SchemaField| embedded.is_none_or(|embedded| field.embedded.contains(&embedded));
    for field in declared_fields(schema).into_iter().filter(is_shown) {
        let value = fields.and_then(|fields| fields.get(field.name));
        match (field.name, &field.ty) {
            ("metadata", Type::Struct(r)) => {
                // The internal type embeds the metadata.
                let metadata = value.and_then(Value::as_object).unwrap_or(&empty);
                let Some(schema) = r.schema() else { continue };
                for (name, value) in OrderedFields::of_type(metadata, schema).iter() {
                    if metadata.get(name).is_some_and(|value| !value.is_null()) {
                        map.serialize_entry(name, &value)?;
                    }
                }
            }
            (name, _) if is_pod && (name == "serviceAccount" || HOST_FIELDS.contains(&name)) => {}
            ("securityContext", _) if is_pod => {
                let ty = InternalType::SecurityContext(fields);
                map.serialize_entry("SecurityContext", &InternalForm { value, ty })?;
            }
            (name, _) => {
                map.serialize_entry(&go_name(schema, name), &InternalForm::declared(value, schema, field))?;
            }
        }
    }
    map.end()
}

/// Serializes the security context of a pod, which begins with the host fields of the spec.
fn serialize_security_context<S: Serializer>(
    spec: Option<&Map<String, Value>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let context = spec.and_then(|spec| spec.get("securityContext")).and_then(Value::as_object);
    let mut map = serializer.serialize_map(None)?;
    if let (Some(pod), Some(schema)) =
        (Schema::of("core/v1.PodSpec"), Schema::of("core/v1.PodSecurityContext"))
    {
        let host = HOST_FIELDS.iter().filter_map(|name| pod.field(name)).map(|field| (field, spec, pod));
        let own = declared_fields(schema).into_iter().map(|field| (field, context, schema));
        for (field, fields, owner) in host.chain(own) {
            let value = fields.and_then(|fields| fields.get(field.name));
            let form = InternalForm::declared(value, owner, field);
            map.serialize_entry(&go_name(schema, field.name), &form)?;
        }
    }
    map.end()
}

/// The fields of a type in the order of the internal type.
fn declared_fields(schema: &'static Schema) -> Vec<&'static SchemaField> {
    let mut fields: Vec<&SchemaField> = schema.fields.iter().collect();
    fields.sort_by_key(|field| field.rank);
    for (_, name, previous) in MOVED.iter().filter(|(owner, ..)| *owner == schema.name) {
        let position =
            |fields: &[&SchemaField], name: &str| fields.iter().position(|field| field.name == name);
        let Some(field) = position(&fields, name).map(|index| fields.remove(index)) else { continue };
        let index = position(&fields, previous).map_or(fields.len(), |index| index + 1);
        fields.insert(index, field);
    }
    fields
}

/// The name of a field in Go.
fn go_name(schema: &Schema, name: &str) -> String {
    let listed = |(owner, field, _): &&(&str, &str, &str)| schema.name.starts_with(owner) && *field == name;
    if let Some((.., go_name)) = GO_NAMES.iter().find(listed) {
        return (*go_name).to_owned();
    }
    if let Some((_vendor, extension)) = name.strip_prefix("x-").and_then(|name| name.split_once('-')) {
        return std::iter::once("x").chain(extension.split('-')).map(capitalize).collect();
    }
    let name = name.trim_start_matches('$');
    let (word, rest) = name.split_at(name.find(|c: char| c.is_ascii_uppercase()).unwrap_or(name.len()));
    if INITIALISMS.contains(&word) { word.to_ascii_uppercase() + rest } else { capitalize(name) }
}

fn capitalize(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn internal_text(value: Option<&Value>, type_name: &str) -> String {
        serde_json::to_string(&InternalForm::new(value, type_name)).unwrap()
    }

    #[test]
    fn absent_fields_are_zeros_and_nulls() {
        assert_eq!(
            internal_text(Some(&json!({"containerPort": 80})), "core/v1.ContainerPort"),
            r#"{"Name":"","HostPort":0,"ContainerPort":80,"Protocol":"","HostIP":""}"#
        );
        assert_eq!(
            internal_text(None, "core/v1.ResourceRequirements"),
            r#"{"Limits":null,"Requests":null,"Claims":null}"#
        );
    }

    #[test]
    fn empty_list_is_null_except_in_types_that_keep_it() {
        let text = |value: &Value, owner: &str, field: &str| {
            serde_json::to_string(&InternalForm::of_field(Some(value), owner, field)).unwrap()
        };
        let rules = json!({"rules": []});
        assert_eq!(text(&rules, "batch/v1.JobSpec", "successPolicy"), r#"{"Rules":null}"#);
        let versions = "apiextensions/v1.CustomResourceDefinitionSpec";
        assert_eq!(text(&json!([]), versions, "versions"), "[]");
    }

    #[test]
    fn embedded_type_shows_only_its_fields() {
        let spec = json!({"capacity": {"storage": "1Gi"}, "nfs": {"server": "s", "path": "/"}});
        let form =
            InternalForm::of_embedded(Some(&spec), "core/v1.PersistentVolumeSpec", "PersistentVolumeSource");
        let text = serde_json::to_string(&form).unwrap();
        assert!(text.starts_with(r#"{"GCEPersistentDisk":null,"#), "{text}");
        assert!(text.contains(r#""NFS":{"Server":"s","Path":"/","ReadOnly":false}"#), "{text}");
        assert!(!text.contains("Capacity"), "{text}");
    }

    #[test]
    fn go_names_follow_json_names_and_table() {
        let name = |owner: &str, field: &str| go_name(Schema::of(owner).unwrap(), field);
        for (owner, field, expected) in [
            ("core/v1.PodSpec", "dnsPolicy", "DNSPolicy"),
            ("core/v1.PodSpec", "os", "OS"),
            ("core/v1.PodSecurityContext", "seLinuxOptions", "SELinuxOptions"),
            ("core/v1.PodSecurityContext", "fsGroup", "FSGroup"),
            ("core/v1.RBDVolumeSource", "monitors", "CephMonitors"),
            ("core/v1.Volume", "persistentVolumeClaim", "PersistentVolumeClaim"),
            ("apiextensions/v1.JSONSchemaProps", "$ref", "Ref"),
            ("apiextensions/v1.JSONSchemaProps", "id", "ID"),
            ("apiextensions/v1.JSONSchemaProps", "x-kubernetes-list-map-keys", "XListMapKeys"),
            ("apiextensions/v1.CustomResourceColumnDefinition", "jsonPath", "JSONPath"),
        ] {
            assert_eq!(name(owner, field), expected);
        }
    }

    #[test]
    fn template_embeds_metadata_and_moves_host_fields() {
        let template = json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "creationTimestamp": null},
            "spec": {"hostNetwork": true, "serviceAccount": "s", "securityContext": {"runAsUser": 1}},
        });
        let text = internal_text(Some(&template), "core/v1.PodTemplateSpec");
        let start =
            r#"{"labels":{"a":"b"},"annotations":{"c":"d"},"Spec":{"Volumes":null,"InitContainers":null,"#;
        assert!(text.starts_with(start), "{text}");
        let host = r#""SecurityContext":{"HostNetwork":true,"HostPID":false,"HostIPC":false,"#;
        assert!(text.contains(host), "{text}");
        assert!(text.contains(r#""HostUsers":null,"SELinuxOptions":null"#), "{text}");
        assert!(!text.contains(r#""ServiceAccount":"#), "{text}");
        assert!(text.contains(r#""Subdomain":"","SetHostnameAsFQDN":null,"Affinity":null"#), "{text}");
    }

    #[test]
    fn schema_unions_show_both_alternatives() {
        let schema = json!({
            "type": "object", "nullable": true,
            "properties": {"a": {"type": "array", "items": {"type": "string"}}},
            "additionalProperties": false,
            "dependencies": {"a": ["b"]},
        });
        let text = internal_text(Some(&schema), "apiextensions/v1.JSONSchemaProps");
        let start = r#"{"ID":"","Schema":"","Ref":null,"Description":"","Type":"object","Nullable":true,"Format":"","#;
        assert!(text.starts_with(start), "{text}");
        assert!(text.contains(r#""Items":{"Schema":{"ID":"","#), "{text}");
        assert!(text.contains(r#","JSONSchemas":null}"#), "{text}");
        assert!(text.contains(r#""AdditionalProperties":{"Allows":false,"Schema":null}"#), "{text}");
        assert!(text.contains(r#""Dependencies":{"a":{"Schema":null,"Property":["b"]}}"#), "{text}");
    }

    #[test]
    fn meta_types_keep_json_names() {
        let term = json!({"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "k"});
        let text = internal_text(Some(&term), "core/v1.PodAffinityTerm");
        assert!(
            text.starts_with(r#"{"LabelSelector":{"matchLabels":{"a":"b"}},"Namespaces":null"#),
            "{text}"
        );
    }
}
