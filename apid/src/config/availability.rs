//! API versions that the emulated release or a feature gate makes unavailable.
//!
//! # Contract
//!
//! [`Availability::restrict`] disables the resources that a later release than the emulated release
//! introduces, and the resources whose feature gate is off. The lifecycle table names the releases.
//!
//! A key of `--runtime-config` that enables a resource or a whole group version of a later release is an
//! error. With `--runtime-config-emulation-forward-compatible`, the resource is served instead. With
//! `--emulation-forward-compatible`, a beta or stable version of a later release is served if no key disables
//! the version, and the emulated release serves another beta or stable version of the resource that is at
//! most as stable.

use kinds::EnabledVersions;
use kinds::lifecycle::{self, Release, Stage, Version};
use serving::compatibility::CompatibilityVersions;
use serving::gates::{FeatureGates, Gate};

/// Resources that are served only with their feature gate: group name without the domain, plural name, gate.
const FEATURE_GATED_RESOURCES: [(&str, &str, Gate); 3] = [
    ("certificates", "clustertrustbundles", Gate::ClusterTrustBundle),
    ("resource", "devicetaintrules", Gate::DraDeviceTaints),
    ("storagemigration", "storageversionmigrations", Gate::StorageVersionMigrator),
];

/// The configuration that decides on the availability of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Availability<'a> {
    /// The emulated release.
    pub(super) versions: CompatibilityVersions,
    /// The feature gates.
    pub(super) gates: &'a FeatureGates,
    /// Whether `--emulation-forward-compatible` is set.
    pub(super) is_forward_compatible: bool,
    /// Whether `--runtime-config-emulation-forward-compatible` is set.
    pub(super) are_keys_forward_compatible: bool,
}

impl Availability<'_> {
    /// Disables the unavailable resources in `enabled`. Returns warnings and errors, one line each.
    pub(super) fn restrict(&self, enabled: &mut EnabledVersions) -> (Vec<String>, Vec<String>) {
        let (mut warnings, mut errors) = (Vec::new(), self.flag_errors());
        let requested = enabled.clone();
        let later_versions = lifecycle::versions().iter().filter(|row| row.introduced > self.emulated());
        for row in later_versions {
            let key_value = requested.key_value(row.group, row.version, row.resource);
            if key_value == Some(true) && self.are_keys_forward_compatible {
                continue;
            }
            let is_forward_compatible = self.is_forward_compatible && key_value != Some(false);
            if is_forward_compatible && self.has_served_predecessor(row, &requested) {
                enabled.enable(row.group, row.version, row.resource);
                continue;
            }
            let is_requested = requested.has_resource_key(row.group, row.version, row.resource);
            if is_requested || (key_value == Some(true) && self.is_later_version(row)) {
                errors.push(format!(
                    "`--runtime-config` enables {} of group {} and version {}, which release {} introduces and the \
                     emulated release {} does not have; set `--runtime-config-emulation-forward-compatible` to serve \
                     the resource",
                    row.resource,
                    row.group,
                    row.version,
                    row.introduced,
                    self.emulated()
                ));
            }
            enabled.exclude(row.group, row.version, row.resource);
        }
        for (group, resource, gate) in
            FEATURE_GATED_RESOURCES.into_iter().filter(|(.., gate)| !self.gates.enabled(*gate))
        {
            let is_of_resource = |row: &&Version| row.group == group && row.resource == resource;
            let rows: Vec<&Version> = lifecycle::versions().iter().filter(is_of_resource).collect();
            if rows.iter().any(|row| requested.is_enabled(group, row.version, resource)) {
                let name = gate.name();
                warnings.push(format!(
                    "{resource} is disabled because the {name} feature gate is disabled; set `--feature-gates={name}=true`"
                ));
            }
            rows.iter().for_each(|row| enabled.exclude(group, row.version, resource));
        }
        (warnings, errors)
    }

    fn emulated(&self) -> Release {
        Release(self.versions.emulated)
    }

    /// Whether a later release than the emulated release introduces the whole group version of `row`.
    fn is_later_version(&self, row: &Version) -> bool {
        let is_of_version = |other: &&Version| (other.group, other.version) == (row.group, row.version);
        let mut rows = lifecycle::versions().iter().filter(is_of_version);
        rows.all(|other| other.introduced > self.emulated())
    }

    /// Returns the errors of flags that are valid only with an emulated release.
    fn flag_errors(&self) -> Vec<String> {
        let flags = [
            ("emulation-forward-compatible", self.is_forward_compatible),
            ("runtime-config-emulation-forward-compatible", self.are_keys_forward_compatible),
        ];
        let misused_flags = flags.into_iter().filter(|(_, is_set)| *is_set && !self.versions.is_emulation());
        misused_flags
            .map(|(name, _)| {
                format!(
                    "`--{name}` cannot be set to true if the emulation version is the same as the binary version; set \
                     `--emulated-version`"
                )
            })
            .collect()
    }

    /// Whether the emulated release serves another beta or stable version of the resource of `row`, at most
    /// as stable as `row`.
    fn has_served_predecessor(&self, row: &Version, requested: &EnabledVersions) -> bool {
        row.stage != Stage::Alpha
            && lifecycle::versions().iter().any(|other| {
                (other.group, other.resource) == (row.group, row.resource)
                    && other.stage != Stage::Alpha
                    && other.stage <= row.stage
                    && other.introduced <= self.emulated()
                    && requested.is_enabled(other.group, other.version, other.resource)
            })
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};

    use super::*;

    const RANGES: &str = "networking.k8s.io/v1beta1";

    /// Returns the resources that a configuration serves, and the numbers of warnings and errors.
    fn served_resources(
        emulated: u32,
        config: &str,
        gates: &str,
        forward: (bool, bool),
    ) -> (Vec<&'static str>, usize, usize) {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let emulated_version = [format!("1.{emulated}")];
        let versions = CompatibilityVersions::parse(&emulated_version, &[]).unwrap();
        let (gates, _) = FeatureGates::parse(gates, emulated).unwrap();
        let (mut enabled, _) = EnabledVersions::parse(config.split(','), &names).unwrap();
        let availability = Availability {
            versions,
            gates: &gates,
            is_forward_compatible: forward.0,
            are_keys_forward_compatible: forward.1,
        };
        let (warnings, errors) = availability.restrict(&mut enabled);
        let registry = kinds::Registry::with_versions(&names, &enabled);
        let is_served = |path: &&str| {
            let mut parts = path.split('/');
            let mut part = || parts.next().unwrap();
            registry.find(part(), part(), part()).is_some()
        };
        let paths = [
            "apps/v1/deployments",
            "networking.k8s.io/v1/servicecidrs",
            "networking.k8s.io/v1beta1/servicecidrs",
            "resource.k8s.io/v1beta1/resourceclaims",
            "resource.k8s.io/v1beta2/resourceclaims",
            "certificates.k8s.io/v1alpha1/clustertrustbundles",
            "certificates.k8s.io/v1beta1/clustertrustbundles",
            "storagemigration.k8s.io/v1alpha1/storageversionmigrations",
        ];
        (paths.into_iter().filter(is_served).collect(), warnings.len(), errors.len())
    }

    #[test]
    fn resources_of_later_releases_are_not_served_in_emulated_release() {
        let (deployments, stable, beta) = (
            "apps/v1/deployments",
            "networking.k8s.io/v1/servicecidrs",
            "networking.k8s.io/v1beta1/servicecidrs",
        );
        for (emulated, config, forward, expected, errors) in [
            (33, "", (false, false), vec![deployments, stable], 0),
            (32, "", (false, false), vec![deployments], 0),
            (32, RANGES, (false, false), vec![deployments, beta], 0),
            (32, RANGES, (true, false), vec![deployments, stable, beta], 0),
            (
                32,
                &format!("{RANGES},networking.k8s.io/v1/servicecidrs=false"),
                (true, false),
                vec![deployments, beta],
                0,
            ),
            (32, &format!("{RANGES},networking.k8s.io/v1=false"), (true, false), vec![deployments, beta], 0),
            (32, "networking.k8s.io/v1", (false, false), vec![deployments], 0),
            (32, "networking.k8s.io/v1/servicecidrs", (false, false), vec![deployments], 1),
            (32, "networking.k8s.io/v1", (false, true), vec![deployments, stable], 0),
            (33, "", (true, true), vec![deployments, stable], 2),
        ] {
            assert_eq!(
                served_resources(emulated, config, "", forward),
                (expected, 0, errors),
                "1.{emulated} {config}"
            );
        }
        let claims = |emulated, forward| served_resources(emulated, "resource.k8s.io/v1beta1", "", forward).0;
        assert_eq!(claims(31, (true, false)), [deployments], "an error, and 1.31 has no beta version");
        assert_eq!(claims(32, (false, false)), [deployments, "resource.k8s.io/v1beta1/resourceclaims"]);
        assert_eq!(claims(32, (true, false)).last(), Some(&"resource.k8s.io/v1beta2/resourceclaims"));
    }

    #[test]
    fn gated_resources_need_their_feature_gate() {
        let config =
            "certificates.k8s.io/v1alpha1,certificates.k8s.io/v1beta1,storagemigration.k8s.io/v1alpha1";
        let (served, warnings, errors) = served_resources(33, config, "", (false, false));
        assert_eq!((served.len(), warnings, errors), (2, 2, 0), "{served:?}");
        let gates = "ClusterTrustBundle=true,StorageVersionMigrator=true";
        let (served, warnings, errors) = served_resources(33, config, gates, (false, false));
        assert_eq!((served.len(), warnings, errors), (5, 0, 0), "{served:?}");
    }
}
