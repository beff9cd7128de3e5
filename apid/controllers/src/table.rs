//! The table of the controllers that `--controllers` enables.
//!
//! A new controller is one file with its reconcile function, and one row here. Work of kube-apiserver itself has
//! no row: the names and objects of definitions, the start objects, the expiry of Events, IPAddress objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serving::controller_names;

use super::{
    ControllerOptions, ControllerState, Loops, certificates, garbage, namespaces, policy_types, publishers,
    quota, service_accounts, storage_migration, volume_protection,
};

/// Starts the tasks of a controller.
type Start = fn(&mut Loops, Arc<ControllerState>, &ControllerOptions);

/// The names of the controllers of kube-controller-manager, and their starts.
const ROWS: &[(&str, Start)] = &[
    ("certificatesigningrequest-cleaner-controller", |loops, state, _| {
        loops.spawn(certificates::clean(state))
    }),
    (CERTIFICATE_SIGNER, |loops, state, options| {
        if let Some(signing) = options.signing.clone() {
            loops.spawn(certificates::sign(state, signing));
        }
    }),
    (GARBAGE_COLLECTOR, |loops, state, _| loops.spawn(garbage::run(state))),
    // The task that tracks the use of token Secrets always runs and starts the clean-up.
    (TOKEN_SECRET_CLEANER, |_, _, _| {}),
    ("namespace-controller", |loops, state, _| loops.spawn(namespaces::run(state))),
    ("persistentvolume-protection-controller", |loops, state, _| {
        loops.spawn(volume_protection::protect_volumes(state))
    }),
    ("persistentvolumeclaim-protection-controller", |loops, state, _| {
        loops.spawn(volume_protection::protect_claims(state))
    }),
    ("resourcequota-controller", |loops, state, _| loops.spawn(quota::run(state))),
    (ROOT_CA_PUBLISHER, |loops, state, options| {
        if let Some(file) = options.published_config.root_ca.clone() {
            loops.spawn(publishers::root_ca::publish_in_namespaces(state, file));
        }
    }),
    // The repair of IPAddress objects always runs and includes this controller.
    (SERVICE_CIDRS, |_, _, _| {}),
    ("serviceaccount-controller", |loops, state, _| loops.spawn(service_accounts::run(state))),
    // authd fills in the tokens.
    ("serviceaccount-token-controller", |loops, state, options| {
        if let Some(file) = options.published_config.root_ca.clone() {
            loops.spawn(publishers::root_ca::complete_secrets(state, file));
        }
    }),
    ("storage-version-migrator-controller", |loops, state, _| loops.spawn(storage_migration::run(state))),
    ("validatingadmissionpolicy-status-controller", |loops, state, _| loops.spawn(policy_types::run(state))),
];

/// The signer of CertificateSigningRequests.
pub const CERTIFICATE_SIGNER: &str = "certificatesigningrequest-signing-controller";
/// The garbage collector.
pub const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
/// The publisher of the CA bundle in each namespace.
pub const ROOT_CA_PUBLISHER: &str = "root-ca-certificate-publisher-controller";
/// The controller of finalizer and condition of ServiceCIDRs.
pub(super) const SERVICE_CIDRS: &str = "service-cidr-controller";
/// The clean-up of unused token Secrets.
pub(super) const TOKEN_SECRET_CLEANER: &str = "legacy-serviceaccount-token-cleaner-controller";

/// The names of the enabled controllers: all by default, otherwise those that `--controllers` enables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnabledControllers(BTreeSet<&'static str>);

impl EnabledControllers {
    /// Determines the enabled controllers from the entries of `--controllers`.
    pub fn new(entries: &[String]) -> Self {
        let is_enabled = |name: &&str| {
            let names = [*name, controller_names::old_name(name).unwrap_or(name)];
            serving::flags::is_controller_enabled(entries, &names, true)
        };
        EnabledControllers(ROWS.iter().map(|(name, _)| *name).filter(is_enabled).collect())
    }

    /// Whether the controller with this name is enabled. `name` is the name since Kubernetes 1.28.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Enables or disables a controller.
    pub fn set(&mut self, name: &'static str, is_enabled: bool) {
        match is_enabled {
            true => self.0.insert(name),
            false => self.0.remove(name),
        };
    }
}

/// Starts the enabled controllers as loops of the leader.
pub(super) fn start_controllers(
    loops: &mut Loops,
    state: &Arc<ControllerState>,
    options: &ControllerOptions,
) {
    for (_, start) in ROWS.iter().filter(|(name, _)| options.enabled.is_enabled(name)) {
        start(loops, Arc::clone(state), options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[&str]) -> EnabledControllers {
        EnabledControllers::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
    }

    fn all_except(name: &'static str) -> EnabledControllers {
        let mut all = parse(&[]);
        all.set(name, false);
        all
    }

    #[test]
    fn controllers_are_enabled_by_name_and_by_default() {
        assert_eq!(parse(&[]).0.len(), ROWS.len(), "each row has a name of its own");
        assert_eq!(parse(&["*", "bootstrapsigner"]), parse(&[]));
        assert_eq!(parse(&[""]), EnabledControllers::default(), "an empty value enables nothing");
        assert_eq!(parse(&["deployment"]), EnabledControllers::default());
        assert_eq!(parse(&["*", "-csrsigning"]), all_except(CERTIFICATE_SIGNER));
        assert_eq!(parse(&["-pv-protection", "*"]), all_except("persistentvolume-protection-controller"));
        assert_eq!(parse(&["*", " -serviceaccount"]), all_except("serviceaccount-controller"));
    }

    #[test]
    fn each_name_of_a_controller_disables_and_enables_only_that_controller() {
        for (controller, _) in ROWS {
            for name in [controller, controller_names::old_name(controller).unwrap_or(controller)] {
                let only = parse(&[name]);
                assert!(only.is_enabled(controller) && only.0.len() == 1, "{name}: {only:?}");
                assert_eq!(parse(&["*", &format!("-{name}")]), all_except(controller), "{name}");
            }
        }
    }
}
