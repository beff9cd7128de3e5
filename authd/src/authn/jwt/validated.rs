//! A validated JWT authenticator: all fields are set and all expressions are compiled.

use expressions::{Program, Type};

use crate::tokens::algorithm::Algorithm;

/// The settings of an issuer: its URL, the trust in its server, and the accepted audiences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IssuerSettings {
    /// `url`: the required `iss` claim.
    pub url: String,
    /// `discoveryURL`: the URL of the metadata; empty means the well-known path under `url`.
    pub discovery_url: String,
    /// `certificateAuthority`: PEM; empty means the CA certificates of the system.
    pub certificate_authority: String,
    /// `audiences`: a token must be for one of them.
    pub audiences: Vec<String>,
    /// `audienceMatchPolicy`: validated and not used, because `MatchAny` is the only value.
    pub audience_match_policy: String,
}

/// A JWT authenticator of one issuer, validated and compiled.
#[derive(Debug)]
pub struct ValidatedAuthenticator {
    /// The issuer and the accepted audiences.
    pub issuer: IssuerSettings,
    /// The accepted signature algorithms.
    pub algorithms: Vec<Algorithm>,
    /// The rules that the claims must all meet.
    pub claim_rules: Vec<ClaimRule>,
    /// The source of the username.
    pub username: MappingSource,
    /// The source of the groups; None means no groups.
    pub groups: Option<MappingSource>,
    /// The source of the uid; None means no uid.
    pub uid: Option<MappingSource>,
    /// The sources of extra attributes, by their keys.
    pub extra: Vec<(String, Expression)>,
    /// The rules that the user must meet.
    pub user_rules: Vec<Rule>,
}

/// A claim validation rule, which the claims of a token must meet.
#[derive(Debug)]
pub enum ClaimRule {
    /// The claim must have this string value.
    Required {
        /// The name of the claim.
        claim: String,
        /// The required value.
        value: String,
    },
    /// The expression on `claims` must be true.
    Expression(Rule),
}

/// A condition in the form of an expression.
#[derive(Debug)]
pub struct Rule {
    /// The expression that must be true.
    pub expression: Expression,
    /// The log message when the expression is false.
    pub message: String,
}

/// The source of the username, the groups or the uid.
#[derive(Debug)]
pub enum MappingSource {
    /// The value of a claim, after a prefix.
    Claim {
        /// The name of the claim.
        claim: String,
        /// The text before the value; may be empty.
        prefix: String,
    },
    /// An expression over `claims`.
    Expression(Expression),
}

/// A compiled CEL expression with its text.
pub struct Expression {
    /// The text of the expression, for errors.
    pub text: String,
    /// The compiled program.
    pub program: Program,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The type of `claims` in expressions: a map from claim names to values of any type.
pub fn claims_type() -> Type {
    Type::map(Type::String, Type::Dyn)
}

/// The type of `user` in expressions: the user fields of a SelfSubjectReview.
pub fn user_type() -> Type {
    let texts = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    Type::object("UserInfo", fields.map(|(name, ty)| (name.to_owned(), ty)))
}
