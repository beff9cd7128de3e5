//! The controls of the published Pod Security Standards: what each finds fault with, from which level and release on.
//!
//! # Contract
//!
//! [`CONTROLS`] is the whole policy: those of `baseline` by their names, then those of `restricted`. A control changes with
//! a release by getting one more entry; an older entry never changes, so that a namespace that is pinned to a release
//! keeps its rules. [`violations`] asks each control that is in force.
//!
//! # Reference
//!
//! The standards as of release 1.33. What they relax for pods in user namespaces is behind the gate
//! `UserNamespacesPodSecurityStandards`, which is alpha and off in that release: such pods are judged as others.

use super::pod::Pod;
use super::policy::{Level, Standard, Version};

mod app_armor;
mod capabilities;
mod host;
mod privileges;
mod proc_mount;
mod se_linux;
mod seccomp;
mod sysctls;
mod users;
mod volumes;

/// What is wrong with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// In few words, without names: `host namespaces`.
    pub(super) reason: &'static str,
    /// Where, and what should be there.
    pub(super) detail: String,
}

/// One rule of a control.
type Rule = fn(&Pod<'_>) -> Option<Violation>;

/// A control.
pub(super) struct Control {
    /// Its name, which orders messages.
    pub(super) id: &'static str,
    /// The least strict level that has it.
    pub(super) level: Level,
    /// The control of a less strict level that this one includes wherever it is in force.
    pub(super) includes: Option<&'static str>,
    /// Its rules and the minor releases since which they hold, oldest first.
    pub(super) rules: &'static [(u64, Rule)],
}

impl Control {
    const fn baseline(id: &'static str, rules: &'static [(u64, Rule)]) -> Self {
        Control { id, level: Level::Baseline, includes: None, rules }
    }

    const fn restricted(
        id: &'static str,
        includes: Option<&'static str>,
        rules: &'static [(u64, Rule)],
    ) -> Self {
        Control { id, level: Level::Restricted, includes, rules }
    }

    /// The rule of a release, if it has the control.
    fn rule(&self, version: Version) -> Option<Rule> {
        let in_force = self.rules.iter().rev().find(|(since, _)| Version::Minor(*since) <= version);
        in_force.map(|(_, rule)| *rule)
    }

    /// Whether a stricter control that is in force includes this one.
    fn is_included(&self, standard: Standard) -> bool {
        CONTROLS.iter().any(|other| {
            other.includes == Some(self.id)
                && other.level <= standard.level
                && other.rule(standard.version).is_some()
        })
    }
}

/// All controls, in the order of messages.
pub(super) static CONTROLS: &[Control] = &[
    Control::baseline("appArmorProfile", &[(0, app_armor::profile)]),
    Control::baseline("capabilities_baseline", &[(0, capabilities::no_more_than_default)]),
    Control::baseline("hostNamespaces", &[(0, host::namespaces)]),
    Control::baseline("hostPathVolumes", &[(0, volumes::host_path)]),
    Control::baseline("hostPorts", &[(0, host::ports)]),
    Control::baseline("privileged", &[(0, privileges::privileged)]),
    Control::baseline("procMount", &[(0, proc_mount::default_only)]),
    Control::baseline("seLinuxOptions", &[(0, se_linux::options), (31, se_linux::options_1_31)]),
    Control::baseline("seccompProfile_baseline", &[(0, seccomp::annotations), (19, seccomp::not_unconfined)]),
    Control::baseline(
        "sysctls",
        &[(0, sysctls::safe), (27, sysctls::safe_1_27), (29, sysctls::safe_1_29), (32, sysctls::safe_1_32)],
    ),
    Control::baseline("windowsHostProcess", &[(0, host::process)]),
    Control::restricted(
        "allowPrivilegeEscalation",
        None,
        &[(8, privileges::escalation), (25, privileges::escalation_1_25)],
    ),
    Control::restricted(
        "capabilities_restricted",
        Some("capabilities_baseline"),
        &[(22, capabilities::all_dropped), (25, capabilities::all_dropped_1_25)],
    ),
    Control::restricted("restrictedVolumes", Some("hostPathVolumes"), &[(0, volumes::restricted)]),
    Control::restricted("runAsNonRoot", None, &[(0, users::not_root)]),
    Control::restricted("runAsUser", None, &[(23, users::not_zero)]),
    Control::restricted(
        "seccompProfile_restricted",
        Some("seccompProfile_baseline"),
        &[(19, seccomp::confined), (25, seccomp::confined_1_25)],
    ),
];

/// What a standard finds wrong with a pod, in the order of the controls.
pub(super) fn violations(standard: Standard, pod: &Pod<'_>) -> Vec<Violation> {
    let in_force = CONTROLS.iter().filter(|control| control.level <= standard.level);
    let rules = in_force.filter_map(|control| {
        let rule = control.rule(standard.version)?;
        (!control.is_included(standard)).then_some(rule)
    });
    rules.filter_map(|rule| rule(pod)).collect()
}

/// `container "a"`, `containers "a", "b"`.
fn containers(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quoted(names.iter().copied()))
}

/// `pod`, `container "a"`, or both joined: what set a wrong value. None when nothing did.
fn setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, names) {
        (false, []) => None,
        (true, []) => Some("pod".to_owned()),
        (false, names) => Some(containers(names)),
        (true, names) => Some(format!("pod and {}", containers(names))),
    }
}

/// `"a", "b"`. The texts are not escaped: they are names that validation has passed, or are shown as they were sent.
fn quoted<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| format!("\"{text}\"")).collect();
    texts.join(", ")
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}
