//! Validates JWT authenticators beyond field types, and compiles their expressions.
//!
//! # Reference
//!
//! kube-apiserver 1.33, with its fault messages where it has such a fault. Each check names its requirement
//! rows.

use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::selector::syntax;
use expressions::{Environment, Parsed, Type};

use super::{
    ClaimValidationRule, Context, ExtraMapping, JwtAuthenticator, MAX_AUTHENTICATORS,
    PrefixedClaimOrExpression, UserValidationRule,
};
use crate::authn::Anonymous;
use crate::authn::jwt::validated::{
    ClaimRule, Expression, Issuer, Rule, Source, ValidatedAuthenticator, claims_type, user_type,
};
use crate::config::document::Faults;
use crate::tokens::jose::Algorithm;

/// The only value of `audienceMatchPolicy`.
const MATCH_ANY: &str = "MatchAny";
/// The message for two exclusive fields.
const NOT_BOTH: &str = "claim and expression can't both be set";

/// Validates authenticators with these algorithms.
/// The result is complete only if no fault was recorded.
pub fn validate(
    authenticators: &[JwtAuthenticator],
    algorithms: &[Algorithm],
    path: &FieldPath,
    context: &Context,
    faults: &Faults,
) -> Vec<ValidatedAuthenticator> {
    if authenticators.len() > MAX_AUTHENTICATORS {
        faults.note(&FieldError::too_many(path, authenticators.len(), MAX_AUTHENTICATORS));
        return Vec::new();
    }
    let (mut urls, mut discovery_urls) = (HashSet::new(), HashSet::new());
    let mut checked = Vec::new();
    for (at, authenticator) in authenticators.iter().enumerate() {
        let path = path.index(at);
        let validation = Validation {
            context,
            faults,
            claims: Environment::new().variable("claims", claims_type()),
            user: Environment::new().variable("user", user_type()),
        };
        checked.extend(validation.authenticator(authenticator, algorithms, &path));
        let Issuer { url, discovery_url, .. } = &authenticator.issuer;
        let issuer = path.child("issuer");
        if !url.is_empty() && !urls.insert(url) {
            faults.note(&FieldError::duplicate(&issuer.child("url"), url.as_str()));
        }
        if !discovery_url.is_empty() && !discovery_urls.insert(discovery_url) {
            faults.note(&FieldError::duplicate(&issuer.child("discoveryURL"), discovery_url.as_str()));
        }
    }
    checked
}

/// Validates the section `anonymous`.
pub(super) fn anonymous(anonymous: &Anonymous, path: &FieldPath, context: &Context, faults: &Faults) {
    if !context.anonymous_conditions {
        faults.note(&FieldError::forbidden(
            path,
            "anonymous is not supported when AnonymousAuthConfigurableEndpoints feature gate is disabled",
        ));
    }
    let conditions = path.child("conditions");
    if !anonymous.enabled && !anonymous.paths.is_empty() {
        let detail = "enabled should be set to true when conditions are defined";
        faults.note(&FieldError::invalid(&conditions, anonymous.paths.clone(), detail));
    }
    for (at, allowed) in anonymous.paths.iter().enumerate() {
        if allowed.is_empty() {
            faults.note(&FieldError::required(&conditions.index(at).child("path"), ""));
        }
    }
}

/// The faults of an issuer's https URL, as messages.
fn url_faults(url: &str) -> Vec<&'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let mut faults = Vec::new();
    if !scheme.eq_ignore_ascii_case("https") {
        faults.push("URL scheme must be https");
    }
    if authority.contains('@') {
        faults.push("URL must not contain a username or password");
    }
    if url.split('#').next().is_some_and(|before| before.contains('?')) {
        faults.push("URL must not contain a query");
    }
    if url.contains('#') {
        faults.push("URL must not contain a fragment");
    }
    let host = authority.rsplit('@').next().unwrap_or_default();
    let parsed = url.parse::<http::Uri>();
    if faults.is_empty() && (host.is_empty() || host.starts_with(':') || parsed.is_err()) {
        faults.push("URL must have a host and no characters that a URL cannot have");
    }
    faults
}

struct Validation<'v> {
    context: &'v Context,
    faults: &'v Faults,
    claims: Environment,
    user: Environment,
}

/// The required type of an expression.
#[derive(Clone, Copy)]
enum ResultType {
    Bool,
    Text,
    Texts,
}

impl ResultType {
    /// Whether values of a type may be of the required type.
    /// As in kube-apiserver, only a condition must have a known type; the type of an attribute may be
    /// dynamic.
    fn fits(self, ty: &Type) -> bool {
        match (self, ty) {
            (ResultType::Bool, ty) => *ty == Type::Bool,
            (ResultType::Text | ResultType::Texts, Type::String | Type::Dyn)
            | (ResultType::Texts, Type::Null) => true,
            (ResultType::Texts, Type::List(list)) => {
                matches!(list.element, Type::String | Type::Dyn | Type::Param(_))
            }
            _ => false,
        }
    }

    fn words(self) -> &'static str {
        match self {
            ResultType::Bool => "must evaluate to bool",
            ResultType::Text => "must evaluate to string",
            ResultType::Texts => "must evaluate to string or list of strings",
        }
    }
}

impl Validation<'_> {
    fn invalid(&self, path: &FieldPath, value: &str, detail: &str) {
        self.faults.note(&FieldError::invalid(path, value, detail));
    }

    fn required(&self, path: &FieldPath, detail: &str) {
        self.faults.note(&FieldError::required(path, detail));
    }

    fn duplicate(&self, path: &FieldPath, value: &str) {
        self.faults.note(&FieldError::duplicate(path, value));
    }

    fn authenticator(
        &self,
        written: &JwtAuthenticator,
        algorithms: &[Algorithm],
        path: &FieldPath,
    ) -> Option<ValidatedAuthenticator> {
        self.issuer(&written.issuer, &path.child("issuer"));
        let rules = &written.claim_validation_rules;
        let claim_rules = self.claim_rules(rules, &path.child("claimValidationRules"));
        let (mappings, mappings_path) = (&written.claim_mappings, path.child("claimMappings"));
        let username = self.mapping(&mappings.username, &mappings_path.child("username"), ResultType::Text);
        if mappings.username == PrefixedClaimOrExpression::default() {
            self.required(&mappings_path.child("username"), "claim or expression is required");
        }
        let groups = self.mapping(&mappings.groups, &mappings_path.child("groups"), ResultType::Texts);
        let uid = self.uid(&mappings.uid, &mappings_path.child("uid"));
        let extra = self.extra(&mappings.extra, &mappings_path.child("extra"));
        self.email(written, &mappings_path);
        let user_rules = &written.user_validation_rules;
        let user_rules = self.user_rules(user_rules, &path.child("userValidationRules"));
        Some(ValidatedAuthenticator {
            issuer: written.issuer.clone(),
            algorithms: algorithms.to_vec(),
            claim_rules,
            username: username?,
            groups,
            uid,
            extra,
            user_rules,
        })
    }

    /// A-JWT-13 to A-JWT-28.
    fn issuer(&self, issuer: &Issuer, path: &FieldPath) {
        let url = path.child("url");
        if issuer.url.is_empty() {
            self.required(&url, "");
        } else {
            let disallowed = &self.context.disallowed_issuers;
            if disallowed.contains(&issuer.url) {
                let mut all: Vec<&str> = disallowed.iter().map(String::as_str).collect();
                all.sort_unstable();
                let all = all.join(" ");
                let detail = format!("URL must not overlap with disallowed issuers: [{all}]");
                self.invalid(&url, &issuer.url, &detail);
            }
            url_faults(&issuer.url).into_iter().for_each(|detail| self.invalid(&url, &issuer.url, detail));
        }
        if !issuer.discovery_url.is_empty() {
            let path = path.child("discoveryURL");
            let same = |url: &str| url.trim_end_matches('/').to_owned();
            if !issuer.url.is_empty() && same(&issuer.url) == same(&issuer.discovery_url) {
                self.invalid(&path, &issuer.discovery_url, "discoveryURL must be different from URL");
            }
            let faults = url_faults(&issuer.discovery_url);
            faults.into_iter().for_each(|detail| self.invalid(&path, &issuer.discovery_url, detail));
        }
        self.audiences(issuer, path);
        if !issuer.certificate_authority.is_empty() {
            let trust = serving::client::Trust::from_pem(issuer.certificate_authority.as_bytes());
            if let Err(error) = trust {
                self.invalid(&path.child("certificateAuthority"), "<omitted>", &error.to_string());
            }
        }
    }

    fn audiences(&self, issuer: &Issuer, path: &FieldPath) {
        let (audiences, policy) = (path.child("audiences"), path.child("audienceMatchPolicy"));
        if issuer.audiences.is_empty() {
            self.required(&audiences, &format!("at least one {audiences} is required"));
            return;
        }
        let mut seen = HashSet::new();
        for (at, audience) in issuer.audiences.iter().enumerate() {
            let path = audiences.index(at);
            if audience.is_empty() {
                self.required(&path, "");
            } else if !seen.insert(audience) {
                self.duplicate(&path, audience);
            }
        }
        let written = issuer.audience_match_policy.as_str();
        if issuer.audiences.len() > 1 && written != MATCH_ANY {
            self.invalid(&policy, written, "audienceMatchPolicy must be MatchAny for multiple audiences");
        } else if !written.is_empty() && written != MATCH_ANY {
            self.invalid(
                &policy,
                written,
                "audienceMatchPolicy must be empty or MatchAny for single audience",
            );
        }
    }

    /// A-JWT-29 to A-JWT-33.
    fn claim_rules(&self, rules: &[ClaimValidationRule], path: &FieldPath) -> Vec<ClaimRule> {
        let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
        let mut checked = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let path = path.index(at);
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => self.required(&path, "claim or expression is required"),
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let detail = "may not be specified when claim is set";
                        self.invalid(&path.child("message"), &rule.message, detail);
                    }
                    if !claims.insert(claim) {
                        self.duplicate(&path.child("claim"), claim);
                    }
                    let value = rule.required_value.clone();
                    checked.push(ClaimRule::Required { claim: claim.to_owned(), value });
                }
                ("", expression) => {
                    if !rule.required_value.is_empty() {
                        let detail = "may not be specified when expression is set";
                        self.invalid(&path.child("requiredValue"), &rule.required_value, detail);
                    }
                    let path = path.child("expression");
                    if !expressions.insert(expression) {
                        self.duplicate(&path, expression);
                    } else if let Some(expression) =
                        self.compile(&self.claims, expression, &path, ResultType::Bool)
                    {
                        let message = rule.message.clone();
                        checked.push(ClaimRule::Expression(Rule { expression, message }));
                    }
                }
                (claim, _) => self.invalid(&path, claim, NOT_BOTH),
            }
        }
        checked
    }

    /// A-JWT-34 to A-JWT-39, A-JWT-43.
    fn mapping(
        &self,
        written: &PrefixedClaimOrExpression,
        path: &FieldPath,
        wanted: ResultType,
    ) -> Option<Source> {
        match (written.claim.as_str(), written.expression.as_str()) {
            ("", "") => {
                // A prefix without a claim is a mistake that would otherwise be ignored.
                if written.prefix.is_some() {
                    self.required(path, "claim or expression is required");
                }
                None
            }
            (claim, "") => {
                if written.prefix.is_none() {
                    let detail = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.required(&path.child("prefix"), detail);
                }
                let prefix = written.prefix.clone().unwrap_or_default();
                Some(Source::Claim { claim: claim.to_owned(), prefix })
            }
            ("", expression) => {
                if let Some(prefix) = &written.prefix {
                    let detail = "may not be specified when expression is set";
                    self.invalid(&path.child("prefix"), prefix, detail);
                }
                let path = path.child("expression");
                self.compile(&self.claims, expression, &path, wanted).map(Source::Expression)
            }
            _ => {
                self.invalid(path, "", NOT_BOTH);
                None
            }
        }
    }

    /// A-JWT-46 to A-JWT-48.
    fn uid(&self, written: &PrefixedClaimOrExpression, path: &FieldPath) -> Option<Source> {
        let written = PrefixedClaimOrExpression {
            prefix: (!written.claim.is_empty()).then(String::new),
            ..written.clone()
        };
        self.mapping(&written, path, ResultType::Text)
    }

    /// A-JWT-49 to A-JWT-57.
    fn extra(&self, mappings: &[ExtraMapping], path: &FieldPath) -> Vec<(String, Expression)> {
        let mut seen = HashSet::new();
        let mut checked = Vec::new();
        for (at, mapping) in mappings.iter().enumerate() {
            let path = path.index(at);
            self.extra_key(&mapping.key, &path.child("key"));
            if !seen.insert(mapping.key.as_str()) {
                self.duplicate(&path.child("key"), &mapping.key);
                continue;
            }
            let path = path.child("valueExpression");
            if mapping.value_expression.is_empty() {
                self.required(&path, "");
                continue;
            }
            let compiled = self.compile(&self.claims, &mapping.value_expression, &path, ResultType::Texts);
            checked.extend(compiled.map(|expression| (mapping.key.clone(), expression)));
        }
        checked
    }

    fn extra_key(&self, key: &str, path: &FieldPath) {
        const IN_PATHS: &str = "/-._~%!$&'()*+,;=:";
        if key.is_empty() {
            return self.required(path, "");
        }
        match key.split_once('/') {
            Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
                for mistake in syntax::subdomain(domain) {
                    self.invalid(path, domain, &mistake);
                }
                if !rest.chars().all(|c| c.is_ascii_alphanumeric() || IN_PATHS.contains(c)) {
                    let detail = format!("Invalid path (allowed are letters, digits and {IN_PATHS})");
                    self.invalid(path, rest, &detail);
                }
                self.reserved(domain, key, path);
            }
            _ => self.invalid(path, key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
        }
        if key.chars().any(char::is_uppercase) {
            self.invalid(path, key, "key must be lowercase");
        }
    }

    /// Rejects keys in the reserved domains of the server.
    fn reserved(&self, domain: &str, key: &str, path: &FieldPath) {
        let mut reserved = vec!["k8s.io", "kubernetes.io"];
        let own = self.context.names.api_domain();
        if !reserved.contains(&own) && !own.is_empty() {
            reserved.push(own);
        }
        let domain = domain.to_lowercase();
        let within =
            |of: &str| domain.strip_suffix(of).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'));
        if reserved.iter().any(|of| within(of)) {
            let all = reserved.join(", ");
            self.invalid(path, key, &format!("{all} and their subdomains are reserved"));
        }
    }

    /// A-JWT-41, A-JWT-42.
    fn email(&self, written: &JwtAuthenticator, mappings: &FieldPath) {
        let selects = |expression: &str, claim| {
            Parsed::new(expression).is_ok_and(|parsed| parsed.selects("claims", claim))
        };
        let username = written.claim_mappings.username.expression.as_str();
        if username.is_empty() || !selects(username, "email") {
            return;
        }
        let extra = written.claim_mappings.extra.iter().map(|extra| extra.value_expression.as_str());
        let rules = written.claim_validation_rules.iter().map(|rule| rule.expression.as_str());
        let mut places = std::iter::once(username).chain(extra).chain(rules);
        if !places.any(|expression| !expression.is_empty() && selects(expression, "email_verified")) {
            let detail = "claims.email_verified must be used in claimMappings.username.expression or \
                          claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when \
                          claims.email is used in claimMappings.username.expression";
            self.invalid(&mappings.child("username").child("expression"), username, detail);
        }
    }

    /// A-JWT-59 to A-JWT-61.
    fn user_rules(&self, rules: &[UserValidationRule], path: &FieldPath) -> Vec<Rule> {
        let mut seen = HashSet::new();
        let mut checked = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let path = path.index(at).child("expression");
            if rule.expression.is_empty() {
                self.required(&path, "");
            } else if !seen.insert(rule.expression.as_str()) {
                self.duplicate(&path, &rule.expression);
            } else if let Some(expression) =
                self.compile(&self.user, &rule.expression, &path, ResultType::Bool)
            {
                checked.push(Rule { expression, message: rule.message.clone() });
            }
        }
        checked
    }

    fn compile(
        &self,
        environment: &Environment,
        text: &str,
        path: &FieldPath,
        wanted: ResultType,
    ) -> Option<Expression> {
        match environment.compile(text) {
            Err(error) => {
                // On one line, like all faults.
                let issues = error.issues.iter();
                let issues =
                    issues.map(|at| format!("ERROR: <input>:{}:{}: {}", at.line, at.column, at.message));
                let issues: Vec<String> = issues.collect();
                self.invalid(path, text, &format!("compilation failed: {}", issues.join("; ")));
                None
            }
            Ok(program) if !wanted.fits(program.result_type()) => {
                self.invalid(path, text, wanted.words());
                None
            }
            Ok(program) => Some(Expression { text: text.to_owned(), program }),
        }
    }
}
