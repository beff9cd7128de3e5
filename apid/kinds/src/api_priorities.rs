//! Priorities of the built-in API groups and versions, in lists of groups and in APIServices.

/// The default priority of a version in its group.
const DEFAULT_VERSION_PRIORITY: i64 = 15;

/// A group without its domain, the priority of the group, and the priorities of versions that differ from
/// [`DEFAULT_VERSION_PRIORITY`].
type GroupPriority = (&'static str, i64, &'static [(&'static str, i64)]);

/// Priorities of groups, and of versions within them. A higher priority comes first.
const PRIORITIES: &[GroupPriority] = &[
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[]),
    ("events", 17_750, &[]),
    ("authentication", 17_700, &[("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization", 17_600, &[]),
    ("autoscaling", 17_500, &[("v2", 30)]),
    ("batch", 17_400, &[]),
    ("certificates", 17_300, &[("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking", 17_200, &[("v1beta1", 9)]),
    ("policy", 17_100, &[]),
    ("rbac.authorization", 17_000, &[]),
    ("storage", 16_800, &[("v1beta1", 9), ("v1alpha1", 1)]),
    ("admissionregistration", 16_700, &[("v1beta1", 12), ("v1alpha1", 9)]),
    ("apiextensions", 16_700, &[]),
    ("scheduling", 16_600, &[]),
    ("coordination", 16_500, &[("v1beta1", 13), ("v1alpha2", 12)]),
    ("node", 16_300, &[]),
    ("discovery", 16_200, &[]),
    ("flowcontrol.apiserver", 16_100, &[("v1", 21)]),
    ("internal.apiserver", 16_000, &[("v1alpha1", 9)]),
    ("resource", 15_900, &[("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("storagemigration", 15_800, &[("v1alpha1", 9)]),
    ("explain", 15_700, &[("v1alpha1", 9)]),
];

/// The priorities of an API version. A higher priority comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiPriority {
    /// The priority of the group.
    pub group: i64,
    /// The priority of the version in its group.
    pub version: i64,
}

impl ApiPriority {
    /// The priorities of the versions of custom kinds.
    pub const CUSTOM: ApiPriority = ApiPriority { group: 1_000, version: 100 };

    /// Returns the priorities of a built-in version: its group without the domain, and the version.
    ///
    /// None for the group `apiregistration`: it has no APIService and comes first.
    pub fn of_built_in(stem: &str, version: &str) -> Option<Self> {
        let (_, group, versions) = PRIORITIES.iter().find(|(known, ..)| *known == stem)?;
        let version = versions.iter().find(|(known, _)| *known == version);
        let version = version.map_or(DEFAULT_VERSION_PRIORITY, |(_, priority)| *priority);
        Some(ApiPriority { group: *group, version })
    }
}
