//! The service-account token authenticator (requirements A-SA).
//!
//! # Contract
//!
//! A token of one of our issuers must be signed with one of our keys, be valid now, and be for a requested
//! audience. With `--service-account-lookup` (the default) the service account and the bound object must
//! exist with the uids in the token. A legacy token of a Secret must be the one that the Secret holds.
//!
//! # Invariants
//!
//! INVARIANT (revocation): an identity depends on the service account and the bound object, and ends with
//! them.

use std::collections::HashSet;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::ObjectRef;
use jiff::Timestamp;
use subtle::ConstantTimeEq;

use super::{Accepted, Authenticator, AuthnContext, Credentials, Outcome, Settings, agnostic_audiences};
use crate::mirror::identities::{Identities, IdentityObject};
use crate::mirror::{Mirror, MirrorNotReady};
use crate::tokens::service_account::{Claims, Issuer, Named, subject};

/// The maximum number of a token's audiences that a log line shows.
const MAX_SHOWN_AUDIENCES: usize = 5;

struct ServiceAccounts {
    names: Arc<Names>,
    issuer: Arc<Issuer>,
    mirror: Arc<Mirror>,
    lookup: bool,
}

pub(super) fn build(
    settings: &Settings,
    mirror: &Arc<Mirror>,
) -> Result<Option<Box<dyn Authenticator>>, String> {
    let Some(issuer) = &settings.issuer else { return Ok(None) };
    Ok(Some(Box::new(ServiceAccounts {
        names: Arc::clone(&settings.names),
        issuer: Arc::clone(issuer),
        mirror: Arc::clone(mirror),
        lookup: settings.lookup,
    })))
}

#[async_trait]
impl Authenticator for ServiceAccounts {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        at: AuthnContext,
    ) -> Result<Outcome, MirrorNotReady> {
        let Some(read) = self.issuer.read(credentials.token, at.now) else {
            return Ok(Outcome::NotApplicable);
        };
        let checked = match read {
            Ok(claims) => self.check(&claims, credentials, at)?,
            Err(check) => Err(check),
        };
        Ok(checked.map_or_else(Outcome::Rejected, |accepted| Outcome::Accepted(Box::new(accepted))))
    }
}

impl ServiceAccounts {
    fn check(
        &self,
        claims: &Claims,
        credentials: Credentials<'_>,
        at: AuthnContext,
    ) -> Result<Result<Accepted, String>, MirrorNotReady> {
        let own = self.issuer.audiences();
        let audiences = if claims.legacy {
            agnostic_audiences(credentials.audiences, own)
        } else {
            let asked = if credentials.audiences.is_empty() { own } else { credentials.audiences };
            let claimed: HashSet<&str> = claims.audiences.iter().map(String::as_str).collect();
            let common: Vec<String> =
                asked.iter().filter(|audience| claimed.contains(audience.as_str())).cloned().collect();
            (!common.is_empty()).then_some(common)
        };
        let Some(audiences) = audiences else {
            let shown: Vec<&String> = claims.audiences.iter().take(MAX_SHOWN_AUDIENCES).collect();
            let more = claims.audiences.len() - shown.len();
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            return Ok(Err(format!("the token is for the audiences {shown:?}{more}")));
        };
        let mut accepted = Accepted {
            user: self.user(claims),
            audiences,
            not_before: claims.not_before,
            expires_at: claims.expires,
            ..Accepted::default()
        };
        if self.lookup {
            let invalid = self.names.label_key("legacy-token-invalid-since");
            let identities = self.mirror.identities(at.at_least)?;
            if let Err(check) =
                record_dependencies(&identities, claims, credentials.token, at.now, &mut accepted, &invalid)
            {
                return Ok(Err(check));
            }
        }
        if let Some(secret) = claims.private.secret.as_ref().filter(|_| claims.legacy) {
            self.mirror.note_use(&claims.private.namespace, &secret.name);
        }
        if let Some(warn) = claims.private.warnafter.filter(|warn| at.now.as_second() > *warn) {
            tracing::info!(
                user = accepted.user.name,
                warn_after = warn,
                "extended token used after its requested expiry"
            );
        }
        Ok(Ok(accepted))
    }

    fn user(&self, claims: &Claims) -> UserInfo {
        let private = &claims.private;
        let mut user = UserInfo {
            name: subject(&private.namespace, &private.serviceaccount.name),
            uid: private.serviceaccount.uid.clone(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", private.namespace),
            ],
            ..UserInfo::default()
        };
        let mut extra = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(self.names.label_sub_key("authentication", key), vec![value.to_owned()]);
            }
        };
        for (kind, named) in [("pod", &private.pod), ("node", &private.node)] {
            if let Some(named) = named {
                extra(&format!("{kind}-name"), &named.name);
                extra(&format!("{kind}-uid"), &named.uid);
            }
        }
        if !claims.id.is_empty() {
            extra("credential-id", &format!("JTI={}", claims.id));
        }
        user
    }
}

/// Checks that all objects in the token exist, and records that the identity depends on them.
fn record_dependencies(
    identities: &Identities,
    claims: &Claims,
    token: &str,
    now: Timestamp,
    accepted: &mut Accepted,
    invalid: &str,
) -> Result<(), String> {
    let private = &claims.private;
    let namespace = private.namespace.as_str();
    let mut on = |resource: &str, namespace: &str, named: &Named, anchor: Option<&IdentityObject>| {
        let found = anchor.filter(|anchor| anchor.holds(&named.uid, now)).ok_or_else(|| {
            format!("{resource} `{}` of uid `{}` does not exist or was deleted", named.name, named.uid)
        })?;
        if let Some(until) = found.until {
            accepted.expires_at = Some(accepted.expires_at.map_or(until, |ends| ends.min(until)));
        }
        accepted.rests_on.push(ObjectRef {
            group: String::new(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: named.name.clone(),
            uid: named.uid.clone(),
        });
        Ok::<(), String>(())
    };
    let account = &private.serviceaccount;
    on("serviceaccounts", namespace, account, identities.account(namespace, &account.name))?;
    if let Some(pod) = &private.pod {
        on("pods", namespace, pod, identities.pod(namespace, &pod.name))?;
    } else if let Some(node) = &private.node {
        on("nodes", "", node, identities.node(&node.name))?;
    }
    let Some(named) = &private.secret else { return Ok(()) };
    let secret = identities.secret(namespace, &named.name).ok_or("the Secret no longer exists")?;
    if claims.legacy {
        let held = secret.data.get("token").map(Vec::as_slice).unwrap_or_default();
        if !bool::from(held.ct_eq(token.as_bytes())) {
            return Err("the Secret has another token".to_owned());
        }
        if secret.annotations.contains_key(invalid) {
            return Err(format!("the Secret is marked `{invalid}`: the token was unused for long"));
        }
        let named = Named { uid: secret.anchor.uid.to_string(), ..named.clone() };
        return on("secrets", namespace, &named, Some(&secret.anchor));
    }
    on("secrets", namespace, named, Some(&secret.anchor))
}
