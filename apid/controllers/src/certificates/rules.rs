//! Rules of the built-in signer: the served signers, their requirements and the validity of certificates.
//!
//! # Reference
//!
//! The rules are those of the signing controller of Kubernetes 1.33.

use std::collections::BTreeSet;
use std::time::Duration;

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::time;
use jiff::Timestamp;
use serving::certs::requests::RequestedIdentity;

/// The only organization in the certificate of a node.
const NODES: &str = "system:nodes";
/// Prefix of the common name in certificates of nodes.
const NODE_PREFIX: &str = "system:node:";

/// Seconds by which the validity of a certificate begins before its issue, for clients whose clocks are
/// behind.
const BACKDATING: i64 = 5 * 60;
/// Lower limit of a requested duration, in seconds; a shorter duration is raised to this limit.
const DURATION_MIN: i64 = 10 * 60;
/// Minimum duration, in seconds, of a validity whose end is moved back by [`BACKDATING`], like its start.
const SHORT_DURATION: i64 = 8 * 3600;

/// A signer that issues certificates with the configured CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signer {
    /// Client certificates for the API server.
    Client,
    /// Client certificates with which kubelets call the API server.
    KubeletClient,
    /// Certificates with which kubelets serve HTTPS.
    KubeletServing,
    /// Certificates of the signer `legacy-unknown`, which validates nothing; for requests from before
    /// Kubernetes 1.22.
    LegacyUnknown,
}

/// The rule of a signer that a request breaks, with the text of kube-controller-manager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BrokenRule {
    /// The request for a client certificate has a usage that is not allowed.
    #[error("invalid usage for client certificate: {0}")]
    ClientUsage(String),
    /// The request for a client certificate lacks the usage `client auth`.
    #[error("missing required usage for client certificate: client auth")]
    NoClientUsage,
    /// The organization in the request of a node is not exactly `system:nodes`.
    #[error("subject organization is not system:nodes")]
    Organization,
    /// The common name in the request of a node lacks the prefix `system:node:`.
    #[error("subject common name does not begin with system:node:")]
    CommonName,
    /// The request has subject alternative names of a type that the signer rejects; contains the type.
    #[error("{0} subjectAltNames are not allowed")]
    AlternativeName(&'static str),
    /// The request for a serving certificate has neither a DNS name nor an IP address.
    #[error("DNS or IP subjectAltName is required")]
    NoAlternativeName,
    /// The request contains usages that a node may not have; contains the accepted usages.
    #[error("usages did not match [{0}]")]
    NodeUsages(String),
}

/// The certificate of the CA has expired; contains the time of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate of the signer expired at {}", time::time(*.0))]
pub(super) struct AuthorityExpired(Timestamp);

impl Signer {
    /// Returns the signer with the name `name` in `spec.signerName`; None if apid does not implement it.
    pub(super) fn find(name: &str, names: &Names) -> Option<Self> {
        let signers = [
            ("kube-apiserver-client", Signer::Client),
            ("kube-apiserver-client-kubelet", Signer::KubeletClient),
            ("kubelet-serving", Signer::KubeletServing),
            ("legacy-unknown", Signer::LegacyUnknown),
        ];
        signers.into_iter().find(|(path, _)| names.label_key(path) == name).map(|(_, signer)| signer)
    }

    /// Validates the requested subject, alternative names and usages.
    ///
    /// # Errors
    ///
    /// The first rule of the signer that the request breaks.
    pub(super) fn validate(self, identity: &RequestedIdentity, usages: &[&str]) -> Result<(), BrokenRule> {
        match self {
            Signer::Client => validate_client_usages(usages),
            Signer::KubeletClient => validate_kubelet_client(identity, usages),
            Signer::KubeletServing => validate_kubelet_serving(identity, usages),
            Signer::LegacyUnknown => Ok(()),
        }
    }
}

fn validate_client_usages(usages: &[&str]) -> Result<(), BrokenRule> {
    let is_allowed = |usage: &str| matches!(usage, "client auth" | "digital signature" | "key encipherment");
    if let Some(usage) = usages.iter().find(|usage| !is_allowed(usage)) {
        return Err(BrokenRule::ClientUsage((*usage).to_owned()));
    }
    require(usages.contains(&"client auth"), BrokenRule::NoClientUsage)
}

fn validate_kubelet_client(identity: &RequestedIdentity, usages: &[&str]) -> Result<(), BrokenRule> {
    require_organization(identity)?;
    require(identity.dns_names.is_empty(), BrokenRule::AlternativeName("DNS"))?;
    require(identity.emails.is_empty(), BrokenRule::AlternativeName("Email"))?;
    require(identity.addresses.is_empty(), BrokenRule::AlternativeName("IP"))?;
    require(identity.uris.is_empty(), BrokenRule::AlternativeName("URI"))?;
    require_common_name(identity)?;
    require_node_usages(usages, "client auth")
}

fn validate_kubelet_serving(identity: &RequestedIdentity, usages: &[&str]) -> Result<(), BrokenRule> {
    require_organization(identity)?;
    let has_name = !identity.dns_names.is_empty() || !identity.addresses.is_empty();
    require(has_name, BrokenRule::NoAlternativeName)?;
    require(identity.emails.is_empty(), BrokenRule::AlternativeName("Email"))?;
    require(identity.uris.is_empty(), BrokenRule::AlternativeName("URI"))?;
    require_node_usages(usages, "server auth")?;
    require_common_name(identity)
}

fn require_organization(identity: &RequestedIdentity) -> Result<(), BrokenRule> {
    require(identity.organizations == [NODES], BrokenRule::Organization)
}

fn require_common_name(identity: &RequestedIdentity) -> Result<(), BrokenRule> {
    require(identity.common_name.starts_with(NODE_PREFIX), BrokenRule::CommonName)
}

/// Requires exactly the usages `digital signature` and `purpose`.
///
/// `key encipherment` is optional, because only RSA keys need it.
fn require_node_usages(usages: &[&str], purpose: &str) -> Result<(), BrokenRule> {
    let mut requested: BTreeSet<&str> = usages.iter().copied().collect();
    requested.remove("key encipherment");
    if requested == BTreeSet::from(["digital signature", purpose]) {
        return Ok(());
    }
    let mut accepted = ["digital signature", "key encipherment", purpose];
    accepted.sort_unstable();
    Err(BrokenRule::NodeUsages(accepted.join(" ")))
}

fn require(is_met: bool, rule: BrokenRule) -> Result<(), BrokenRule> {
    if is_met { Ok(()) } else { Err(rule) }
}

/// Whether a request waits for its certificate: approved, not denied, not failed, without a certificate.
pub(super) fn is_ready(request: &Object) -> bool {
    let has_condition = |kind: &str| conditions(request).any(|condition| condition["type"] == kind);
    has_condition("Approved")
        && !has_condition("Denied")
        && !has_condition("Failed")
        && certificate(request).is_empty()
}

/// Returns the conditions of a request.
pub(super) fn conditions(request: &Object) -> impl Iterator<Item = &Value> {
    request.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the issued certificate as base64 of PEM, or `""`.
pub(super) fn certificate(request: &Object) -> &str {
    request.str_at(&["status", "certificate"]).unwrap_or("")
}

/// Returns start and end of the validity of a certificate.
///
/// `default` is the duration if the request specifies none, and the maximum duration. The certificate
/// expires no later than the certificate of the CA, which expires at `authority_end`.
///
/// # Errors
///
/// The certificate of the CA has expired.
pub(super) fn validity(
    requested_seconds: Option<i64>,
    default: Duration,
    now: Timestamp,
    authority_end: Timestamp,
) -> Result<(Timestamp, Timestamp), AuthorityExpired> {
    if now >= authority_end {
        return Err(AuthorityExpired(authority_end));
    }
    let default = i64::try_from(default.as_secs()).unwrap_or(i64::MAX);
    let duration = requested_seconds.map_or(default, |seconds| seconds.max(DURATION_MIN).min(default));
    let backdating = if duration < SHORT_DURATION { 0 } else { BACKDATING };
    let end = now.as_second().saturating_add(duration).saturating_sub(backdating);
    let end = time::from_unix(end, 0).map_or(authority_end, |end| end.min(authority_end));
    let start = time::from_unix(now.as_second().saturating_sub(BACKDATING), 0).unwrap_or(now);
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    fn node() -> RequestedIdentity {
        RequestedIdentity {
            common_name: "system:node:n1".to_owned(),
            organizations: vec![NODES.to_owned()],
            ..RequestedIdentity::default()
        }
    }

    /// The text of an error, or "".
    fn error_text(result: Result<(), BrokenRule>) -> String {
        result.err().map(|rule| rule.to_string()).unwrap_or_default()
    }

    fn changed_node(change: fn(&mut RequestedIdentity)) -> RequestedIdentity {
        let mut identity = node();
        change(&mut identity);
        identity
    }

    fn serving_node() -> RequestedIdentity {
        RequestedIdentity { dns_names: vec!["n1".to_owned()], ..node() }
    }

    #[test]
    fn signer_is_found_by_name_of_preset() {
        for (preset, domain) in [(Preset::Kubernetes, "kubernetes.io"), (Preset::Svc, "svc.internal")] {
            let names = Names::new(preset, "svc.internal").unwrap();
            let find = |path: &str| Signer::find(&format!("{domain}/{path}"), &names);
            assert_eq!(find("kube-apiserver-client"), Some(Signer::Client));
            assert_eq!(find("kube-apiserver-client-kubelet"), Some(Signer::KubeletClient));
            assert_eq!(find("kubelet-serving"), Some(Signer::KubeletServing));
            assert_eq!(find("legacy-unknown"), Some(Signer::LegacyUnknown));
            let find = |name: &str| Signer::find(name, &names);
            assert_eq!(find("example.com/kubelet-serving"), None);
            assert_eq!(find("kubelet-serving"), None);
        }
    }

    #[test]
    fn client_certificate_has_only_client_usages() {
        for (usages, expected) in [
            (&["client auth"][..], ""),
            (&["key encipherment", "digital signature", "client auth"], ""),
            (&["digital signature"], "missing required usage for client certificate: client auth"),
            (&["client auth", "server auth"], "invalid usage for client certificate: server auth"),
            (&["signing", "client auth"], "invalid usage for client certificate: signing"),
        ] {
            let result = Signer::Client.validate(&RequestedIdentity::default(), usages);
            assert_eq!(error_text(result), expected, "{usages:?}");
        }
        assert_eq!(Signer::LegacyUnknown.validate(&RequestedIdentity::default(), &["any"]), Ok(()));
    }

    #[test]
    fn kubelet_client_certificate_names_only_a_node() {
        const USAGES: &[&str] = &["client auth", "digital signature", "key encipherment"];
        const MISMATCH: &str = "usages did not match [client auth digital signature key encipherment]";
        for (identity, usages, expected) in [
            (node(), USAGES, ""),
            (node(), &["digital signature", "client auth"], ""),
            (node(), &["client auth"], MISMATCH),
            (node(), &["client auth", "digital signature", "server auth"], MISMATCH),
            (
                changed_node(|node| node.organizations.push("more".to_owned())),
                USAGES,
                "subject organization is not system:nodes",
            ),
            (
                changed_node(|node| node.organizations.clear()),
                USAGES,
                "subject organization is not system:nodes",
            ),
            (
                changed_node(|node| node.common_name = "n1".to_owned()),
                USAGES,
                "subject common name does not begin with system:node:",
            ),
            (
                changed_node(|node| node.dns_names.push("n1".to_owned())),
                USAGES,
                "DNS subjectAltNames are not allowed",
            ),
            (
                changed_node(|node| node.emails.push("a@b.c".to_owned())),
                USAGES,
                "Email subjectAltNames are not allowed",
            ),
            (
                changed_node(|node| node.addresses.push([10, 0, 0, 1].into())),
                USAGES,
                "IP subjectAltNames are not allowed",
            ),
            (
                changed_node(|node| node.uris.push("spiffe://a".to_owned())),
                USAGES,
                "URI subjectAltNames are not allowed",
            ),
        ] {
            let result = Signer::KubeletClient.validate(&identity, usages);
            assert_eq!(error_text(result), expected, "{identity:?} {usages:?}");
        }
    }

    #[test]
    fn kubelet_serving_certificate_requires_dns_name_or_address() {
        const USAGES: &[&str] = &["server auth", "digital signature", "key encipherment"];
        let with_address = RequestedIdentity { addresses: vec![[10, 0, 0, 1].into()], ..node() };
        let with_email = RequestedIdentity { emails: vec!["a@b.c".to_owned()], ..serving_node() };
        let with_uri = RequestedIdentity { uris: vec!["spiffe://a".to_owned()], ..serving_node() };
        let with_user_name = RequestedIdentity { common_name: "jane".to_owned(), ..serving_node() };
        let with_team = RequestedIdentity { organizations: vec!["team".to_owned()], ..serving_node() };
        for (identity, usages, expected) in [
            (serving_node(), USAGES, ""),
            (with_address, &["server auth", "digital signature"][..], ""),
            (node(), USAGES, "DNS or IP subjectAltName is required"),
            (with_email, USAGES, "Email subjectAltNames are not allowed"),
            (with_uri, USAGES, "URI subjectAltNames are not allowed"),
            (with_user_name, USAGES, "subject common name does not begin with system:node:"),
            (with_team, USAGES, "subject organization is not system:nodes"),
            (
                serving_node(),
                &["client auth", "digital signature"],
                "usages did not match [digital signature key encipherment server auth]",
            ),
        ] {
            let result = Signer::KubeletServing.validate(&identity, usages);
            assert_eq!(error_text(result), expected, "{identity:?} {usages:?}");
        }
    }

    #[test]
    fn only_approved_request_without_result_is_ready() {
        const NONE: &[&str] = &[];
        for (conditions, certificate, expected) in [
            (NONE, "", false),
            (&["Approved"], "", true),
            (&["Approved"], "Yw==", false),
            (&["Approved", "Failed"], "", false),
            (&["Denied"], "", false),
            (&["Approved", "Denied"], "", false),
        ] {
            let conditions: Vec<Value> =
                conditions.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
            let status = json!({"status": {"conditions": conditions, "certificate": certificate}});
            let request = Object::from_value(status).unwrap();
            assert_eq!(is_ready(&request), expected, "{request:?}");
        }
    }

    #[test]
    fn validity_is_limited_by_default_and_authority() {
        const HOUR: i64 = 3600;
        const YEAR: i64 = 365 * 24 * HOUR;
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let now = 1_700_000_000;
        for (requested, default, authority_end, expected) in [
            (None, YEAR, now + 10 * YEAR, now + YEAR - BACKDATING),
            (Some(HOUR), YEAR, now + 10 * YEAR, now + HOUR),
            (Some(1), YEAR, now + 10 * YEAR, now + DURATION_MIN),
            (Some(9 * HOUR), YEAR, now + 10 * YEAR, now + 9 * HOUR - BACKDATING),
            (Some(2 * YEAR), YEAR, now + 10 * YEAR, now + YEAR - BACKDATING),
            (None, YEAR, now + HOUR, now + HOUR),
            (None, i64::MAX, now + HOUR, now + HOUR),
        ] {
            let default = Duration::from_secs(u64::try_from(default).unwrap());
            let validity = validity(requested, default, at(now), at(authority_end));
            assert_eq!(validity, Ok((at(now - BACKDATING), at(expected))), "{requested:?} {default:?}");
        }
        let expired = validity(None, Duration::from_secs(60), at(now), at(now)).unwrap_err();
        assert_eq!(expired.to_string(), "the certificate of the signer expired at 2023-11-14T22:13:20Z");
    }
}
