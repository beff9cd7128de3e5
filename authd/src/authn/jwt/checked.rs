//! A JWT authenticator as the configuration has checked it: no field is missing and every expression is compiled.

use expressions::{Program, Type};

use crate::tokens::jose::Algorithm;

/// Who signs, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Issuer {
    /// `url`: the claim `iss` of its tokens.
    pub url: String,
    /// `discoveryURL`: where its metadata is instead of under `url`; empty means there.
    pub discovery_url: String,
    /// `certificateAuthority`: PEM; empty means the authorities of the machine.
    pub certificate_authority: String,
    /// `audiences`: a token is for one of them.
    pub audiences: Vec<String>,
    /// `audienceMatchPolicy`: checked, and then without a meaning: `MatchAny` is the only one.
    pub audience_match_policy: String,
}

/// A JWT authenticator.
#[derive(Debug)]
pub struct Checked {
    /// Who signs, and for whom.
    pub issuer: Issuer,
    /// The algorithms that are accepted.
    pub algorithms: Vec<Algorithm>,
    /// What the claims must be: all of it.
    pub claim_rules: Vec<ClaimRule>,
    /// The username.
    pub username: Source,
    /// The groups.
    pub groups: Option<Source>,
    /// The uid.
    pub uid: Option<Source>,
    /// Extra attributes by their keys.
    pub extra: Vec<(String, Expression)>,
    /// What the user must be: all of it.
    pub user_rules: Vec<Rule>,
}

/// A condition on claims.
#[derive(Debug)]
pub enum ClaimRule {
    /// The claim is this text.
    Required {
        /// Its name.
        claim: String,
        /// The text.
        value: String,
    },
    /// The expression is true.
    Expression(Rule),
}

/// A condition in the form of an expression.
#[derive(Debug)]
pub struct Rule {
    /// What must be true.
    pub expression: Expression,
    /// What the log says when it is not.
    pub message: String,
}

/// Where an attribute of a user comes from.
#[derive(Debug)]
pub enum Source {
    /// A claim, with something before it.
    Claim {
        /// Its name.
        claim: String,
        /// What stands before the value; may be empty.
        prefix: String,
    },
    /// An expression over `claims`.
    Expression(Expression),
}

/// A compiled expression.
pub struct Expression {
    /// As it is written.
    pub text: String,
    /// Compiled.
    pub program: Program,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The type of `claims` in expressions: any value under each name.
pub fn claims_type() -> Type {
    Type::map(Type::String, Type::Dyn)
}

/// The type of `user` in expressions: what a SelfSubjectReview shows of a user.
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
