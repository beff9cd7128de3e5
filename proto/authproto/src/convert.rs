//! Conversions between protocol messages and `apimachinery` types.
//!
//! They are lossless, except that a selector requirement with an unknown operator is left out.

use apimachinery::attributes::{Attributes, Operator, ParsedSelector, Requirement};
use apimachinery::user::UserInfo;

use crate::auth::{self, write_outcome::Outcome};

impl From<&UserInfo> for auth::UserInfo {
    fn from(user: &UserInfo) -> Self {
        auth::UserInfo {
            name: user.name.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user
                .extra
                .iter()
                .map(|(key, values)| (key.clone(), auth::StringList { items: values.clone() }))
                .collect(),
        }
    }
}

impl From<auth::UserInfo> for UserInfo {
    fn from(user: auth::UserInfo) -> Self {
        UserInfo {
            name: user.name,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra.into_iter().map(|(key, list)| (key, list.items)).collect(),
        }
    }
}

impl From<&Attributes> for auth::Attributes {
    fn from(a: &Attributes) -> Self {
        let (field_selector, field_selector_error) = selector_to_wire(&a.field_selector);
        let (label_selector, label_selector_error) = selector_to_wire(&a.label_selector);
        auth::Attributes {
            verb: a.verb.clone(),
            resource_request: a.resource_request,
            group: a.group.clone(),
            version: a.version.clone(),
            resource: a.resource.clone(),
            subresource: a.subresource.clone(),
            namespace: a.namespace.clone(),
            name: a.name.clone(),
            path: a.path.clone(),
            field_selector,
            label_selector,
            field_selector_error,
            label_selector_error,
        }
    }
}

impl From<auth::Attributes> for Attributes {
    fn from(a: auth::Attributes) -> Self {
        Attributes {
            verb: a.verb,
            resource_request: a.resource_request,
            group: a.group,
            version: a.version,
            resource: a.resource,
            subresource: a.subresource,
            namespace: a.namespace,
            name: a.name,
            path: a.path,
            field_selector: selector_from_wire(a.field_selector, a.field_selector_error),
            label_selector: selector_from_wire(a.label_selector, a.label_selector_error),
        }
    }
}

fn selector_to_wire(selector: &ParsedSelector) -> (Vec<auth::SelectorRequirement>, String) {
    match selector {
        ParsedSelector::Requirements(list) => {
            (list.iter().map(auth::SelectorRequirement::from).collect(), String::new())
        }
        ParsedSelector::Unparsable(raw) => (Vec::new(), raw.clone()),
    }
}

fn selector_from_wire(list: Vec<auth::SelectorRequirement>, unparsable: String) -> ParsedSelector {
    if unparsable.is_empty() {
        ParsedSelector::Requirements(list.into_iter().filter_map(requirement_from_wire).collect())
    } else {
        ParsedSelector::Unparsable(unparsable)
    }
}

impl From<&Requirement> for auth::SelectorRequirement {
    fn from(r: &Requirement) -> Self {
        auth::SelectorRequirement {
            key: r.key.clone(),
            operator: r.operator.as_str().to_owned(),
            values: r.values.clone(),
        }
    }
}

fn requirement_from_wire(r: auth::SelectorRequirement) -> Option<Requirement> {
    Some(Requirement { key: r.key, operator: Operator::parse(&r.operator)?, values: r.values })
}

impl From<Result<(), auth::Failure>> for auth::WriteOutcome {
    fn from(outcome: Result<(), auth::Failure>) -> Self {
        let outcome = match outcome {
            Ok(()) => Outcome::Written(auth::Written {}),
            Err(failure) => Outcome::Failure(failure),
        };
        auth::WriteOutcome { outcome: Some(outcome) }
    }
}
