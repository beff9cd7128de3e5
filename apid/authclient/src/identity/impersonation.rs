//! Impersonation: a request made as another user (requirements A-IMP).
//!
//! # Contract
//!
//! `Impersonate-User` names the user, `Impersonate-Group` (repeated) the groups, `Impersonate-Uid` the uid,
//! and `Impersonate-Extra-<key>` the extra fields. The client needs the verb `impersonate` on each of them.
//! apid rejects the request for the first missing right, before it authorizes the request itself. The
//! impersonated user has the groups of the headers, and `system:authenticated` or `system:unauthenticated`.
//! A service account also has the groups of service accounts if no header states a group.
//!
//! # Invariants
//!
//! INVARIANT (bounded by the rights): the impersonated identity carries the impersonation rights, so an open
//! watch ends when one of these rights ends.
//! INVARIANT (all or nothing): a request with an unreadable or unknown impersonation header is rejected; apid
//! never uses only a part of the headers.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::names::Names;
use apimachinery::status::Status;
use apimachinery::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo, service_account};
use http::HeaderMap;
use percent_encoding::percent_decode_str;

use crate::{Auth, Identity};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The impersonation headers of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct ImpersonationHeaders {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: Vec<(String, String)>,
}

impl ImpersonationHeaders {
    /// Parses the headers. Returns None if the request has no impersonation headers.
    fn parse(headers: &HeaderMap) -> Result<Option<Self>, Status> {
        let mut impersonation = ImpersonationHeaders::default();
        let mut is_present = false;
        for (name, value) in headers {
            let name = name.as_str();
            if !name.starts_with("impersonate-") {
                continue;
            }
            let Ok(value) = std::str::from_utf8(value.as_bytes()) else {
                return Err(Status::bad_request(format!("the header `{name}` is not UTF-8")));
            };
            is_present |= !value.is_empty();
            match name {
                // Of repeated headers, the first non-empty one counts.
                USER if impersonation.user.is_empty() => value.clone_into(&mut impersonation.user),
                UID if impersonation.uid.is_empty() => value.clone_into(&mut impersonation.uid),
                USER | UID => {}
                GROUP => impersonation.groups.push(value.to_owned()),
                _ => match name.strip_prefix(EXTRA) {
                    Some(key) => impersonation.extra.push((unescape(key), value.to_owned())),
                    None => return Err(Status::bad_request(format!("the header `{name}` is not known"))),
                },
            }
        }
        Ok(is_present.then_some(impersonation))
    }

    /// The rights that the client needs, as request attributes in the order of the checks.
    fn required_rights(&self, names: &Names) -> Vec<Attributes> {
        let right_to = |resource: &str, name: &str| Attributes {
            verb: "impersonate".to_owned(),
            resource_request: true,
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        let authentication = names.group("authentication");
        let in_authentication_group =
            |attributes: Attributes| Attributes { group: authentication.clone(), ..attributes };
        let user = match service_account(&self.user) {
            Some((namespace, name)) => {
                Attributes { namespace: namespace.to_owned(), ..right_to("serviceaccounts", name) }
            }
            None => right_to("users", &self.user),
        };
        let mut rights = vec![user];
        rights.extend(self.groups.iter().map(|group| right_to("groups", group)));
        rights.extend(self.extra.iter().map(|(key, value)| {
            in_authentication_group(Attributes { subresource: key.clone(), ..right_to("userextras", value) })
        }));
        if !self.uid.is_empty() {
            rights.push(in_authentication_group(right_to("uids", &self.uid)));
        }
        rights
    }

    /// The 400 for impersonation headers without a user.
    fn missing_user_status(&self, names: &Names) -> Status {
        let version = format!("{}/v1", names.group("authentication"));
        let groups = self.groups.iter().map(|group| format!("{{Group  {group}    }}"));
        let extra = self.extra.iter().map(|(key, value)| format!("{{UserExtra  {value}  {version}  {key}}}"));
        let uid = (!self.uid.is_empty()).then(|| format!("{{UID  {}  {version}  }}", self.uid));
        let requested: Vec<String> = groups.chain(extra).chain(uid).collect();
        Status::bad_request(format!("requested [{}] without impersonating a user", requested.join(" ")))
    }

    fn into_user(self) -> UserInfo {
        let mut groups = self.groups;
        if let (Some((namespace, _)), true) = (service_account(&self.user), groups.is_empty()) {
            groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        }
        let contains = |groups: &[String], group: &str| groups.iter().any(|known| known == group);
        if self.user == ANONYMOUS {
            if !contains(&groups, UNAUTHENTICATED) {
                groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !contains(&groups, AUTHENTICATED) && !contains(&groups, UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        let mut user = UserInfo { name: self.user, uid: self.uid, groups, ..UserInfo::default() };
        for (key, value) in self.extra {
            user.extra.entry(key).or_default().push(value);
        }
        user
    }
}

/// Percent-decodes a key; returns the key unchanged when the result is not UTF-8.
fn unescape(key: &str) -> String {
    percent_decode_str(key).decode_utf8().map_or_else(|_| key.to_owned(), |key| key.into_owned())
}

impl Auth {
    /// Returns the impersonated identity, or None if the impersonation headers are empty.
    ///
    /// # Errors
    ///
    /// 400 for headers without a user, 403 when the client may not impersonate, 503 when authd does not
    /// respond.
    pub(crate) async fn impersonate(
        &self,
        caller: &Identity,
        headers: &HeaderMap,
        request_id: &str,
    ) -> Result<Option<Identity>, Status> {
        let Some(impersonation) = ImpersonationHeaders::parse(headers)? else { return Ok(None) };
        if impersonation.user.is_empty() {
            return Err(impersonation.missing_user_status(&self.options.names));
        }
        let mut impersonation_rights = Vec::new();
        for attributes in impersonation.required_rights(&self.options.names) {
            impersonation_rights.push(self.authorize(caller, attributes, request_id).await?);
        }
        let user = Arc::new(impersonation.into_user());
        Ok(Some(Identity { user, impersonation_rights, ..caller.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn impersonation(
        headers: &[(&'static str, &'static str)],
    ) -> Result<Option<ImpersonationHeaders>, Status> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        ImpersonationHeaders::parse(&map)
    }

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    #[test]
    fn impersonation_headers_determine_user_groups_and_extra() {
        for (headers, want) in [
            (vec![(USER, "alice")], "alice  [system:authenticated]"),
            (vec![(USER, "alice"), (USER, "root"), (UID, "u"), (UID, "0")], "alice u [system:authenticated]"),
            (vec![(USER, "alice"), (GROUP, "b"), (GROUP, "a")], "alice  [b, a, system:authenticated]"),
            (vec![(USER, "alice"), (GROUP, UNAUTHENTICATED)], "alice  [system:unauthenticated]"),
            (vec![(USER, ANONYMOUS)], "system:anonymous  [system:unauthenticated]"),
            (
                vec![(USER, ANONYMOUS), (GROUP, AUTHENTICATED)],
                "system:anonymous  [system:authenticated, system:unauthenticated]",
            ),
            (
                vec![(USER, "system:serviceaccount:ns:robot")],
                "system:serviceaccount:ns:robot  \
                 [system:serviceaccounts, system:serviceaccounts:ns, system:authenticated]",
            ),
            (
                vec![(USER, "system:serviceaccount:ns:robot"), (GROUP, "g")],
                "system:serviceaccount:ns:robot  [g, system:authenticated]",
            ),
            (
                vec![(USER, "system:serviceaccount:Bad_NS:robot")],
                "system:serviceaccount:Bad_NS:robot  [system:authenticated]",
            ),
        ] {
            let user = impersonation(&headers).unwrap().unwrap().into_user();
            assert_eq!(format!("{} {} [{}]", user.name, user.uid, user.groups.join(", ")), want);
        }
        let extra = impersonation(&[
            (USER, "a"),
            ("impersonate-extra-scopes", "view"),
            ("impersonate-extra-scopes", "edit"),
            ("impersonate-extra-acme.com%2fproject", "x"),
        ]);
        let extra = extra.unwrap().unwrap().into_user().extra;
        assert_eq!(extra.get("scopes").unwrap(), &["view", "edit"]);
        assert_eq!(extra.get("acme.com/project").unwrap(), &["x"]);
    }

    #[test]
    fn extra_header_with_empty_key_needs_the_right_on_userextras() {
        let impersonation = impersonation(&[(USER, "a"), ("impersonate-extra-", "x")]).unwrap().unwrap();
        let rights = impersonation.required_rights(&names());
        let right = rights.last().unwrap();
        assert_eq!((&*right.resource, &*right.subresource, &*right.name), ("userextras", "", "x"));
        assert_eq!(impersonation.into_user().extra.get("").unwrap(), &["x"]);
    }

    #[test]
    fn impersonation_requires_a_right_per_header() {
        let all = impersonation(&[
            (USER, "system:serviceaccount:ns:robot"),
            (GROUP, "g"),
            (UID, "u"),
            ("impersonate-extra-scopes", "view"),
        ]);
        let rights: Vec<String> = all
            .unwrap()
            .unwrap()
            .required_rights(&names())
            .into_iter()
            .map(|a| {
                format!("{}|{}|{}|{}|{}|{}", a.verb, a.group, a.resource, a.subresource, a.namespace, a.name)
            })
            .collect();
        assert_eq!(
            rights,
            [
                "impersonate||serviceaccounts||ns|robot",
                "impersonate||groups|||g",
                "impersonate|authentication.k8s.io|userextras|scopes||view",
                "impersonate|authentication.k8s.io|uids|||u",
            ]
        );
    }

    #[test]
    fn impersonation_without_user_or_with_unknown_header_returns_400() {
        assert_eq!(impersonation(&[]).unwrap(), None);
        assert_eq!(impersonation(&[(USER, "")]).unwrap(), None);
        let parts = [(GROUP, "g1"), (UID, "u-1"), ("impersonate-extra-scopes", "view")];
        let message = impersonation(&parts).unwrap().unwrap().missing_user_status(&names()).message;
        assert_eq!(
            message,
            "requested [{Group  g1    } {UserExtra  view  authentication.k8s.io/v1  scopes} \
             {UID  u-1  authentication.k8s.io/v1  }] without impersonating a user"
        );
        assert_eq!(impersonation(&[("impersonate-userr", "a")]).unwrap_err().code, 400);
    }
}
