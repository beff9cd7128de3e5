//! TokenExplanation: the opinion of each authenticator on a token, and the unverified fields of a signed
//! token.
//!
//! # Contract
//!
//! The response names the failed check of each authenticator. It never contains the token. The unverified
//! fields are those that checks refer to: algorithm, key id, issuer, subject, audiences and times.

use apimachinery::object::{Map, Object, Value};
use jiff::Timestamp;
use serde_json::json;

use super::token_spec::TokenSpec;
use super::{Review, ReviewResult, Reviewer, response_object, user_json};
use crate::authn::{AuthnContext, AuthnOpinion, Outcome};
use crate::tokens::claims::audiences;
use crate::tokens::jose::SignedToken;

/// Returns the outcome as the API spells it, and the failed check or the reason.
fn outcome_words(opinion: &AuthnOpinion) -> (&'static str, &str) {
    match &opinion.outcome {
        None => ("NotConsulted", ""),
        Some(Outcome::Accepted(_)) => ("Accepted", ""),
        Some(Outcome::NotApplicable) => ("NotApplicable", ""),
        Some(Outcome::Rejected(check) | Outcome::RejectedWithTtl(check, _)) => ("Rejected", check),
        Some(Outcome::Undecided(check)) => ("Undecided", check),
    }
}

pub(super) async fn answer(reviewer: &Reviewer<'_>, review: &Review<'_>, object: Object) -> ReviewResult {
    let spec = TokenSpec::read(&object, "spec.token is required: the token to explain")?;
    let credentials = spec.credentials(&reviewer.active.authn);
    let context = AuthnContext { now: reviewer.clock.now(), at_least: review.at_least };
    let opinions = reviewer.active.authn.opinions(credentials, context, reviewer.clock).await?;
    let mut status = Map::new();
    let accepted = opinions.iter().find_map(|opinion| match &opinion.outcome {
        Some(Outcome::Accepted(identity)) => Some(identity),
        _ => None,
    });
    status.insert("authenticated".to_owned(), accepted.is_some().into());
    if let Some(identity) = accepted {
        status.insert("user".to_owned(), user_json(&identity.user));
        if !identity.audiences.is_empty() {
            status.insert("audiences".to_owned(), json!(identity.audiences));
        }
    }
    let opinion_json = |opinion: &AuthnOpinion| {
        let (outcome, check) = outcome_words(opinion);
        let latency = u64::try_from(opinion.latency.as_micros()).unwrap_or(u64::MAX);
        let mut json = Map::from_iter([
            ("name".to_owned(), json!(opinion.name)),
            ("outcome".to_owned(), json!(outcome)),
            ("latencyMicroseconds".to_owned(), latency.into()),
        ]);
        if !check.is_empty() {
            json.insert("check".to_owned(), check.into());
        }
        json
    };
    status.insert("authenticators".to_owned(), opinions.iter().map(opinion_json).collect());
    if let Some(fields) = unverified_fields(spec.token) {
        status.insert("unverified".to_owned(), fields);
    }
    // The spec of the response leaves the token out.
    let spec = if spec.audiences.is_empty() { json!({}) } else { json!({"audiences": spec.audiences}) };
    Ok(response_object(&object, "", Some(spec), Value::Object(status)))
}

/// Returns the fields of a signed token that authenticators check; None for a token of another form.
fn unverified_fields(token: &str) -> Option<Value> {
    let signed = SignedToken::parse(token).ok()?;
    let claims: Map<String, Value> = serde_json::from_slice(signed.unverified_payload()).ok()?;
    let mut fields = Map::new();
    fields.insert("algorithm".to_owned(), signed.algorithm.as_str().into());
    if let Some(key_id) = signed.kid {
        fields.insert("keyID".to_owned(), key_id.into());
    }
    for (claim, field) in [("iss", "issuer"), ("sub", "subject")] {
        if let Some(text) = claims.get(claim).and_then(Value::as_str) {
            fields.insert(field.to_owned(), text.into());
        }
    }
    let audiences = audiences(&claims);
    if !audiences.is_empty() {
        fields.insert("audiences".to_owned(), json!(audiences));
    }
    for (claim, field) in [("nbf", "notBefore"), ("exp", "expires")] {
        let time = claims.get(claim).and_then(Value::as_i64);
        if let Some(time) = time.and_then(|seconds| Timestamp::from_second(seconds).ok()) {
            fields.insert(field.to_owned(), time.to_string().into());
        }
    }
    Some(Value::Object(fields))
}
