//! The file of `--encryption-provider-config`: an `EncryptionConfiguration` of `apiserver.config/v1`, in YAML or JSON.
//!
//! # Contract
//!
//! The reader is strict: unknown and duplicate fields are errors. All errors of a file are reported together, each
//! with its line and field.
//!
//! # Invariants
//!
//! INVARIANT (no key material in messages): no error contains the value of a `secret`, and no error quotes the file.
//!
//! # Reference
//!
//! The rules and texts are those of kube-apiserver. Its message about two providers in one element quotes the keys;
//! here the message names the providers. `kms` with `apiVersion: v1`, which is also its default, is rejected.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apimachinery::document::{Document, DocumentError, Fields};
use apimachinery::duration;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupResource;
use apimachinery::names::Names;
use aws_lc_rs::digest;
use zeroize::Zeroizing;

use crate::secret::SecretBytes;

/// The kind of the file.
const KIND: &str = "EncryptionConfiguration";
/// The stem of the API group of the file.
const GROUP: &str = "apiserver.config";
/// The only version of the API group of the file.
const VERSION: &str = "v1";
/// Sizes of AES keys in bytes.
const AES_KEY_SIZES: &[usize] = &[16, 24, 32];
/// Size of a key of `secretbox` in bytes.
const SECRETBOX_KEY_SIZES: &[usize] = &[32];
/// Timeout of calls to a KMS plugin without a `timeout`.
const DEFAULT_KMS_TIMEOUT: Duration = Duration::from_secs(3);
/// Scheme of the endpoint of a KMS plugin.
const UNIX_SCHEME: &str = "unix";
/// Resources of kube-apiserver in etcd without a REST API.
const WITHOUT_API: [&str; 3] = ["apiserveripinfo", "serviceipallocations", "servicenodeportallocations"];
/// The field names of the providers.
const PROVIDERS: [&str; 5] = ["aesgcm", "aescbc", "secretbox", "identity", "kms"];

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// `sha256:` and the SHA-256 of the bytes of the file in hexadecimal.
    pub hash: String,
}

/// Resources with the providers of their values.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The resources: names, `*` for all resources of a group, group and resource `*` for all resources.
    pub resources: Vec<GroupResource>,
    /// The providers. The first one encrypts; each one decrypts.
    pub providers: Vec<ProviderConfiguration>,
}

/// A provider of a rule.
#[derive(Clone, Debug)]
pub enum ProviderConfiguration {
    /// AES-CBC with PKCS#7 padding; without authentication.
    AesCbc(Vec<NamedKey>),
    /// AES-GCM, bound to the storage key of the object.
    AesGcm(Vec<NamedKey>),
    /// XSalsa20-Poly1305.
    Secretbox(Vec<NamedKey>),
    /// No encryption.
    Identity,
    /// A KMS plugin with the protocol v2.
    Kms(KmsConfiguration),
}

/// A key with its name, which stands before each value that the key encrypts.
#[derive(Clone, Debug)]
pub struct NamedKey {
    /// The name.
    pub name: String,
    /// The key.
    pub secret: SecretBytes,
}

/// The connection to a KMS plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsConfiguration {
    /// The name, which stands before each value that the provider encrypts.
    pub name: String,
    /// Path of the Unix socket. A path that begins with `@` is an abstract socket.
    pub socket: String,
    /// Timeout of each call.
    pub timeout: Duration,
}

/// The errors of a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be read.
    #[error("error reading encryption provider configuration file `{}`: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The failure.
        error: io::Error,
    },
    /// The file has no content.
    #[error("encryption provider configuration file `{}` is empty", .0.display())]
    Empty(PathBuf),
    /// The content is invalid.
    #[error("encryption provider configuration file `{}`: {}", .path.display(), JoinedErrors(.errors))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All errors of the file.
        errors: Vec<DocumentError>,
    },
}

struct JoinedErrors<'a>(&'a [DocumentError]);

impl fmt::Display for JoinedErrors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl Configuration {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its content is invalid.
    pub fn read(path: &Path, names: &Names) -> Result<Self, ConfigurationError> {
        let bytes = std::fs::read(path)
            .map_err(|error| ConfigurationError::Unreadable { path: path.to_owned(), error })?;
        Configuration::parse(path, &Zeroizing::new(bytes), names)
    }

    /// Parses the content of a file.
    ///
    /// # Errors
    ///
    /// The content is invalid.
    pub fn parse(path: &Path, bytes: &[u8], names: &Names) -> Result<Self, ConfigurationError> {
        let invalid = |errors| ConfigurationError::Invalid { path: path.to_owned(), errors };
        let document = Document::read(bytes).map_err(|error| invalid(vec![without_content(error)]))?;
        if document.is_empty() || bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(ConfigurationError::Empty(path.to_owned()));
        }
        let version = format!("{}/{VERSION}", names.group(GROUP));
        let events_group = names.group("events");
        let rules = document.decode(KIND, &[version], |fields| read_rules(fields, &events_group));
        let rules = rules.map_err(invalid)?;
        let rejected = masked_rule(&rules).map(|text| DocumentError { line: None, text });
        match rejected {
            Some(error) => Err(invalid(vec![error])),
            None => Ok(Configuration { rules, hash: hash(bytes) }),
        }
    }

    /// The configurations of all KMS plugins, in the order of the file.
    pub fn kms_providers(&self) -> impl Iterator<Item = &KmsConfiguration> {
        self.rules.iter().flat_map(|rule| &rule.providers).filter_map(|provider| match provider {
            ProviderConfiguration::Kms(kms) => Some(kms),
            _ => None,
        })
    }
}

/// Replaces the text of a syntax error, which can quote the file.
fn without_content(error: DocumentError) -> DocumentError {
    DocumentError { text: "is not valid YAML or JSON".to_owned(), ..error }
}

/// `sha256:` and the SHA-256 of bytes in hexadecimal.
pub(crate) fn hash(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = "sha256:".to_owned();
    for byte in digest::digest(&digest::SHA256, bytes).as_ref() {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn read_rules(fields: &mut Fields<'_>, events_group: &str) -> Vec<Rule> {
    let mut kms_names = BTreeSet::new();
    let rules = fields.objects("resources", |rule| {
        let names = rule.texts("resources");
        let path = rule.path().child("resources");
        if names.is_empty() {
            rule.errors().add(&required_item(&path));
        }
        for error in overlaps(&names, &path) {
            rule.errors().add(&error);
        }
        for (index, name) in names.iter().enumerate() {
            if let Some(problem) = resource_problem(name, events_group) {
                rule.errors().add(&FieldError::invalid(&path.index(index), name.as_str(), &problem));
            }
        }
        let providers = rule.objects("providers", |provider| read_provider(provider, &mut kms_names));
        if providers.is_empty() {
            rule.errors().add(&required_item(&rule.path().child("providers")));
        }
        Rule {
            resources: names.iter().map(|name| group_resource(name)).collect(),
            providers: providers.into_iter().flatten().collect(),
        }
    });
    if rules.is_empty() {
        fields.errors().add(&required_item(&fields.path().child("resources")));
    }
    rules
}

fn required_item(path: &FieldPath) -> FieldError {
    FieldError::required(path, &format!("at least one {path} is required"))
}

/// The group and resource of a name, as `schema.ParseGroupResource` of Kubernetes reads it: `RESOURCE.GROUP`.
fn group_resource(name: &str) -> GroupResource {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    GroupResource { group: group.to_owned(), resource: resource.to_owned() }
}

/// The name of a resource as in the file.
fn resource_name(resource: &GroupResource) -> String {
    match (resource.resource.as_str(), resource.group.as_str()) {
        ("*", "") => "*.".to_owned(),
        (name, "") => name.to_owned(),
        (name, group) => format!("{name}.{group}"),
    }
}

/// The errors of resources in one list that mask each other.
fn overlaps(names: &[String], path: &FieldPath) -> Vec<FieldError> {
    const REPEATED: &str = "the same resource cannot be specified multiple times";
    const MASKED: &str = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed \
                          as they will be masked";
    let distinct: BTreeSet<&String> = names.iter().collect();
    if distinct.len() < names.len() {
        return vec![FieldError::invalid_collection(path, &names, REPEATED)];
    }
    let is_masked = |name: &String| {
        let resource = group_resource(name);
        let all_of_group = GroupResource { resource: "*".to_owned(), ..resource.clone() };
        names.iter().any(|other| {
            other != name && (other == "*.*" || (other != "*" && group_resource(other) == all_of_group))
        })
    };
    if names.iter().any(is_masked) {
        return vec![FieldError::invalid_collection(path, &names, MASKED)];
    }
    Vec::new()
}

/// The reason why a name is no resource that can be encrypted.
fn resource_problem(name: &str, events_group: &str) -> Option<String> {
    if name.chars().any(char::is_uppercase) {
        return Some("resource name should not contain capital letters".to_owned());
    }
    if name == "*" {
        return Some(
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
                .to_owned(),
        );
    }
    if WITHOUT_API.contains(&name) {
        return Some("resources which do not have REST API/s cannot be encrypted".to_owned());
    }
    let resource = group_resource(name);
    if resource.group == events_group {
        return Some(format!(
            "'*.{events_group}' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
             config file"
        ));
    }
    if resource.group == "extensions" {
        return Some("'extensions' group has been removed and cannot be used for encryption".to_owned());
    }
    if resource.group == "*" && resource.resource != "*" {
        return Some(
            "use '*.*' to encrypt all resources; a resource cannot be encrypted across all groups".to_owned(),
        );
    }
    None
}

/// Reads an element of `providers`. Records its errors; None if it has no usable provider.
fn read_provider(fields: &mut Fields<'_>, kms_names: &mut BTreeSet<String>) -> Option<ProviderConfiguration> {
    let path = fields.path().clone();
    let gcm = fields.object("aesgcm", |keys| ProviderConfiguration::AesGcm(read_keys(keys, AES_KEY_SIZES)));
    let cbc = fields.object("aescbc", |keys| ProviderConfiguration::AesCbc(read_keys(keys, AES_KEY_SIZES)));
    let secretbox = fields
        .object("secretbox", |keys| ProviderConfiguration::Secretbox(read_keys(keys, SECRETBOX_KEY_SIZES)));
    let identity = fields.object("identity", |_| ProviderConfiguration::Identity);
    let kms = fields.object("kms", |kms| ProviderConfiguration::Kms(read_kms(kms, kms_names)));
    let candidates = [gcm, cbc, secretbox, identity, kms];
    let found: Vec<&str> = PROVIDERS
        .iter()
        .zip(&candidates)
        .filter(|(_, provider)| provider.is_some())
        .map(|(name, _)| *name)
        .collect();
    match found.len() {
        1 => candidates.into_iter().flatten().next(),
        0 => {
            let text = "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity";
            fields.errors().add(&FieldError::invalid_without_value(&path, text));
            None
        }
        _ => {
            let text = format!(
                "more than one provider specified in a single element, should split into different list elements: {}",
                found.join(", ")
            );
            fields.errors().add(&FieldError::invalid_without_value(&path, &text));
            None
        }
    }
}

fn read_keys(fields: &mut Fields<'_>, sizes: &[usize]) -> Vec<NamedKey> {
    let path = fields.path().child("keys");
    let mut count = 0;
    let keys = fields.objects("keys", |key| {
        count += 1;
        read_key(key, sizes)
    });
    if count == 0 {
        fields.errors().add(&FieldError::required(&path, "at least one keys is required"));
    }
    keys.into_iter().flatten().collect()
}

fn read_key(fields: &mut Fields<'_>, sizes: &[usize]) -> Option<NamedKey> {
    const REDACTED: &str = "REDACTED";
    let (name, text) = (fields.text("name"), Zeroizing::new(fields.text("secret")));
    let (path, errors) = (fields.path().clone(), fields.errors());
    if name.is_empty() {
        errors.add(&FieldError::required(&path.child("name"), "name is a mandatory field for a key"));
    }
    let secret_path = path.child("secret");
    if text.is_empty() {
        errors.add(&FieldError::required(&secret_path, "secret is a mandatory field for a key"));
        return None;
    }
    let Some(secret) = SecretBytes::from_base64(&text) else {
        errors.add(&FieldError::invalid(&secret_path, REDACTED, "secrets must be base64 encoded"));
        return None;
    };
    let length = secret.expose().len();
    if !sizes.contains(&length) {
        let expected: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let problem = format!(
            "secret is not of the expected length, got {length}, expected one of [{}]",
            expected.join(" ")
        );
        errors.add(&FieldError::invalid(&secret_path, REDACTED, &problem));
        return None;
    }
    Some(NamedKey { name, secret })
}

fn read_kms(fields: &mut Fields<'_>, names: &mut BTreeSet<String>) -> KmsConfiguration {
    let version = fields.optional_text("apiVersion").unwrap_or_else(|| "v1".to_owned());
    let (name, endpoint) = (fields.text("name"), fields.text("endpoint"));
    let (timeout, cache_size) = (fields.optional_text("timeout"), fields.integer("cachesize"));
    let (path, errors) = (fields.path().clone(), fields.errors());
    match version.as_str() {
        "v2" => {}
        "v1" => {
            let text = "KMSv1 is deprecated and apid does not implement it; set apiVersion to v2, and use a plugin with \
                        the protocol v2";
            errors.add(&FieldError::invalid(&path.child("apiVersion"), "v1", text));
        }
        other => {
            let text =
                format!("unsupported apiVersion {other} for KMS provider, only v1 and v2 are supported");
            errors.add(&FieldError::invalid(&path.child("apiVersion"), other, &text));
        }
    }
    let name_path = path.child("name");
    if name.is_empty() {
        errors.add(&FieldError::required(&name_path, "name is a mandatory field for a provider"));
    } else if name.contains(':') {
        let text = format!("invalid KMS provider name {name}, must not contain ':'");
        errors.add(&FieldError::invalid(&name_path, name.as_str(), &text));
    }
    if !name.is_empty() && !names.insert(name.clone()) {
        let text = format!("duplicate KMS provider name {name}, names must be unique");
        errors.add(&FieldError::invalid(&name_path, name.as_str(), &text));
    }
    if cache_size.is_some_and(|size| size != 0) {
        let value = cache_size.unwrap_or_default();
        errors.add(&FieldError::invalid(&path.child("cachesize"), value, "cachesize is not supported in v2"));
    }
    let socket = socket(&endpoint).unwrap_or_else(|problem| {
        errors.add(&FieldError::invalid(&path.child("endpoint"), endpoint.as_str(), &problem));
        String::new()
    });
    let timeout = timeout.map_or(Ok(DEFAULT_KMS_TIMEOUT), |text| kms_timeout(&text).map_err(|p| (text, p)));
    let timeout = timeout.unwrap_or_else(|(text, problem)| {
        errors.add(&FieldError::invalid(&path.child("timeout"), text, &problem));
        DEFAULT_KMS_TIMEOUT
    });
    KmsConfiguration { name, socket, timeout }
}

/// The path of the socket of an endpoint `unix://PATH`. As in kube-apiserver, `unix:///@name` is an abstract socket.
fn socket(endpoint: &str) -> Result<String, String> {
    if endpoint.is_empty() {
        return Err("endpoint is a mandatory field for a kms".to_owned());
    }
    let Some((scheme, rest)) = endpoint.split_once(':') else {
        return Err(format!("unsupported scheme {:?} for KMS provider, only unix is supported", ""));
    };
    if scheme != UNIX_SCHEME {
        return Err(format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported"));
    }
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let path = if path.starts_with("/@") { path.trim_start_matches('/') } else { path };
    if path.is_empty() {
        return Err("endpoint has no path of a socket; write unix:///PATH".to_owned());
    }
    Ok(path.to_owned())
}

fn kms_timeout(text: &str) -> Result<Duration, String> {
    match duration::parse_nanos(text) {
        Ok(nanos) => match u64::try_from(nanos) {
            Ok(nanos) if nanos > 0 => Ok(Duration::from_nanos(nanos)),
            _ => Err("timeout should be a positive value".to_owned()),
        },
        Err(error) => Err(error.to_string()),
    }
}

/// The error of a rule that an earlier rule with `*` masks.
fn masked_rule(rules: &[Rule]) -> Option<String> {
    let mut earlier: BTreeSet<(String, String)> = BTreeSet::new();
    for rule in rules {
        for resource in &rule.resources {
            let masking = [(resource.group.clone(), "*".to_owned()), ("*".to_owned(), "*".to_owned())];
            if let Some((group, name)) = masking.into_iter().find(|masking| earlier.contains(masking)) {
                let masking = resource_name(&GroupResource { group, resource: name });
                return Some(format!(
                    "resource {:?} is masked by earlier rule {masking:?}",
                    resource_name(resource)
                ));
            }
        }
        let keys = rule.resources.iter().map(|resource| (resource.group.clone(), resource.resource.clone()));
        earlier.extend(keys);
    }
    None
}
