//! The `oidc-*` flags: one JWT authenticator without a file.
//!
//! # Contract
//!
//! [`read`] builds the same authenticator as a file would, through the same checks; an error names the
//! flag (requirements A-OIDC-14 to A-OIDC-46). Unlike a file, flags accept RS256 only by default.

use std::sync::Arc;

use apimachinery::document::ErrorList;
use apimachinery::field::FieldPath;
use processflags::OidcFlags;

use super::authentication::{
    ClaimMappings, ClaimValidationRule, Context, JwtAuthenticator, PrefixedClaimOrExpression, validate,
};
use crate::authn::jwt::validated::{IssuerSettings, ValidatedAuthenticator};
use crate::config_error::ConfigError;
use crate::tokens::algorithm::Algorithm;

/// The username claim that gets no default prefix. The default prefix of others is the issuer URL and `#`.
const EMAIL: &str = "email";
/// The value of `--oidc-username-prefix` that means no prefix.
const NO_PREFIX: &str = "-";

/// The flag of each authenticator field, to name the flag in errors.
const FLAGS: &[(&str, &str)] = &[
    ("oidc[0].issuer.url", "--oidc-issuer-url"),
    ("oidc[0].issuer.audiences", "--oidc-client-id"),
    ("oidc[0].issuer.certificateAuthority", "--oidc-ca-file"),
    ("oidc[0].claimValidationRules", "--oidc-required-claim"),
    ("oidc[0].claimMappings.username", "--oidc-username-claim"),
    ("oidc[0].claimMappings.groups", "--oidc-groups-claim"),
];

/// Builds the authenticator. Returns None if no flag is set, or errors were added to `errors`.
pub(super) fn read(
    flags: &OidcFlags,
    context: &Context,
    errors: &mut Vec<ConfigError>,
) -> Option<Arc<ValidatedAuthenticator>> {
    if !flags.is_any_set() {
        return None;
    }
    let before = errors.len();
    let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (Some(url), Some(client)) = (non_empty(&flags.oidc_issuer_url), non_empty(&flags.oidc_client_id))
    else {
        let problem = "--oidc-issuer-url and --oidc-client-id must be set when any oidc flag is";
        errors.push(ConfigError::Combination(problem.to_owned()));
        return None;
    };
    let claim = non_empty(&flags.oidc_username_claim).unwrap_or_else(|| "sub".to_owned());
    let prefix = match flags.oidc_username_prefix.as_deref() {
        Some(NO_PREFIX) => String::new(),
        Some(prefix) if !prefix.is_empty() => prefix.to_owned(),
        _ if claim == EMAIL => String::new(),
        _ => format!("{url}#"),
    };
    let groups = non_empty(&flags.oidc_groups_claim).map(|claim| PrefixedClaimOrExpression {
        claim,
        prefix: Some(flags.oidc_groups_prefix.clone().unwrap_or_default()),
        expression: String::new(),
    });
    let authenticator = JwtAuthenticator {
        issuer: IssuerSettings {
            url,
            audiences: vec![client],
            certificate_authority: read_certificate_authority(flags, errors),
            ..IssuerSettings::default()
        },
        claim_validation_rules: required_claims(flags, errors),
        claim_mappings: ClaimMappings {
            username: PrefixedClaimOrExpression { claim, prefix: Some(prefix), expression: String::new() },
            groups: groups.unwrap_or_default(),
            ..ClaimMappings::default()
        },
        user_validation_rules: Vec::new(),
    };
    let algorithms = parse_algorithms(flags, errors);
    let field_errors = ErrorList::default();
    let validated = validate(&[authenticator], &algorithms, &FieldPath::new("oidc"), context, &field_errors);
    errors.extend(field_errors.into_list().into_iter().map(|error| rename_to_flag(&error.text)));
    let validated = validated.into_iter().next().filter(|_| errors.len() == before);
    validated.map(Arc::new)
}

fn read_certificate_authority(flags: &OidcFlags, errors: &mut Vec<ConfigError>) -> String {
    let Some(path) = &flags.oidc_ca_file else { return String::new() };
    let read = std::fs::read_to_string(path);
    let error = match read {
        Ok(text) if !text.trim().is_empty() => return text,
        // An empty text as certificate authority means the CAs of the system.
        Ok(_) => "the file is empty".to_owned(),
        Err(error) => error.to_string(),
    };
    errors.push(ConfigError::flag_file("--oidc-ca-file", path, error));
    String::new()
}

/// Parses `--oidc-required-claim`. If a claim is named twice, the last value is used.
fn required_claims(flags: &OidcFlags, errors: &mut Vec<ConfigError>) -> Vec<ClaimValidationRule> {
    let mut rules: Vec<ClaimValidationRule> = Vec::new();
    for pair in &flags.oidc_required_claim {
        let Some((claim, value)) = pair.split_once('=').filter(|(claim, _)| !claim.trim().is_empty()) else {
            let problem = format!("`{pair}` is not of the form claim=value");
            errors.push(ConfigError::flag("--oidc-required-claim", problem));
            continue;
        };
        let (claim, value) = (claim.trim(), value.trim());
        rules.retain(|rule| rule.claim != claim);
        rules.push(ClaimValidationRule {
            claim: claim.to_owned(),
            required_value: value.to_owned(),
            ..ClaimValidationRule::default()
        });
    }
    rules
}

fn parse_algorithms(flags: &OidcFlags, errors: &mut Vec<ConfigError>) -> Vec<Algorithm> {
    let mut algorithms = Vec::new();
    for name in &flags.oidc_signing_algs {
        match Algorithm::parse(name) {
            Some(algorithm) => algorithms.push(algorithm),
            None => {
                let all: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.as_str()).collect();
                let problem = format!("`{name}` is not supported: use {}", all.join(", "));
                errors.push(ConfigError::flag("--oidc-signing-algs", problem));
            }
        }
    }
    if algorithms.is_empty() { vec![Algorithm::RS256] } else { algorithms }
}

/// Converts the text of a field error to an error of the flag that sets the field.
fn rename_to_flag(text: &str) -> ConfigError {
    let flag_error = FLAGS.iter().find_map(|(field, flag)| {
        let rest = text.strip_prefix(field)?;
        let (_, problem) = rest.split_once(": ")?;
        Some(ConfigError::flag(*flag, problem))
    });
    flag_error.unwrap_or_else(|| ConfigError::Combination(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};

    use super::*;
    use crate::authn::jwt::validated::{ClaimRule, MappingSource};
    use crate::config::parse_flags;
    use crate::config_error::error_texts;

    const ISSUER_AND_CLIENT: [&str; 2] = ["--oidc-issuer-url=https://issuer.test", "--oidc-client-id=client"];

    fn read(flags: &[&str]) -> Result<Option<Arc<ValidatedAuthenticator>>, Vec<String>> {
        let context = Context {
            names: Arc::new(Names::new(Preset::Svc, "svc.internal").unwrap()),
            disallowed_issuers: vec!["https://own.test".to_owned()],
            anonymous_conditions: true,
        };
        let flags: OidcFlags = parse_flags(flags).map_err(|error| vec![error.to_string()])?;
        let mut errors = Vec::new();
        let validated = super::read(&flags, &context, &mut errors);
        if errors.is_empty() { Ok(validated) } else { Err(error_texts(errors)) }
    }

    fn read_valid(flags: &[&str]) -> Arc<ValidatedAuthenticator> {
        read(&[&ISSUER_AND_CLIENT, flags].concat()).unwrap().unwrap()
    }

    #[test]
    fn oidc_issuer_url_and_client_id_are_required_together() {
        assert!(read(&[]).unwrap().is_none());
        let together = "--oidc-issuer-url and --oidc-client-id must be set when any oidc flag is";
        for flags in [
            &["--oidc-issuer-url=https://issuer.test"][..],
            &["--oidc-client-id=client"],
            &["--oidc-groups-claim=groups"],
            &["--oidc-signing-algs=RS256"],
            &["--oidc-issuer-url=", "--oidc-client-id=client"],
        ] {
            assert_eq!(read(flags).unwrap_err(), [together], "{flags:?}");
        }
        let validated = read_valid(&[]);
        assert_eq!(
            (validated.issuer.url.as_str(), validated.issuer.audiences.as_slice()),
            ("https://issuer.test", &["client".to_owned()][..])
        );
    }

    #[test]
    fn oidc_username_prefix_follows_flags() {
        for (flags, claim, prefix) in [
            (&[][..], "sub", "https://issuer.test#"),
            (&["--oidc-username-claim=name"], "name", "https://issuer.test#"),
            (&["--oidc-username-claim=email"], "email", ""),
            (&["--oidc-username-claim=email", "--oidc-username-prefix=x:"], "email", "x:"),
            (&["--oidc-username-prefix=oidc:"], "sub", "oidc:"),
            (&["--oidc-username-prefix=-"], "sub", ""),
            (&["--oidc-username-prefix="], "sub", "https://issuer.test#"),
        ] {
            let validated = read_valid(flags);
            let MappingSource::Claim { claim: got, prefix: got_prefix } = &validated.username else {
                panic!("a claim")
            };
            assert_eq!((got.as_str(), got_prefix.as_str()), (claim, prefix), "{flags:?}");
        }
        assert!(read_valid(&[]).groups.is_none());
        let groups = read_valid(&["--oidc-groups-claim=roles", "--oidc-groups-prefix=g:"]);
        assert!(
            matches!(&groups.groups, Some(MappingSource::Claim { claim, prefix }) if claim == "roles" && prefix == "g:")
        );
    }

    #[test]
    fn oidc_required_claim_without_value_is_rejected() {
        let validated = read_valid(&[
            "--oidc-required-claim=a=1,b=2",
            "--oidc-required-claim=c=x=y",
            "--oidc-required-claim=a=3",
        ]);
        let pairs: Vec<(&str, &str)> = validated
            .claim_rules
            .iter()
            .filter_map(|rule| match rule {
                ClaimRule::Required { claim, value } => Some((claim.as_str(), value.as_str())),
                ClaimRule::Expression(_) => None,
            })
            .collect();
        assert_eq!(pairs, [("b", "2"), ("c", "x=y"), ("a", "3")]);
        for bad in ["--oidc-required-claim=a", "--oidc-required-claim==1"] {
            let errors = read(&[&ISSUER_AND_CLIENT[..], &[bad]].concat()).unwrap_err();
            assert!(errors[0].starts_with("--oidc-required-claim: `"), "{errors:?}");
        }
    }

    #[test]
    fn oidc_signing_algs_accepts_only_asymmetric_algorithms() {
        assert_eq!(read_valid(&[]).algorithms, [Algorithm::RS256]);
        for algorithm in Algorithm::ALL {
            assert_eq!(read_valid(&[&format!("--oidc-signing-algs={algorithm}")]).algorithms, [algorithm]);
        }
        let two = read_valid(&["--oidc-signing-algs=ES256,PS512"]);
        assert_eq!(two.algorithms, [Algorithm::ES256, Algorithm::PS512]);
        for bad in ["HS256", "none", "EdDSA", "rs256"] {
            let flag = format!("--oidc-signing-algs=RS256,{bad}");
            let errors = read(&[&ISSUER_AND_CLIENT[..], &[&flag]].concat()).unwrap_err();
            assert!(
                errors[0].starts_with(&format!("--oidc-signing-algs: `{bad}` is not supported: use RS256, "))
            );
        }
    }

    #[test]
    fn oidc_error_names_the_flag() {
        for (flags, expected) in [
            (
                ["--oidc-issuer-url=http://a.test", "--oidc-client-id=c"].as_slice(),
                "--oidc-issuer-url: Invalid value: \"http://a.test\": URL scheme must be https",
            ),
            (
                &["--oidc-issuer-url=https://own.test", "--oidc-client-id=c"],
                "--oidc-issuer-url: Invalid value: \"https://own.test\": URL must not overlap with disallowed issuers: \
                 [https://own.test]",
            ),
            (
                &["--oidc-issuer-url=https://a.test", "--oidc-client-id=c", "--oidc-ca-file=/nonexistent"],
                "--oidc-ca-file: /nonexistent: No such file or directory (os error 2)",
            ),
            (
                &["--oidc-issuer-url=https://a.test", "--oidc-client-id=c", "--oidc-ca-file=/dev/null"],
                "--oidc-ca-file: /dev/null: the file is empty",
            ),
        ] {
            assert_eq!(read(flags).unwrap_err(), [expected]);
        }
    }
}
