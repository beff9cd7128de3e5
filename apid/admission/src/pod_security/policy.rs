//! Pod Security policy of a namespace: a level and a release for each mode, from its labels.

use std::fmt;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::names::Names;

/// Pod Security level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Allows everything.
    #[default]
    Privileged,
    /// Prevents known privilege escalations.
    Baseline,
    /// Requires hardened pods.
    Restricted,
}

impl Level {
    const ALL: [Level; 3] = [Level::Privileged, Level::Baseline, Level::Restricted];

    fn as_str(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }

    /// Parses a label value.
    ///
    /// # Errors
    ///
    /// The allowed values.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let level = Level::ALL.into_iter().find(|level| level.as_str() == text);
        level.ok_or("must be one of privileged, baseline, restricted")
    }
}

/// Release of the controls: the minor number of a `v1.x`, or the latest release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// `v1.x`, past or future.
    Minor(u64),
    /// `latest`.
    #[default]
    Latest,
}

impl Version {
    /// Parses a label value.
    ///
    /// # Errors
    ///
    /// The allowed values.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "must be \"latest\" or \"v1.x\"";
        if text == "latest" {
            return Ok(Version::Latest);
        }
        let minor = text.strip_prefix("v1.").ok_or(EXPECTED)?;
        let is_plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        if !is_plain {
            return Err(EXPECTED);
        }
        minor.parse().map(Version::Minor).map_err(|_| EXPECTED)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Latest => f.write_str("latest"),
            Version::Minor(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// Level and release of the controls, such as `restricted:latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standard {
    pub(super) level: Level,
    pub(super) version: Version,
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.as_str(), self.version)
    }
}

/// Consequence of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Rejects the pod.
    Enforce,
    /// Adds an audit annotation.
    Audit,
    /// Returns a warning.
    Warn,
}

impl Mode {
    /// All modes, in the order of errors.
    pub(super) const ALL: [Mode; 3] = [Mode::Enforce, Mode::Audit, Mode::Warn];

    /// Name of the mode in labels and in the configuration.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Audit => "audit",
            Mode::Warn => "warn",
        }
    }
}

/// Standard of each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NamespacePolicy {
    pub(super) enforce: Standard,
    pub(super) audit: Standard,
    pub(super) warn: Standard,
}

impl NamespacePolicy {
    /// Standard of a mode.
    pub(super) fn standard(&self, mode: Mode) -> Standard {
        match mode {
            Mode::Enforce => self.enforce,
            Mode::Audit => self.audit,
            Mode::Warn => self.warn,
        }
    }

    /// Mutable standard of a mode.
    pub(super) fn standard_mut(&mut self, mode: Mode) -> &mut Standard {
        match mode {
            Mode::Enforce => &mut self.enforce,
            Mode::Audit => &mut self.audit,
            Mode::Warn => &mut self.warn,
        }
    }

    /// Whether these modes are all `privileged`.
    pub(super) fn is_privileged(&self, modes: &[Mode]) -> bool {
        modes.iter().all(|mode| self.standard(*mode).level == Level::Privileged)
    }

    /// Whether both policies have the same effect; the release of a `privileged` level is irrelevant.
    pub(super) fn is_equivalent(&self, other: &NamespacePolicy) -> bool {
        Mode::ALL.iter().all(|mode| {
            let (one, other) = (self.standard(*mode), other.standard(*mode));
            one == other || (one.level == other.level && one.level == Level::Privileged)
        })
    }
}

/// Label keys of the level and of the version, for each mode.
#[derive(Clone, Debug)]
pub(super) struct LabelKeys([(Mode, String, String); 3]);

/// Parsed labels of a namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedPolicy {
    /// The effective policy.
    /// An invalid enforce level counts as `restricted`, an invalid audit or warn level as `privileged`, and
    /// an invalid version as `latest`.
    pub(super) policy: NamespacePolicy,
    /// Errors of the invalid labels.
    pub(super) errors: Vec<FieldError>,
}

impl LabelKeys {
    pub(super) fn new(names: &Names) -> Self {
        LabelKeys(Mode::ALL.map(|mode| {
            let key = names.label_sub_key("pod-security", mode.as_str());
            let version = format!("{key}-version");
            (mode, key, version)
        }))
    }

    /// Parses the labels of a namespace. Defaults replace absent labels.
    /// Without a label for the warn level, a stricter valid enforce level is also the warn level. The enforce
    /// version is then also the warn version, unless a label sets the warn version.
    pub(super) fn read<'a>(
        &self,
        label: impl Fn(&str) -> Option<&'a str>,
        defaults: NamespacePolicy,
    ) -> ParsedPolicy {
        let mut parsed_policy = ParsedPolicy { policy: defaults, errors: Vec::new() };
        let path = FieldPath::new("metadata").child("labels");
        let (mut has_valid_enforce, mut has_warn, mut has_warn_version) = (false, false, false);
        for (mode, level_key, version_key) in &self.0 {
            let standard = parsed_policy.policy.standard_mut(*mode);
            let mut error = |key: &str, value: &str, reason: &str| {
                parsed_policy.errors.push(FieldError::invalid(&path.key(key), value, reason));
            };
            if let Some(value) = label(level_key) {
                let parsed = Level::parse(value);
                let strictest = if *mode == Mode::Enforce { Level::Restricted } else { Level::Privileged };
                standard.level = parsed.unwrap_or(strictest);
                match mode {
                    Mode::Enforce => has_valid_enforce = parsed.is_ok(),
                    Mode::Warn => has_warn = true,
                    Mode::Audit => {}
                }
                if let Err(reason) = parsed {
                    error(level_key, value, reason);
                }
            }
            if let Some(value) = label(version_key) {
                let parsed = Version::parse(value);
                standard.version = parsed.unwrap_or(Version::Latest);
                has_warn_version |= *mode == Mode::Warn;
                if let Err(reason) = parsed {
                    error(version_key, value, reason);
                }
            }
        }
        let policy = &mut parsed_policy.policy;
        if has_valid_enforce && !has_warn && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !has_warn_version {
                policy.warn.version = policy.enforce.version;
            }
        }
        parsed_policy
    }

    /// Modes with a level or version label and a level above `privileged`, with their standards in `policy`.
    pub(super) fn labelled_modes<'a>(
        &self,
        label: impl Fn(&str) -> Option<&'a str>,
        policy: &NamespacePolicy,
    ) -> Vec<(Mode, Standard)> {
        let labelled = self
            .0
            .iter()
            .filter(|(_, level, version)| [level, version].into_iter().any(|key| label(key).is_some()));
        let standards = labelled.map(|(mode, ..)| (*mode, policy.standard(*mode)));
        standards.filter(|(_, standard)| standard.level != Level::Privileged).collect()
    }
}
