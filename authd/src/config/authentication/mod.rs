//! The authentication configuration: JWT authenticators and anonymous access.
//! A file or the `oidc-*` flags set it.
//!
//! # Contract
//!
//! [`read`] decodes a file of kind `AuthenticationConfiguration` into a [`Configuration`] with compiled
//! expressions, or returns all errors with path and line. The flags build the same [`JwtAuthenticator`] and
//! use the same [`validate`]. This module fetches nothing.
//!
//! # Reference
//!
//! `apiserver.config.<d>/v1beta1` (requirements A-JWT-9 to A-JWT-57); v1alpha1, which has the same fields, is
//! accepted too. Fields, limits and error messages are those of kube-apiserver. Stricter than kube-apiserver:
//! an expression whose static type can never fit is an error, and `claims["email"]` counts as `claims.email`.

mod validate;

use std::sync::Arc;

use apimachinery::document::{Document, DocumentError, Fields};
use apimachinery::field::FieldPath;
use apimachinery::names::Names;

use crate::authn::Anonymous;
use crate::authn::jwt::validated::{IssuerSettings, ValidatedAuthenticator};
use crate::tokens::algorithm::Algorithm;

pub use validate::validate;

/// The `kind` of the file.
pub const KIND: &str = "AuthenticationConfiguration";
/// The maximum number of JWT authenticators; a file with more is invalid.
pub const MAX_AUTHENTICATORS: usize = 64;

/// The settings of the server that the validation needs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The names preset; it determines the API group of the file and the reserved domains.
    pub names: Arc<Names>,
    /// Issuers that no authenticator may have, because service-account tokens have them.
    pub disallowed_issuers: Vec<String>,
    /// Gate `AnonymousAuthConfigurableEndpoints`: the section `anonymous` is allowed.
    pub anonymous_conditions: bool,
}

/// One entry of `jwt` before validation. An absent string is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwtAuthenticator {
    /// The field `issuer`.
    pub issuer: IssuerSettings,
    /// The field `claimValidationRules`.
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    /// The field `claimMappings`.
    pub claim_mappings: ClaimMappings,
    /// The field `userValidationRules`.
    pub user_validation_rules: Vec<UserValidationRule>,
}

/// An entry of `claimValidationRules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimValidationRule {
    /// The field `claim`, the name of a claim.
    pub claim: String,
    /// The field `requiredValue`.
    pub required_value: String,
    /// The field `expression`, a CEL expression on the variable `claims`.
    pub expression: String,
    /// The field `message`, for the log when the expression is false.
    pub message: String,
}

/// `claimMappings`: maps claims to a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimMappings {
    /// The field `username`.
    pub username: PrefixedClaimOrExpression,
    /// The field `groups`.
    pub groups: PrefixedClaimOrExpression,
    /// The field `uid`, which has no prefix.
    pub uid: PrefixedClaimOrExpression,
    /// The field `extra`.
    pub extra: Vec<ExtraMapping>,
}

/// A claim with a prefix, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixedClaimOrExpression {
    /// The field `claim`, the name of a claim.
    pub claim: String,
    /// The field `prefix`; None if it is absent. An absent prefix is an error with a claim, an empty one is not.
    pub prefix: Option<String>,
    /// The field `expression`, a CEL expression on the variable `claims`.
    pub expression: String,
}

/// An entry of `claimMappings.extra`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraMapping {
    /// The field `key`.
    pub key: String,
    /// The field `valueExpression`, a CEL expression on the variable `claims`.
    pub value_expression: String,
}

/// An entry of `userValidationRules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserValidationRule {
    /// The field `expression`, a CEL expression on the variable `user`.
    pub expression: String,
    /// The field `message`, for the log when the expression is false.
    pub message: String,
}

/// A valid configuration with compiled expressions.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The authenticators, in the order of the file.
    pub jwt: Vec<Arc<ValidatedAuthenticator>>,
    /// The section `anonymous`. None if the flag `--anonymous-auth` decides.
    pub anonymous: Option<Anonymous>,
}

/// Reads and validates a file.
///
/// # Errors
///
/// All errors, with line and field path.
pub fn read(bytes: &[u8], context: &Context) -> Result<Configuration, Vec<DocumentError>> {
    let document = Document::read(bytes).map_err(|error| vec![error])?;
    check(&document, context)
}

/// Validates a document.
///
/// # Errors
///
/// All errors, with line and field path.
pub fn check(document: &Document, context: &Context) -> Result<Configuration, Vec<DocumentError>> {
    let group = context.names.group("apiserver.config");
    let versions = ["v1beta1", "v1alpha1"].map(|version| format!("{group}/{version}"));
    document.decode(KIND, &versions, |fields| {
        let authenticators = fields.objects("jwt", read_authenticator);
        let anonymous = fields.object("anonymous", |anonymous| Anonymous {
            enabled: anonymous.boolean("enabled").unwrap_or_default(),
            paths: anonymous.objects("conditions", |condition| condition.text("path")),
        });
        let jwt =
            validate(&authenticators, &Algorithm::ALL, &FieldPath::new("jwt"), context, fields.errors());
        if let Some(anonymous) = &anonymous {
            validate::anonymous(anonymous, &FieldPath::new("anonymous"), context, fields.errors());
        }
        Configuration { jwt: jwt.into_iter().map(Arc::new).collect(), anonymous }
    })
}

fn read_authenticator(fields: &mut Fields<'_>) -> JwtAuthenticator {
    let issuer = fields.object("issuer", |issuer| IssuerSettings {
        url: issuer.text("url"),
        discovery_url: issuer.text("discoveryURL"),
        certificate_authority: issuer.text("certificateAuthority"),
        audiences: issuer.texts("audiences"),
        audience_match_policy: issuer.text("audienceMatchPolicy"),
    });
    let claim_mappings = fields.object("claimMappings", |mappings| ClaimMappings {
        username: mappings.object("username", prefixed_claim_or_expression).unwrap_or_default(),
        groups: mappings.object("groups", prefixed_claim_or_expression).unwrap_or_default(),
        uid: mappings
            .object("uid", |uid| PrefixedClaimOrExpression {
                claim: uid.text("claim"),
                prefix: None,
                expression: uid.text("expression"),
            })
            .unwrap_or_default(),
        extra: mappings.objects("extra", |extra| ExtraMapping {
            key: extra.text("key"),
            value_expression: extra.text("valueExpression"),
        }),
    });
    JwtAuthenticator {
        issuer: issuer.unwrap_or_default(),
        claim_validation_rules: fields.objects("claimValidationRules", |rule| ClaimValidationRule {
            claim: rule.text("claim"),
            required_value: rule.text("requiredValue"),
            expression: rule.text("expression"),
            message: rule.text("message"),
        }),
        claim_mappings: claim_mappings.unwrap_or_default(),
        user_validation_rules: fields.objects("userValidationRules", |rule| UserValidationRule {
            expression: rule.text("expression"),
            message: rule.text("message"),
        }),
    }
}

fn prefixed_claim_or_expression(fields: &mut Fields<'_>) -> PrefixedClaimOrExpression {
    PrefixedClaimOrExpression {
        claim: fields.text("claim"),
        prefix: fields.optional_text("prefix"),
        expression: fields.text("expression"),
    }
}

#[cfg(test)]
mod tests;
