//! What the model reads and writes: a few collections of different kinds, the objects in them, and the scopes of lists and
//! watches.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::history::WriteId;

/// A collection of the model. Those of one kind stand side by side, in the order of their namespaces.
pub struct Collection {
    /// Its path.
    pub path: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ConfigMap,
    Lease,
    IngressClass,
}

/// All of them. Leases come to be by PUT, too; ingress classes have no namespace.
pub const COLLECTIONS: [Collection; 4] = [
    Collection { path: "/api/v1/namespaces/m-a/configmaps", kind: Kind::ConfigMap },
    Collection { path: "/api/v1/namespaces/m-b/configmaps", kind: Kind::ConfigMap },
    Collection { path: "/apis/coordination.svc.internal/v1/namespaces/m-a/leases", kind: Kind::Lease },
    Collection { path: "/apis/networking.svc.internal/v1/ingressclasses", kind: Kind::IngressClass },
];

/// The namespaces they are in.
pub const NAMESPACES: [&str; 2] = ["m-a", "m-b"];

/// Objects of a collection that clients compete for.
pub const NAMES: [&str; 6] = ["m-0", "m-1", "m-2", "m-3", "m-4", "m-5"];

/// What all names of the model begin with; other objects are not its business.
const PREFIX: &str = "m-";

/// Values of the label that selectors ask for.
pub const GROUPS: [&str; 3] = ["a", "b", "c"];

/// An object's place. Ordered as lists are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Index in [`COLLECTIONS`].
    pub collection: usize,
    /// The name.
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
    /// The object of a name.
    pub fn new(collection: usize, name: &str) -> Key {
        Key { collection, name: Arc::from(name) }
    }

    /// Whether PUT creates it, and then must say which version it replaces.
    pub fn put_creates(&self) -> bool {
        COLLECTIONS[self.collection].kind == Kind::Lease
    }

    /// The body of a whole object.
    pub fn body(&self, mark: &Mark, version: Option<u64>) -> Value {
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

/// What a write puts into its object: who wrote it, a group to select by, and some weight.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The write.
    pub write: WriteId,
    /// Index in [`GROUPS`].
    pub group: usize,
    /// Bytes that mean nothing.
    pub weight: usize,
}

impl Mark {
    /// The part of the metadata that holds it.
    pub fn metadata(&self) -> Value {
        json!({
            "labels": {"group": GROUPS[self.group]},
            "annotations": {"write": self.write.to_string(), "weight": "x".repeat(self.weight)},
        })
    }
}

/// An object as it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its place.
    pub key: Key,
    /// The version shown with it.
    pub revision: u64,
    /// Who wrote it.
    pub write: WriteId,
    /// Index in [`GROUPS`].
    pub group: usize,
    /// Its uid.
    pub uid: Arc<str>,
}

impl Seen {
    /// Reads an object of these collections; None when it is not the model's.
    ///
    /// # Errors
    ///
    /// It is the model's and not as anything that was written.
    pub fn read(object: &Value, collections: &[usize]) -> Result<Option<Seen>, String> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text(&metadata["name"]), text(&metadata["namespace"]));
        if !name.starts_with(PREFIX) {
            return Ok(None);
        }
        let within = |index: &&usize| {
            let path = COLLECTIONS[**index].path;
            namespace.is_empty() || path.contains(&format!("/namespaces/{namespace}/"))
        };
        let Some(collection) = collections.iter().find(within) else { return Ok(None) };
        let odd = |what: &str| format!("{what} of {name} cannot be read: {metadata}");
        let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let group = text(&metadata["labels"]["group"]);
        Ok(Some(Seen {
            key: Key::new(*collection, &name),
            revision: number(&metadata["resourceVersion"]).ok_or_else(|| odd("the resourceVersion"))?,
            write: number(&metadata["annotations"]["write"]).ok_or_else(|| odd("the writer"))?,
            group: GROUPS.iter().position(|known| *known == group).ok_or_else(|| odd("the group"))?,
            uid: Arc::from(text(&metadata["uid"])),
        }))
    }
}

/// What a list or a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Indices in [`COLLECTIONS`], of one kind.
    pub collections: Vec<usize>,
    /// One object alone.
    pub name: Option<&'static str>,
    /// The groups selected; None is all of them.
    pub groups: Option<Vec<usize>>,
}

impl Scope {
    /// All of a collection.
    pub fn whole(collection: usize) -> Scope {
        Scope { collections: vec![collection], name: None, groups: None }
    }

    /// Config maps of all namespaces.
    pub fn all_namespaces() -> Scope {
        Scope { collections: vec![0, 1], name: None, groups: None }
    }

    /// The path.
    pub fn path(&self) -> &'static str {
        match *self.collections.as_slice() {
            [one] => COLLECTIONS[one].path,
            _ => "/api/v1/configmaps",
        }
    }

    /// The selectors, as parameters of the query.
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

    /// Whether an object stands where the scope is.
    pub fn contains(&self, key: &Key) -> bool {
        self.collections.contains(&key.collection) && self.name.is_none_or(|name| *name == *key.name)
    }

    /// Whether a group is selected.
    pub fn selects(&self, group: usize) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Whether every object of its collections is meant.
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
