//! The service-account token authenticator (requirements A-SA).
//!
//! # Contract
//!
//! A token of a configured issuer must be signed with a configured key and be valid now. A bound token must
//! name a requested audience; a legacy token of a Secret has no audiences. With `--service-account-lookup` (the
//! default) the service account and the bound object must exist with the uids in the token. A legacy token must
//! equal the token in its Secret.
//!
//! # Invariants
//!
//! INVARIANT (revocation): with lookup, an identity depends on the service account and the bound object, and
//! ends with them.

use std::collections::HashSet;
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
use crate::mirror::identities::{Identities, IdentityObject};
use crate::tokens::service_account::{Claims, Issuer, ObjectIdentity, subject};

/// The maximum number of audiences of a token in a log line; the number of further audiences follows.
const MAX_SHOWN_AUDIENCES: usize = 5;

struct ServiceAccounts {
    names: Arc<Names>,
    issuer: Arc<Issuer>,
    checks_objects: bool,
}

pub(super) fn build(settings: &AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    Some(Arc::new(ServiceAccounts {
        names: Arc::clone(&settings.names),
        issuer: settings.issuer.clone()?,
        checks_objects: settings.service_account_lookup,
    }))
}

#[async_trait]
impl Authenticator for ServiceAccounts {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        let Some(read) = self.issuer.read(credentials.token, context.now) else {
            return Ok(Outcome::NotApplicable);
        };
        let checked = match read {
            Ok(claims) => self.check(&claims, credentials, context)?,
            Err(error) => Err(error.to_string()),
        };
        Ok(checked.into())
    }
}

impl ServiceAccounts {
    fn check(
        &self,
        claims: &Claims,
        credentials: Credentials<'_>,
        context: AuthnContext<'_>,
    ) -> Result<Result<AuthenticatedIdentity, String>, MirrorNotReady> {
        let api_audiences = self.issuer.audiences();
        let audiences = if claims.legacy {
            agnostic_audiences(credentials.audiences, api_audiences)
        } else {
            let requested =
                if credentials.audiences.is_empty() { api_audiences } else { credentials.audiences };
            let claimed: HashSet<&str> = claims.audiences.iter().map(String::as_str).collect();
            let common: Vec<String> =
                requested.iter().filter(|audience| claimed.contains(audience.as_str())).cloned().collect();
            (!common.is_empty()).then_some(common)
        };
        let Some(audiences) = audiences else {
            let shown: Vec<&String> = claims.audiences.iter().take(MAX_SHOWN_AUDIENCES).collect();
            let more = claims.audiences.len() - shown.len();
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            return Ok(Err(format!("the token is for the audiences {shown:?}{more}")));
        };
        let mut accepted = AuthenticatedIdentity {
            user: self.user(claims),
            audiences,
            not_before: claims.not_before,
            expires_at: claims.expires,
            ..AuthenticatedIdentity::default()
        };
        if self.checks_objects {
            let invalid_since = self.names.label_key("legacy-token-invalid-since");
            let identities = context.at_least.identities()?;
            if let Err(check) = record_dependencies(
                &identities,
                claims,
                credentials.token,
                context.now,
                &mut accepted,
                &invalid_since,
            ) {
                return Ok(Err(check));
            }
        }
        if let Some(secret) = claims.private.secret.as_ref().filter(|_| claims.legacy) {
            context.at_least.record_use(&claims.private.namespace, &secret.name);
        }
        if let Some(warn) = claims.private.warnafter.filter(|warn| context.now.as_second() > *warn) {
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
        for (kind, object) in [("pod", &private.pod), ("node", &private.node)] {
            if let Some(object) = object {
                extra(&format!("{kind}-name"), &object.name);
                extra(&format!("{kind}-uid"), &object.uid);
            }
        }
        if !claims.id.is_empty() {
            extra("credential-id", &format!("JTI={}", claims.id));
        }
        user
    }
}

/// Checks that the service account and the bound object of a token exist, and adds them to the dependencies
/// of `accepted`. A legacy token must also equal the token in its Secret.
///
/// `invalid_since` is the label key of Secrets whose legacy token is invalid because it was unused for long.
fn record_dependencies(
    identities: &Identities,
    claims: &Claims,
    token: &str,
    now: Timestamp,
    accepted: &mut AuthenticatedIdentity,
    invalid_since: &str,
) -> Result<(), String> {
    let private = &claims.private;
    let namespace = private.namespace.as_str();
    let mut require_object =
        |resource: &str, namespace: &str, object: &ObjectIdentity, identity: Option<&IdentityObject>| {
            let found = identity.filter(|identity| identity.is_valid(&object.uid, now)).ok_or_else(|| {
                format!("{resource} `{}` of uid `{}` does not exist or was deleted", object.name, object.uid)
            })?;
            if let Some(until) = found.valid_until {
                accepted.expires_at = Some(accepted.expires_at.map_or(until, |ends| ends.min(until)));
            }
            accepted.depends_on.push(ObjectRef {
                group: String::new(),
                resource: resource.to_owned(),
                namespace: namespace.to_owned(),
                name: object.name.clone(),
                uid: object.uid.clone(),
            });
            Ok::<(), String>(())
        };
    let account = &private.serviceaccount;
    require_object("serviceaccounts", namespace, account, identities.account(namespace, &account.name))?;
    if let Some(pod) = &private.pod {
        require_object("pods", namespace, pod, identities.pod(namespace, &pod.name))?;
    } else if let Some(node) = &private.node {
        require_object("nodes", "", node, identities.node(&node.name))?;
    }
    let Some(object) = &private.secret else { return Ok(()) };
    let secret = identities.secret(namespace, &object.name).ok_or("the Secret no longer exists")?;
    if claims.legacy {
        let stored = secret.data.get("token").map(Vec::as_slice).unwrap_or_default();
        if !bool::from(stored.ct_eq(token.as_bytes())) {
            return Err("the token differs from the token in the Secret".to_owned());
        }
        if secret.annotations.contains_key(invalid_since) {
            return Err(format!("the Secret is marked `{invalid_since}`: the token was unused for long"));
        }
        let object = ObjectIdentity { uid: secret.identity.uid.to_string(), ..object.clone() };
        return require_object("secrets", namespace, &object, Some(&secret.identity));
    }
    require_object("secrets", namespace, object, Some(&secret.identity))
}
