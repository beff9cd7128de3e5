//! The files of `deploy/container`: authd reaches no key but its own, the versions are those of the repository, and the
//! compose files run.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use prerequisites::repository;

fn container(name: &str) -> String {
    let path: PathBuf = repository().join("deploy/container").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The volumes of each service of a compose file, as `source:target`.
fn volumes_of_services(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut service = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("  ").and_then(|rest| rest.strip_suffix(':')) {
            service = if name.starts_with(' ') { service } else { name.to_owned() };
        } else if let Some(list) = line.trim().strip_prefix("volumes: [") {
            let list = list.trim_end_matches(']').split(", ").map(|item| item.trim_matches('"').to_owned());
            services.entry(service.clone()).or_default().extend(list);
        }
    }
    services
}

#[test]
fn authd_of_the_compose_file_has_no_volume_with_other_keys() {
    let services = volumes_of_services(&container("compose.yaml"));
    assert_eq!(services.keys().collect::<Vec<_>>(), ["apid", "authd", "certificates"]);
    let authd = &services["authd"];
    assert_eq!(authd, &["public:/etc/apid/public:ro", "socket:/run/authd", "authd:/var/lib/authd"]);
    for service in ["apid", "certificates"] {
        // A revocation in either container reaches authd through the volume of the copies.
        let volumes = &services[service];
        assert!(volumes.contains(&"pki:/etc/apid/pki".to_owned()), "{service}: {volumes:?}");
        assert!(volumes.contains(&"public:/etc/apid/pki/public".to_owned()), "{service}: {volumes:?}");
    }
    assert!(container("compose.yaml").contains("command: [certs, --cert-dir, /etc/apid/pki, --public,"));
}

#[test]
fn image_is_built_with_the_toolchain_of_the_repository() {
    let toolchain = fs::read_to_string(repository().join("rust-toolchain.toml")).expect("the toolchain");
    let version = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
    let version = version.expect("a version");
    let text = container("Containerfile");
    for line in [
        format!("ARG BUILD_BASE=docker.io/library/rust:{version}-bookworm"),
        format!("ENV RUSTUP_TOOLCHAIN={version}"),
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is missing in {text}");
    }
}

/// Both ways to an image make the folders of the volumes, whose owner a new volume takes over.
#[test]
fn both_images_have_the_folders_of_all_volumes() {
    let release = fs::read_to_string(repository().join("deploy/release")).expect("the script");
    let services = volumes_of_services(&container("compose.yaml"));
    for (name, text) in [("Containerfile", container("Containerfile")), ("deploy/release", release)] {
        let words: Vec<&str> = text.split([' ', ',', '{', '}', '\n']).collect();
        for volume in services.values().flatten() {
            let folder = volume.split(':').nth(1).expect("a target").trim_start_matches('/');
            let is_made = words.iter().any(|word| {
                let word = word.trim_start_matches("/folders/");
                word == folder || word.starts_with(&format!("{folder}/"))
            });
            assert!(is_made, "{name} does not make /{folder}");
        }
    }
}
