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
use crate::{
    BuildPlugin, ConfigurePlugin, Environment, Plugin, PluginConfiguration, PluginConfigurationError,
};

/// A plugin in the table.
pub struct PluginEntry {
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
    /// Implemented, without a configuration, while a feature gate is on and the server has the kinds of the
    /// plugin.
    Gated(Gate, fn(&Environment) -> Option<Box<dyn Plugin>>),
    /// Implemented, with a configuration. The error names the location and the defect.
    Configured(Configure),
    /// Not implemented. A flag that enables the plugin is an error; a default is ignored.
    NotImplemented,
}

const fn on_by_default(name: &'static str, availability: Availability) -> PluginEntry {
    PluginEntry { name, on_by_default: true, availability }
}

const fn off_by_default(name: &'static str, availability: Availability) -> PluginEntry {
    PluginEntry { name, on_by_default: false, availability }
}

const fn implemented<P: BuildPlugin>() -> Availability {
    Availability::Implemented(|environment| Box::new(P::new(environment)))
}

const fn configured<P: ConfigurePlugin>() -> Availability {
    Availability::Configured(|environment, configuration| Ok(Box::new(P::new(environment, configuration)?)))
}

/// All plugins of release 1.33. Policies, webhooks, quota and AlwaysDeny are last.
pub static PLUGINS: &[PluginEntry] = &[
    off_by_default("AlwaysAdmit", Availability::Implemented(|_| Box::new(AlwaysAdmit))),
    off_by_default("NamespaceAutoProvision", implemented::<NamespaceAutoProvision>()),
    on_by_default("NamespaceLifecycle", implemented::<NamespaceLifecycle>()),
    off_by_default("NamespaceExists", implemented::<NamespaceExists>()),
    off_by_default("LimitPodHardAntiAffinityTopology", implemented::<LimitPodHardAntiAffinityTopology>()),
    on_by_default("LimitRanger", implemented::<LimitRanger>()),
    on_by_default("ServiceAccount", implemented::<ServiceAccount>()),
    off_by_default("NodeRestriction", implemented::<NodeRestriction>()),
    on_by_default("TaintNodesByCondition", implemented::<TaintNodesByCondition>()),
    off_by_default("AlwaysPullImages", Availability::Implemented(|_| Box::new(AlwaysPullImages))),
    off_by_default("ImagePolicyWebhook", Availability::NotImplemented),
    on_by_default("PodSecurity", configured::<PodSecurity>()),
    off_by_default("PodNodeSelector", configured::<PodNodeSelector>()),
    on_by_default("Priority", implemented::<Priority>()),
    on_by_default("DefaultTolerationSeconds", implemented::<DefaultTolerationSeconds>()),
    off_by_default("PodTolerationRestriction", configured::<PodTolerationRestriction>()),
    off_by_default("EventRateLimit", configured::<EventRateLimit>()),
    off_by_default("ExtendedResourceToleration", implemented::<ExtendedResourceToleration>()),
    on_by_default(
        "DefaultStorageClass",
        Availability::Implemented(|environment| Box::new(DefaultClass::for_storage(environment))),
    ),
    on_by_default("StorageObjectInUseProtection", implemented::<StorageObjectInUseProtection>()),
    off_by_default(
        "OwnerReferencesPermissionEnforcement",
        implemented::<OwnerReferencesPermissionEnforcement>(),
    ),
    on_by_default("PersistentVolumeClaimResize", implemented::<PersistentVolumeClaimResize>()),
    on_by_default("RuntimeClass", implemented::<RuntimeClass>()),
    on_by_default(
        "CertificateApproval",
        Availability::Implemented(|environment| Box::new(SignerCheck::approval(environment))),
    ),
    on_by_default(
        "CertificateSigning",
        Availability::Implemented(|environment| Box::new(SignerCheck::signing(environment))),
    ),
    on_by_default(
        "ClusterTrustBundleAttest",
        Availability::Implemented(|environment| Box::new(SignerCheck::attest(environment))),
    ),
    on_by_default("CertificateSubjectRestriction", implemented::<CertificateSubjectRestriction>()),
    on_by_default(
        "DefaultIngressClass",
        Availability::Implemented(|environment| Box::new(DefaultClass::for_ingresses(environment))),
    ),
    off_by_default("DenyServiceExternalIPs", Availability::Implemented(|_| Box::new(DenyServiceExternalIps))),
    on_by_default("PodTopologyLabels", Availability::NotImplemented),
    on_by_default(
        "MutatingAdmissionPolicy",
        Availability::Gated(Gate::MutatingAdmissionPolicy, |environment| {
            Some(Box::new(MutatingAdmissionPolicy::new(environment)?))
        }),
    ),
    on_by_default("MutatingAdmissionWebhook", configured::<MutatingWebhooks>()),
    on_by_default("ValidatingAdmissionPolicy", implemented::<ValidatingAdmissionPolicy>()),
    on_by_default("ValidatingAdmissionWebhook", configured::<ValidatingWebhooks>()),
    on_by_default("ResourceQuota", configured::<ResourceQuota>()),
    off_by_default("AlwaysDeny", Availability::Implemented(|_| Box::new(AlwaysDeny))),
];

#[cfg(test)]
#[path = "tests/plugins.rs"]
mod tests;
