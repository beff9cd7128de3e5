//! The controllers of apid that `--controllers` enables.

/// The controllers that run: all by default, otherwise the controllers that `--controllers` enables.
///
/// Each field names a controller of kube-controller-manager. Work of kube-apiserver itself has no field: the
/// names and objects of definitions, the start objects, the expiry of Events, IPAddress objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledControllers {
    /// The signer of CertificateSigningRequests.
    pub certificate_signer: bool,
    /// The cleaner of old CertificateSigningRequests.
    pub certificate_cleaner: bool,
    /// Removal of the protection finalizers of PersistentVolumeClaims.
    pub claim_protection: bool,
    /// Removal of the protection finalizers of PersistentVolumes.
    pub volume_protection: bool,
    /// Deletion of objects without owners; completion of foreground and orphaning deletions.
    pub garbage_collector: bool,
    /// Deletion of the content of terminating namespaces.
    pub namespace_deletion: bool,
    /// Usage in the status of ResourceQuotas.
    pub resource_quota: bool,
    /// The ServiceAccount `default` of each namespace.
    pub default_accounts: bool,
    /// The CA bundle in token Secrets. authd fills in the tokens.
    pub account_tokens: bool,
    /// Clean-up of unused token Secrets.
    pub token_secret_cleaner: bool,
    /// The ConfigMap with the CA bundle in each namespace.
    pub root_ca_publisher: bool,
    /// Type checks in the status of ValidatingAdmissionPolicies.
    pub policy_type_checks: bool,
    /// Finalizer and condition of ServiceCIDRs.
    pub service_cidrs: bool,
    /// StorageVersionMigrations.
    pub storage_migration: bool,
}

impl EnabledControllers {
    /// Determines the enabled controllers from the entries of `--controllers`.
    pub fn new(entries: &[String]) -> Self {
        let has = |names: &[&str]| serving::flags::is_controller_enabled(entries, names, true);
        EnabledControllers {
            certificate_signer: has(&["certificatesigningrequest-signing-controller", "csrsigning"]),
            certificate_cleaner: has(&["certificatesigningrequest-cleaner-controller", "csrcleaner"]),
            claim_protection: has(&["persistentvolumeclaim-protection-controller", "pvc-protection"]),
            volume_protection: has(&["persistentvolume-protection-controller", "pv-protection"]),
            garbage_collector: has(&["garbage-collector-controller", "garbagecollector"]),
            namespace_deletion: has(&["namespace-controller", "namespace"]),
            resource_quota: has(&["resourcequota-controller", "resourcequota"]),
            default_accounts: has(&["serviceaccount-controller", "serviceaccount"]),
            account_tokens: has(&["serviceaccount-token-controller", "serviceaccount-token"]),
            token_secret_cleaner: has(&[
                "legacy-serviceaccount-token-cleaner-controller",
                "legacy-service-account-token-cleaner",
            ]),
            root_ca_publisher: has(&["root-ca-certificate-publisher-controller", "root-ca-cert-publisher"]),
            policy_type_checks: has(&["validatingadmissionpolicy-status-controller"]),
            service_cidrs: has(&["service-cidr-controller"]),
            storage_migration: has(&["storage-version-migrator-controller"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[&str]) -> EnabledControllers {
        EnabledControllers::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
    }

    const ALL: EnabledControllers = EnabledControllers {
        certificate_signer: true,
        certificate_cleaner: true,
        claim_protection: true,
        volume_protection: true,
        garbage_collector: true,
        namespace_deletion: true,
        resource_quota: true,
        default_accounts: true,
        account_tokens: true,
        token_secret_cleaner: true,
        root_ca_publisher: true,
        policy_type_checks: true,
        service_cidrs: true,
        storage_migration: true,
    };

    const NONE: EnabledControllers = EnabledControllers {
        certificate_signer: false,
        certificate_cleaner: false,
        claim_protection: false,
        volume_protection: false,
        garbage_collector: false,
        namespace_deletion: false,
        resource_quota: false,
        default_accounts: false,
        account_tokens: false,
        token_secret_cleaner: false,
        root_ca_publisher: false,
        policy_type_checks: false,
        service_cidrs: false,
        storage_migration: false,
    };

    #[test]
    fn controllers_are_enabled_by_name_and_by_default() {
        assert_eq!(parse(&[]), ALL);
        assert_eq!(parse(&["*", "bootstrapsigner"]), ALL);
        assert_eq!(parse(&[""]), NONE, "an empty value enables nothing");
        assert_eq!(parse(&["deployment"]), NONE);
        assert_eq!(parse(&["*", "-csrsigning"]), EnabledControllers { certificate_signer: false, ..ALL });
        assert_eq!(parse(&["-pv-protection", "*"]), EnabledControllers { volume_protection: false, ..ALL });
        assert_eq!(parse(&["*", " -serviceaccount"]), EnabledControllers { default_accounts: false, ..ALL });
    }

    #[test]
    fn each_name_of_a_controller_disables_and_enables_only_that_controller() {
        type Set = fn(&mut EnabledControllers, bool);
        let controllers: [(&[&str], Set); 14] = [
            (&["certificatesigningrequest-signing-controller", "csrsigning"], |c, on| {
                c.certificate_signer = on
            }),
            (&["certificatesigningrequest-cleaner-controller", "csrcleaner"], |c, on| {
                c.certificate_cleaner = on;
            }),
            (&["persistentvolumeclaim-protection-controller", "pvc-protection"], |c, on| {
                c.claim_protection = on;
            }),
            (&["persistentvolume-protection-controller", "pv-protection"], |c, on| c.volume_protection = on),
            (&["garbage-collector-controller", "garbagecollector"], |c, on| c.garbage_collector = on),
            (&["namespace-controller", "namespace"], |c, on| c.namespace_deletion = on),
            (&["resourcequota-controller", "resourcequota"], |c, on| c.resource_quota = on),
            (&["serviceaccount-controller", "serviceaccount"], |c, on| c.default_accounts = on),
            (&["serviceaccount-token-controller", "serviceaccount-token"], |c, on| c.account_tokens = on),
            (
                &["legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner"],
                |c, on| c.token_secret_cleaner = on,
            ),
            (&["root-ca-certificate-publisher-controller", "root-ca-cert-publisher"], |c, on| {
                c.root_ca_publisher = on;
            }),
            (&["validatingadmissionpolicy-status-controller"], |c, on| c.policy_type_checks = on),
            (&["service-cidr-controller"], |c, on| c.service_cidrs = on),
            (&["storage-version-migrator-controller"], |c, on| c.storage_migration = on),
        ];
        for (names, set) in controllers {
            for name in names {
                let (mut all_but_one, mut only_one) = (ALL, NONE);
                set(&mut all_but_one, false);
                set(&mut only_one, true);
                assert_eq!(parse(&["*", &format!("-{name}")]), all_but_one, "-{name}");
                assert_eq!(parse(&[name]), only_one, "{name}");
            }
        }
    }
}
