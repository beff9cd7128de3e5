//! User identity, as authentication established it (specification: access control, "Principals and
//! attributes").

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::format;

/// Username of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of every authenticated user.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group with unlimited access.
pub const MASTERS: &str = "system:masters";
/// Username of the API server itself.
pub const APISERVER: &str = "system:apiserver";

/// Authenticated user. Values are opaque; extra keys are lower case. Contains no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    /// Username.
    pub name: String,
    /// Identifier that is more stable than the name; may be empty.
    pub uid: String,
    /// Group names, in the order of the authenticator.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// Returns the anonymous user.
    pub fn anonymous() -> Self {
        UserInfo {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..UserInfo::default()
        }
    }

    /// Whether the user is in the group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The user as a `UserInfo` of the API, without empty fields except the username.
    pub fn to_value(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("username".to_owned(), self.name.as_str().into());
        if !self.uid.is_empty() {
            fields.insert("uid".to_owned(), self.uid.as_str().into());
        }
        if !self.groups.is_empty() {
            fields.insert("groups".to_owned(), self.groups.as_slice().into());
        }
        if !self.extra.is_empty() {
            fields.insert("extra".to_owned(), json!(self.extra));
        }
        Value::Object(fields)
    }
}

/// Splits the username `system:serviceaccount:<namespace>:<name>`; None for any other username.
pub fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (format::label(namespace).is_empty() && format::subdomain(name).is_empty()).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn username_of_possible_service_account_is_split() {
        assert_eq!(service_account("system:serviceaccount:a:robot.b"), Some(("a", "robot.b")));
        for name in [
            "alice",
            "system:serviceaccount:a",
            "system:serviceaccount::b",
            "system:serviceaccount:a:",
            "system:serviceaccount:a:b:c",
            "system:serviceaccount:a.b:c",
            "system:serviceaccount:a:b..c",
            "system:serviceaccount:-a:b",
        ] {
            assert_eq!(service_account(name), None, "{name}");
        }
    }
}
