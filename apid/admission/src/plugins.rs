//! Table of admission plugins in execution order: names, defaults and constructors.

use serving::gates::Gate;

use crate::always_admit::AlwaysAdmit;
use crate::always_deny::AlwaysDeny;
use crate::always_pull_images::AlwaysPullImages;
use crate::certificate_subject_restriction::CertificateSubjectRestriction;
use crate::default_class::DefaultClass;
use crate::default_toleration_seconds::DefaultTolerationSeconds;
use crate::deny_service_external_ips::DenyServiceExternalIps;
use crate::event_rate_limit::EventRateLimit;
use crate::extended_resource_toleration::ExtendedResourceToleration;
use crate::limit_pod_hard_anti_affinity_topology::LimitPodHardAntiAffinityTopology;
use crate::limit_ranger::LimitRanger;
use crate::mutating_admission_policy::MutatingAdmissionPolicy;
use crate::namespace_existence::{NamespaceAutoProvision, NamespaceExists};
use crate::namespace_lifecycle::NamespaceLifecycle;
use crate::node_restriction::NodeRestriction;
use crate::owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement;
use crate::persistent_volume_claim_resize::PersistentVolumeClaimResize;
use crate::pod_node_selector::PodNodeSelector;
use crate::pod_security::PodSecurity;
use crate::pod_toleration_restriction::PodTolerationRestriction;
use crate::priority::Priority;
use crate::quota::ResourceQuota;
use crate::runtime_class::RuntimeClass;
use crate::service_account::ServiceAccount;
use crate::signers::SignerCheck;
use crate::storage_object_in_use_protection::StorageObjectInUseProtection;
use crate::taint_nodes_by_condition::TaintNodesByCondition;
use crate::validating_admission_policy::ValidatingAdmissionPolicy;
use crate::webhook::{MutatingWebhooks, ValidatingWebhooks};
use crate::{Environment, Plugin, PluginConfiguration, PluginConfigurationError};

/// Entry of a plugin in the table.
pub struct Entry {
    /// Plugin name in flags.
    pub name: &'static str,
    /// Whether the plugin is enabled by default.
    pub on_by_default: bool,
    /// Availability of the plugin.
    pub availability: Availability,
}

/// Builds a plugin from its configuration.
pub type Configure =
    fn(&Environment, Option<&PluginConfiguration>) -> Result<Box<dyn Plugin>, PluginConfigurationError>;

/// Availability of a plugin.
pub enum Availability {
    /// Implemented; accepts no configuration.
    Implemented(fn(&Environment) -> Box<dyn Plugin>),
    /// Implemented, without a configuration, while a feature gate is on and the server has the kinds of the plugin.
    Gated(Gate, fn(&Environment) -> Option<Box<dyn Plugin>>),
    /// Implemented, with a configuration. The error names the location and the defect.
    Configured(Configure),
    /// Not implemented. A flag that enables the plugin is an error; a default is ignored.
    NotImplemented,
}

const fn on(name: &'static str, availability: Availability) -> Entry {
    Entry { name, on_by_default: true, availability }
}

const fn off(name: &'static str, availability: Availability) -> Entry {
    Entry { name, on_by_default: false, availability }
}

/// All plugins of release 1.33. Policies, webhooks, quota and AlwaysDeny are last.
pub static PLUGINS: &[Entry] = &[
    off("AlwaysAdmit", Availability::Implemented(|_| Box::new(AlwaysAdmit))),
    off(
        "NamespaceAutoProvision",
        Availability::Implemented(|environment| Box::new(NamespaceAutoProvision::new(environment))),
    ),
    on(
        "NamespaceLifecycle",
        Availability::Implemented(|environment| Box::new(NamespaceLifecycle::new(environment))),
    ),
    off(
        "NamespaceExists",
        Availability::Implemented(|environment| Box::new(NamespaceExists::new(environment))),
    ),
    off(
        "LimitPodHardAntiAffinityTopology",
        Availability::Implemented(|environment| Box::new(LimitPodHardAntiAffinityTopology::new(environment))),
    ),
    on("LimitRanger", Availability::Implemented(|environment| Box::new(LimitRanger::new(environment)))),
    on("ServiceAccount", Availability::Implemented(|environment| Box::new(ServiceAccount::new(environment)))),
    off(
        "NodeRestriction",
        Availability::Implemented(|environment| Box::new(NodeRestriction::new(environment))),
    ),
    on(
        "TaintNodesByCondition",
        Availability::Implemented(|environment| Box::new(TaintNodesByCondition::new(environment))),
    ),
    off("AlwaysPullImages", Availability::Implemented(|_| Box::new(AlwaysPullImages))),
    off("ImagePolicyWebhook", Availability::NotImplemented),
    on(
        "PodSecurity",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(PodSecurity::new(environment, configuration)?))
        }),
    ),
    off(
        "PodNodeSelector",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(PodNodeSelector::new(environment, configuration)?))
        }),
    ),
    on("Priority", Availability::Implemented(|environment| Box::new(Priority::new(environment)))),
    on(
        "DefaultTolerationSeconds",
        Availability::Implemented(|environment| Box::new(DefaultTolerationSeconds::new(environment))),
    ),
    off(
        "PodTolerationRestriction",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(PodTolerationRestriction::new(environment, configuration)?))
        }),
    ),
    off(
        "EventRateLimit",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(EventRateLimit::new(environment, configuration)?))
        }),
    ),
    off(
        "ExtendedResourceToleration",
        Availability::Implemented(|environment| Box::new(ExtendedResourceToleration::new(environment))),
    ),
    on(
        "DefaultStorageClass",
        Availability::Implemented(|environment| Box::new(DefaultClass::of_storage(environment))),
    ),
    on(
        "StorageObjectInUseProtection",
        Availability::Implemented(|environment| Box::new(StorageObjectInUseProtection::new(environment))),
    ),
    off(
        "OwnerReferencesPermissionEnforcement",
        Availability::Implemented(|environment| {
            Box::new(OwnerReferencesPermissionEnforcement::new(environment))
        }),
    ),
    on(
        "PersistentVolumeClaimResize",
        Availability::Implemented(|environment| Box::new(PersistentVolumeClaimResize::new(environment))),
    ),
    on("RuntimeClass", Availability::Implemented(|environment| Box::new(RuntimeClass::new(environment)))),
    on(
        "CertificateApproval",
        Availability::Implemented(|environment| Box::new(SignerCheck::approval(environment))),
    ),
    on(
        "CertificateSigning",
        Availability::Implemented(|environment| Box::new(SignerCheck::signing(environment))),
    ),
    on(
        "ClusterTrustBundleAttest",
        Availability::Implemented(|environment| Box::new(SignerCheck::attest(environment))),
    ),
    on(
        "CertificateSubjectRestriction",
        Availability::Implemented(|environment| Box::new(CertificateSubjectRestriction::new(environment))),
    ),
    on(
        "DefaultIngressClass",
        Availability::Implemented(|environment| Box::new(DefaultClass::of_ingresses(environment))),
    ),
    off("DenyServiceExternalIPs", Availability::Implemented(|_| Box::new(DenyServiceExternalIps))),
    on("PodTopologyLabels", Availability::NotImplemented),
    on(
        "MutatingAdmissionPolicy",
        Availability::Gated(Gate::MutatingAdmissionPolicy, |environment| {
            Some(Box::new(MutatingAdmissionPolicy::new(environment)?))
        }),
    ),
    on(
        "MutatingAdmissionWebhook",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(MutatingWebhooks::new(environment, configuration)?))
        }),
    ),
    on(
        "ValidatingAdmissionPolicy",
        Availability::Implemented(|environment| Box::new(ValidatingAdmissionPolicy::new(environment))),
    ),
    on(
        "ValidatingAdmissionWebhook",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(ValidatingWebhooks::new(environment, configuration)?))
        }),
    ),
    on(
        "ResourceQuota",
        Availability::Configured(|environment, configuration| {
            Ok(Box::new(ResourceQuota::new(environment, configuration)?))
        }),
    ),
    off("AlwaysDeny", Availability::Implemented(|_| Box::new(AlwaysDeny))),
];

#[cfg(test)]
#[path = "tests/plugins.rs"]
mod tests;
