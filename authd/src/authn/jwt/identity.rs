//! Maps claims to a user: claim mappings, then claim and user validation rules.
//!
//! # Contract
//!
//! [`identify`] requires the claims of a valid token. Each error names the failed mapping or rule.
//! authd adds no claim value to an error.
//!
//! # Reference
//!
//! kube-apiserver 1.33: a claim must have the type of the user attribute that it sets. A list of groups, or of
//! values of an extra attribute, may also be one string. Empty strings are dropped from the result of an
//! expression. The token id becomes the extra attribute `credential-id`. Known difference: authd rejects a
//! token whose groups claim is distributed (`_claim_names`), and does not fetch the claim.

use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use expressions::{Cost, EvalError, Type, Value as Cel, limits};
use serde_json::{Map, Value, json};

use super::validated::{ClaimRule, Expression, MappingSource, Rule, ValidatedAuthenticator};

/// The claim that says whether `email` was verified (OpenID Connect Core, section 5.1).
const EMAIL_VERIFIED: &str = "email_verified";

/// The mapping that failed, or the rule that is not met.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdentityError {
    /// The expression of a mapping has no usable result.
    #[error("{target}: `{expression}`: {problem}")]
    Mapping {
        /// The user attribute that the mapping sets, such as ``extra `KEY` ``.
        target: String,
        /// The text of the expression.
        expression: String,
        /// The reason why the result of the expression is unusable.
        problem: MappingProblem,
    },
    /// The claim of a mapping is absent.
    #[error("{target}: the claim `{claim}` is missing")]
    MissingClaim {
        /// The user attribute that the mapping sets.
        target: &'static str,
        /// The name of the claim.
        claim: String,
    },
    /// The claim of a mapping has a wrong type.
    #[error("{target}: the claim `{claim}` is {found}")]
    ClaimType {
        /// The user attribute that the mapping sets.
        target: &'static str,
        /// The name of the claim.
        claim: String,
        /// The mismatch with the required type, such as `not a string`.
        found: &'static str,
    },
    /// The groups claim is a distributed claim: another server has its value.
    #[error("groups: the claim `{claim}` is a distributed claim, which is not supported")]
    DistributedClaim {
        /// The name of the claim.
        claim: String,
    },
    /// The claim `email_verified` is false.
    #[error("username: the email is not verified")]
    UnverifiedEmail,
    /// The mapping results in an empty username.
    #[error("username: empty")]
    EmptyUsername,
    /// A required claim is absent.
    #[error("the required claim `{0}` is missing")]
    RequiredClaimMissing(String),
    /// A required claim is not a string.
    #[error("the required claim `{0}` is not a string")]
    RequiredClaimType(String),
    /// A required claim has another value.
    #[error("the claim `{0}` does not have the required value")]
    RequiredClaimValue(String),
    /// The mapped user cannot be converted to the CEL variable `user`.
    #[error(transparent)]
    User(EvalError),
    /// The expression of a rule is false.
    #[error("{subject} rule `{rule}` is not met: {message}")]
    UnmetRule {
        /// `claim` or `user`: the kind of the rule.
        subject: &'static str,
        /// The expression of the rule.
        rule: String,
        /// The configured message of the rule.
        message: String,
    },
    /// The expression of a rule does not result in a boolean.
    #[error("{subject} rule `{rule}` did not evaluate to bool")]
    RuleType {
        /// `claim` or `user`: the kind of the rule.
        subject: &'static str,
        /// The expression of the rule.
        rule: String,
    },
    /// The evaluation of a rule failed.
    #[error("{subject} rule `{rule}` cannot be evaluated: {error}")]
    RuleEvaluation {
        /// `claim` or `user`: the kind of the rule.
        subject: &'static str,
        /// The expression of the rule.
        rule: String,
        /// The CEL error.
        error: EvalError,
    },
}

/// The reason why the expression of a mapping has no usable result.
#[derive(Debug, thiserror::Error)]
pub(super) enum MappingProblem {
    /// The evaluation failed.
    #[error(transparent)]
    Evaluation(#[from] EvalError),
    /// The result is not a string.
    #[error("must evaluate to string")]
    NotString,
    /// The result is neither a string nor a list of strings.
    #[error("must evaluate to string or list of strings")]
    NotStrings,
}

impl MappingProblem {
    fn into_error(self, target: impl Into<String>, expression: &Expression) -> IdentityError {
        IdentityError::Mapping { target: target.into(), expression: expression.text.clone(), problem: self }
    }
}

/// The CEL types of the variables `claims` and `user`, built once for all tokens.
pub(super) struct ExpressionTypes {
    claims: Type,
    user: Type,
}

impl ExpressionTypes {
    pub(super) fn new() -> Self {
        ExpressionTypes { claims: super::validated::claims_type(), user: super::validated::user_type() }
    }
}

/// Maps the claims to a user by the mappings of the authenticator, and checks all rules.
///
/// # Errors
///
/// See [`IdentityError`].
pub(super) fn identify(
    authenticator: &ValidatedAuthenticator,
    claims: &Map<String, Value>,
    names: &Names,
    types: &ExpressionTypes,
) -> Result<UserInfo, IdentityError> {
    let mapper = ClaimMapper { claims, ty: &types.claims };
    let mut user = UserInfo {
        name: mapper.username(&authenticator.username)?,
        groups: mapper.groups(authenticator.groups.as_ref())?,
        uid: mapper.uid(authenticator.uid.as_ref())?,
        ..UserInfo::default()
    };
    if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
        user.extra.insert(names.credential_id_extra(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &authenticator.extra {
        let values = mapper
            .evaluate_texts(expression)
            .map_err(|problem| problem.into_error(format!("extra `{key}`"), expression))?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in &authenticator.claim_rules {
        mapper.check_claim_rule(rule)?;
    }
    if !authenticator.user_rules.is_empty() {
        let user_object = json!({
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        });
        for rule in &authenticator.user_rules {
            let value = Cel::of(&user_object, &types.user).map_err(IdentityError::User)?;
            check_rule("user", rule, evaluate_expression(&rule.expression, "user", value))?;
        }
    }
    Ok(user)
}

/// Evaluates an expression with one variable, within the cost limit of one evaluation.
fn evaluate_expression<'a>(
    expression: &'a Expression,
    variable: &str,
    value: Cel<'a>,
) -> Result<Cel<'a>, EvalError> {
    let mut cost = Cost::limit(limits::CALL);
    expression.program.evaluate(&[(variable, value)], &mut cost)
}

/// Checks that the expression of a rule is true; `outcome` is the result of its evaluation.
fn check_rule(
    subject: &'static str,
    rule: &Rule,
    outcome: Result<Cel<'_>, EvalError>,
) -> Result<(), IdentityError> {
    let text = || rule.expression.text.clone();
    match outcome {
        Ok(Cel::Bool(true)) => Ok(()),
        Ok(Cel::Bool(false)) => {
            Err(IdentityError::UnmetRule { subject, rule: text(), message: rule.message.clone() })
        }
        Ok(_) => Err(IdentityError::RuleType { subject, rule: text() }),
        Err(error) => Err(IdentityError::RuleEvaluation { subject, rule: text(), error }),
    }
}

/// Applies the claim mappings of an authenticator to the claims of one token.
struct ClaimMapper<'c> {
    claims: &'c Map<String, Value>,
    ty: &'c Type,
}

impl<'c> ClaimMapper<'c> {
    fn evaluate(&self, expression: &'c Expression) -> Result<Cel<'c>, EvalError> {
        evaluate_expression(expression, "claims", Cel::object(self.claims, self.ty))
    }

    fn evaluate_text(&self, expression: &'c Expression) -> Result<String, MappingProblem> {
        let value = self.evaluate(expression)?;
        value.as_str().map(str::to_owned).ok_or(MappingProblem::NotString)
    }

    fn evaluate_texts(&self, expression: &'c Expression) -> Result<Vec<String>, MappingProblem> {
        let texts = match self.evaluate(expression)? {
            Cel::Null => Vec::new(),
            Cel::String(text) => vec![text.as_str().to_owned()],
            Cel::List(list) => {
                let items =
                    list.iter().map(|item| item.ok().and_then(|item| item.as_str().map(str::to_owned)));
                items.collect::<Option<Vec<_>>>().ok_or(MappingProblem::NotStrings)?
            }
            _ => return Err(MappingProblem::NotStrings),
        };
        Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
    }

    fn text_claim(&self, target: &'static str, name: &str) -> Result<&'c str, IdentityError> {
        let claim = || name.to_owned();
        let value =
            self.claims.get(name).ok_or_else(|| IdentityError::MissingClaim { target, claim: claim() })?;
        value.as_str().ok_or_else(|| IdentityError::ClaimType {
            target,
            claim: claim(),
            found: "not a string",
        })
    }

    fn username(&self, source: &'c MappingSource) -> Result<String, IdentityError> {
        const TARGET: &str = "username";
        let name = match source {
            MappingSource::Expression(expression) => {
                self.evaluate_text(expression).map_err(|problem| problem.into_error(TARGET, expression))?
            }
            MappingSource::Claim { claim, prefix } => {
                let value = self.text_claim(TARGET, claim)?;
                if claim == "email" {
                    match self.claims.get(EMAIL_VERIFIED) {
                        None | Some(Value::Bool(true)) => {}
                        Some(Value::Bool(false)) => return Err(IdentityError::UnverifiedEmail),
                        Some(_) => {
                            return Err(IdentityError::ClaimType {
                                target: TARGET,
                                claim: EMAIL_VERIFIED.to_owned(),
                                found: "not true or false",
                            });
                        }
                    }
                }
                if value.is_empty() { String::new() } else { format!("{prefix}{value}") }
            }
        };
        if name.is_empty() { Err(IdentityError::EmptyUsername) } else { Ok(name) }
    }

    fn groups(&self, source: Option<&'c MappingSource>) -> Result<Vec<String>, IdentityError> {
        match source {
            None => Ok(Vec::new()),
            Some(MappingSource::Expression(expression)) => {
                self.evaluate_texts(expression).map_err(|problem| problem.into_error("groups", expression))
            }
            Some(MappingSource::Claim { claim, prefix }) => {
                let type_error = || IdentityError::ClaimType {
                    target: "groups",
                    claim: claim.clone(),
                    found: "neither a string nor a list of strings",
                };
                let add_prefix = |value: &Value| {
                    value.as_str().map(|text| format!("{prefix}{text}")).ok_or_else(type_error)
                };
                match self.claims.get(claim) {
                    None => self.reject_distributed_claim(claim).map(|()| Vec::new()),
                    Some(Value::Null) => Ok(Vec::new()),
                    Some(Value::Array(list)) => list.iter().map(add_prefix).collect(),
                    Some(value) => Ok(vec![add_prefix(value)?]),
                }
            }
        }
    }

    /// Rejects a token without the groups claim if the claim is distributed (OpenID Connect Core, section
    /// 5.6.2). If authd ignored the claim, the user would lose groups.
    fn reject_distributed_claim(&self, claim: &str) -> Result<(), IdentityError> {
        match self.claims.get("_claim_names").and_then(|names| names.get(claim)) {
            None => Ok(()),
            Some(_) => Err(IdentityError::DistributedClaim { claim: claim.to_owned() }),
        }
    }

    fn uid(&self, source: Option<&'c MappingSource>) -> Result<String, IdentityError> {
        match source {
            None => Ok(String::new()),
            Some(MappingSource::Claim { claim, .. }) => self.text_claim("uid", claim).map(str::to_owned),
            Some(MappingSource::Expression(expression)) => {
                self.evaluate_text(expression).map_err(|problem| problem.into_error("uid", expression))
            }
        }
    }

    fn check_claim_rule(&self, rule: &ClaimRule) -> Result<(), IdentityError> {
        match rule {
            ClaimRule::Required { claim, value } => match self.claims.get(claim) {
                None => Err(IdentityError::RequiredClaimMissing(claim.clone())),
                Some(Value::String(actual)) if actual == value => Ok(()),
                Some(Value::String(_)) => Err(IdentityError::RequiredClaimValue(claim.clone())),
                Some(_) => Err(IdentityError::RequiredClaimType(claim.clone())),
            },
            ClaimRule::Expression(rule) => {
                let value = Cel::object(self.claims, self.ty);
                check_rule("claim", rule, evaluate_expression(&rule.expression, "claims", value))
            }
        }
    }
}
