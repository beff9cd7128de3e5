//! Table of admission plugins in execution order: names, defaults and constructors.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serving::gates::Gate;

use crate::reinvocation::Reinvocation;
use crate::timing::Phase;
use crate::{Attributes, Environment, Interest, Plugin, PluginConfiguration, PluginConfigurationError};

/// A plugin in the table.
pub struct PluginEntry {
    /// Plugin name in flags.
    pub name: &'static str,
    /// Whether the plugin is enabled by default.
    pub on_by_default: bool,
    /// Whether the plugin accepts a configuration.
    pub(crate) is_configurable: bool,
    /// None for a plugin that is not implemented. A flag that enables the plugin is then an error; a default is
    /// ignored.
    pub(crate) build: Option<Build>,
}

/// Builds a plugin, with its configuration if the configuration file has one. None while the gate of the plugin
/// is off, or if the server does not serve its kinds.
pub(crate) type Build =
    fn(&Environment, Option<&PluginConfiguration>) -> Result<Option<AnyPlugin>, PluginConfigurationError>;

impl PluginEntry {
    const fn off_by_default(self) -> Self {
        PluginEntry { on_by_default: false, ..self }
    }

    const fn configurable(self) -> Self {
        PluginEntry { is_configurable: true, ..self }
    }
}

const fn plugin(name: &'static str, build: Build) -> PluginEntry {
    PluginEntry { name, on_by_default: true, is_configurable: false, build: Some(build) }
}

const fn not_implemented(name: &'static str) -> PluginEntry {
    PluginEntry { name, on_by_default: true, is_configurable: false, build: None }
}

fn built(plugin: impl Into<AnyPlugin>) -> Result<Option<AnyPlugin>, PluginConfigurationError> {
    Ok(Some(plugin.into()))
}

/// All plugins of release 1.33. Policies, webhooks, quota and AlwaysDeny are last.
pub static PLUGINS: &[PluginEntry] = &[
    plugin("AlwaysAdmit", |_, _| built(AlwaysAdmit)).off_by_default(),
    plugin("NamespaceAutoProvision", |_, _| built(NamespaceAutoProvision)).off_by_default(),
    plugin("NamespaceLifecycle", |_, _| built(NamespaceLifecycle)),
    plugin("NamespaceExists", |_, _| built(NamespaceExists)).off_by_default(),
    plugin("LimitPodHardAntiAffinityTopology", |_, _| built(LimitPodHardAntiAffinityTopology))
        .off_by_default(),
    plugin("LimitRanger", |_, _| built(LimitRanger)),
    plugin("ServiceAccount", |_, _| built(ServiceAccount)),
    plugin("NodeRestriction", |environment, _| built(NodeRestriction::new(environment))).off_by_default(),
    plugin("TaintNodesByCondition", |_, _| built(TaintNodesByCondition)),
    plugin("AlwaysPullImages", |_, _| built(AlwaysPullImages)).off_by_default(),
    not_implemented("ImagePolicyWebhook").off_by_default(),
    plugin("PodSecurity", |environment, file| built(PodSecurity::new(environment, file)?)).configurable(),
    plugin("PodNodeSelector", |_, file| built(PodNodeSelector::new(file)?)).configurable().off_by_default(),
    plugin("Priority", |_, _| built(Priority)),
    plugin("DefaultTolerationSeconds", |_, _| built(DefaultTolerationSeconds)),
    plugin("PodTolerationRestriction", |environment, file| {
        built(PodTolerationRestriction::new(environment, file)?)
    })
    .configurable()
    .off_by_default(),
    plugin("EventRateLimit", |environment, file| built(EventRateLimit::new(environment, file)?))
        .configurable()
        .off_by_default(),
    plugin("ExtendedResourceToleration", |_, _| built(ExtendedResourceToleration)).off_by_default(),
    plugin("DefaultStorageClass", |_, _| built(DefaultClass::Storage)),
    plugin("StorageObjectInUseProtection", |_, _| built(StorageObjectInUseProtection)),
    plugin("OwnerReferencesPermissionEnforcement", |_, _| built(OwnerReferencesPermissionEnforcement))
        .off_by_default(),
    plugin("PersistentVolumeClaimResize", |_, _| built(PersistentVolumeClaimResize)),
    plugin("RuntimeClass", |_, _| built(RuntimeClass)),
    plugin("CertificateApproval", |_, _| built(SignerCheck::APPROVAL)),
    plugin("CertificateSigning", |_, _| built(SignerCheck::SIGNING)),
    plugin("ClusterTrustBundleAttest", |_, _| built(SignerCheck::ATTEST)),
    plugin("CertificateSubjectRestriction", |_, _| built(CertificateSubjectRestriction)),
    plugin("DefaultIngressClass", |_, _| built(DefaultClass::Ingress)),
    plugin("DenyServiceExternalIPs", |_, _| built(DenyServiceExternalIps)).off_by_default(),
    not_implemented("PodTopologyLabels"),
    plugin("MutatingAdmissionPolicy", |environment, _| {
        let is_on = environment.gates.enabled(Gate::MutatingAdmissionPolicy);
        Ok(is_on.then(|| MutatingAdmissionPolicy::new(environment)).flatten().map(AnyPlugin::from))
    }),
    plugin("MutatingAdmissionWebhook", |environment, file| {
        built(Webhooks::new(Phase::Mutating, environment, file)?)
    })
    .configurable(),
    plugin("ValidatingAdmissionPolicy", |_, _| built(ValidatingAdmissionPolicy::default())),
    plugin("ValidatingAdmissionWebhook", |environment, file| {
        built(Webhooks::new(Phase::Validating, environment, file)?)
    })
    .configurable(),
    plugin("ResourceQuota", |environment, file| built(ResourceQuota::new(environment, file)?)).configurable(),
    plugin("AlwaysDeny", |_, _| built(AlwaysDeny)).off_by_default(),
];

/// Defines the enum of these plugins and its calls.
macro_rules! any_plugin {
    ($($module:ident::$plugin:ident)*) => {
        $(use crate::$module::$plugin;)*

        /// A plugin of the table. Static dispatch avoids an allocation for the future of each call.
        #[expect(clippy::large_enum_variant, reason = "a chain has one value for each plugin")]
        pub(crate) enum AnyPlugin {
            $($plugin($plugin),)*
            #[cfg(test)]
            Test(Box<dyn crate::testing::TestPlugin>),
        }

        $(impl From<$plugin> for AnyPlugin {
            fn from(plugin: $plugin) -> Self {
                AnyPlugin::$plugin(plugin)
            }
        })*

        impl AnyPlugin {
            /// See [`Plugin::interest`].
            pub(crate) fn interest(&self) -> Interest {
                match self {
                    $(AnyPlugin::$plugin(plugin) => plugin.interest(),)*
                    #[cfg(test)]
                    AnyPlugin::Test(plugin) => plugin.interest(),
                }
            }

            /// See [`Plugin::mutate_in_round`].
            pub(crate) async fn mutate(
                &self,
                attributes: &Attributes<'_>,
                object: Option<&mut Object>,
                reinvocation: &mut Reinvocation,
            ) -> Result<(), Status> {
                match self {
                    $(AnyPlugin::$plugin(plugin) => {
                        plugin.mutate_in_round(attributes, object, reinvocation).await
                    })*
                    #[cfg(test)]
                    AnyPlugin::Test(plugin) => plugin.mutate(attributes, object).await,
                }
            }

            /// See [`Plugin::validate`].
            pub(crate) async fn validate(
                &self,
                attributes: &Attributes<'_>,
                object: Option<&Object>,
            ) -> Result<(), Status> {
                match self {
                    $(AnyPlugin::$plugin(plugin) => plugin.validate(attributes, object).await,)*
                    #[cfg(test)]
                    AnyPlugin::Test(plugin) => plugin.validate(attributes, object).await,
                }
            }
        }
    };
}

any_plugin! {
    always_admit::AlwaysAdmit
    always_deny::AlwaysDeny
    always_pull_images::AlwaysPullImages
    certificate_subject_restriction::CertificateSubjectRestriction
    default_class::DefaultClass
    default_toleration_seconds::DefaultTolerationSeconds
    deny_service_external_ips::DenyServiceExternalIps
    event_rate_limit::EventRateLimit
    extended_resource_toleration::ExtendedResourceToleration
    limit_pod_hard_anti_affinity_topology::LimitPodHardAntiAffinityTopology
    limit_ranger::LimitRanger
    mutating_admission_policy::MutatingAdmissionPolicy
    namespace_existence::NamespaceAutoProvision
    namespace_existence::NamespaceExists
    namespace_lifecycle::NamespaceLifecycle
    node_restriction::NodeRestriction
    owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement
    persistent_volume_claim_resize::PersistentVolumeClaimResize
    pod_node_selector::PodNodeSelector
    pod_security::PodSecurity
    pod_toleration_restriction::PodTolerationRestriction
    priority::Priority
    quota::ResourceQuota
    runtime_class::RuntimeClass
    service_account::ServiceAccount
    signers::SignerCheck
    storage_object_in_use_protection::StorageObjectInUseProtection
    taint_nodes_by_condition::TaintNodesByCondition
    validating_admission_policy::ValidatingAdmissionPolicy
    webhook::Webhooks
}

#[cfg(test)]
#[path = "tests/plugins.rs"]
mod tests;
