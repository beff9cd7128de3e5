//! Validates JWT authenticators beyond field types, and compiles their expressions.
//!
//! # Reference
//!
//! The checks are those of kube-apiserver 1.33, with its error messages, and some checks that only authd has.

use std::collections::HashSet;

use apimachinery::document::ErrorList;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::selector::syntax;
use expressions::{Environment, Parsed, Type};

use super::{
    ClaimValidationRule, Context, ExtraMapping, JwtAuthenticator, MAX_AUTHENTICATORS,
    PrefixedClaimOrExpression, UserValidationRule,
};
use crate::authn::Anonymous;
use crate::authn::jwt::validated::{
    ClaimRule, Expression, IssuerSettings, MappingSource, Rule, ValidatedAuthenticator, claims_type,
    user_type,
};
use crate::tokens::algorithm::Algorithm;

/// The only valid value of `audienceMatchPolicy` besides the empty string.
const MATCH_ANY: &str = "MatchAny";
/// The message for an entry with both `claim` and `expression`.
const NOT_BOTH: &str = "claim and expression can't both be set";

/// Validates authenticators, and adds errors to `errors`. Each authenticator accepts the signature algorithms
/// `algorithms`. The result has all authenticators only if no error was added.
pub fn validate(
    authenticators: &[JwtAuthenticator],
    algorithms: &[Algorithm],
    path: &FieldPath,
    context: &Context,
    errors: &ErrorList,
) -> Vec<ValidatedAuthenticator> {
    if authenticators.len() > MAX_AUTHENTICATORS {
        errors.add(&FieldError::too_many(path, authenticators.len(), MAX_AUTHENTICATORS));
        return Vec::new();
    }
    let (mut urls, mut discovery_urls) = (HashSet::new(), HashSet::new());
    let mut validated = Vec::new();
    for (index, authenticator) in authenticators.iter().enumerate() {
        let path = path.index(index);
        let validation = Validation {
            context,
            errors,
            claims: Environment::new().variable("claims", claims_type()),
            user: Environment::new().variable("user", user_type()),
        };
        validated.extend(validation.validate_authenticator(authenticator, algorithms, &path));
        let IssuerSettings { url, discovery_url, .. } = &authenticator.issuer;
        let issuer = path.child("issuer");
        if !url.is_empty() && !urls.insert(url) {
            errors.add(&FieldError::duplicate(&issuer.child("url"), url.as_str()));
        }
        if !discovery_url.is_empty() && !discovery_urls.insert(discovery_url) {
            errors.add(&FieldError::duplicate(&issuer.child("discoveryURL"), discovery_url.as_str()));
        }
    }
    validated
}

/// Validates the section `anonymous`.
pub(super) fn anonymous(anonymous: &Anonymous, path: &FieldPath, context: &Context, errors: &ErrorList) {
    if !context.anonymous_conditions {
        errors.add(&FieldError::forbidden(
            path,
            "anonymous is not supported when AnonymousAuthConfigurableEndpoints feature gate is disabled",
        ));
    }
    let conditions = path.child("conditions");
    if !anonymous.enabled && !anonymous.paths.is_empty() {
        let detail = "enabled should be set to true when conditions are defined";
        errors.add(&FieldError::invalid(&conditions, anonymous.paths.clone(), detail));
    }
    for (index, allowed) in anonymous.paths.iter().enumerate() {
        if allowed.is_empty() {
            errors.add(&FieldError::required(&conditions.index(index).child("path"), ""));
        }
    }
}

/// Returns the errors of an issuer URL or discovery URL, which must be https.
fn url_errors(url: &str) -> Vec<&'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let mut errors = Vec::new();
    if !scheme.eq_ignore_ascii_case("https") {
        errors.push("URL scheme must be https");
    }
    if authority.contains('@') {
        errors.push("URL must not contain a username or password");
    }
    if url.split('#').next().is_some_and(|before| before.contains('?')) {
        errors.push("URL must not contain a query");
    }
    if url.contains('#') {
        errors.push("URL must not contain a fragment");
    }
    let host = authority.rsplit('@').next().unwrap_or_default();
    let parsed = url.parse::<http::Uri>();
    if errors.is_empty() && (host.is_empty() || host.starts_with(':') || parsed.is_err()) {
        errors.push("URL must have a host and no characters that a URL cannot have");
    }
    errors
}

/// The validation of one authenticator.
struct Validation<'v> {
    context: &'v Context,
    errors: &'v ErrorList,
    claims: Environment,
    user: Environment,
}

/// The required type of an expression.
#[derive(Clone, Copy)]
enum ResultType {
    /// The result of a rule.
    Bool,
    /// The result of a mapping, a string or a list of strings.
    Mapping,
}

impl ResultType {
    /// Whether an expression with the static type `ty` is valid.
    ///
    /// As in kube-apiserver, a mapping may have any static type. A token for which the result has a wrong type is
    /// rejected.
    fn fits(self, ty: &Type) -> bool {
        match self {
            ResultType::Bool => *ty == Type::Bool,
            ResultType::Mapping => true,
        }
    }
}

impl Validation<'_> {
    fn add_invalid(&self, path: &FieldPath, value: &str, detail: &str) {
        self.errors.add(&FieldError::invalid(path, value, detail));
    }

    fn add_required(&self, path: &FieldPath, detail: &str) {
        self.errors.add(&FieldError::required(path, detail));
    }

    fn add_duplicate(&self, path: &FieldPath, value: &str) {
        self.errors.add(&FieldError::duplicate(path, value));
    }

    fn validate_authenticator(
        &self,
        authenticator: &JwtAuthenticator,
        algorithms: &[Algorithm],
        path: &FieldPath,
    ) -> Option<ValidatedAuthenticator> {
        self.check_issuer(&authenticator.issuer, &path.child("issuer"));
        let rules = &authenticator.claim_validation_rules;
        let claim_rules = self.claim_rules(rules, &path.child("claimValidationRules"));
        let (mappings, mappings_path) = (&authenticator.claim_mappings, path.child("claimMappings"));
        let username = self.mapping(&mappings.username, &mappings_path.child("username"));
        if mappings.username == PrefixedClaimOrExpression::default() {
            self.add_required(&mappings_path.child("username"), "claim or expression is required");
        }
        let groups = self.mapping(&mappings.groups, &mappings_path.child("groups"));
        let uid = self.uid(&mappings.uid, &mappings_path.child("uid"));
        let extra = self.extra(&mappings.extra, &mappings_path.child("extra"));
        self.check_email_verified(authenticator, &mappings_path);
        let user_rules = &authenticator.user_validation_rules;
        let user_rules = self.user_rules(user_rules, &path.child("userValidationRules"));
        Some(ValidatedAuthenticator {
            issuer: authenticator.issuer.clone(),
            algorithms: algorithms.to_vec(),
            claim_rules,
            username: username?,
            groups,
            uid,
            extra,
            user_rules,
        })
    }

    /// Validates the issuer (requirements A-JWT-13 to A-JWT-28).
    fn check_issuer(&self, issuer: &IssuerSettings, path: &FieldPath) {
        let url = path.child("url");
        if issuer.url.is_empty() {
            self.add_required(&url, "");
        } else {
            let disallowed = &self.context.disallowed_issuers;
            if disallowed.contains(&issuer.url) {
                let mut sorted_issuers: Vec<&str> = disallowed.iter().map(String::as_str).collect();
                sorted_issuers.sort_unstable();
                let list = sorted_issuers.join(" ");
                let detail = format!("URL must not overlap with disallowed issuers: [{list}]");
                self.add_invalid(&url, &issuer.url, &detail);
            }
            url_errors(&issuer.url)
                .into_iter()
                .for_each(|detail| self.add_invalid(&url, &issuer.url, detail));
        }
        if !issuer.discovery_url.is_empty() {
            let path = path.child("discoveryURL");
            let without_trailing_slash = |url: &str| url.trim_end_matches('/').to_owned();
            if !issuer.url.is_empty()
                && without_trailing_slash(&issuer.url) == without_trailing_slash(&issuer.discovery_url)
            {
                self.add_invalid(&path, &issuer.discovery_url, "discoveryURL must be different from URL");
            }
            let errors = url_errors(&issuer.discovery_url);
            errors.into_iter().for_each(|detail| self.add_invalid(&path, &issuer.discovery_url, detail));
        }
        self.check_audiences(issuer, path);
        if !issuer.certificate_authority.is_empty() {
            let trust = serving::client::Trust::from_pem(issuer.certificate_authority.as_bytes());
            if let Err(error) = trust {
                self.add_invalid(&path.child("certificateAuthority"), "<omitted>", &error.to_string());
            }
        }
    }

    fn check_audiences(&self, issuer: &IssuerSettings, path: &FieldPath) {
        let (audiences, policy) = (path.child("audiences"), path.child("audienceMatchPolicy"));
        if issuer.audiences.is_empty() {
            self.add_required(&audiences, &format!("at least one {audiences} is required"));
            return;
        }
        let mut seen = HashSet::new();
        for (index, audience) in issuer.audiences.iter().enumerate() {
            let path = audiences.index(index);
            if audience.is_empty() {
                self.add_required(&path, "");
            } else if !seen.insert(audience) {
                self.add_duplicate(&path, audience);
            }
        }
        let match_policy = issuer.audience_match_policy.as_str();
        if issuer.audiences.len() > 1 && match_policy != MATCH_ANY {
            self.add_invalid(
                &policy,
                match_policy,
                "audienceMatchPolicy must be MatchAny for multiple audiences",
            );
        } else if !match_policy.is_empty() && match_policy != MATCH_ANY {
            self.add_invalid(
                &policy,
                match_policy,
                "audienceMatchPolicy must be empty or MatchAny for single audience",
            );
        }
    }

    /// Validates and compiles `claimValidationRules` (requirements A-JWT-29 to A-JWT-33).
    fn claim_rules(&self, rules: &[ClaimValidationRule], path: &FieldPath) -> Vec<ClaimRule> {
        let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
        let mut validated = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let path = path.index(index);
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => self.add_required(&path, "claim or expression is required"),
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let detail = "may not be specified when claim is set";
                        self.add_invalid(&path.child("message"), &rule.message, detail);
                    }
                    if !claims.insert(claim) {
                        self.add_duplicate(&path.child("claim"), claim);
                    }
                    let value = rule.required_value.clone();
                    validated.push(ClaimRule::Required { claim: claim.to_owned(), value });
                }
                ("", expression) => {
                    if !rule.required_value.is_empty() {
                        let detail = "may not be specified when expression is set";
                        self.add_invalid(&path.child("requiredValue"), &rule.required_value, detail);
                    }
                    let path = path.child("expression");
                    if !expressions.insert(expression) {
                        self.add_duplicate(&path, expression);
                    } else if let Some(expression) =
                        self.compile(&self.claims, expression, &path, ResultType::Bool)
                    {
                        let message = rule.message.clone();
                        validated.push(ClaimRule::Expression(Rule { expression, message }));
                    }
                }
                (claim, _) => self.add_invalid(&path, claim, NOT_BOTH),
            }
        }
        validated
    }

    /// Validates and compiles a mapping with a prefix (requirements A-JWT-34 to A-JWT-39, A-JWT-43).
    fn mapping(&self, mapping: &PrefixedClaimOrExpression, path: &FieldPath) -> Option<MappingSource> {
        match (mapping.claim.as_str(), mapping.expression.as_str()) {
            ("", "") => {
                // A prefix without a claim would otherwise be ignored.
                if mapping.prefix.is_some() {
                    self.add_required(path, "claim or expression is required");
                }
                None
            }
            (claim, "") => {
                if mapping.prefix.is_none() {
                    let detail = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.add_required(&path.child("prefix"), detail);
                }
                let prefix = mapping.prefix.clone().unwrap_or_default();
                Some(MappingSource::Claim { claim: claim.to_owned(), prefix })
            }
            ("", expression) => {
                if let Some(prefix) = &mapping.prefix {
                    let detail = "may not be specified when expression is set";
                    self.add_invalid(&path.child("prefix"), prefix, detail);
                }
                let path = path.child("expression");
                self.compile(&self.claims, expression, &path, ResultType::Mapping)
                    .map(MappingSource::Expression)
            }
            _ => {
                self.add_invalid(path, "", NOT_BOTH);
                None
            }
        }
    }

    /// Validates the mapping of the uid, which has no prefix (requirements A-JWT-46 to A-JWT-48).
    fn uid(&self, mapping: &PrefixedClaimOrExpression, path: &FieldPath) -> Option<MappingSource> {
        let mapping = PrefixedClaimOrExpression {
            prefix: (!mapping.claim.is_empty()).then(String::new),
            ..mapping.clone()
        };
        self.mapping(&mapping, path)
    }

    /// Validates and compiles the extra mappings (requirements A-JWT-49 to A-JWT-57).
    fn extra(&self, mappings: &[ExtraMapping], path: &FieldPath) -> Vec<(String, Expression)> {
        let mut seen = HashSet::new();
        let mut validated = Vec::new();
        for (index, mapping) in mappings.iter().enumerate() {
            let path = path.index(index);
            self.extra_key(&mapping.key, &path.child("key"));
            if !seen.insert(mapping.key.as_str()) {
                self.add_duplicate(&path.child("key"), &mapping.key);
                continue;
            }
            let path = path.child("valueExpression");
            if mapping.value_expression.is_empty() {
                self.add_required(&path, "");
                continue;
            }
            let compiled = self.compile(&self.claims, &mapping.value_expression, &path, ResultType::Mapping);
            validated.extend(compiled.map(|expression| (mapping.key.clone(), expression)));
        }
        validated
    }

    fn extra_key(&self, key: &str, path: &FieldPath) {
        const PATH_CHARACTERS: &str = "/-._~%!$&'()*+,;=:";
        if key.is_empty() {
            return self.add_required(path, "");
        }
        match key.split_once('/') {
            Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
                for error in syntax::subdomain(domain) {
                    self.add_invalid(path, domain, &error);
                }
                if !rest.chars().all(|c| c.is_ascii_alphanumeric() || PATH_CHARACTERS.contains(c)) {
                    let detail = format!("Invalid path (allowed are letters, digits and {PATH_CHARACTERS})");
                    self.add_invalid(path, rest, &detail);
                }
                self.check_reserved_domain(domain, key, path);
            }
            _ => self.add_invalid(path, key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
        }
        if key.chars().any(char::is_uppercase) {
            self.add_invalid(path, key, "key must be lowercase");
        }
    }

    /// Rejects keys in the reserved domains of the server.
    fn check_reserved_domain(&self, domain: &str, key: &str, path: &FieldPath) {
        let mut reserved = vec!["k8s.io", "kubernetes.io"];
        let api_domain = self.context.names.api_domain();
        if !reserved.contains(&api_domain) && !api_domain.is_empty() {
            reserved.push(api_domain);
        }
        let domain = domain.to_lowercase();
        let is_within = |suffix: &str| {
            domain.strip_suffix(suffix).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
        };
        if reserved.iter().any(|suffix| is_within(suffix)) {
            let list = reserved.join(", ");
            self.add_invalid(path, key, &format!("{list} and their subdomains are reserved"));
        }
    }

    /// If the username expression uses `claims.email`, requires an expression that uses
    /// `claims.email_verified` (requirements A-JWT-41, A-JWT-42).
    fn check_email_verified(&self, authenticator: &JwtAuthenticator, mappings: &FieldPath) {
        let selects = |expression: &str, claim| {
            Parsed::new(expression).is_ok_and(|parsed| parsed.selects("claims", claim))
        };
        let username = authenticator.claim_mappings.username.expression.as_str();
        if username.is_empty() || !selects(username, "email") {
            return;
        }
        let extra = authenticator.claim_mappings.extra.iter().map(|extra| extra.value_expression.as_str());
        let rules = authenticator.claim_validation_rules.iter().map(|rule| rule.expression.as_str());
        let mut sources = std::iter::once(username).chain(extra).chain(rules);
        if !sources.any(|expression| !expression.is_empty() && selects(expression, "email_verified")) {
            let detail = "claims.email_verified must be used in claimMappings.username.expression or \
                          claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when \
                          claims.email is used in claimMappings.username.expression";
            self.add_invalid(&mappings.child("username").child("expression"), username, detail);
        }
    }

    /// Validates and compiles `userValidationRules` (requirements A-JWT-59 to A-JWT-61).
    fn user_rules(&self, rules: &[UserValidationRule], path: &FieldPath) -> Vec<Rule> {
        let mut seen = HashSet::new();
        let mut validated = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let path = path.index(index).child("expression");
            if rule.expression.is_empty() {
                self.add_required(&path, "");
            } else if !seen.insert(rule.expression.as_str()) {
                self.add_duplicate(&path, &rule.expression);
            } else if let Some(expression) =
                self.compile(&self.user, &rule.expression, &path, ResultType::Bool)
            {
                validated.push(Rule { expression, message: rule.message.clone() });
            }
        }
        validated
    }

    fn compile(
        &self,
        environment: &Environment,
        text: &str,
        path: &FieldPath,
        result_type: ResultType,
    ) -> Option<Expression> {
        match environment.compile(text) {
            Err(error) => {
                // Each error is one line, so the issues of the compiler are joined.
                let issues = error.issues.iter();
                let issues = issues.map(|issue| {
                    format!("ERROR: <input>:{}:{}: {}", issue.line, issue.column, issue.message)
                });
                let issues: Vec<String> = issues.collect();
                let detail = match error.plan {
                    Some(_) => error.reason(),
                    None => format!("compilation failed: {}", issues.join("; ")),
                };
                self.add_invalid(path, text, &detail);
                None
            }
            Ok(program) if !result_type.fits(program.result_type()) => {
                self.add_invalid(path, text, "must evaluate to bool");
                None
            }
            Ok(program) => Some(Expression { text: text.to_owned(), program }),
        }
    }
}
