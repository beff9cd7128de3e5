//! Names preset: every name with the domain suffix or the vendor prefix.
//!
//! # Contract
//!
//! A process builds one [`Names`] at start from `--names` and `--api-domain` and passes it on. The two
//! columns of requirements appendix (f) are the two presets. Under `svc` both Kubernetes domains become the
//! API domain, `kube-*` namespaces become `svc-*`, `x-kubernetes-*` becomes `x-svc-*`, `vnd.kubernetes`
//! becomes `vnd.svc`, and the Service of the API is `svc`. The names of roles, users and ConfigMaps do not
//! change.
//!
//! # Invariants
//!
//! INVARIANT (names are a preset): no other product code contains a domain suffix or queries the preset.
//! `tests/tidy` lists the exceptions, each with a reason. The few behaviours that requirements appendix (g)
//! marks "preset switch" are the fields of [`Behaviour`].

use std::fmt;
use std::str::FromStr;

use crate::format;

/// Names preset of a server: one of the two columns of requirements appendix (f).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Neutral names under a private domain.
    Svc,
    /// Kubernetes names: kubectl, client-go, kube-rs and Helm work unchanged.
    Kubernetes,
}

impl Preset {
    /// Returns the flag value.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Svc => "svc",
            Preset::Kubernetes => "kubernetes",
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Invalid names preset or domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// No preset has the name.
    #[error("unknown names preset `{0}`: use `svc` or `kubernetes`")]
    UnknownPreset(String),
    /// The domain is not a DNS name of at least two labels.
    #[error(
        "api domain `{0}` must be a lower-case DNS name of at least two labels, like `{DEFAULT_API_DOMAIN}`"
    )]
    InvalidDomain(String),
    /// The domain belongs to Kubernetes.
    #[error("api domain `{0}` belongs to Kubernetes: use `--names kubernetes` for its names")]
    KubernetesDomain(String),
}

impl FromStr for Preset {
    type Err = NamesError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "svc" => Ok(Preset::Svc),
            "kubernetes" => Ok(Preset::Kubernetes),
            other => Err(NamesError::UnknownPreset(other.to_owned())),
        }
    }
}

/// Domain suffix of the `svc` preset without `--api-domain`.
pub const DEFAULT_API_DOMAIN: &str = "svc.internal";

/// Domain of API groups under the Kubernetes names.
const KUBERNETES_GROUP_DOMAIN: &str = "k8s.io";

/// Domain of well-known labels and annotations under the Kubernetes names.
const KUBERNETES_LABEL_DOMAIN: &str = "kubernetes.io";

/// All names that depend on the preset. Cheap to share behind an `Arc`.
#[derive(Clone, Debug)]
pub struct Names {
    preset: Preset,
    api_domain: String,
    /// Domain of API groups: `k8s.io` or the API domain.
    group_domain: String,
    /// Domain of well-known labels, annotations and types: `kubernetes.io` or the API domain.
    label_domain: String,

    /// Namespace of the control plane: `kube-system`, `svc-system`.
    pub system_namespace: &'static str,
    /// Namespace readable by everyone: `kube-public`, `svc-public`.
    pub public_namespace: &'static str,
    /// Namespace of node leases: `kube-node-lease`, `svc-node-lease`.
    pub node_lease_namespace: &'static str,
    /// Name of the API's Service in `default`, and of the finalizer of every namespace.
    pub api_service: &'static str,
    /// Name of the API server in the label of its identity Lease: `kube-apiserver`, `svc-apiserver`.
    pub api_server: &'static str,
    /// Protobuf media type.
    pub protobuf_media_type: &'static str,
    /// Prefix of OpenAPI schema extensions, with the trailing dash.
    pub extension_prefix: &'static str,
    /// Name of the environment variable with the ExecCredential for a credential plugin.
    pub exec_info_env: &'static str,
    /// Name of the backing-store health check.
    pub store_check: &'static str,
    /// Behaviours that follow the preset.
    pub behaviour: Behaviour,
}

/// Behaviours that requirements appendix (g) marks "preset switch".
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// (g) 2: a verbose health response ends with the name of its endpoint, such as `livez check passed`.
    ///
    /// Otherwise the response ends with `healthz check passed` at `/livez` and `/readyz` too.
    pub verbose_ends_with_own_name: bool,
    /// (g) 11: a webhook's `server` must be https and have no parameters.
    pub webhook_server_must_be_plain_https: bool,
    /// (g) 23: unknown fields in a Strict patch fail with 422 and a cause on the field `patch`, not with 400.
    pub strict_patch_is_invalid: bool,
    /// (g) 24: an apply patch with an undeclared field fails with 500, for every value of `fieldValidation`.
    pub undeclared_field_fails_apply: bool,
    /// (g) 25: an apply patch with two list items of the same key fails with 500, not 400.
    pub duplicate_item_under_apply_is_internal: bool,
    /// (g) 26: a JSON Patch `replace` of a missing key succeeds.
    pub replace_of_missing_key_succeeds: bool,
    /// D-SSA-39, which kube-apiserver does not implement: the manager of a write that resets all field owners
    /// owns the other changes of this write.
    pub owner_reset_claims_other_changes: bool,
}

/// A schema extension of custom kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaExtension {
    /// Fields without a property are kept.
    PreserveUnknownFields,
    /// The value is an object with `apiVersion`, `kind` and `metadata`.
    EmbeddedResource,
    /// The value is an integer or a string.
    IntOrString,
    /// Merge rule of a list.
    ListType,
    /// Properties that identify the items of a list.
    ListMapKeys,
    /// Merge rule of an object.
    MapType,
    /// Validation rules in CEL.
    Validations,
}

impl SchemaExtension {
    /// All extensions.
    pub const ALL: [SchemaExtension; 7] = [
        SchemaExtension::PreserveUnknownFields,
        SchemaExtension::EmbeddedResource,
        SchemaExtension::IntOrString,
        SchemaExtension::ListType,
        SchemaExtension::ListMapKeys,
        SchemaExtension::MapType,
        SchemaExtension::Validations,
    ];

    /// Returns the name in stored definitions, which is the same under both presets.
    pub fn stored_name(self) -> &'static str {
        self.names().0
    }

    /// Returns the name under the preset `kubernetes` and the name under `svc`.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            SchemaExtension::PreserveUnknownFields => {
                ("x-kubernetes-preserve-unknown-fields", "x-svc-preserve-unknown-fields")
            }
            SchemaExtension::EmbeddedResource => ("x-kubernetes-embedded-resource", "x-svc-embedded-type"),
            SchemaExtension::IntOrString => ("x-kubernetes-int-or-string", "x-svc-int-or-string"),
            SchemaExtension::ListType => ("x-kubernetes-list-type", "x-svc-list-type"),
            SchemaExtension::ListMapKeys => ("x-kubernetes-list-map-keys", "x-svc-list-map-keys"),
            SchemaExtension::MapType => ("x-kubernetes-map-type", "x-svc-map-type"),
            SchemaExtension::Validations => ("x-kubernetes-validations", "x-svc-validations"),
        }
    }
}

impl Names {
    /// Builds the names of a preset. Only `svc` uses `api_domain`.
    ///
    /// # Errors
    ///
    /// `api_domain` is not a DNS subdomain of at least two labels, or lies in a domain of Kubernetes.
    pub fn new(preset: Preset, api_domain: &str) -> Result<Self, NamesError> {
        if preset == Preset::Svc {
            check_domain(api_domain)?;
        }
        Ok(Names::from_checked_domain(preset, api_domain))
    }

    fn from_checked_domain(preset: Preset, api_domain: &str) -> Self {
        match preset {
            Preset::Kubernetes => Names {
                preset,
                api_domain: api_domain.to_owned(),
                group_domain: KUBERNETES_GROUP_DOMAIN.to_owned(),
                label_domain: KUBERNETES_LABEL_DOMAIN.to_owned(),
                system_namespace: "kube-system",
                public_namespace: "kube-public",
                node_lease_namespace: "kube-node-lease",
                api_service: "kubernetes",
                api_server: "kube-apiserver",
                protobuf_media_type: "application/vnd.kubernetes.protobuf",
                extension_prefix: "x-kubernetes-",
                exec_info_env: "KUBERNETES_EXEC_INFO",
                store_check: "etcd",
                behaviour: Behaviour {
                    verbose_ends_with_own_name: true,
                    webhook_server_must_be_plain_https: false,
                    strict_patch_is_invalid: true,
                    undeclared_field_fails_apply: true,
                    duplicate_item_under_apply_is_internal: true,
                    replace_of_missing_key_succeeds: true,
                    owner_reset_claims_other_changes: false,
                },
            },
            Preset::Svc => Names {
                preset,
                api_domain: api_domain.to_owned(),
                group_domain: api_domain.to_owned(),
                label_domain: api_domain.to_owned(),
                system_namespace: "svc-system",
                public_namespace: "svc-public",
                node_lease_namespace: "svc-node-lease",
                api_service: "svc",
                api_server: "svc-apiserver",
                protobuf_media_type: "application/vnd.svc.protobuf",
                extension_prefix: "x-svc-",
                exec_info_env: "SVC_EXEC_INFO",
                store_check: "storage",
                behaviour: Behaviour {
                    verbose_ends_with_own_name: false,
                    webhook_server_must_be_plain_https: true,
                    strict_patch_is_invalid: false,
                    undeclared_field_fails_apply: false,
                    duplicate_item_under_apply_is_internal: false,
                    replace_of_missing_key_succeeds: false,
                    owner_reset_claims_other_changes: true,
                },
            },
        }
    }

    /// Returns the preset, which a new store records.
    pub fn preset(&self) -> Preset {
        self.preset
    }

    /// Returns the API domain, which a new store records. Meaningless under `kubernetes`.
    pub fn api_domain(&self) -> &str {
        &self.api_domain
    }

    /// Returns the names of the other preset, `svc` with its default domain.
    pub fn with_other_preset(&self) -> Self {
        match self.preset {
            Preset::Kubernetes => Names::from_checked_domain(Preset::Svc, DEFAULT_API_DOMAIN),
            Preset::Svc => Names::from_checked_domain(Preset::Kubernetes, DEFAULT_API_DOMAIN),
        }
    }

    /// Returns the flags that select these names, without a default domain.
    pub fn flags(&self) -> String {
        match (self.preset, self.api_domain.as_str()) {
            (Preset::Svc, domain) if domain != DEFAULT_API_DOMAIN => {
                format!("--names svc --api-domain {domain}")
            }
            (preset, _) => format!("--names {preset}"),
        }
    }

    /// Returns the full name of an API group from its stem, the name without a domain.
    ///
    /// The empty stem is the core group. `apps`, `batch`, `autoscaling` and `extensions` have no domain,
    /// `policy` has one under `svc` only (appendix (g) 3), and all others have one.
    pub fn group(&self, stem: &str) -> String {
        match stem {
            "" | "apps" | "batch" | "autoscaling" | "extensions" => stem.to_owned(),
            "policy" if self.preset == Preset::Kubernetes => stem.to_owned(),
            _ => format!("{stem}.{}", self.group_domain),
        }
    }

    /// Returns the stem of a full group name; the inverse of [`Names::group`]. Returns None if it is not a group of this API.
    pub fn stem<'a>(&self, group: &'a str) -> Option<&'a str> {
        let stem = group.strip_suffix(self.group_domain.as_str()).and_then(|s| s.strip_suffix('.'));
        let stem = stem.unwrap_or(group);
        (self.group(stem) == group).then_some(stem)
    }

    /// Returns the name of a type in OpenAPI documents from its package and name: `core/v1`, `ConfigMap`.
    ///
    /// Under `kubernetes` this is the name that generated clients know. Under `svc` it is the API domain from
    /// the last label to the first, package and name.
    pub fn definition(&self, package: &str, name: &str) -> String {
        let domain: Vec<&str> = self.group_domain.rsplit('.').collect();
        let root = package.split('/').next().unwrap_or_default();
        let segment = match (self.preset, root) {
            (Preset::Kubernetes, "meta") => "apimachinery.pkg.apis",
            (Preset::Kubernetes, "apiextensions") => "apiextensions-apiserver.pkg.apis",
            (Preset::Kubernetes, "apiregistration") => "kube-aggregator.pkg.apis",
            (Preset::Kubernetes, "runtime" | "version") => "apimachinery.pkg",
            (Preset::Kubernetes, "resource" | "intstr") if !package.contains('/') => {
                let segment = if root == "resource" { "api" } else { "util" };
                return format!("{}.apimachinery.pkg.{segment}.{root}.{name}", domain.join("."));
            }
            _ => "api",
        };
        format!("{}.{segment}.{}.{name}", domain.join("."), package.replace('/', "."))
    }

    /// Returns the flags of the preset under which the API group with this stem has the name `group`.
    ///
    /// None means this preset, or no preset. Messages use the flags as a hint about files for a server with other
    /// names.
    pub fn flags_of_other_preset(&self, stem: &str, group: &str) -> Option<String> {
        let domain = group.strip_prefix(stem)?.strip_prefix('.')?;
        if domain == self.group_domain || domain == self.label_domain {
            None
        } else if [KUBERNETES_GROUP_DOMAIN, KUBERNETES_LABEL_DOMAIN].contains(&domain) {
            Some("--names kubernetes".to_owned())
        } else if domain == DEFAULT_API_DOMAIN {
            Some("--names svc".to_owned())
        } else {
            Some(format!("--names svc --api-domain {domain}"))
        }
    }

    /// Returns the Go source position of the scheme of a group, by its stem, for messages about unregistered
    /// kinds.
    ///
    /// A scheme is a table of kinds: kube-apiserver has one for each of the three servers that it contains.
    ///
    /// Returns None if the preset is `svc`.
    pub fn scheme_source(&self, stem: &str) -> Option<&'static str> {
        match (self.preset, stem) {
            (Preset::Svc, _) => None,
            (Preset::Kubernetes, "apiextensions") => {
                Some("k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55")
            }
            (Preset::Kubernetes, "apiregistration") => {
                Some("k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28")
            }
            (Preset::Kubernetes, _) => Some("pkg/api/legacyscheme/scheme.go:30"),
        }
    }

    /// Returns the title of OpenAPI documents.
    pub fn api_title(&self) -> &'static str {
        match self.preset {
            Preset::Kubernetes => "Kubernetes",
            Preset::Svc => "API",
        }
    }

    /// Returns a key in the domain of API groups: `group_key("deprecated")` is `k8s.io/deprecated`.
    pub fn group_key(&self, name: &str) -> String {
        format!("{}/{name}", self.group_domain)
    }

    /// Returns a key in a sub-domain of API groups: `group_sub_key("rbac.authorization", "x")` is
    /// `rbac.authorization.k8s.io/x`.
    pub fn group_sub_key(&self, sub: &str, name: &str) -> String {
        format!("{sub}.{}/{name}", self.group_domain)
    }

    /// Returns a key in the domain of labels: `kubernetes.io/metadata.name`.
    pub fn label_key(&self, name: &str) -> String {
        format!("{}/{name}", self.label_domain)
    }

    /// Returns a key in a sub-domain of labels: `label_sub_key("node", "x")` is `node.kubernetes.io/x`.
    pub fn label_sub_key(&self, sub: &str, name: &str) -> String {
        format!("{sub}.{}/{name}", self.label_domain)
    }

    /// Returns the name of a key in a sub-domain of labels; None for any other key.
    ///
    /// The inverse of [`Names::label_sub_key`].
    pub fn strip_label_sub_key<'a>(&self, sub: &str, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(sub)?.strip_prefix('.')?.strip_prefix(self.label_domain.as_str())?.strip_prefix('/')
    }

    /// Returns the name of a schema extension in requests and responses.
    pub fn schema_extension(&self, extension: SchemaExtension) -> &'static str {
        let (kubernetes, svc) = extension.names();
        match self.preset {
            Preset::Kubernetes => kubernetes,
            Preset::Svc => svc,
        }
    }

    /// Whether a group lies in a domain of the preset, where a custom kind needs an approval.
    pub fn is_protected_group(&self, group: &str) -> bool {
        [&self.group_domain, &self.label_domain].into_iter().any(|domain| {
            group.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    }

    /// Returns the key of the annotation that approves a custom kind in a protected group.
    pub fn approval_annotation(&self) -> String {
        format!("api-approved.{}", self.label_domain)
    }

    /// Returns `meta.k8s.io`: the group of Table, PartialObjectMetadata and the options.
    pub fn meta_group(&self) -> String {
        self.group("meta")
    }

    /// Returns the key of the label of default policy objects; its value is `rbac-defaults`.
    pub fn bootstrapping_label(&self) -> String {
        self.label_key("bootstrapping")
    }

    /// Returns the key of the annotation that enables or disables the restoration of a default policy object.
    pub fn autoupdate_annotation(&self) -> String {
        self.label_sub_key("rbac.authorization", "autoupdate")
    }

    /// Returns the key of the label that aggregates the rules of a ClusterRole into `admin`, `edit` or
    /// `view`.
    pub fn aggregate_to_label(&self, role: &str) -> String {
        self.group_sub_key("rbac.authorization", &format!("aggregate-to-{role}"))
    }

    /// Returns the key of the label that every namespace has; its value is the name of the namespace.
    pub fn metadata_name_label(&self) -> String {
        self.label_key("metadata.name")
    }

    /// Returns the key in the `extra` of a user whose value identifies the credential.
    pub fn credential_id_extra(&self) -> String {
        self.label_sub_key("authentication", "credential-id")
    }

    /// Returns the lower-case names of the response headers with the uids of the flow schema and of the priority
    /// level of a request.
    pub fn flow_control_headers(&self) -> (&'static str, &'static str) {
        match self.preset {
            Preset::Svc => ("x-pf-flowschema-uid", "x-pf-prioritylevel-uid"),
            Preset::Kubernetes => ("x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"),
        }
    }

    /// Returns the domain of well-known labels, annotations and types, without a key.
    pub fn label_domain(&self) -> &str {
        &self.label_domain
    }

    /// Translates an API group from the Kubernetes names. `*` and groups without a domain stay the same,
    /// except `policy`.
    pub fn translate_group(&self, group: &str) -> String {
        match group.strip_suffix(&format!(".{KUBERNETES_GROUP_DOMAIN}")) {
            Some(stem) => self.group(stem),
            None if group == "policy" => self.group(group),
            None => group.to_owned(),
        }
    }

    /// Translates a text from the Kubernetes names: the name of a built-in namespace, or the domains in any
    /// other text.
    pub fn translate(&self, text: &str) -> String {
        match text {
            "kube-system" => self.system_namespace.to_owned(),
            "kube-public" => self.public_namespace.to_owned(),
            "kube-node-lease" => self.node_lease_namespace.to_owned(),
            _ => text
                .replace(KUBERNETES_LABEL_DOMAIN, &self.label_domain)
                .replace(KUBERNETES_GROUP_DOMAIN, &self.group_domain),
        }
    }
}

fn check_domain(domain: &str) -> Result<(), NamesError> {
    let is_label = |part: &str| format::label(part).is_empty();
    if domain.len() > 200 || !domain.contains('.') || !domain.split('.').all(is_label) {
        return Err(NamesError::InvalidDomain(domain.to_owned()));
    }
    if domain.ends_with(KUBERNETES_GROUP_DOMAIN) || domain.ends_with(KUBERNETES_LABEL_DOMAIN) {
        return Err(NamesError::KubernetesDomain(domain.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_other_preset_hints_at_its_flags() {
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let svc = Names::new(Preset::Svc, "svc.internal").unwrap();
        let stem = "apiserver.config";
        for (names, group, flags) in [
            (&kubernetes, "apiserver.config.svc.internal", Some("--names svc")),
            (&kubernetes, "apiserver.config.example.test", Some("--names svc --api-domain example.test")),
            (&kubernetes, "apiserver.config.k8s.io", None),
            (&svc, "apiserver.config.k8s.io", Some("--names kubernetes")),
            (&svc, "apiserver.config.svc.internal", None),
            (&svc, "other.k8s.io", None),
        ] {
            assert_eq!(names.flags_of_other_preset(stem, group).as_deref(), flags, "{group}");
        }
    }

    #[test]
    fn flags_select_names_of_preset_and_domain() {
        let svc = Names::new(Preset::Svc, DEFAULT_API_DOMAIN).unwrap();
        let kubernetes = svc.with_other_preset();
        assert_eq!(
            (kubernetes.preset(), kubernetes.flags().as_str()),
            (Preset::Kubernetes, "--names kubernetes")
        );
        let other = kubernetes.with_other_preset();
        assert_eq!(
            (other.preset(), other.api_domain(), other.flags().as_str()),
            (Preset::Svc, DEFAULT_API_DOMAIN, "--names svc")
        );
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        assert_eq!(svc.flags(), "--names svc --api-domain example.test");
    }

    #[test]
    fn api_group_and_stem_are_inverse_in_both_presets() {
        for (preset, policy, rbac) in [
            (Preset::Kubernetes, "policy", "rbac.authorization.k8s.io"),
            (Preset::Svc, "policy.example.test", "rbac.authorization.example.test"),
        ] {
            let names = Names::new(preset, "example.test").unwrap();
            assert_eq!(names.group("policy"), policy);
            assert_eq!(names.group("rbac.authorization"), rbac);
            for stem in ["", "apps", "policy", "rbac.authorization", "storage"] {
                assert_eq!(names.stem(&names.group(stem)), Some(stem), "{preset}");
            }
            assert_eq!(names.stem("storage"), None, "a group that needs the domain is unknown without it");
            assert_eq!(names.stem("widgets.example.com"), None);
        }
    }

    #[test]
    fn kubernetes_names_translate_to_names_of_preset() {
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        for (group, translated) in [
            ("", ""),
            ("*", "*"),
            ("apps", "apps"),
            ("policy", "policy.example.test"),
            ("rbac.authorization.k8s.io", "rbac.authorization.example.test"),
        ] {
            assert_eq!(svc.translate_group(group), translated);
            assert_eq!(kubernetes.translate_group(group), group);
        }
        for (text, translated) in [
            ("kube-system", "svc-system"),
            ("kube-public", "svc-public"),
            ("system:kube-scheduler", "system:kube-scheduler"),
            ("policy", "policy"),
            ("kubernetes.io/bootstrapping", "example.test/bootstrapping"),
            ("rbac.authorization.k8s.io/v1", "rbac.authorization.example.test/v1"),
        ] {
            assert_eq!(svc.translate(text), translated);
            assert_eq!(kubernetes.translate(text), text);
        }
    }

    #[test]
    fn openapi_definitions_are_named_after_packages() {
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        for (package, name, known, neutral) in [
            ("core/v1", "Pod", "io.k8s.api.core.v1.Pod", "test.example.api.core.v1.Pod"),
            (
                "meta/v1",
                "Status",
                "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
                "test.example.api.meta.v1.Status",
            ),
            (
                "resource",
                "Quantity",
                "io.k8s.apimachinery.pkg.api.resource.Quantity",
                "test.example.api.resource.Quantity",
            ),
            (
                "resource/v1beta1",
                "Device",
                "io.k8s.api.resource.v1beta1.Device",
                "test.example.api.resource.v1beta1.Device",
            ),
            (
                "intstr",
                "IntOrString",
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
                "test.example.api.intstr.IntOrString",
            ),
            (
                "apiregistration/v1",
                "APIService",
                "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
                "test.example.api.apiregistration.v1.APIService",
            ),
        ] {
            assert_eq!(kubernetes.definition(package, name), known);
            assert_eq!(svc.definition(package, name), neutral);
        }
    }

    #[test]
    fn schema_extensions_follow_preset() {
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        for extension in SchemaExtension::ALL {
            assert_eq!(kubernetes.schema_extension(extension), extension.stored_name());
            assert!(svc.schema_extension(extension).starts_with(svc.extension_prefix));
        }
        let embedded =
            [&kubernetes, &svc].map(|names| names.schema_extension(SchemaExtension::EmbeddedResource));
        assert_eq!(embedded, ["x-kubernetes-embedded-resource", "x-svc-embedded-type"]);
    }

    #[test]
    fn groups_in_preset_domains_are_protected() {
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        for group in ["k8s.io", "a.k8s.io", "kubernetes.io", "a.b.kubernetes.io"] {
            assert!(kubernetes.is_protected_group(group) && !svc.is_protected_group(group), "{group}");
        }
        for group in ["xk8s.io", "example.com", "k8s.io.example.com"] {
            assert!(!kubernetes.is_protected_group(group), "{group}");
        }
        assert!(svc.is_protected_group("a.example.test") && !svc.is_protected_group("example.com"));
        assert_eq!(kubernetes.approval_annotation(), "api-approved.kubernetes.io");
        assert_eq!(svc.approval_annotation(), "api-approved.example.test");
    }

    #[test]
    fn invalid_api_domains_are_rejected() {
        for bad in ["", "internal", "Upper.case", "a..b", "-a.b", "foo.k8s.io"] {
            assert!(Names::new(Preset::Svc, bad).is_err(), "{bad}");
        }
    }
}
