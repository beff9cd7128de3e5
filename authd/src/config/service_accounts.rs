//! The flags of service-account tokens, and their keys.
//!
//! # Contract
//!
//! The verifying keys are those of `--service-account-key-file`, else the serving key. The signing key is
//! that of `--service-account-signing-key-file`, or the first private verifying key (requirements A-SA-2 to
//! -7, A-SA-23). Without any key flag authd uses the key in `--generated-key-file`, and creates the file if
//! it is missing, so that tokens stay valid after a restart. New tokens name the first issuer, and tokens of
//! all issuers are accepted; the default issuer is the URL of the API's own Service. When key files change,
//! authd activates the new keyring as a whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use processflags::ServiceAccountFlags;
use serving::reload::Snapshot;

use crate::config_error::ConfigError;
use crate::tokens::keyring::Keyring;
use crate::tokens::keys::{self, PemKey};
use crate::tokens::service_account::{Issuer, IssuerOptions};

/// The smallest valid value of `--service-account-max-token-expiration`.
const MIN_EXPIRATION: Duration = Duration::from_secs(3600);
/// The greatest valid value of `--service-account-max-token-expiration`.
const MAX_EXPIRATION: Duration = Duration::from_secs(1 << 32);

/// The flags of service-account tokens and of their keys.
#[derive(Debug, Default)]
pub(super) struct ServiceAccountTokenFlags {
    pub(super) service_accounts: ServiceAccountFlags,
    /// The serving key, which verifies tokens unless `--service-account-key-file` is set.
    pub(super) tls_private_key_file: Option<PathBuf>,
    /// The file of the generated key, which is used only without any other key flag.
    pub(super) generated_key_file: Option<PathBuf>,
}

/// The files of the keys that sign and verify service-account tokens.
#[derive(Clone, Debug, Default)]
pub struct KeyFiles {
    /// The files of verifying keys, each with its flag.
    verifying: Vec<(&'static str, PathBuf)>,
    /// The file of `--service-account-signing-key-file`.
    signing: Option<PathBuf>,
}

impl KeyFiles {
    /// Collects the files of the flags. Creates the generated key if its file is used and missing.
    fn from_flags(flags: &ServiceAccountTokenFlags, errors: &mut Vec<ConfigError>) -> Self {
        let ServiceAccountTokenFlags { service_accounts, tls_private_key_file, generated_key_file } = flags;
        let has_key_flag = !service_accounts.service_account_key_file.is_empty()
            || service_accounts.service_account_signing_key_file.is_some()
            || tls_private_key_file.is_some();
        let generated = generated_key_file.as_ref().filter(|_| !has_key_flag);
        if let Some(Err(error)) = generated.map(|path| serving::certs::ensure_key(path)) {
            errors.push(ConfigError::flag("--generated-key-file", error.to_string()));
            return KeyFiles::default();
        }
        let serving =
            tls_private_key_file.iter().filter(|_| service_accounts.service_account_key_file.is_empty());
        let key_files =
            service_accounts.service_account_key_file.iter().map(|path| ("--service-account-key-file", path));
        let verifying = key_files
            .chain(serving.map(|path| ("--tls-private-key-file", path)))
            .chain(generated.map(|path| ("--generated-key-file", path)))
            .map(|(flag, path)| (flag, path.clone()))
            .collect();
        KeyFiles { verifying, signing: service_accounts.service_account_signing_key_file.clone() }
    }

    /// Reads the keys.
    ///
    /// # Errors
    ///
    /// All errors, each with its flag and file.
    pub fn read(&self) -> Result<Keyring, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let verifying: Vec<PemKey> =
            self.verifying.iter().flat_map(|(flag, path)| read(flag, path, &mut errors)).collect();
        let first_private_key = |keys: &[PemKey]| keys.iter().find_map(|key| key.signing.clone());
        let signing = match &self.signing {
            None => first_private_key(&verifying),
            Some(path) => {
                let flag = "--service-account-signing-key-file";
                let keys = read(flag, path, &mut errors);
                let key = first_private_key(&keys);
                if key.is_none() && !keys.is_empty() {
                    errors.push(ConfigError::flag_file(flag, path, "no private key"));
                }
                key
            }
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let public: Vec<_> = verifying.into_iter().map(|key| key.public).collect();
        Ok(Keyring::new(signing, &public))
    }

    /// Returns the paths of all key files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.verifying.iter().map(|(_, path)| path).chain(&self.signing).cloned().collect()
    }
}

/// Checks the flags. Returns the issuer, the key files, and the snapshot of the files before they were read.
/// The issuer is None if no key is configured or errors were added. `audiences` are those of the API server.
pub(super) fn check(
    flags: &ServiceAccountTokenFlags,
    audiences: &[String],
    names: &Names,
    errors: &mut Vec<ConfigError>,
) -> (Option<Arc<Issuer>>, KeyFiles, Snapshot) {
    let error_count = errors.len();
    let files = KeyFiles::from_flags(flags, errors);
    let before_read = Snapshot::new(files.paths());
    let ring = files.read().unwrap_or_else(|problems| {
        errors.extend(problems);
        Keyring::default()
    });
    let service_accounts = &flags.service_accounts;
    if let Some(longest) = service_accounts.service_account_max_token_expiration
        && !(MIN_EXPIRATION..=MAX_EXPIRATION).contains(&longest)
    {
        errors.push(ConfigError::flag(
            "--service-account-max-token-expiration",
            "must be between 1h and 2^32 seconds",
        ));
    }
    for issuer in &service_accounts.service_account_issuer {
        if issuer.is_empty() || (issuer.contains(':') && !issuer.contains("://")) {
            let problem = format!("`{issuer}` is empty, or has a colon and is not a URL");
            errors.push(ConfigError::flag("--service-account-issuer", problem));
        }
    }
    if let Some(uri) = &service_accounts.service_account_jwks_uri
        && !uri.starts_with("https://")
    {
        let problem = format!("`{uri}` must begin with https://");
        errors.push(ConfigError::flag("--service-account-jwks-uri", problem));
    }
    if errors.len() > error_count || ring.is_empty() {
        return (None, files, before_read);
    }
    let options = IssuerOptions {
        issuers: issuers(service_accounts, names),
        audiences: audiences.to_vec(),
        max_lifetime: service_accounts.service_account_max_token_expiration,
        extend: service_accounts.service_account_extend_token_expiration.unwrap_or(true),
        jwks_uri: service_accounts.service_account_jwks_uri.clone(),
    };
    (Some(Arc::new(Issuer::new(options, ring, names))), files, before_read)
}

/// Reads the keys of a file. An invalid file adds an error and yields no keys.
fn read(flag: &str, path: &Path, errors: &mut Vec<ConfigError>) -> Vec<PemKey> {
    let keys = std::fs::read(path)
        .map_err(|error| error.to_string())
        .and_then(|pem| keys::read(&pem).map_err(|error| error.to_string()));
    keys.unwrap_or_else(|error| {
        errors.push(ConfigError::flag_file(flag, path, error));
        Vec::new()
    })
}

/// Returns the issuers of `--service-account-issuer`, or the URL of the API's own Service.
pub(super) fn issuers(flags: &ServiceAccountFlags, names: &Names) -> Vec<String> {
    if flags.service_account_issuer.is_empty() {
        vec![format!("https://{}.default.svc", names.api_service)]
    } else {
        flags.service_account_issuer.clone()
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use crate::config_error::error_texts;
    use crate::tokens::service_account::{ObjectIdentity, PrivateClaims, TokenParameters};

    use super::*;

    #[test]
    fn tokens_of_all_key_files_are_verified() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let issuer = |key_files: &[PathBuf], signing: Option<&PathBuf>| {
            let service_accounts = ServiceAccountFlags {
                service_account_key_file: key_files.to_vec(),
                service_account_signing_key_file: signing.cloned(),
                ..ServiceAccountFlags::default()
            };
            let flags = ServiceAccountTokenFlags { service_accounts, ..ServiceAccountTokenFlags::default() };
            let mut errors = Vec::new();
            let (issuer, ..) = check(&flags, &["api".into()], &names, &mut errors);
            assert_eq!(error_texts(errors), [] as [&str; 0]);
            issuer.unwrap()
        };
        let pairs = [0, 1, 2].map(|n| {
            let key = rcgen::KeyPair::generate().unwrap();
            let private = write(&format!("private-{n}"), key.serialize_pem());
            (private, write(&format!("public-{n}"), key.public_key_pem()))
        });
        let verifier = issuer(&[pairs[0].1.clone(), pairs[1].1.clone()], None);
        for (n, (private, public)) in pairs.iter().enumerate() {
            let signer = issuer(std::slice::from_ref(public), Some(private));
            let serviceaccount = ObjectIdentity { name: "robot".to_owned(), uid: "u-1".to_owned() };
            let claims =
                PrivateClaims { namespace: "team".to_owned(), serviceaccount, ..PrivateClaims::default() };
            let parameters = TokenParameters { claims, audiences: Vec::new(), seconds: 0 };
            let now = jiff::Timestamp::UNIX_EPOCH;
            let token = signer.issue(parameters, "id".to_owned(), now).unwrap().token;
            let is_verified = verifier.read(&token, now).is_some_and(|claims| claims.is_ok());
            assert_eq!(is_verified, n < 2, "key {n}");
        }
    }

    #[test]
    fn service_account_keys_default_to_serving_or_generated_key() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let private = write("private", key.serialize_pem());
        let public = write("public", key.public_key_pem());
        let empty = write("empty", String::new());
        let check = |flags: ServiceAccountTokenFlags| {
            let mut errors = Vec::new();
            let (issuer, ..) = check(&flags, &["api".into()], &names, &mut errors);
            match (issuer, errors.is_empty()) {
                (Some(issuer), true) => if issuer.signs() { "signs" } else { "verifies" }.to_owned(),
                (None, true) => "nothing".to_owned(),
                (_, false) => error_texts(errors).join("; "),
            }
        };
        let with_service_accounts = |service_accounts| ServiceAccountTokenFlags {
            service_accounts,
            ..ServiceAccountTokenFlags::default()
        };
        assert_eq!(check(ServiceAccountTokenFlags::default()), "nothing");
        let generated_file = dir.path().join("keys/made");
        let generated = || ServiceAccountTokenFlags {
            generated_key_file: Some(generated_file.clone()),
            ..ServiceAccountTokenFlags::default()
        };
        assert_eq!(check(generated()), "signs");
        let first = std::fs::read(&generated_file).unwrap();
        assert_eq!(check(generated()), "signs");
        assert_eq!(std::fs::read(&generated_file).unwrap(), first, "the generated key is kept");
        assert_eq!(
            check(ServiceAccountTokenFlags {
                tls_private_key_file: Some(private.clone()),
                ..ServiceAccountTokenFlags::default()
            }),
            "signs"
        );
        assert_eq!(
            check(with_service_accounts(ServiceAccountFlags {
                service_account_key_file: vec![private.clone()],
                ..ServiceAccountFlags::default()
            })),
            "signs"
        );
        assert_eq!(
            check(with_service_accounts(ServiceAccountFlags {
                service_account_key_file: vec![public.clone()],
                ..ServiceAccountFlags::default()
            })),
            "verifies"
        );
        let separate_keys = with_service_accounts(ServiceAccountFlags {
            service_account_key_file: vec![public.clone()],
            service_account_signing_key_file: Some(private.clone()),
            ..ServiceAccountFlags::default()
        });
        assert_eq!(check(separate_keys), "signs");
        for (flags, expected) in [
            (
                with_service_accounts(ServiceAccountFlags {
                    service_account_signing_key_file: Some(public),
                    ..ServiceAccountFlags::default()
                }),
                "--service-account-signing-key-file: ",
            ),
            (
                with_service_accounts(ServiceAccountFlags {
                    service_account_key_file: vec![empty],
                    ..ServiceAccountFlags::default()
                }),
                "--service-account-key-file: ",
            ),
            (
                // The file does not exist.
                with_service_accounts(ServiceAccountFlags {
                    service_account_key_file: vec!["/nope".into()],
                    ..ServiceAccountFlags::default()
                }),
                "--service-account-key-file: /nope: ",
            ),
            (
                with_service_accounts(ServiceAccountFlags {
                    service_account_max_token_expiration: Some(Duration::from_secs(60)),
                    ..ServiceAccountFlags::default()
                }),
                "--service-account-max-token-expiration: ",
            ),
            (
                with_service_accounts(ServiceAccountFlags {
                    service_account_issuer: vec!["a:b".into()],
                    ..ServiceAccountFlags::default()
                }),
                "--service-account-issuer: ",
            ),
            (
                with_service_accounts(ServiceAccountFlags {
                    service_account_jwks_uri: Some("http://a".into()),
                    ..ServiceAccountFlags::default()
                }),
                "--service-account-jwks-uri: ",
            ),
        ] {
            let result = check(flags);
            assert!(result.starts_with(expected), "{result}");
        }
    }
}
