//! Maps claims to a user: claim mappings, then claim and user validation rules.
//!
//! # Contract
//!
//! [`identify`] requires the claims of a valid token. Each error names the failed mapping or rule, and
//! contains no claim values.
//!
//! # Reference
//!
//! kube-apiserver 1.33: a claim must have the type of its target; a list of groups or of an extra attribute
//! may also be one string. Empty strings are left out of lists. The token id becomes the extra attribute
//! `credential-id`. Known difference: a distributed claim (`_claim_names`) is rejected, never fetched.

use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use expressions::{Cost, Type, Value as Cel, limits};
use serde_json::{Map, Value, json};

use super::validated::{ClaimRule, Expression, Rule, Source, ValidatedAuthenticator};

/// The claim that says whether `email` was verified (OpenID Connect Core, section 5.1).
const EMAIL_VERIFIED: &str = "email_verified";

/// The CEL types of the expression variables, built once.
pub(super) struct ExpressionTypes {
    claims: Type,
    user: Type,
}

impl ExpressionTypes {
    pub(super) fn new() -> Self {
        ExpressionTypes { claims: super::validated::claims_type(), user: super::validated::user_type() }
    }
}

/// Returns the user of a token.
///
/// # Errors
///
/// The mapping that failed, or the rule that is not met.
pub(super) fn identify(
    authenticator: &ValidatedAuthenticator,
    claims: &Map<String, Value>,
    names: &Names,
    types: &ExpressionTypes,
) -> Result<UserInfo, String> {
    let mapping = Mapping { claims, ty: &types.claims };
    let mut user = UserInfo {
        name: mapping.username(&authenticator.username)?,
        groups: mapping.groups(authenticator.groups.as_ref())?,
        uid: mapping.uid(authenticator.uid.as_ref())?,
        ..UserInfo::default()
    };
    if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
        user.extra.insert(names.credential_id_extra(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &authenticator.extra {
        let values = mapping
            .evaluate_texts(expression)
            .map_err(|problem| format!("extra `{key}`: `{expression:?}`: {problem}"))?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in &authenticator.claim_rules {
        mapping.check_claim_rule(rule)?;
    }
    if !authenticator.user_rules.is_empty() {
        let user_object = json!({
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        });
        for rule in &authenticator.user_rules {
            let value = Cel::of(&user_object, &types.user).map_err(|error| error.to_string())?;
            check_rule("user", rule, run(&rule.expression, "user", value))?;
        }
    }
    Ok(user)
}

/// Evaluates an expression over its one variable.
fn run<'a>(expression: &'a Expression, variable: &str, value: Cel<'a>) -> Result<Cel<'a>, String> {
    let mut cost = Cost::limit(limits::CALL);
    expression.program.evaluate(&[(variable, value)], &mut cost).map_err(|error| error.to_string())
}

/// Checks that a rule is met.
fn check_rule(subject: &str, rule: &Rule, outcome: Result<Cel<'_>, String>) -> Result<(), String> {
    let text = &rule.expression.text;
    match outcome {
        Ok(Cel::Bool(true)) => Ok(()),
        Ok(Cel::Bool(false)) => Err(format!("{subject} rule `{text}` is not met: {}", rule.message)),
        Ok(_) => Err(format!("{subject} rule `{text}` did not evaluate to bool")),
        Err(problem) => Err(format!("{subject} rule `{text}` cannot be evaluated: {problem}")),
    }
}

/// The evaluation of claim mappings on the claims of one token.
struct Mapping<'c> {
    claims: &'c Map<String, Value>,
    ty: &'c Type,
}

impl<'c> Mapping<'c> {
    fn evaluate(&self, expression: &'c Expression) -> Result<Cel<'c>, String> {
        run(expression, "claims", Cel::object(self.claims, self.ty))
    }

    fn evaluate_text(&self, expression: &'c Expression) -> Result<String, String> {
        let value = self.evaluate(expression)?;
        value.as_str().map(str::to_owned).ok_or_else(|| "must evaluate to string".to_owned())
    }

    fn evaluate_texts(&self, expression: &'c Expression) -> Result<Vec<String>, String> {
        const TYPE_ERROR: &str = "must evaluate to string or list of strings";
        let all = match self.evaluate(expression)? {
            Cel::Null => Vec::new(),
            Cel::String(one) => vec![one.as_str().to_owned()],
            Cel::List(list) => {
                let texts =
                    list.iter().map(|item| item.ok().and_then(|item| item.as_str().map(str::to_owned)));
                texts.collect::<Option<Vec<_>>>().ok_or(TYPE_ERROR)?
            }
            _ => return Err(TYPE_ERROR.to_owned()),
        };
        Ok(all.into_iter().filter(|text| !text.is_empty()).collect())
    }

    fn text_claim(&self, target: &str, claim: &str) -> Result<&'c str, String> {
        let value =
            self.claims.get(claim).ok_or_else(|| format!("{target}: the claim `{claim}` is missing"))?;
        value.as_str().ok_or_else(|| format!("{target}: the claim `{claim}` is not a string"))
    }

    fn username(&self, source: &'c Source) -> Result<String, String> {
        let name = match source {
            Source::Expression(expression) => self
                .evaluate_text(expression)
                .map_err(|problem| format!("username: `{expression:?}`: {problem}"))?,
            Source::Claim { claim, prefix } => {
                let value = self.text_claim("username", claim)?;
                if claim == "email" {
                    match self.claims.get(EMAIL_VERIFIED) {
                        None | Some(Value::Bool(true)) => {}
                        Some(Value::Bool(false)) => {
                            return Err("username: the email is not verified".to_owned());
                        }
                        Some(_) => {
                            return Err(format!(
                                "username: the claim `{EMAIL_VERIFIED}` is not true or false"
                            ));
                        }
                    }
                }
                if value.is_empty() { String::new() } else { format!("{prefix}{value}") }
            }
        };
        if name.is_empty() { Err("username: empty".to_owned()) } else { Ok(name) }
    }

    fn groups(&self, source: Option<&'c Source>) -> Result<Vec<String>, String> {
        match source {
            None => Ok(Vec::new()),
            Some(Source::Expression(expression)) => self
                .evaluate_texts(expression)
                .map_err(|problem| format!("groups: `{expression:?}`: {problem}")),
            Some(Source::Claim { claim, prefix }) => {
                let type_error =
                    || format!("groups: the claim `{claim}` is neither a string nor a list of strings");
                let add_prefix = |value: &Value| {
                    value.as_str().map(|text| format!("{prefix}{text}")).ok_or_else(type_error)
                };
                match self.claims.get(claim) {
                    None => self.reject_distributed_claim(claim).map(|()| Vec::new()),
                    Some(Value::Null) => Ok(Vec::new()),
                    Some(Value::Array(list)) => list.iter().map(add_prefix).collect(),
                    Some(one) => Ok(vec![add_prefix(one)?]),
                }
            }
        }
    }

    /// Rejects a distributed claim (OpenID Connect Core, section 5.6.2).
    /// Ignoring the claim would drop groups of the user.
    fn reject_distributed_claim(&self, claim: &str) -> Result<(), String> {
        match self.claims.get("_claim_names").and_then(|names| names.get(claim)) {
            None => Ok(()),
            Some(_) => {
                Err(format!("groups: the claim `{claim}` is a distributed claim, which is not supported"))
            }
        }
    }

    fn uid(&self, source: Option<&'c Source>) -> Result<String, String> {
        match source {
            None => Ok(String::new()),
            Some(Source::Claim { claim, .. }) => self.text_claim("uid", claim).map(str::to_owned),
            Some(Source::Expression(expression)) => {
                self.evaluate_text(expression).map_err(|problem| format!("uid: `{expression:?}`: {problem}"))
            }
        }
    }

    fn check_claim_rule(&self, rule: &ClaimRule) -> Result<(), String> {
        match rule {
            ClaimRule::Required { claim, value } => match self.claims.get(claim) {
                None => Err(format!("the required claim `{claim}` is missing")),
                Some(Value::String(actual)) if actual == value => Ok(()),
                Some(Value::String(_)) => {
                    Err(format!("the claim `{claim}` does not have the required value"))
                }
                Some(_) => Err(format!("the required claim `{claim}` is not a string")),
            },
            ClaimRule::Expression(rule) => {
                let value = Cel::object(self.claims, self.ty);
                check_rule("claim", rule, run(&rule.expression, "claims", value))
            }
        }
    }
}
