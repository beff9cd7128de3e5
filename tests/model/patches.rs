//! Known bugs as patches of the product.
//!
//! `tests/patches/run.py` applies each patch to a copy and requires that the model test detects the bug,
//! which takes long. This test only checks that all patches still apply.

use std::path::Path;
use std::process::Command;

/// Number of patches in `tests/patches`.
const PATCHES: usize = 13;

#[test]
fn every_known_bug_patch_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
    let folder = std::fs::read_dir(root.join("tests/patches")).expect("the patches");
    let mut patches: Vec<_> = folder.map(|entry| entry.expect("a file").path()).collect();
    patches.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    patches.sort();
    assert_eq!(patches.len(), PATCHES);
    for patch in patches {
        let check = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root).output();
        let output = check.expect("git runs");
        assert!(
            output.status.success(),
            "{} does not apply: recreate the bug on the current code\n{}",
            patch.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// `run.py` counts a bug as detected only if a check fails that its patch names, not after any other failure.
#[test]
fn only_named_check_violation_counts_as_detection() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
    let run = root.join("tests/patches/run.py");
    let lists = Command::new(&run).arg("--list").output().expect("python runs");
    let text = String::from_utf8_lossy(&lists.stdout);
    assert!(lists.status.success(), "{}", String::from_utf8_lossy(&lists.stderr));
    assert_eq!(text.lines().count(), PATCHES, "{text}");
    let mut doctest = Command::new("python3");
    doctest.args(["-m", "doctest"]).arg(&run).env("PYTHONDONTWRITEBYTECODE", "1");
    let verdicts = doctest.output().expect("python runs");
    assert!(verdicts.status.success(), "{}", String::from_utf8_lossy(&verdicts.stdout));
}
