//! Table of admission plugins in execution order: names, defaults and constructors.

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
use crate::{Environment, Given, Plugin};

/// Entry of a plugin in the table.
pub struct Entry {
    /// Plugin name in flags.
    pub name: &'static str,
    /// Whether the plugin is enabled by default.
    pub on_by_default: bool,
    /// Availability of the plugin.
    pub state: State,
}

/// Builds a plugin from its configuration; the error describes the defect.
pub type Configure = fn(&Environment, Option<&Given>) -> Result<Box<dyn Plugin>, String>;

/// Availability of a plugin.
pub enum State {
    /// Implemented, without a configuration.
    Built(fn(&Environment) -> Box<dyn Plugin>),
    /// Implemented, with a configuration. The error names the location and the defect.
    Configured(Configure),
    /// Not implemented; enabling the plugin is an error.
    Missing,
}

const fn on(name: &'static str, state: State) -> Entry {
    Entry { name, on_by_default: true, state }
}

const fn off(name: &'static str, state: State) -> Entry {
    Entry { name, on_by_default: false, state }
}

/// All plugins of release 1.33. Webhooks, quota and AlwaysDeny are last.
pub static PLUGINS: &[Entry] = &[
    off("AlwaysAdmit", State::Built(|_| Box::new(AlwaysAdmit))),
    off(
        "NamespaceAutoProvision",
        State::Built(|environment| Box::new(NamespaceAutoProvision::new(environment))),
    ),
    on("NamespaceLifecycle", State::Built(|environment| Box::new(NamespaceLifecycle::new(environment)))),
    off("NamespaceExists", State::Built(|environment| Box::new(NamespaceExists::new(environment)))),
    off(
        "LimitPodHardAntiAffinityTopology",
        State::Built(|environment| Box::new(LimitPodHardAntiAffinityTopology::new(environment))),
    ),
    on("LimitRanger", State::Built(|environment| Box::new(LimitRanger::new(environment)))),
    on("ServiceAccount", State::Built(|environment| Box::new(ServiceAccount::new(environment)))),
    off("NodeRestriction", State::Built(|environment| Box::new(NodeRestriction::new(environment)))),
    on(
        "TaintNodesByCondition",
        State::Built(|environment| Box::new(TaintNodesByCondition::new(environment))),
    ),
    off("AlwaysPullImages", State::Built(|_| Box::new(AlwaysPullImages))),
    off("ImagePolicyWebhook", State::Missing),
    on(
        "PodSecurity",
        State::Configured(|environment, given| {
            PodSecurity::new(environment, given).map(|plugin| Box::new(plugin) as Box<dyn Plugin>)
        }),
    ),
    off(
        "PodNodeSelector",
        State::Configured(|environment, given| {
            PodNodeSelector::new(environment, given).map(|plugin| Box::new(plugin) as Box<dyn Plugin>)
        }),
    ),
    on("Priority", State::Built(|environment| Box::new(Priority::new(environment)))),
    on(
        "DefaultTolerationSeconds",
        State::Built(|environment| Box::new(DefaultTolerationSeconds::new(environment))),
    ),
    off(
        "PodTolerationRestriction",
        State::Configured(|environment, given| {
            PodTolerationRestriction::new(environment, given)
                .map(|plugin| Box::new(plugin) as Box<dyn Plugin>)
        }),
    ),
    off(
        "EventRateLimit",
        State::Configured(|environment, given| Ok(Box::new(EventRateLimit::new(environment, given)?))),
    ),
    off(
        "ExtendedResourceToleration",
        State::Built(|environment| Box::new(ExtendedResourceToleration::new(environment))),
    ),
    on("DefaultStorageClass", State::Built(|environment| Box::new(DefaultClass::of_storage(environment)))),
    on(
        "StorageObjectInUseProtection",
        State::Built(|environment| Box::new(StorageObjectInUseProtection::new(environment))),
    ),
    off(
        "OwnerReferencesPermissionEnforcement",
        State::Built(|environment| Box::new(OwnerReferencesPermissionEnforcement::new(environment))),
    ),
    on(
        "PersistentVolumeClaimResize",
        State::Built(|environment| Box::new(PersistentVolumeClaimResize::new(environment))),
    ),
    on("RuntimeClass", State::Built(|environment| Box::new(RuntimeClass::new(environment)))),
    on("CertificateApproval", State::Built(|environment| Box::new(SignerCheck::approval(environment)))),
    on("CertificateSigning", State::Built(|environment| Box::new(SignerCheck::signing(environment)))),
    on("ClusterTrustBundleAttest", State::Built(|environment| Box::new(SignerCheck::attest(environment)))),
    on(
        "CertificateSubjectRestriction",
        State::Built(|environment| Box::new(CertificateSubjectRestriction::new(environment))),
    ),
    on("DefaultIngressClass", State::Built(|environment| Box::new(DefaultClass::of_ingresses(environment)))),
    off("DenyServiceExternalIPs", State::Built(|_| Box::new(DenyServiceExternalIps))),
    on("PodTopologyLabels", State::Missing),
    on("MutatingAdmissionPolicy", State::Missing),
    on("MutatingAdmissionWebhook", State::Missing),
    on("ValidatingAdmissionPolicy", State::Missing),
    on("ValidatingAdmissionWebhook", State::Missing),
    on(
        "ResourceQuota",
        State::Configured(|environment, given| Ok(Box::new(ResourceQuota::new(environment, given)?))),
    ),
    off("AlwaysDeny", State::Built(|_| Box::new(AlwaysDeny))),
];
