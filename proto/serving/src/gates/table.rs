//! The table of feature gates, with the stages of each gate by release.
//!
//! # Contract
//!
//! A row names the gate, states whether apid or authd consults the gate, and lists its milestones from the oldest to
//! the newest. A gate does not exist in releases before its first milestone.

use crate::compatibility::CURRENT;

/// Stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off by default.
    Alpha,
    /// On unless the table says otherwise.
    Beta,
    /// Part of the product; a later release removes the gate.
    Stable,
    /// A later release removes the feature.
    Deprecated,
}

impl Stage {
    /// Returns the name in help texts and in the metric `kubernetes_feature_enabled`.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Stable => "GA",
            Stage::Deprecated => "DEPRECATED",
        }
    }
}

/// Stage and default state of a gate from a release on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Milestone {
    /// First minor release (of 1.x) of the milestone.
    pub since: u32,
    /// Stage from this release on.
    pub stage: Stage,
    /// Default state from this release on.
    pub default: bool,
    /// Whether the gate is locked to its default from this release on.
    pub locked: bool,
}

const fn alpha(since: u32) -> Milestone {
    Milestone { since, stage: Stage::Alpha, default: false, locked: false }
}

const fn beta(since: u32, default: bool) -> Milestone {
    Milestone { since, stage: Stage::Beta, default, locked: false }
}

const fn stable(since: u32) -> Milestone {
    Milestone { since, stage: Stage::Stable, default: true, locked: true }
}

/// A stable milestone before a deprecation: the gate is not locked.
const fn stable_unlocked(since: u32, default: bool) -> Milestone {
    Milestone { since, stage: Stage::Stable, default, locked: false }
}

const fn deprecated(since: u32, default: bool) -> Milestone {
    Milestone { since, stage: Stage::Deprecated, default, locked: false }
}

const fn deprecated_locked(since: u32, default: bool) -> Milestone {
    Milestone { since, stage: Stage::Deprecated, default, locked: true }
}

/// A gate in the table.
#[derive(Clone, Copy, Debug)]
pub struct GateDefinition {
    /// Gate, as code uses it.
    pub gate: Gate,
    /// Name on the command line.
    pub name: &'static str,
    /// Whether apid or authd consults the gate. The other gates are accepted so that command lines of
    /// kube-apiserver work.
    pub has_effect: bool,
    /// Milestones, from the oldest to the newest.
    pub milestones: &'static [Milestone],
}

impl GateDefinition {
    /// Returns the milestone that is in force in a minor release; None if the release does not have the gate.
    pub fn milestone(&self, release: u32) -> Option<&'static Milestone> {
        self.milestones.iter().rfind(|milestone| milestone.since <= release)
    }

    /// Returns the milestone that is in force in the current release.
    pub fn current(&self) -> Option<&'static Milestone> {
        self.milestone(CURRENT)
    }

    /// Returns the minor release in which the gate entered its current stage.
    pub fn since(&self) -> Option<u32> {
        let stage = self.current()?.stage;
        let reached = self.milestones.iter().rev().skip_while(|milestone| milestone.since > CURRENT);
        reached.take_while(|milestone| milestone.stage == stage).last().map(|milestone| milestone.since)
    }
}

macro_rules! gates {
    ($($gate:ident, $name:literal, $effect:ident, [$($milestone:expr),+];)*) => {
        /// Feature gate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are those of the features")]
        pub enum Gate {
            $($gate,)*
        }

        impl Gate {
            /// Returns the name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Gate::$gate => $name,)*
                }
            }
        }

        /// All gates, ordered by name.
        pub const GATES: &[GateDefinition] = &[
            $(GateDefinition {
                gate: Gate::$gate,
                name: $name,
                has_effect: gates!(@ $effect),
                milestones: &[$($milestone),+],
            },)*
        ];
    };
    (@ consulted) => { true };
    (@ accepted) => { false };
}

const ON: bool = true;
const OFF: bool = false;

// gate, name, `consulted` by a process or only `accepted`, milestones
gates! {
    AggregatedDiscoveryRemoveBetaType, "AggregatedDiscoveryRemoveBetaType", accepted, [stable_unlocked(0, OFF), deprecated(33, ON)];
    AllowParsingUserUidFromCertAuth, "AllowParsingUserUIDFromCertAuth", consulted, [beta(33, ON)];
    AllowUnsafeMalformedObjectDeletion, "AllowUnsafeMalformedObjectDeletion", consulted, [alpha(32)];
    AnonymousAuthConfigurableEndpoints, "AnonymousAuthConfigurableEndpoints", consulted, [alpha(31), beta(32, ON)];
    ApiListChunking, "APIListChunking", accepted, [alpha(8), beta(9, ON), stable(29)];
    ApiResponseCompression, "APIResponseCompression", consulted, [alpha(8), beta(16, ON)];
    ApiServerIdentity, "APIServerIdentity", consulted, [alpha(20), beta(26, ON)];
    ApiServerTracing, "APIServerTracing", accepted, [alpha(22), beta(27, ON)];
    ApiServingWithRoutine, "APIServingWithRoutine", accepted, [alpha(30)];
    AuthorizeNodeWithSelectors, "AuthorizeNodeWithSelectors", consulted, [alpha(31), beta(32, ON)];
    AuthorizeWithSelectors, "AuthorizeWithSelectors", consulted, [alpha(31), beta(32, ON)];
    BtreeWatchCache, "BtreeWatchCache", accepted, [beta(32, ON), stable(33)];
    CborServingAndStorage, "CBORServingAndStorage", consulted, [alpha(32)];
    ClusterTrustBundle, "ClusterTrustBundle", consulted, [alpha(27), beta(33, OFF)];
    ClusterTrustBundleProjection, "ClusterTrustBundleProjection", accepted, [alpha(29), beta(33, OFF)];
    ConcurrentWatchObjectDecode, "ConcurrentWatchObjectDecode", accepted, [beta(31, OFF)];
    ConsistentListFromCache, "ConsistentListFromCache", accepted, [alpha(28), beta(31, ON)];
    CoordinatedLeaderElection, "CoordinatedLeaderElection", accepted, [alpha(31), beta(33, OFF)];
    DeclarativeValidation, "DeclarativeValidation", consulted, [beta(33, ON)];
    DeclarativeValidationTakeover, "DeclarativeValidationTakeover", consulted, [beta(33, OFF)];
    DraAdminAccess, "DRAAdminAccess", accepted, [alpha(32)];
    DraDeviceTaints, "DRADeviceTaints", consulted, [alpha(33)];
    DraPartitionableDevices, "DRAPartitionableDevices", accepted, [alpha(33)];
    DraPrioritizedList, "DRAPrioritizedList", accepted, [alpha(33)];
    DraResourceClaimDeviceStatus, "DRAResourceClaimDeviceStatus", accepted, [alpha(32), beta(33, ON)];
    DryRun, "DryRun", accepted, [alpha(12), beta(13, ON), stable(19)];
    DynamicResourceAllocation, "DynamicResourceAllocation", accepted, [alpha(30), beta(32, OFF)];
    KmsV1, "KMSv1", accepted, [stable_unlocked(0, ON), deprecated(28, ON), deprecated(29, OFF)];
    ListFromCacheSnapshot, "ListFromCacheSnapshot", consulted, [alpha(33)];
    MutatingAdmissionPolicy, "MutatingAdmissionPolicy", consulted, [alpha(32)];
    OpenApiEnums, "OpenAPIEnums", accepted, [alpha(23), beta(24, ON)];
    RemoteRequestHeaderUid, "RemoteRequestHeaderUID", consulted, [alpha(32), beta(33, ON)];
    ResilientWatchCacheInitialization, "ResilientWatchCacheInitialization", accepted, [beta(31, ON)];
    RetryGenerateName, "RetryGenerateName", accepted, [alpha(30), beta(31, ON), stable(32)];
    SeparateCacheWatchRpc, "SeparateCacheWatchRPC", accepted, [beta(28, ON), deprecated(33, OFF)];
    ServerSideApply, "ServerSideApply", accepted, [alpha(14), beta(16, ON), stable(22)];
    ServerSideFieldValidation, "ServerSideFieldValidation", accepted, [alpha(23), beta(25, ON), stable(27)];
    StorageVersionApi, "StorageVersionAPI", accepted, [alpha(20)];
    StorageVersionHash, "StorageVersionHash", consulted, [alpha(14), beta(15, ON)];
    StorageVersionMigrator, "StorageVersionMigrator", consulted, [alpha(30)];
    StreamingCollectionEncodingToJson, "StreamingCollectionEncodingToJSON", accepted, [beta(33, ON)];
    StreamingCollectionEncodingToProtobuf, "StreamingCollectionEncodingToProtobuf", accepted, [beta(33, ON)];
    StrictCostEnforcementForVap, "StrictCostEnforcementForVAP", accepted, [beta(30, OFF), stable(32)];
    StrictCostEnforcementForWebhooks, "StrictCostEnforcementForWebhooks", accepted, [beta(30, OFF), stable(32)];
    StructuredAuthenticationConfiguration, "StructuredAuthenticationConfiguration", consulted, [alpha(29), beta(30, ON)];
    StructuredAuthorizationConfiguration, "StructuredAuthorizationConfiguration", accepted, [alpha(29), beta(30, ON), stable(32)];
    UnauthenticatedHttp2DosMitigation, "UnauthenticatedHTTP2DOSMitigation", accepted, [beta(25, OFF), beta(29, ON)];
    VolumeAttributesClass, "VolumeAttributesClass", accepted, [alpha(29), beta(31, OFF)];
    WatchCacheInitializationPostStartHook, "WatchCacheInitializationPostStartHook", accepted, [beta(31, OFF)];
    WatchFromStorageWithoutResourceVersion, "WatchFromStorageWithoutResourceVersion", accepted, [beta(27, OFF), deprecated_locked(33, OFF)];
    WatchList, "WatchList", consulted, [alpha(27), beta(32, ON), beta(33, OFF)];
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn feature_gate_table_obeys_lifecycle() {
        assert!(GATES.is_sorted_by_key(|gate| gate.name.to_ascii_lowercase()));
        for (index, gate) in GATES.iter().enumerate() {
            assert_eq!(gate.gate as usize, index, "{}", gate.name);
            assert!(gate.milestones.is_sorted_by(|a, b| a.since < b.since), "{}", gate.name);
            let current = gate.current().unwrap();
            assert!(current.stage != Stage::Stable || (current.default && current.locked), "{}", gate.name);
            for milestone in gate.milestones {
                assert!(
                    milestone.stage != Stage::Alpha || !milestone.default,
                    "{} is alpha and on",
                    gate.name
                );
            }
            for pair in gate.milestones.windows(2) {
                let rank = |milestone: &Milestone| milestone.stage as u8;
                assert!(rank(&pair[0]) <= rank(&pair[1]), "{} returns to an earlier stage", gate.name);
            }
        }
    }

    #[test]
    fn milestone_of_release_is_the_newest_up_to_the_release() {
        let watch_list = GATES.iter().find(|gate| gate.gate == Gate::WatchList).unwrap();
        let state = |release| watch_list.milestone(release).map(|m| (m.stage, m.default));
        assert_eq!(state(26), None);
        assert_eq!(state(31), Some((Stage::Alpha, false)));
        assert_eq!(state(32), Some((Stage::Beta, true)));
        assert_eq!(state(33), Some((Stage::Beta, false)));
        assert_eq!(watch_list.since(), Some(32));
    }

    /// Appends the content of the Rust files of a folder to `text`, without tests and without this table.
    fn append_product_code(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !matches!(name, "tests" | "target" | "gates" | "examples") {
                append_product_code(&path, text);
            } else if name.ends_with(".rs") && !matches!(name, "tests.rs" | "gates.rs" | "build.rs") {
                text.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// The table marks exactly the gates as `consulted` that product code names.
    #[test]
    fn gates_with_effect_are_those_that_the_processes_consult() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut text = String::new();
        for folder in ["apid", "authd", "policies", "proto"] {
            append_product_code(&root.join(folder), &mut text);
        }
        for gate in GATES {
            let name = format!("{:?}", gate.gate);
            let is_consulted = text
                .match_indices(&format!("Gate::{name}"))
                .any(|(at, found)| !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric()));
            assert_eq!(is_consulted, gate.has_effect, "{name}");
        }
    }
}
