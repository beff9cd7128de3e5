//! Collections of the model, their objects, and the scopes of lists and watches.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

/// Collection of the model. Collections of one kind are adjacent, in the order of their namespaces.
pub struct Collection {
    /// Path of the collection in the API.
    pub path: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ConfigMap,
    Lease,
    IngressClass,
}

/// All collections. PUT can create leases; ingress classes are cluster-scoped.
pub const COLLECTIONS: [Collection; 4] = [
    Collection { path: "/api/v1/namespaces/m-a/configmaps", kind: Kind::ConfigMap },
    Collection { path: "/api/v1/namespaces/m-b/configmaps", kind: Kind::ConfigMap },
    Collection { path: "/apis/coordination.svc.internal/v1/namespaces/m-a/leases", kind: Kind::Lease },
    Collection { path: "/apis/networking.svc.internal/v1/ingressclasses", kind: Kind::IngressClass },
];

/// Namespaces of the collections.
pub const NAMESPACES: [&str; 2] = ["m-a", "m-b"];

/// Names of the objects in each collection for which clients compete.
pub const NAMES: [&str; 6] = ["m-0", "m-1", "m-2", "m-3", "m-4", "m-5"];

/// Prefix of the names of all objects of the model; other objects are ignored.
const PREFIX: &str = "m-";

/// Values of the label `group`, by which selectors select objects.
pub const GROUPS: [&str; 3] = ["a", "b", "c"];

/// Number of an operation. A write stores it in an annotation of the object.
pub type WriteId = u64;

/// Collection and name of an object. Keys have the order of objects in lists.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Index in [`COLLECTIONS`].
    pub collection: usize,
    /// Name of the object.
    pub name: Arc<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", COLLECTIONS[self.collection].path, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Key {
    /// Creates the key of an object.
    pub fn new(collection: usize, name: &str) -> Key {
        Key { collection, name: Arc::from(name) }
    }

    /// Whether PUT can create the object; an update by PUT then requires a resourceVersion.
    pub fn put_creates(&self) -> bool {
        COLLECTIONS[self.collection].kind == Kind::Lease
    }

    /// Builds the body of a complete object. `version` is its resourceVersion.
    pub fn body(&self, mark: &WriteContent, version: Option<u64>) -> Value {
        let mut metadata = mark.metadata();
        metadata["name"] = json!(&*self.name);
        if let Some(version) = version {
            metadata["resourceVersion"] = json!(version.to_string());
        }
        match COLLECTIONS[self.collection].kind {
            Kind::ConfigMap | Kind::Lease => json!({"metadata": metadata}),
            Kind::IngressClass => json!({"metadata": metadata, "spec": {"controller": "model.test/any"}}),
        }
    }
}

/// Content of a write: its number, a group for selectors, and padding.
#[derive(Clone, Copy, Debug)]
pub struct WriteContent {
    /// Number of the write.
    pub write: WriteId,
    /// Index in [`GROUPS`].
    pub group: usize,
    /// Padding in bytes.
    pub weight: usize,
}

impl WriteContent {
    /// Builds the metadata of the content.
    pub fn metadata(&self) -> Value {
        json!({
            "labels": {"group": GROUPS[self.group]},
            "annotations": {"write": self.write.to_string(), "weight": "x".repeat(self.weight)},
        })
    }
}

/// An object in a response or event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedObject {
    /// Key of the object.
    pub key: Key,
    /// Its revision (`resourceVersion`).
    pub revision: u64,
    /// Number of the write that wrote its content.
    pub write: WriteId,
    /// Index in [`GROUPS`].
    pub group: usize,
    /// Its uid.
    pub uid: Arc<str>,
}

impl ObservedObject {
    /// Parses an object of one of the collections; None if it does not belong to the model.
    ///
    /// # Errors
    ///
    /// The object belongs to the model, but no client wrote such content.
    pub fn read(object: &Value, collections: &[usize]) -> Result<Option<ObservedObject>, String> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text(&metadata["name"]), text(&metadata["namespace"]));
        if !name.starts_with(PREFIX) {
            return Ok(None);
        }
        let is_in_namespace = |index: &&usize| {
            let path = COLLECTIONS[**index].path;
            namespace.is_empty() || path.contains(&format!("/namespaces/{namespace}/"))
        };
        let Some(collection) = collections.iter().find(is_in_namespace) else { return Ok(None) };
        let unreadable_error = |item: &str| format!("{item} of {name} cannot be read: {metadata}");
        let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let group = text(&metadata["labels"]["group"]);
        Ok(Some(ObservedObject {
            key: Key::new(*collection, &name),
            revision: number(&metadata["resourceVersion"])
                .ok_or_else(|| unreadable_error("the resourceVersion"))?,
            write: number(&metadata["annotations"]["write"]).ok_or_else(|| unreadable_error("the writer"))?,
            group: GROUPS
                .iter()
                .position(|known| *known == group)
                .ok_or_else(|| unreadable_error("the group"))?,
            uid: Arc::from(text(&metadata["uid"])),
        }))
    }
}

/// Scope of a list or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Indices in [`COLLECTIONS`], of one kind.
    pub collections: Vec<usize>,
    /// Name of a single object; None means all objects.
    pub name: Option<&'static str>,
    /// Selected groups; None means all.
    pub groups: Option<Vec<usize>>,
}

impl Scope {
    /// Returns the scope of all objects of a collection.
    pub fn whole(collection: usize) -> Scope {
        Scope { collections: vec![collection], name: None, groups: None }
    }

    /// Returns the scope of the ConfigMaps of all namespaces.
    pub fn all_namespaces() -> Scope {
        Scope { collections: vec![0, 1], name: None, groups: None }
    }

    /// Returns the path of lists and watches of the scope.
    pub fn path(&self) -> &'static str {
        match *self.collections.as_slice() {
            [one] => COLLECTIONS[one].path,
            _ => "/api/v1/configmaps",
        }
    }

    /// Returns the selectors as query parameters.
    pub fn parameters(&self) -> Vec<String> {
        let mut parameters = Vec::new();
        if let Some(name) = self.name {
            parameters.push(format!("fieldSelector=metadata.name%3D{name}"));
        }
        if let Some(groups) = &self.groups {
            let names: Vec<&str> = groups.iter().map(|group| GROUPS[*group]).collect();
            parameters.push(format!("labelSelector=group%20in%20%28{}%29", names.join("%2C")));
        }
        parameters
    }

    /// Whether the scope contains the key, ignoring selectors.
    pub fn contains(&self, key: &Key) -> bool {
        self.collections.contains(&key.collection) && self.name.is_none_or(|name| *name == *key.name)
    }

    /// Whether a group is selected.
    pub fn selects(&self, group: usize) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Whether the scope contains every object of its collections.
    pub fn is_everything(&self) -> bool {
        self.name.is_none() && self.groups.is_none()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path())?;
        let parameters = self.parameters();
        if parameters.is_empty() { Ok(()) } else { write!(f, "?{}", parameters.join("&")) }
    }
}
