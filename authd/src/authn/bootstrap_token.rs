//! Bootstrap tokens: `<id>.<secret>`, stored in a Secret of the system namespace (requirements A-BOOT).
//!
//! # Contract
//!
//! The Secret must have the type of bootstrap tokens and the name `bootstrap-token-<id>`, must not be
//! terminating, and must allow authentication. A malformed expiration rejects the token, like a past one. An
//! extra group that does not begin with `system:bootstrappers:` rejects the token.

use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::ObjectRef;
use jiff::Timestamp;
use subtle::ConstantTimeEq;

use super::{
    AuthenticatedIdentity, Authenticator, AuthnContext, AuthnSettings, Credentials, Outcome,
    agnostic_audiences,
};
use crate::mirror::MirrorNotReady;
use crate::mirror::identities::TokenSecret;
use crate::tokens::bootstrap::{parse_expiration, split_token};

/// The group of each user with a bootstrap token. Extra groups begin with this text and a colon.
const GROUP: &str = "system:bootstrappers";

struct BootstrapTokens {
    names: Arc<Names>,
    api_audiences: Vec<String>,
}

pub(super) fn build(settings: &AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    if !settings.bootstrap_tokens {
        return None;
    }
    Some(Arc::new(BootstrapTokens {
        names: Arc::clone(&settings.names),
        api_audiences: settings.api_audiences.clone(),
    }))
}

#[async_trait]
impl Authenticator for BootstrapTokens {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        let Some((id, secret)) = split_token(credentials.token) else { return Ok(Outcome::NotApplicable) };
        let name = format!("bootstrap-token-{id}");
        let namespace = self.names.system_namespace;
        let token_secret = context.at_least.identities()?.secret(namespace, &name).map(Arc::clone);
        let Some(token_secret) = token_secret else {
            return Ok(Outcome::Rejected(format!("there is no token Secret `{namespace}/{name}`")));
        };
        let kind = self.names.label_sub_key("bootstrap", "token");
        let result = check(&token_secret, &kind, id, secret, context.now).and_then(|(groups, expires_at)| {
            let audiences = agnostic_audiences(credentials.audiences, &self.api_audiences)
                .ok_or("bootstrap tokens are valid for the API's own audiences only")?;
            let user = UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() };
            let secret = ObjectRef {
                group: String::new(),
                resource: "secrets".to_owned(),
                namespace: namespace.to_owned(),
                name,
                uid: token_secret.identity.uid.to_string(),
            };
            Ok(AuthenticatedIdentity {
                user,
                audiences,
                expires_at,
                depends_on: vec![secret],
                ..AuthenticatedIdentity::default()
            })
        });
        Ok(result.into())
    }
}

type Groups = Vec<String>;

fn check(
    token_secret: &TokenSecret,
    kind: &str,
    id: &str,
    secret: &str,
    now: Timestamp,
) -> Result<(Groups, Option<Timestamp>), String> {
    if token_secret.kind != kind {
        return Err(format!("the Secret is not of type `{kind}`"));
    }
    if token_secret.terminating {
        return Err("the Secret is terminating".to_owned());
    }
    let stored = token_secret.data.get("token-secret").map(Vec::as_slice).unwrap_or_default();
    if !bool::from(stored.ct_eq(secret.as_bytes())) {
        return Err("the token secret differs from the Secret".to_owned());
    }
    if token_secret.text("token-id") != id {
        return Err("the token id differs from the Secret".to_owned());
    }
    let expires =
        parse_expiration(token_secret.text("expiration"), now).map_err(|error| error.to_string())?;
    if token_secret.text("usage-bootstrap-authentication") != "true" {
        return Err("the Secret does not allow authentication".to_owned());
    }
    Ok((groups(token_secret.text("auth-extra-groups"))?, expires))
}

/// Returns the sorted groups of a token; `extra` is the value `auth-extra-groups` of its Secret.
fn groups(extra: &str) -> Result<Groups, String> {
    let mut groups = vec![GROUP.to_owned()];
    for group in extra.split(',').map(str::trim).filter(|group| !group.is_empty()) {
        let suffix = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')).unwrap_or_default();
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_valid_suffix = suffix.len() <= 256
            && suffix.bytes().all(|byte| is_alphanumeric(byte) || byte == b':' || byte == b'-')
            && suffix.bytes().last().is_some_and(is_alphanumeric);
        if !is_valid_suffix {
            return Err(format!(
                "the extra group `{group}` does not begin with `{GROUP}:`, or has invalid characters"
            ));
        }
        groups.push(group.to_owned());
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::identities::IdentityObject;

    const KIND: &str = "bootstrap.kubernetes.io/token";

    fn secret(entries: &[(&str, &str)]) -> TokenSecret {
        let mut data = std::collections::BTreeMap::new();
        for (key, value) in [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ]
        .iter()
        .chain(entries)
        {
            if *value == "-" {
                data.remove(*key);
            } else {
                data.insert((*key).to_owned(), value.as_bytes().to_vec());
            }
        }
        let identity = IdentityObject { uid: "u".into(), valid_until: None };
        TokenSecret {
            revision: 1,
            identity,
            terminating: false,
            kind: KIND.to_owned(),
            data,
            annotations: Default::default(),
        }
    }

    #[test]
    fn bootstrap_token_secret_rules_are_checked() {
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        for (entries, expected) in [
            (vec![], Ok("system:bootstrappers")),
            (vec![("description", "for tests")], Ok("system:bootstrappers")),
            (vec![("expiration", "2100-01-01T00:00:00Z")], Ok("system:bootstrappers")),
            (vec![("expiration", "2001-01-01T00:00:00Z")], Err("the token has expired")),
            (vec![("expiration", "next tuesday")], Err("the expiration is not an RFC 3339 time")),
            (vec![("token-id", "zzzzzz")], Err("the token id differs from the Secret")),
            (vec![("token-id", "-")], Err("the token id differs from the Secret")),
            (vec![("token-secret", "-")], Err("the token secret differs from the Secret")),
            (vec![("token-secret", "0123456789abcdee")], Err("the token secret differs from the Secret")),
            (vec![("usage-bootstrap-authentication", "-")], Err("the Secret does not allow authentication")),
            (
                vec![("usage-bootstrap-authentication", "false")],
                Err("the Secret does not allow authentication"),
            ),
            (
                vec![("auth-extra-groups", "system:bootstrappers:z, system:bootstrappers:a-b:c")],
                Ok("system:bootstrappers system:bootstrappers:a-b:c system:bootstrappers:z"),
            ),
            (
                vec![("auth-extra-groups", "system:bootstrappers:a,system:masters")],
                Err(
                    "the extra group `system:masters` does not begin with `system:bootstrappers:`, or has invalid characters",
                ),
            ),
        ] {
            let checked = check(&secret(&entries), KIND, "abcdef", "0123456789abcdef", now);
            let got = checked.map(|(groups, _)| groups.join(" "));
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{entries:?}");
        }
        let mut terminating_secret = secret(&[]);
        terminating_secret.terminating = true;
        assert!(check(&terminating_secret, KIND, "abcdef", "0123456789abcdef", now).is_err());
        let opaque = TokenSecret { kind: "Opaque".into(), ..secret(&[]) };
        assert!(check(&opaque, KIND, "abcdef", "0123456789abcdef", now).is_err());
    }
}
