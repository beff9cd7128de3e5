//! Types of the variables `request` and `namespaceObject`.

use std::sync::{Arc, LazyLock};

use expressions::{Field, ObjectType, Type};

/// Type of the variable `request`.
pub(super) static REQUEST_TYPE: LazyLock<Type> = LazyLock::new(|| {
    let text = |field| (field, Type::String);
    let kind = object("GroupVersionKind", &["group", "version", "kind"].map(text));
    let resource = object("GroupVersionResource", &["group", "version", "resource"].map(text));
    let user = object(
        "UserInfo",
        &[
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::String, Type::list(Type::String))),
        ],
    );
    object(
        "AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", Type::String),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
});

/// Type of the variable `namespaceObject`.
pub static NAMESPACE_TYPE: LazyLock<Type> = LazyLock::new(|| {
    let texts = || Type::map(Type::String, Type::String);
    let metadata = object(
        "NamespaceMetadata",
        &[
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", texts()),
            ("annotations", texts()),
            ("UID", Type::String),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", Type::list(Type::String)),
        ],
    );
    let condition = object(
        "NamespaceCondition",
        &[
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    let spec = object("NamespaceSpec", &[("finalizers", Type::list(Type::String))]);
    let status = object("NamespaceStatus", &[("conditions", Type::list(condition)), ("phase", Type::String)]);
    object("Namespace", &[("metadata", metadata), ("spec", spec), ("status", status)])
});

/// An object type whose field names are not escaped: expressions select the field `namespace` as `namespace`,
/// although this is a reserved word of CEL.
fn object(name: &str, fields: &[(&str, Type)]) -> Type {
    let field =
        |(name, ty): &(&str, Type)| ((*name).to_owned(), Field { name: (*name).to_owned(), ty: ty.clone() });
    let fields = fields.iter().map(field).collect();
    Type::Object(Arc::new(ObjectType { name: name.to_owned(), fields }))
}
