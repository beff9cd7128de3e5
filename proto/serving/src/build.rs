//! Facts about this build: version, commit, date and compiler.
//!
//! # Contract
//!
//! The build script `proto/serving/build.rs` records the facts. A build other than a release has no commit and no
//! date, unless `BUILD_COMMIT` and `SOURCE_DATE_EPOCH` give them.

/// The facts about this build.
pub const INFO: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    commit: env!("BUILD_COMMIT"),
    date: env!("BUILD_DATE"),
    compiler: env!("BUILD_COMPILER"),
};

/// Facts about a build; empty texts are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The version of the programs.
    pub version: &'static str,
    /// The commit; `-dirty` marks uncommitted changes, as a hint (see the build script).
    pub commit: &'static str,
    /// The date, as RFC 3339 text.
    pub date: &'static str,
    /// The compiler with its version.
    pub compiler: &'static str,
}

impl BuildInfo {
    /// The commit without `-dirty`.
    pub fn commit_id(&self) -> &'static str {
        self.commit.strip_suffix("-dirty").unwrap_or(self.commit)
    }

    /// `clean`, `dirty`, or `""` without a commit.
    pub fn tree_state(&self) -> &'static str {
        match self.commit {
            "" => "",
            commit if commit.ends_with("-dirty") => "dirty",
            _ => "clean",
        }
    }

    /// Operating system and processor, such as `linux/x86_64`.
    pub fn platform(&self) -> String {
        format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
    }

    /// The text of `--version`, without the name of the program.
    pub fn text(&self) -> String {
        let or_unknown = |fact: &'static str| if fact.is_empty() { "unknown" } else { fact };
        format!(
            "{}\ncommit: {}\nbuild date: {}\ncompiler: {}\nplatform: {}\n",
            self.version,
            or_unknown(self.commit),
            or_unknown(self.date),
            or_unknown(self.compiler),
            self.platform()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_info_text_contains_all_facts_and_marks_unknown_ones() {
        let build = BuildInfo {
            version: "1.2.3",
            commit: "abc-dirty",
            date: "2026-01-02T03:04:05Z",
            compiler: "rustc 1",
        };
        assert_eq!((build.commit_id(), build.tree_state()), ("abc", "dirty"));
        for fact in ["1.2.3", "abc-dirty", "2026-01-02T03:04:05Z", "rustc 1"] {
            assert!(build.text().contains(fact), "{}", build.text());
        }
        let unknown = BuildInfo { version: "1", commit: "", date: "", compiler: "" };
        assert_eq!((unknown.tree_state(), unknown.text().matches("unknown").count()), ("", 3));
        assert!(INFO.compiler.starts_with("rustc "), "{INFO:?}");
    }
}
