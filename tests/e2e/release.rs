//! `deploy/release` is reproducible; the archive runs on its own; the Debian packages can be installed and purged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use prerequisites::skip;
use serde_json::Value;
use tests::harness::program;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a program and returns its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok()
}

#[test]
fn release_is_reproducible_complete_and_runs() {
    for tool in ["dpkg-deb", "objcopy", "python3"] {
        if !has_program(tool) {
            return skip("packaging", &format!("{tool} is not installed"));
        }
    }
    let dir = tempfile::tempdir().expect("a folder");
    let programs = program("apid").parent().expect("the folder of the programs").to_owned();
    let other = dir.path().join("other");
    fs::create_dir(&other).expect("a folder");
    fs::write(other.join("note"), "of another program").expect("a file");
    let mut command = Command::new(repository().join("deploy/release"));
    command.arg("--no-site").arg("--programs").arg(&programs).arg("--out").arg(&other);
    let refused = command.output().expect("the script runs");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("other files than a release"), "{text}");
    assert!(other.join("note").exists(), "files of others stay");
    let make = |name: &str| {
        let out = dir.path().join(name);
        let mut command = Command::new(repository().join("deploy/release"));
        command.env("RELEASE_COMPRESSION", "1");
        run(command.arg("--no-site").arg("--programs").arg(&programs).arg("--out").arg(&out));
        out
    };
    let (out, again) = (make("one"), make("two"));
    let sums = |out: &Path| fs::read_to_string(out.join("SHA256SUMS")).expect("the checksums");
    assert_eq!(sums(&out), sums(&again), "equal programs give equal files");
    let names: Vec<String> = fs::read_dir(&out)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    let find = |part: &str| {
        let name = names.iter().find(|name| name.contains(part) && !name.contains("-debug"));
        out.join(name.unwrap_or_else(|| panic!("{part} in {names:?}")))
    };
    let sbom: Value = serde_json::from_slice(&fs::read(find(".cdx.json")).expect("the SBOM")).expect("JSON");
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    let components = sbom["components"].as_array().expect("components");
    for package in ["tokio", "rustls", "fjall", "authd"] {
        assert!(components.iter().any(|component| component["name"] == package), "{package}");
    }
    assert!(
        !components.iter().any(|component| component["name"] == "fuser"),
        "packages of tests are left out"
    );
    let archive = find("-linux-x86_64");
    let list = run(Command::new("tar").arg("-tzf").arg(&archive));
    for file in [
        "bin/apid",
        "bin/authd",
        "LICENSE",
        "THIRD-PARTY-LICENCES.txt",
        "completions/apid.bash",
        "man/authd.1",
        "man/apid-up.1",
        "systemd/apid.service",
        "monitoring/prometheus-rules.yaml",
    ] {
        assert!(list.lines().any(|line| line.ends_with(&format!("/{file}"))), "{file} in {list}");
    }
    for deb in ["apid_", "authd_"] {
        let text = run(Command::new("dpkg-deb").arg("--info").arg(find(deb)));
        assert!(text.contains("Architecture: amd64") && text.contains("Depends: "), "{text}");
    }
    let helpers = run(Command::new(repository().join("deploy/packaging/test-helpers")).arg(&out));
    assert!(helpers.contains("python: v1.33") && helpers.contains("used from empty projects"), "{helpers}");
    if !rustix::process::geteuid().is_root() {
        return skip("root", "the archive and the packages are not tried without root");
    }
    run(Command::new(repository().join("deploy/packaging/test-archive")).arg(&archive));
    let debian = run(Command::new(repository().join("deploy/packaging/test-debian")).arg(&out));
    assert!(debian.contains("installed, run, removed and purged"), "{debian}");
    if !has_program("buildah") {
        return skip("buildah", "the image is not built without buildah");
    }
    let unpacked = dir.path().join("unpacked");
    fs::create_dir(&unpacked).expect("a folder");
    run(Command::new("tar").arg("-xzf").arg(&archive).arg("--strip-components=1").arg("-C").arg(&unpacked));
    let image = run(Command::new(repository().join("deploy/container/test-image")).arg(&unpacked));
    assert!(image.contains("built, run and stopped"), "{image}");
}
