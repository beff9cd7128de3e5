//! Feature gates: the table of release 1.33 and `--feature-gates A=true,B=false`.
//!
//! # Contract
//!
//! Each line of the table is a gate. Gates that are not on the command line have their defaults; `AllAlpha`
//! and `AllBeta` set the default of their stage. Unknown gates, gates locked to the other value, and values
//! that are not booleans are errors and reported together. Setting a stable or deprecated gate causes a
//! warning (requirements D-FGL), and so does a gate of a feature that neither process has
//! ([`Definition::has_effect`]).

use std::fmt;

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

/// Definition of a gate in the table.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Gate.
    pub gate: Gate,
    /// Name on the command line.
    pub name: &'static str,
    /// Stage in release 1.33.
    pub stage: Stage,
    /// Default state.
    pub default: bool,
    /// Whether the gate is locked to its default.
    pub locked: bool,
    /// Minor release (of 1.x) in which the gate entered this stage; None: unknown.
    pub since: Option<u32>,
}

impl Definition {
    /// Whether apid or authd consults the gate. The other gates are accepted so that command lines of
    /// kube-apiserver work.
    pub fn has_effect(&self) -> bool {
        WITH_EFFECT.contains(&self.gate)
    }

    /// Returns the line of help texts: `Gate=true|false (STAGE - default=x)`.
    pub fn help(&self) -> String {
        format!("{}=true|false ({} - default={})", self.name, self.stage.as_str(), self.default)
    }
}

/// The gates that apid or authd consults.
const WITH_EFFECT: &[Gate] = &[
    Gate::AllowParsingUserUidFromCertAuth,
    Gate::AllowUnsafeMalformedObjectDeletion,
    Gate::AnonymousAuthConfigurableEndpoints,
    Gate::ApiResponseCompression,
    Gate::AuthorizeNodeWithSelectors,
    Gate::AuthorizeWithSelectors,
    Gate::CborServingAndStorage,
    Gate::ListFromCacheSnapshot,
    Gate::RemoteRequestHeaderUid,
    Gate::StorageVersionHash,
    Gate::StructuredAuthenticationConfiguration,
    Gate::WatchList,
];

macro_rules! gates {
    ($($gate:ident, $name:literal, $stage:ident, $default:literal, $locked:literal, $since:expr;)*) => {
        /// Feature gate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are those of the features")]
        pub enum Gate {
            $($gate,)*
        }

        /// All gates, ordered by name.
        pub const GATES: &[Definition] = &[
            $(Definition {
                gate: Gate::$gate,
                name: $name,
                stage: Stage::$stage,
                default: $default,
                locked: $locked,
                since: $since,
            },)*
        ];
    };
}

// gate, name, stage, default, locked to the default, since
gates! {
    AggregatedDiscoveryRemoveBetaType, "AggregatedDiscoveryRemoveBetaType", Deprecated, true, false, Some(33);
    AllowParsingUserUidFromCertAuth, "AllowParsingUserUIDFromCertAuth", Beta, true, false, Some(33);
    AllowUnsafeMalformedObjectDeletion, "AllowUnsafeMalformedObjectDeletion", Alpha, false, false, Some(32);
    AnonymousAuthConfigurableEndpoints, "AnonymousAuthConfigurableEndpoints", Beta, true, false, Some(32);
    ApiListChunking, "APIListChunking", Stable, true, true, Some(29);
    ApiResponseCompression, "APIResponseCompression", Beta, true, false, Some(16);
    ApiServerIdentity, "APIServerIdentity", Beta, true, false, None;
    ApiServerTracing, "APIServerTracing", Beta, true, false, None;
    ApiServingWithRoutine, "APIServingWithRoutine", Alpha, false, false, None;
    AuthorizeNodeWithSelectors, "AuthorizeNodeWithSelectors", Beta, true, false, Some(32);
    AuthorizeWithSelectors, "AuthorizeWithSelectors", Beta, true, false, Some(32);
    BtreeWatchCache, "BtreeWatchCache", Stable, true, true, Some(33);
    CborServingAndStorage, "CBORServingAndStorage", Alpha, false, false, Some(32);
    ClusterTrustBundle, "ClusterTrustBundle", Beta, false, false, Some(33);
    ClusterTrustBundleProjection, "ClusterTrustBundleProjection", Beta, false, false, Some(33);
    ConcurrentWatchObjectDecode, "ConcurrentWatchObjectDecode", Beta, false, false, Some(31);
    ConsistentListFromCache, "ConsistentListFromCache", Beta, true, false, Some(31);
    CoordinatedLeaderElection, "CoordinatedLeaderElection", Beta, false, false, Some(33);
    DeclarativeValidation, "DeclarativeValidation", Beta, true, false, Some(33);
    DeclarativeValidationTakeover, "DeclarativeValidationTakeover", Beta, false, false, Some(33);
    DraAdminAccess, "DRAAdminAccess", Alpha, false, false, Some(32);
    DraDeviceTaints, "DRADeviceTaints", Alpha, false, false, Some(33);
    DraPartitionableDevices, "DRAPartitionableDevices", Alpha, false, false, Some(33);
    DraPrioritizedList, "DRAPrioritizedList", Alpha, false, false, Some(33);
    DraResourceClaimDeviceStatus, "DRAResourceClaimDeviceStatus", Beta, true, false, Some(33);
    DryRun, "DryRun", Stable, true, true, Some(19);
    DynamicResourceAllocation, "DynamicResourceAllocation", Beta, false, false, Some(32);
    KmsV1, "KMSv1", Deprecated, false, false, None;
    ListFromCacheSnapshot, "ListFromCacheSnapshot", Alpha, false, false, Some(33);
    MutatingAdmissionPolicy, "MutatingAdmissionPolicy", Alpha, false, false, Some(32);
    OpenApiEnums, "OpenAPIEnums", Beta, true, false, Some(24);
    RemoteRequestHeaderUid, "RemoteRequestHeaderUID", Beta, true, false, Some(33);
    ResilientWatchCacheInitialization, "ResilientWatchCacheInitialization", Beta, true, false, Some(31);
    RetryGenerateName, "RetryGenerateName", Stable, true, true, Some(32);
    SeparateCacheWatchRpc, "SeparateCacheWatchRPC", Deprecated, false, false, Some(33);
    ServerSideApply, "ServerSideApply", Stable, true, true, Some(22);
    ServerSideFieldValidation, "ServerSideFieldValidation", Stable, true, true, Some(27);
    StorageVersionApi, "StorageVersionAPI", Alpha, false, false, None;
    StorageVersionHash, "StorageVersionHash", Beta, true, false, Some(15);
    StorageVersionMigrator, "StorageVersionMigrator", Alpha, false, false, Some(30);
    StreamingCollectionEncodingToJson, "StreamingCollectionEncodingToJSON", Beta, true, false, Some(33);
    StreamingCollectionEncodingToProtobuf, "StreamingCollectionEncodingToProtobuf", Beta, true, false, Some(33);
    StrictCostEnforcementForVap, "StrictCostEnforcementForVAP", Stable, true, true, Some(32);
    StrictCostEnforcementForWebhooks, "StrictCostEnforcementForWebhooks", Stable, true, true, Some(32);
    StructuredAuthenticationConfiguration, "StructuredAuthenticationConfiguration", Beta, true, false, Some(30);
    StructuredAuthorizationConfiguration, "StructuredAuthorizationConfiguration", Stable, true, true, Some(32);
    UnauthenticatedHttp2DosMitigation, "UnauthenticatedHTTP2DOSMitigation", Beta, true, false, Some(29);
    VolumeAttributesClass, "VolumeAttributesClass", Beta, false, false, Some(31);
    WatchCacheInitializationPostStartHook, "WatchCacheInitializationPostStartHook", Beta, false, false, None;
    WatchFromStorageWithoutResourceVersion, "WatchFromStorageWithoutResourceVersion", Deprecated, false, true, Some(33);
    WatchList, "WatchList", Beta, false, false, None;
}

/// Gate that enables all alpha features.
const ALL_ALPHA: &str = "AllAlpha";
/// Gate that enables all beta features.
const ALL_BETA: &str = "AllBeta";

/// All errors in a value of `--feature-gates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateErrors(pub Vec<String>);

impl fmt::Display for GateErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for GateErrors {}

/// States of all feature gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// In the order of [`GATES`].
    on: Vec<bool>,
}

impl Default for FeatureGates {
    fn default() -> Self {
        FeatureGates { on: GATES.iter().map(|gate| gate.default).collect() }
    }
}

impl FeatureGates {
    /// Parses `A=true,B=false` and returns warnings with it.
    ///
    /// Several flags are joined by commas; the last value of a gate wins.
    ///
    /// # Errors
    ///
    /// All errors in the value.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), GateErrors> {
        let mut requested: Vec<Option<bool>> = vec![None; GATES.len()];
        let (mut all_alpha, mut all_beta) = (None, None);
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((name, value)) = part.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
            else {
                errors.push(format!("missing bool value for {part}"));
                continue;
            };
            let Ok(value) = crate::flags::boolean(value) else {
                errors.push(format!("invalid value of {name}={value}: neither true nor false"));
                continue;
            };
            let known = GATES.iter().zip(requested.iter_mut()).find(|(gate, _)| gate.name == name);
            match (name, known) {
                (ALL_ALPHA, _) => all_alpha = Some(value),
                (ALL_BETA, _) => all_beta = Some(value),
                (_, None) => errors.push(format!("unrecognized feature gate: {name}")),
                (_, Some((gate, _))) if gate.locked && value != gate.default => errors.push(format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {}",
                    gate.default
                )),
                (_, Some((gate, requested))) => {
                    warnings.extend(warning(gate, value));
                    *requested = Some(value);
                }
            }
        }
        if !errors.is_empty() {
            return Err(GateErrors(errors));
        }
        let on = GATES.iter().zip(requested).map(|(gate, requested)| {
            let of_stage = match gate.stage {
                Stage::Alpha => all_alpha,
                Stage::Beta => all_beta,
                Stage::Stable | Stage::Deprecated => None,
            };
            requested.or(of_stage).unwrap_or(gate.default)
        });
        Ok((FeatureGates { on: on.collect() }, warnings))
    }

    /// Whether a feature is enabled.
    pub fn enabled(&self, gate: Gate) -> bool {
        // The enum and the table come from the same lines, in the same order.
        self.on.get(gate as usize).copied().unwrap_or(false)
    }

    /// Iterates over all gates with their states, for the metric `kubernetes_feature_enabled`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Definition, bool)> {
        GATES.iter().zip(self.on.iter().copied())
    }
}

/// Returns the warning for a gate on the command line, if it causes one.
fn warning(gate: &Definition, value: bool) -> Option<String> {
    let name = gate.name;
    match gate.stage {
        Stage::Stable => {
            Some(format!("setting GA feature gate {name}={value}: it will be removed in a future release"))
        }
        Stage::Deprecated => Some(format!(
            "setting deprecated feature gate {name}={value}: it will be removed in a future release"
        )),
        Stage::Alpha | Stage::Beta if gate.has_effect() => None,
        Stage::Alpha | Stage::Beta => {
            Some(format!("feature gate {name}={value} is accepted and has no effect here"))
        }
    }
}

/// Returns the lines of `--help`: `Gate=true|false (STAGE - default=x)`, without stable and deprecated gates.
pub fn help() -> String {
    let mut lines = vec![
        format!("{ALL_ALPHA}=true|false (ALPHA - default=false)"),
        format!("{ALL_BETA}=true|false (BETA - default=false)"),
    ];
    let listed = GATES.iter().filter(|gate| matches!(gate.stage, Stage::Alpha | Stage::Beta));
    lines.extend(listed.map(Definition::help));
    lines.sort();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_gate_table_obeys_lifecycle() {
        assert!(GATES.is_sorted_by_key(|gate| gate.name.to_ascii_lowercase()));
        for (index, gate) in GATES.iter().enumerate() {
            assert_eq!(gate.gate as usize, index, "{}", gate.name);
            assert!(gate.stage != Stage::Alpha || !gate.default, "{} is alpha and on", gate.name);
            assert!(gate.stage != Stage::Stable || (gate.default && gate.locked), "{} is stable", gate.name);
        }
    }

    #[test]
    fn feature_gate_defaults_stages_and_single_gates_are_applied() {
        use Gate::{ApiResponseCompression as Compression, CborServingAndStorage as Cbor, WatchList};
        for (text, cbor, compression, watch_list) in [
            ("", false, true, false),
            ("CBORServingAndStorage=true", true, true, false),
            ("APIResponseCompression=false,WatchList=true", false, false, true),
            ("AllAlpha=true", true, true, false),
            ("AllBeta=true", false, true, true),
            ("AllBeta=false,WatchList=true", false, false, true),
            ("WatchList=true, AllBeta=false", false, false, true),
            ("WatchList=true,WatchList=F", false, true, false),
        ] {
            let (gates, warnings) = FeatureGates::parse(text).unwrap();
            let actual = (gates.enabled(Cbor), gates.enabled(Compression), gates.enabled(WatchList));
            assert_eq!(actual, (cbor, compression, watch_list), "{text}");
            assert!(warnings.is_empty(), "{text}: {warnings:?}");
        }
        assert_eq!(FeatureGates::parse("").unwrap().0, FeatureGates::default());
    }

    #[test]
    fn all_feature_gate_errors_are_returned_together() {
        let errors =
            FeatureGates::parse("NoSuch=true,BtreeWatchCache=false,WatchList,WatchList=maybe,DryRun=true")
                .unwrap_err();
        assert_eq!(
            errors.0,
            [
                "unrecognized feature gate: NoSuch",
                "cannot set feature gate BtreeWatchCache to false, feature is locked to true",
                "missing bool value for WatchList",
                "invalid value of WatchList=maybe: neither true nor false",
            ]
        );
        assert!(FeatureGates::parse("WatchFromStorageWithoutResourceVersion=true").is_err());
    }

    #[test]
    fn setting_stable_or_deprecated_gate_returns_warning() {
        let (gates, warnings) = FeatureGates::parse("ServerSideApply=true,KMSv1=true").unwrap();
        assert!(gates.enabled(Gate::ServerSideApply) && gates.enabled(Gate::KmsV1));
        assert_eq!(warnings.len(), 2);
        assert!(warnings.iter().all(|warning| warning.contains("will be removed")));
    }

    #[test]
    fn gate_without_effect_causes_warning() {
        let (gates, warnings) = FeatureGates::parse("OpenAPIEnums=false,WatchList=true").unwrap();
        assert!(!gates.enabled(Gate::OpenApiEnums));
        assert_eq!(warnings, ["feature gate OpenAPIEnums=false is accepted and has no effect here"]);
    }

    /// The list of gates with an effect is complete and has no others.
    #[test]
    fn gates_with_effect_are_those_that_the_processes_consult() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut folders = vec![root.join("apid/src"), root.join("authd/src")];
        let mut text = String::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.extension().and_then(|extension| extension.to_str()) {
                    Some("rs") => text.push_str(&std::fs::read_to_string(path).unwrap()),
                    _ if path.is_dir() => folders.push(path),
                    _ => {}
                }
            }
        }
        for gate in GATES {
            let name = format!("{:?}", gate.gate);
            let is_consulted = text
                .match_indices(&format!("Gate::{name}"))
                .any(|(at, found)| !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric()));
            assert_eq!(is_consulted, gate.has_effect(), "{name}");
        }
    }

    #[test]
    fn feature_gate_help_omits_stable_and_deprecated_gates() {
        let help = help();
        for line in [
            "AllAlpha=true|false (ALPHA - default=false)",
            "CBORServingAndStorage=true|false (ALPHA - default=false)",
            "APIResponseCompression=true|false (BETA - default=true)",
            "WatchList=true|false (BETA - default=false)",
            "AuthorizeWithSelectors=true|false (BETA - default=true)",
        ] {
            assert!(help.lines().any(|l| l == line), "{line} is missing:\n{help}");
        }
        assert!(!help.contains("ServerSideApply") && !help.contains("KMSv1"));
    }
}
