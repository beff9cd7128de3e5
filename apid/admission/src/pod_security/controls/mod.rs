//! Controls of the published Pod Security Standards, with their levels and releases.
//!
//! # Contract
//!
//! [`CONTROLS`] is the complete policy: the `baseline` controls by name, then the `restricted` controls. A
//! change of a control in a release adds a rule. Existing rules never change, so pinned namespaces keep their
//! rules. [`violations`] evaluates the active controls.
//!
//! # Reference
//!
//! The standards as of release 1.33. The feature gate `UserNamespacesPodSecurityStandards` is alpha and off
//! in that release, so pods in user namespaces have the same rules as other pods.

use std::collections::BTreeSet;

use apimachinery::object::Value;

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

/// A violation of a control by a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// Short reason without object names: `host namespaces`.
    pub(super) reason: &'static str,
    /// Violating fields and allowed values.
    pub(super) detail: String,
}

/// Rule of a control.
type ControlRule = fn(&Pod<'_>) -> Option<Violation>;

/// A Pod Security control.
pub(super) struct Control {
    /// Control id, which determines the order of messages.
    pub(super) id: &'static str,
    /// Least strict level with this control.
    pub(super) level: Level,
    /// Control of a less strict level that this control replaces while active.
    pub(super) replaces: Option<&'static str>,
    /// Rules with the minor release of their introduction, oldest first.
    pub(super) rules: &'static [(u64, ControlRule)],
}

impl Control {
    const fn baseline(id: &'static str, rules: &'static [(u64, ControlRule)]) -> Self {
        Control { id, level: Level::Baseline, replaces: None, rules }
    }

    const fn restricted(
        id: &'static str,
        replaces: Option<&'static str>,
        rules: &'static [(u64, ControlRule)],
    ) -> Self {
        Control { id, level: Level::Restricted, replaces, rules }
    }

    /// Returns the rule for a release; None before the first release of the control.
    fn rule(&self, version: Version) -> Option<ControlRule> {
        let active_rule = self.rules.iter().rev().find(|(since, _)| Version::Minor(*since) <= version);
        active_rule.map(|(_, rule)| *rule)
    }

    /// Whether an active stricter control replaces this control.
    fn is_replaced(&self, standard: Standard) -> bool {
        CONTROLS.iter().any(|other| {
            other.replaces == Some(self.id)
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
    Control::baseline(
        "seLinuxOptions",
        &[(0, |pod| se_linux::options(pod, 0)), (31, |pod| se_linux::options(pod, 31))],
    ),
    Control::baseline(
        "seccompProfile_baseline",
        &[(0, seccomp::annotations), (19, seccomp::reject_unconfined)],
    ),
    Control::baseline(
        "sysctls",
        &[
            (0, |pod| sysctls::safe(pod, 0)),
            (27, |pod| sysctls::safe(pod, 27)),
            (29, |pod| sysctls::safe(pod, 29)),
            (32, |pod| sysctls::safe(pod, 32)),
        ],
    ),
    Control::baseline("windowsHostProcess", &[(0, host::process)]),
    Control::restricted(
        "allowPrivilegeEscalation",
        None,
        &[(8, privileges::escalation), (25, |pod| unless_windows(pod, privileges::escalation))],
    ),
    Control::restricted(
        "capabilities_restricted",
        Some("capabilities_baseline"),
        &[(22, capabilities::all_dropped), (25, |pod| unless_windows(pod, capabilities::all_dropped))],
    ),
    Control::restricted("restrictedVolumes", Some("hostPathVolumes"), &[(0, volumes::restricted)]),
    Control::restricted("runAsNonRoot", None, &[(0, users::not_root)]),
    Control::restricted("runAsUser", None, &[(23, users::not_zero)]),
    Control::restricted(
        "seccompProfile_restricted",
        Some("seccompProfile_baseline"),
        &[(19, seccomp::require_profile), (25, |pod| unless_windows(pod, seccomp::require_profile))],
    ),
];

/// Violations of a standard by a pod, in control order.
pub(super) fn violations(standard: Standard, pod: &Pod<'_>) -> Vec<Violation> {
    let controls = CONTROLS.iter().filter(|control| control.level <= standard.level);
    let rules = controls.filter_map(|control| {
        let rule = control.rule(standard.version)?;
        (!control.is_replaced(standard)).then_some(rule)
    });
    rules.filter_map(|rule| rule(pod)).collect()
}

/// Formats container names as `container "a"` or `containers "a", "b"`. None without a container.
fn format_containers(names: &[&str]) -> Option<String> {
    let noun = plural(names.len(), "container", "containers");
    (!names.is_empty()).then(|| format!("{noun} {}", quoted(names.iter().copied())))
}

/// Formats the sources of a wrong value: `pod`, `container "a"`, or `pod and container "a"`. None without a
/// source.
fn format_setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, format_containers(names)) {
        (false, containers) => containers,
        (true, None) => Some("pod".to_owned()),
        (true, Some(containers)) => Some(format!("pod and {containers}")),
    }
}

/// Formats the sources of profile types other than `RuntimeDefault` and `Localhost` in a field of the security
/// contexts, and collects these types. An absent type is allowed.
fn forbidden_profile_types<'a>(pod: &Pod<'a>, field: &[&str]) -> (Option<String>, BTreeSet<&'a str>) {
    let mut types = BTreeSet::new();
    let mut is_forbidden = |profile_type: Option<&'a Value>| {
        let profile_type = profile_type.map(|profile_type| profile_type.as_str().unwrap_or(""));
        let forbidden = profile_type.filter(|known| !matches!(*known, "RuntimeDefault" | "Localhost"));
        types.extend(forbidden);
        forbidden.is_some()
    };
    let is_pod_forbidden = is_forbidden(pod.security(field));
    let containers = pod.containers_that(|container| is_forbidden(container.security(field)));
    (format_setters(is_pod_forbidden, &containers), types)
}

/// Evaluates a rule for all pods except Windows pods: the restricted feature does not exist on Windows.
fn unless_windows(pod: &Pod<'_>, rule: ControlRule) -> Option<Violation> {
    if pod.is_windows() { None } else { rule(pod) }
}

/// Formats quoted texts as `"a", "b"`.
/// The texts are not escaped: they are valid names, or values in the form that the client sent.
fn quoted<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| format!("\"{text}\"")).collect();
    texts.join(", ")
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}
