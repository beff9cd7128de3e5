//! The table of plugins, in the order in which they run: names, defaults, and how those that exist are built.

use crate::namespace_lifecycle::NamespaceLifecycle;
use crate::pod_security::PodSecurity;
use crate::{Environment, Given, Plugin};

/// A plugin of the table.
pub struct Entry {
    /// Its name in flags.
    pub name: &'static str,
    /// Whether it runs when no flag names it.
    pub on_by_default: bool,
    /// What there is of it.
    pub state: State,
}

/// What there is of a plugin.
pub enum State {
    /// It is built so.
    Built(fn(&Environment) -> Box<dyn Plugin>),
    /// It is built so, of what the configuration file says about it. The error names the place and what is wrong with it.
    Configured(fn(&Environment, Option<&Given>) -> Result<Box<dyn Plugin>, String>),
    /// Naming it is accepted and has no effect, since what it would narrow is not there.
    WithoutEffect,
    /// Naming it is an error.
    Missing,
}

const fn on(name: &'static str, state: State) -> Entry {
    Entry { name, on_by_default: true, state }
}

const fn off(name: &'static str, state: State) -> Entry {
    Entry { name, on_by_default: false, state }
}

/// All plugins of release 1.33. Webhooks, quota and the one that denies everything come last.
pub static PLUGINS: &[Entry] = &[
    off("AlwaysAdmit", State::Missing),
    off("NamespaceAutoProvision", State::Missing),
    on("NamespaceLifecycle", State::Built(|environment| Box::new(NamespaceLifecycle::new(environment)))),
    off("NamespaceExists", State::Missing),
    off("LimitPodHardAntiAffinityTopology", State::Missing),
    on("LimitRanger", State::Missing),
    on("ServiceAccount", State::Missing),
    off("NodeRestriction", State::WithoutEffect),
    on("TaintNodesByCondition", State::Missing),
    off("AlwaysPullImages", State::Missing),
    off("ImagePolicyWebhook", State::Missing),
    on(
        "PodSecurity",
        State::Configured(|environment, given| {
            PodSecurity::new(environment, given).map(|plugin| Box::new(plugin) as Box<dyn Plugin>)
        }),
    ),
    off("PodNodeSelector", State::Missing),
    on("Priority", State::Missing),
    on("DefaultTolerationSeconds", State::Missing),
    off("PodTolerationRestriction", State::Missing),
    off("EventRateLimit", State::Missing),
    off("ExtendedResourceToleration", State::Missing),
    on("DefaultStorageClass", State::Missing),
    on("StorageObjectInUseProtection", State::Missing),
    off("OwnerReferencesPermissionEnforcement", State::Missing),
    on("PersistentVolumeClaimResize", State::Missing),
    on("RuntimeClass", State::Missing),
    on("CertificateApproval", State::Missing),
    on("CertificateSigning", State::Missing),
    on("ClusterTrustBundleAttest", State::Missing),
    on("CertificateSubjectRestriction", State::Missing),
    on("DefaultIngressClass", State::Missing),
    off("DenyServiceExternalIPs", State::Missing),
    on("PodTopologyLabels", State::Missing),
    on("MutatingAdmissionPolicy", State::Missing),
    on("MutatingAdmissionWebhook", State::Missing),
    on("ValidatingAdmissionPolicy", State::Missing),
    on("ValidatingAdmissionWebhook", State::Missing),
    on("ResourceQuota", State::Missing),
    off("AlwaysDeny", State::Missing),
];
