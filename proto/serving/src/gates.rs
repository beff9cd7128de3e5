//! Feature gates: `--feature-gates A=true,B=false` on the [table](GATES) of gates.
//!
//! # Contract
//!
//! A gate that is not on the command line has its default of the emulated release; `AllAlpha` and `AllBeta`
//! set the default of their stage. Unknown gates, gates locked to the other value, gates of later releases,
//! and values that are not booleans are errors, which are reported together. Setting a stable or deprecated
//! gate causes a warning (requirements D-FGL), and so does setting a gate that neither process consults
//! ([`GateDefinition::has_effect`]).

mod table;

use crate::compatibility::CURRENT;
pub use table::{GATES, Gate, GateDefinition, Milestone, Stage};

/// Gate that enables all alpha features.
const ALL_ALPHA: &str = "AllAlpha";
/// Gate that enables all beta features.
const ALL_BETA: &str = "AllBeta";
/// Optional prefix of each gate: the only component whose gates the flag sets.
const COMPONENT: &str = "kube:";

/// All errors in a value of `--feature-gates`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct GateErrors(pub Vec<String>);

/// States of all feature gates in a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// The emulated minor release.
    release: u32,
    /// Whether each gate is on, in the order of [`GATES`].
    on: Vec<bool>,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self::from_release(CURRENT)
    }
}

impl FeatureGates {
    /// Returns the defaults of a minor release. A gate of a later release is off.
    fn from_release(release: u32) -> Self {
        Parser::new(release).build_gates()
    }

    /// Parses `A=true,B=false` for an emulated minor release; returns the gates and the warnings.
    ///
    /// The caller joins several flags with commas; the last value of a gate wins.
    ///
    /// # Errors
    ///
    /// All errors in the value.
    pub fn parse(text: &str, release: u32) -> Result<(Self, Vec<String>), GateErrors> {
        let mut parser = Parser::new(release);
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).for_each(|part| parser.add(part));
        if !parser.errors.is_empty() {
            return Err(GateErrors(parser.errors));
        }
        let gates = parser.build_gates();
        parser.warnings.extend(gates.emulation_warning());
        Ok((gates, parser.warnings))
    }

    /// Whether a feature is enabled.
    pub fn enabled(&self, gate: Gate) -> bool {
        // The enum and the table come from the same lines, in the same order.
        self.on.get(gate as usize).copied().unwrap_or(false)
    }

    /// Iterates over all gates of the emulated release with their milestones and states, for the metric
    /// `kubernetes_feature_enabled`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static GateDefinition, &'static Milestone, bool)> {
        let gates = GATES.iter().zip(self.on.iter().copied());
        gates.filter_map(|(gate, is_on)| Some((gate, gate.milestone(self.release)?, is_on)))
    }

    /// Returns the warning for enabled alpha features when the server emulates an older release.
    fn emulation_warning(&self) -> Option<String> {
        if self.release == CURRENT {
            return None;
        }
        let is_enabled_alpha =
            |(gate, milestone, is_on): (&GateDefinition, &Milestone, bool)| match (milestone.stage, is_on) {
                (Stage::Alpha, true) => Some(gate.name),
                _ => None,
            };
        let features: Vec<&str> = self.iter().filter_map(is_enabled_alpha).collect();
        (!features.is_empty()).then(|| {
            let features = features.join(" ");
            format!(
                "component has alpha features enabled in emulated version, this is unsupported: features=[{features}]"
            )
        })
    }
}

/// State of the parser of `--feature-gates`.
#[derive(Default)]
struct Parser {
    release: u32,
    /// Value of each gate in the flag, in the order of [`GATES`]; None if the flag does not name it.
    requested: Vec<Option<bool>>,
    all_alpha: Option<bool>,
    all_beta: Option<bool>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Parser {
    fn new(release: u32) -> Self {
        Parser { release, requested: vec![None; GATES.len()], ..Parser::default() }
    }

    /// Adds a pair `GATE=BOOL`.
    fn add(&mut self, pair: &str) {
        let Some((name, value)) = pair.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
        else {
            self.errors.push(format!("missing bool value for {pair}"));
            return;
        };
        let name = name.strip_prefix(COMPONENT).unwrap_or(name);
        let Ok(value) = crate::flags::boolean(value) else {
            self.errors.push(format!("invalid value of {name}={value}: neither true nor false"));
            return;
        };
        match name {
            ALL_ALPHA => self.all_alpha = Some(value),
            ALL_BETA => self.all_beta = Some(value),
            _ => self.add_gate(name, value),
        }
    }

    fn add_gate(&mut self, name: &str, value: bool) {
        let Some((gate, requested)) =
            GATES.iter().zip(self.requested.iter_mut()).find(|(gate, _)| gate.name == name)
        else {
            self.errors.push(format!("unrecognized feature gate: {name}"));
            return;
        };
        match gate.milestone(self.release) {
            None => self.errors.push(format!(
                "cannot set feature gate {name} to {value}, feature is PreAlpha at emulated version 1.{}",
                self.release
            )),
            Some(milestone) if milestone.locked && value != milestone.default => self.errors.push(format!(
                "cannot set feature gate {name} to {value}, feature is locked to {}",
                milestone.default
            )),
            Some(milestone) => {
                self.warnings.extend(stage_warning(gate, milestone.stage, value));
                *requested = Some(value);
            }
        }
    }

    fn build_gates(&self) -> FeatureGates {
        let on = GATES.iter().zip(&self.requested).map(|(gate, requested)| {
            let Some(milestone) = gate.milestone(self.release) else { return false };
            let stage_default = match milestone.stage {
                Stage::Alpha => self.all_alpha,
                Stage::Beta => self.all_beta,
                Stage::Stable | Stage::Deprecated => None,
            };
            requested.or(stage_default).unwrap_or(milestone.default)
        });
        FeatureGates { release: self.release, on: on.collect() }
    }
}

/// Returns the warning for a gate on the command line, if it causes one.
fn stage_warning(gate: &GateDefinition, stage: Stage, value: bool) -> Option<String> {
    let name = gate.name;
    match stage {
        Stage::Stable => {
            Some(format!("setting GA feature gate {name}={value}: it will be removed in a future release"))
        }
        Stage::Deprecated => Some(format!(
            "setting deprecated feature gate {name}={value}: it will be removed in a future release"
        )),
        Stage::Alpha | Stage::Beta if gate.has_effect => None,
        Stage::Alpha | Stage::Beta => {
            Some(format!("feature gate {name}={value} is accepted and has no effect here"))
        }
    }
}

/// Returns the section of `--help` with a line for each gate of the current release.
///
/// A line has the form `Gate=true|false (STAGE - default=x)`.
///
/// The gates without an effect follow those with an effect. Stable gates are locked, and deprecated gates will be
/// removed: a note marks both.
pub fn help() -> String {
    let all = [(ALL_ALPHA, Stage::Alpha), (ALL_BETA, Stage::Beta)]
        .map(|(name, stage)| format!("  {name}=true|false ({} - default=false)\n", stage.as_str()));
    let lines = |has_effect: bool| -> String {
        GATES.iter().filter(|gate| gate.has_effect == has_effect).filter_map(help_line).collect()
    };
    format!(
        "Feature gates:\n{}{}\nFeature gates that are accepted and have no effect here:\n{}",
        all.concat(),
        lines(true),
        lines(false)
    )
}

/// Returns the line of a gate in the help text; None if the current release does not have the gate.
fn help_line(gate: &GateDefinition) -> Option<String> {
    let milestone = gate.current()?;
    let note = match milestone.stage {
        Stage::Alpha | Stage::Beta => "",
        Stage::Stable => "; non-operational: the feature cannot be disabled",
        Stage::Deprecated => "; a later release removes the gate",
    };
    Some(format!(
        "  {}=true|false ({} - default={}{note})\n",
        gate.name,
        milestone.stage.as_str(),
        milestone.default
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let (gates, warnings) = FeatureGates::parse(text, CURRENT).unwrap();
            let actual = (gates.enabled(Cbor), gates.enabled(Compression), gates.enabled(WatchList));
            assert_eq!(actual, (cbor, compression, watch_list), "{text}");
            assert!(warnings.is_empty(), "{text}: {warnings:?}");
        }
        assert_eq!(FeatureGates::parse("", CURRENT).unwrap().0, FeatureGates::default());
    }

    #[test]
    fn all_feature_gate_errors_are_returned_together() {
        let errors = FeatureGates::parse(
            "NoSuch=true,BtreeWatchCache=false,WatchList,WatchList=maybe,DryRun=true",
            CURRENT,
        )
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
        assert!(FeatureGates::parse("WatchFromStorageWithoutResourceVersion=true", CURRENT).is_err());
    }

    #[test]
    fn setting_stable_or_deprecated_gate_returns_warning() {
        let (gates, warnings) = FeatureGates::parse("ServerSideApply=true,KMSv1=true", CURRENT).unwrap();
        assert!(gates.enabled(Gate::ServerSideApply) && gates.enabled(Gate::KmsV1));
        assert_eq!(warnings.len(), 2);
        assert!(warnings.iter().all(|warning| warning.contains("will be removed")));
    }

    #[test]
    fn gate_without_effect_causes_warning() {
        let (gates, warnings) = FeatureGates::parse("OpenAPIEnums=false,WatchList=true", CURRENT).unwrap();
        assert!(!gates.enabled(Gate::OpenApiEnums));
        assert_eq!(warnings, ["feature gate OpenAPIEnums=false is accepted and has no effect here"]);
    }

    #[test]
    fn feature_gate_help_lists_all_gates_with_stage_and_default() {
        let help = help();
        for line in [
            "AllAlpha=true|false (ALPHA - default=false)",
            "AllBeta=true|false (BETA - default=false)",
            "CBORServingAndStorage=true|false (ALPHA - default=false)",
            "APIResponseCompression=true|false (BETA - default=true)",
            "WatchList=true|false (BETA - default=false)",
            "ServerSideApply=true|false (GA - default=true; non-operational: the feature cannot be disabled)",
            "KMSv1=true|false (DEPRECATED - default=false; a later release removes the gate)",
        ] {
            assert!(help.lines().any(|l| l.trim() == line), "{line} is missing:\n{help}");
        }
        assert_eq!(help.lines().filter(|line| line.contains("=true|false")).count(), GATES.len() + 2);
    }

    #[test]
    fn gates_have_defaults_and_stages_of_emulated_release() {
        use Gate::{AllowParsingUserUidFromCertAuth as Uid, AuthorizeWithSelectors as Selectors, WatchList};
        for (release, uid, selectors, watch_list) in
            [(31, false, false, false), (32, false, true, true), (33, true, true, false)]
        {
            let (gates, warnings) = FeatureGates::parse("", release).unwrap();
            let actual = (gates.enabled(Uid), gates.enabled(Selectors), gates.enabled(WatchList));
            assert_eq!((actual, warnings), ((uid, selectors, watch_list), Vec::new()), "1.{release}");
        }
        let (gates, warnings) = FeatureGates::parse("AllAlpha=true", 31).unwrap();
        assert!(gates.enabled(Selectors) && gates.enabled(WatchList) && !gates.enabled(Uid));
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.contains("alpha features enabled in emulated version"), "{warning}");
        assert!(gates.iter().all(|(gate, ..)| gate.gate != Uid), "the release does not have the gate");
        assert_eq!(
            FeatureGates::parse("AllowParsingUserUIDFromCertAuth=true", 32).unwrap_err().0,
            [
                "cannot set feature gate AllowParsingUserUIDFromCertAuth to true, feature is PreAlpha at emulated version 1.32"
            ]
        );
        let (gates, warnings) =
            FeatureGates::parse("BtreeWatchCache=false,kube:WatchList=false", 32).unwrap();
        assert!(!gates.enabled(Gate::BtreeWatchCache) && !gates.enabled(WatchList), "{warnings:?}");
    }
}
