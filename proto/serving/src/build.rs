//! The type of facts about a build: version, commit, date and compiler.
//!
//! Each program records the facts in its own build script, so that a commit recompiles no library.

/// Facts about a build; empty texts are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The version of the programs.
    pub version: &'static str,
    /// The commit; `-dirty` marks uncommitted changes, as a hint (see the build script).
    pub commit: &'static str,
    /// The time of the commit in seconds since 1970, in decimal digits.
    pub seconds: &'static str,
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

    /// The date, as RFC 3339 text.
    pub fn date(&self) -> String {
        let seconds = self.seconds.parse().ok();
        let date = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        date.map(|date| date.to_string()).unwrap_or_default()
    }

    /// Operating system and processor, such as `linux/x86_64`.
    pub fn platform(&self) -> String {
        format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
    }

    /// The text of `--version`, without the name of the program.
    pub fn text(&self) -> String {
        fn or_unknown(fact: &str) -> &str {
            if fact.is_empty() { "unknown" } else { fact }
        }
        format!(
            "{}\ncommit: {}\nbuild date: {}\ncompiler: {}\nplatform: {}\n",
            self.version,
            or_unknown(self.commit),
            or_unknown(&self.date()),
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
        let build =
            BuildInfo { version: "1.2.3", commit: "abc-dirty", seconds: "1767323045", compiler: "rustc 1" };
        assert_eq!((build.commit_id(), build.tree_state()), ("abc", "dirty"));
        for fact in ["1.2.3", "abc-dirty", "2026-01-02T03:04:05Z", "rustc 1"] {
            assert!(build.text().contains(fact), "{}", build.text());
        }
        let unknown = BuildInfo { version: "1", commit: "", seconds: "", compiler: "" };
        assert_eq!((unknown.tree_state(), unknown.text().matches("unknown").count()), ("", 3));
    }
}
