//! The facts about this build, recorded by the build script.

use serving::build::BuildInfo;

/// Version, commit, date and compiler of this program.
pub(crate) const BUILD_INFO: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    commit: env!("BUILD_COMMIT"),
    seconds: env!("BUILD_SECONDS"),
    compiler: env!("BUILD_COMPILER"),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_info_names_the_compiler() {
        assert!(BUILD_INFO.compiler.starts_with("rustc "), "{BUILD_INFO:?}");
    }
}
