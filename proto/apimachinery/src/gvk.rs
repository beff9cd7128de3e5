//! Group, version, kind and resource.

use std::fmt;

/// API group and version. The core group is the empty string.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// Full group name, `""` for the core group.
    pub group: String,
    /// `v1`, `v1beta1`, ...
    pub version: String,
}

impl GroupVersion {
    /// Parses the `apiVersion` field: `v1` or `group/version`. Returns None for more than one slash, or for an empty part.
    pub fn parse(api_version: &str) -> Option<Self> {
        let (group, version) = match api_version.split_once('/') {
            None => ("", api_version),
            Some(("", _)) => return None,
            Some(parts) => parts,
        };
        (!version.is_empty() && !version.contains('/'))
            .then(|| GroupVersion { group: group.to_owned(), version: version.to_owned() })
    }
}

impl fmt::Display for GroupVersion {
    /// Formats the `apiVersion` field.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.version)
        } else {
            write!(f, "{}/{}", self.group, self.version)
        }
    }
}

/// API group and name of a resource, formatted as in messages: `deployments.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// Full group name, `""` for the core group.
    pub group: String,
    /// Resource in lower case and plural: `deployments`.
    pub resource: String,
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_group(f, &self.resource, &self.group)
    }
}

/// API group and kind, formatted as in messages: `Deployment.apps`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// Full group name, `""` for the core group.
    pub group: String,
    /// Kind: `Deployment`.
    pub kind: String,
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_group(f, &self.kind, &self.group)
    }
}

fn write_with_group(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() { f.write_str(name) } else { write!(f, "{name}.{group}") }
}
