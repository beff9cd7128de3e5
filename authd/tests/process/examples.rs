//! The example files of `policies/examples`, checked by the authd program.

use std::path::{Path, PathBuf};

use super::harness::run;

fn examples_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/examples")
}

/// Checks that `authd check` accepts a file.
fn assert_accepted(file: &Path, names: &str) {
    let output = run(&["check", "--names", names, &file.display().to_string()]);
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
}

#[test]
fn example_configuration_files_pass_check_under_both_presets() {
    let dir = tempfile::tempdir().unwrap();
    let service = dir.path().join("policy-service.kubeconfig");
    std::fs::copy(examples_folder().join("policy-service.kubeconfig"), &service).unwrap();
    // The webhook configuration refers to these files.
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    std::fs::write(dir.path().join("policy-service-ca.crt"), authority.pem()).unwrap();
    std::fs::write(dir.path().join("policy-service.token"), "opaque").unwrap();
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(examples_folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // The example names the file of an installation; the test uses the copy.
        let adapted = text.replace("/etc/authd/policy-service.kubeconfig", &service.display().to_string());
        if adapted == text {
            assert_accepted(&path, "svc");
        }
        for (names, domain) in [("svc", "svc.internal"), ("kubernetes", "k8s.io")] {
            let copy = dir.path().join(names);
            std::fs::write(
                &copy,
                adapted.replace("apiserver.config.svc.internal", &format!("apiserver.config.{domain}")),
            )
            .unwrap();
            assert_accepted(&copy, names);
        }
        seen.push(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    seen.sort();
    assert_eq!(seen, ["authentication", "authorization", "authorization-webhook"]);
}

#[test]
fn examples_readme_lists_all_files() {
    let readme = std::fs::read_to_string(examples_folder().join("README.md")).unwrap();
    for entry in std::fs::read_dir(examples_folder()).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(name == "README.md" || readme.contains(&format!("| `{name}` |")), "{name}");
    }
}
