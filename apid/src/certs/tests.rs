//! Tests of `apid certs`.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[test]
fn certs_rerun_keeps_ca_and_replaces_client_certificate_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("--cert-dir={}", folder.path().display());
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let run_with = |more: &[&str]| {
        let arguments = [dir.as_str(), "--client", "admin", "--group", "system:masters"];
        run(arguments.iter().chain(more).map(|word| (*word).to_owned()))
    };
    run_with(&[]).unwrap();
    let files = || ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "admin.crt", "admin.key"].map(read);
    let first = files();
    let refused = run_with(&[]).unwrap_err();
    assert!(refused[0].contains("admin.crt: the file exists"), "{refused:?}");
    std::fs::remove_file(folder.path().join("admin.crt")).unwrap();
    let refused = run_with(&[]).unwrap_err();
    assert!(refused[0].contains("admin.key: the file exists"), "{refused:?}");
    assert_eq!(read("admin.key"), first[5], "the refused call leaves the key");
    run_with(&["--force"]).unwrap();
    let second = files();
    assert_eq!(second[..4], first[..4]);
    assert_ne!(second[4], first[4]);
    assert_ne!(second[5], first[5]);
}

#[test]
fn client_with_file_name_of_server_is_rejected_even_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("--cert-dir={}", folder.path().display());
    run([dir.clone()]).unwrap();
    let read = || {
        ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key"]
            .map(|name| std::fs::read(folder.path().join(name)).unwrap())
    };
    let before = read();
    for name in ["ca", "apiserver", "CA", "", "a/b", "a\nb"] {
        let refused = run([dir.clone(), format!("--client={name}"), "--force".to_owned()]);
        assert!(refused.is_err(), "{name:?}");
    }
    assert_eq!(read(), before);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
}

#[test]
fn certs_reports_all_argument_errors_together() {
    let errors = run(["--nope", "--client=a/b", "--group"].map(str::to_owned)).unwrap_err();
    assert_eq!(errors.len(), 4, "{errors:?}");
    let errors = run(["--list", "--renew", "--kubeconfig=k", "--group=g", "--days=0", "--server=http://x"]
        .map(str::to_owned))
    .unwrap_err();
    for expected in [
        "`--list` and `--renew` exclude each other",
        "`--list` and `--kubeconfig` exclude each other",
        "`--renew` and `--group` exclude each other",
        "`--kubeconfig` needs `--client`",
        "`--group` needs `--client`",
        "`--cert-dir` is missing",
        "--days",
        "https://",
    ] {
        assert!(errors.iter().any(|error| error.contains(expected)), "{expected}: {errors:#?}");
    }
}

/// A folder for `apid certs`, and calls on it.
struct Certs {
    folder: tempfile::TempDir,
}

impl Certs {
    fn new() -> Self {
        Certs { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Result<(), Vec<String>> {
        let dir = format!("--cert-dir={}", self.folder.path().display());
        run(std::iter::once(dir).chain(arguments.iter().map(|word| (*word).to_owned())))
    }

    fn facts(&self, name: &str) -> CertificateFacts {
        CertificateFacts::read_all(&self.path(name)).unwrap().remove(0)
    }

    fn folder(&self) -> Folder {
        Folder::existing(self.folder.path()).unwrap()
    }

    fn is_revoked(&self, certificate: &CertificateFacts) -> bool {
        let folder = self.folder();
        folder.revocations().unwrap().is_revoked(certificate, &folder.authorities().unwrap())
    }
}

#[test]
fn revocation_covers_all_certificates_of_a_user_and_no_others() {
    let certs = Certs::new();
    certs.run(&["--client=alice", "--group=dev", "--days=2"]).unwrap();
    certs.run(&["--client=bob"]).unwrap();
    let first = certs.facts("alice.crt");
    assert_eq!(first.lifetime(), Duration::from_secs(2 * 24 * 3600));
    certs.run(&["--client=alice", "--force"]).unwrap();
    let second = certs.facts("alice.crt");
    assert_ne!(first.serial, second.serial);
    let rows = listing::rows(&certs.folder(), SystemClock::new().now()).unwrap();
    let files: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(files, ["ca.crt", "apiserver.crt", "alice.crt", "bob.crt", "(replaced)"]);
    assert_eq!(rows[4][2], first.serial_text());
    assert_eq!(rows[2][6], second.fingerprint);
    assert!(rows.iter().all(|row| row[5] == "valid"), "{rows:?}");

    // The certificate that `--force` replaced can still be in use.
    certs.run(&["--revoke=alice"]).unwrap();
    let bob = certs.facts("bob.crt");
    assert_eq!([&first, &second, &bob].map(|facts| certs.is_revoked(facts)), [true, true, false]);
    let states: Vec<String> = listing::rows(&certs.folder(), SystemClock::new().now())
        .unwrap()
        .into_iter()
        .map(|[.., state, _]| state)
        .collect();
    assert_eq!(states, ["valid", "valid", "revoked", "valid", "revoked"]);
    // A serial number as in the log, with colons, or a file.
    certs.run(&[&format!("--revoke={}", bob.serial_text().to_uppercase())]).unwrap();
    assert!(certs.is_revoked(&bob));
    certs.run(&["--client=carol"]).unwrap();
    certs.run(&[&format!("--revoke={}", certs.path("carol.crt").display())]).unwrap();
    assert!(certs.is_revoked(&certs.facts("carol.crt")));
}

#[test]
fn public_copies_have_each_revocation_and_no_key() {
    let certs = Certs::new();
    certs.run(&["--client=alice"]).unwrap();
    assert!(!certs.path("public").exists(), "no copies without --public");
    certs.run(&["--public"]).unwrap();
    let names = || {
        let entries = std::fs::read_dir(certs.path("public")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let are_equal = |name: &str| {
        let path = certs.path("public").join(name);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644, "{name}");
        std::fs::read(path).unwrap() == std::fs::read(certs.path(name)).unwrap()
    };
    assert_eq!(names(), ["ca.crl", "ca.crt"]);
    assert_eq!(certs.path("public").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(are_equal("ca.crt") && are_equal("ca.crl"));
    let empty = std::fs::read(certs.path("ca.crl")).unwrap();
    certs.run(&["--revoke=alice"]).unwrap();
    assert_ne!(std::fs::read(certs.path("ca.crl")).unwrap(), empty);
    assert!(are_equal("ca.crl"), "the copy has the revocation");
    // An edit by hand is taken over by the next call.
    let bundle = std::fs::read_to_string(certs.path("ca.crt")).unwrap().repeat(2);
    std::fs::write(certs.path("ca.crt"), bundle).unwrap();
    certs.run(&["--renew"]).unwrap();
    assert!(are_equal("ca.crt"));
    assert_eq!(names(), ["ca.crl", "ca.crt"]);
    assert!(certs.run(&["--list", "--public"]).unwrap_err()[0].contains("exclude each other"));
    // A copy that cannot be written is an error of the call.
    std::fs::remove_file(certs.path("public/ca.crl")).unwrap();
    std::fs::create_dir(certs.path("public/ca.crl")).unwrap();
    assert!(certs.run(&["--client=bob"]).unwrap_err()[0].contains("public/ca.crl"));
}

#[test]
fn certificate_that_cannot_be_revoked_is_an_error_and_changes_nothing() {
    let (certs, other) = (Certs::new(), Certs::new());
    assert!(certs.run(&["--revoke=alice"]).unwrap_err()[0].contains("no certificate authority"));
    certs.run(&["--client=alice"]).unwrap();
    other.run(&["--client=alice"]).unwrap();
    let before = std::fs::read(certs.path("ca.crl")).unwrap();
    let foreign = other.path("alice.crt").display().to_string();
    let own = |name: &str| certs.path(name).display().to_string();
    for (word, expected) in [
        ("abe", "`abe` is no user and no serial number"),
        ("ca", "ca.crt: clients read no revocation list"),
        ("APISERVER", "apiserver.crt: "),
        (foreign.as_str(), "not revoked: issued by CN=serving-ca@"),
        (own("ca.crt").as_str(), "the certificate of a CA"),
        (own("apiserver.crt").as_str(), "not a client certificate"),
        (own("absent.crt").as_str(), "absent.crt: No such file"),
    ] {
        let errors = certs.run(&["--revoke=alice", &format!("--revoke={word}")]).unwrap_err();
        assert!(errors[0].contains(expected), "{word}: {errors:?}");
    }
    assert_eq!(std::fs::read(certs.path("ca.crl")).unwrap(), before, "all or none");
    // A serial number that is long enough is no user: the built-in signer issues certificates, too.
    certs.run(&["--revoke=00112233445566778899"]).unwrap();
    assert_ne!(std::fs::read(certs.path("ca.crl")).unwrap(), before);
    // A damaged list is never replaced.
    std::fs::write(certs.path("ca.crl"), "junk").unwrap();
    assert!(certs.run(&["--revoke=alice"]).unwrap_err()[0].contains("ca.crl: has no revocation list"));
    certs.run(&["--client=bob"]).unwrap();
    assert_eq!(std::fs::read(certs.path("ca.crl")).unwrap(), b"junk");
}

#[test]
fn certificates_of_two_authorities_are_revoked_each_in_the_list_of_its_issuer() {
    let (certs, new) = (Certs::new(), Certs::new());
    certs.run(&["--client=erin"]).unwrap();
    let old = certs.facts("erin.crt");
    new.run(&[]).unwrap();
    let read = |certs: &Certs, name: &str| std::fs::read_to_string(certs.path(name)).unwrap();
    let old_key = read(&certs, "ca.key");
    std::fs::write(certs.path("ca.crt"), read(&new, "ca.crt") + &read(&certs, "ca.crt")).unwrap();
    std::fs::write(certs.path("ca.key"), read(&new, "ca.key")).unwrap();
    certs.run(&["--renew"]).unwrap();
    let renewed = certs.facts("erin.crt");
    // Without the key of the old authority the rest is revoked, and an error names the certificate that is still trusted.
    let errors = certs.run(&["--revoke=erin"]).unwrap_err();
    assert!(errors[0].contains(&format!("CN=erin, serial {}: not revoked", old.serial_text())), "{errors:?}");
    assert_eq!([&old, &renewed].map(|facts| certs.is_revoked(facts)), [false, true]);
    // The order of the keys does not matter.
    std::fs::write(certs.path("ca.key"), old_key + &read(&new, "ca.key")).unwrap();
    certs.run(&["--revoke=erin"]).unwrap();
    assert_eq!([&old, &renewed].map(|facts| certs.is_revoked(facts)), [true, true]);
    // An unknown serial number can be of both authorities.
    certs.run(&["--client=frank"]).unwrap();
    let frank = certs.facts("frank.crt");
    std::fs::remove_file(certs.path("frank.crt")).unwrap();
    std::fs::remove_file(certs.path("issued.pem")).unwrap();
    certs.run(&[&format!("--revoke={}", frank.serial_text())]).unwrap();
    assert_eq!([&old, &renewed, &frank].map(|facts| certs.is_revoked(facts)), [true, true, true]);
}

#[test]
fn renewal_reissues_due_certificates_and_keeps_subjects_and_revocations() {
    let certs = Certs::new();
    assert!(certs.run(&["--renew"]).is_err(), "no authority");
    certs.run(&["--client=alice", "--group=b", "--group=a", "--days=9"]).unwrap();
    certs.run(&["--client=bob", "--days=9"]).unwrap();
    certs.run(&["--revoke=bob"]).unwrap();
    let names = ["apiserver.crt", "alice.crt", "bob.crt"];
    let facts = || names.map(|name| certs.facts(name));
    let first = facts();
    let renew = |days: u64, force: bool| {
        let request = renewal::Request { client: None, hosts: &[], validity: None, force };
        let now = SystemClock::new().now() + Duration::from_secs(days * 24 * 3600);
        renewal::renew(&certs.folder(), &request, now).unwrap();
        facts()
    };
    let serials = |facts: &[CertificateFacts; 3]| facts.clone().map(|facts| facts.serial);
    assert_eq!(serials(&renew(0, false)), serials(&first), "nothing is due");
    let key = std::fs::read(certs.path("alice.key")).unwrap();
    let second = renew(7, false);
    assert_ne!(second[0].serial, first[0].serial);
    assert_ne!(second[1].serial, first[1].serial);
    assert_eq!(second[2].serial, first[2].serial, "a revoked certificate is not renewed");
    assert_eq!((&second[1].subject_der, second[1].lifetime()), (&first[1].subject_der, first[1].lifetime()));
    assert_ne!(std::fs::read(certs.path("alice.key")).unwrap(), key);
    assert_ne!(serials(&renew(7, true))[1], second[1].serial, "--force renews all");
    let errors = certs.run(&["--renew", "--client=dave"]).unwrap_err();
    assert!(errors[0].contains("dave.crt: the file does not exist"), "{errors:?}");
}

#[test]
fn kubeconfig_has_bundle_certificate_and_key_and_replaces_no_file() {
    let certs = Certs::new();
    let file = certs.path("alice.kubeconfig");
    let flag = format!("--kubeconfig={}", file.display());
    certs.run(&["--client=alice", "--group=dev", &flag, "--server=https://[::1]:6443"]).unwrap();
    let config = std::fs::read_to_string(&file).unwrap();
    let encoded = |name: &str| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(std::fs::read(certs.path(name)).unwrap())
    };
    for expected in [
        "server: \"https://[::1]:6443\"\n".to_owned(),
        format!("certificate-authority-data: {}\n", encoded("ca.crt")),
        format!("client-certificate-data: {}\n", encoded("alice.crt")),
        format!("client-key-data: {}\n", encoded("alice.key")),
        "current-context: \"alice\"\n".to_owned(),
    ] {
        assert!(config.contains(&expected), "{expected}: {config}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let serial = certs.facts("alice.crt").serial;
    let errors = certs.run(&["--client=alice", &flag]).unwrap_err();
    assert!(errors[0].contains("alice.kubeconfig: the file exists"), "{errors:?}");
    // An existing certificate is used; a call that asks for another one does not replace it without --force.
    certs.run(&["--client=alice", &flag, "--force"]).unwrap();
    assert_eq!(certs.facts("alice.crt").serial, serial);
    std::fs::remove_file(&file).unwrap();
    let errors = certs.run(&["--client=alice", &flag, "--days=3"]).unwrap_err();
    assert!(errors[0].contains("alice.crt: the file exists"), "{errors:?}");
    assert!(!file.exists());
    // A certificate that the server rejects is not handed out.
    let revoked = std::fs::read(certs.path("alice.crt")).unwrap();
    certs.run(&["--revoke=alice"]).unwrap();
    let errors = certs.run(&["--client=alice", &flag, "--force"]).unwrap_err();
    assert!(errors[0].contains("alice.crt: revoked, so a server rejects the kubeconfig"), "{errors:?}");
    assert!(!file.exists());
    assert_eq!(std::fs::read(certs.path("alice.crt")).unwrap(), revoked);
    certs.run(&["--client=alice", "--group=dev", &flag, "--force"]).unwrap();
    assert!(file.exists() && !certs.is_revoked(&certs.facts("alice.crt")));
    let absent = format!("--kubeconfig={}", certs.path("absent/k").display());
    let errors = certs.run(&["--client=dora", &absent]).unwrap_err();
    assert!(errors[0].contains("the folder of the kubeconfig does not exist"), "{errors:?}");
    assert!(!certs.path("dora.crt").exists());
}

#[test]
fn rotation_of_the_authority_in_place_reissues_all_certificates() {
    let (certs, new) = (Certs::new(), Certs::new());
    certs.run(&["--client=alice", "--group=dev"]).unwrap();
    let old = certs.facts("alice.crt");
    certs.run(&["--client=mallory"]).unwrap();
    certs.run(&["--revoke=mallory"]).unwrap();
    new.run(&[]).unwrap();
    let join = |name: &str, order: [&Certs; 2]| {
        order.map(|certs| std::fs::read_to_string(certs.path(name)).unwrap()).concat()
    };
    // Trust both; the old authority signs.
    let bundle = join("ca.crt", [&certs, &new]);
    std::fs::write(certs.path("ca.crt"), bundle).unwrap();
    std::fs::write(certs.path("ca.crl"), join("ca.crl", [&certs, &new])).unwrap();
    certs.run(&["--renew"]).unwrap();
    assert_eq!(certs.facts("alice.crt").serial, old.serial);
    // The new authority signs.
    let [old_ca, new_ca] =
        [0, 1].map(|at| CertificateFacts::read_all(&certs.path("ca.crt")).unwrap().remove(at));
    std::fs::write(certs.path("ca.crt"), new_ca.pem() + &old_ca.pem()).unwrap();
    std::fs::copy(new.path("ca.key"), certs.path("ca.key")).unwrap();
    assert!(certs.run(&["--revoke=alice"]).unwrap_err()[0].contains("whose key is not in ca.key"));
    let mallory = certs.facts("mallory.crt");
    assert!(certs.is_revoked(&mallory), "the list of the old authority stays");
    certs.run(&["--renew"]).unwrap();
    for name in ["alice.crt", "apiserver.crt"] {
        assert!(certs.facts(name).is_issued_by(&new_ca), "{name}");
    }
    assert_eq!(certs.facts("alice.crt").subject_der, old.subject_der);
    assert_eq!(certs.facts("mallory.crt").serial, mallory.serial, "a revoked certificate is not renewed");
    std::fs::write(certs.path("ca.crt"), new_ca.pem()).unwrap();
    certs.run(&["--revoke=alice"]).unwrap();
    assert!(certs.is_revoked(&certs.facts("alice.crt")));
}

#[test]
fn steps_of_a_rotation_keep_each_revocation_and_follow_their_order() {
    let certs = Certs::new();
    let users = ["alice", "before", "added", "switched", "renewed"];
    certs.run(&["--public"]).unwrap();
    for user in users {
        certs.run(&[&format!("--client={user}")]).unwrap();
    }
    let step = |step: &str| certs.run(&[&format!("--rotate-ca={step}")]);
    let error = |name: &str| step(name).unwrap_err().remove(0);
    let old = users.map(|user| certs.facts(&format!("{user}.crt")));
    let bundle = || CertificateFacts::read_all(&certs.path("ca.crt")).unwrap();
    let old_ca = bundle().remove(0);
    let old_key = std::fs::read_to_string(certs.path("ca.key")).unwrap();
    for name in ["switch", "remove"] {
        assert!(error(name).contains("ca.key: has one key, so no rotation of the CA has begun"), "{name}");
    }
    certs.run(&["--revoke=before"]).unwrap();
    step("add").unwrap();
    assert!(error("add").contains("a rotation has begun"));
    assert!(error("remove").contains("the new CA does not sign yet"));
    let [first, new_ca] = <[CertificateFacts; 2]>::try_from(bundle()).unwrap();
    assert_eq!(first.fingerprint, old_ca.fingerprint);
    assert_eq!(std::fs::metadata(certs.path("ca.key")).unwrap().permissions().mode() & 0o777, 0o600);
    certs.run(&["--revoke=added"]).unwrap();
    for _ in 0..2 {
        step("switch").unwrap();
        let order = bundle().into_iter().map(|ca| ca.fingerprint);
        assert_eq!(order.collect::<Vec<_>>(), [&new_ca, &old_ca].map(|ca| ca.fingerprint.clone()));
    }
    certs.run(&["--revoke=switched"]).unwrap();
    let needed = error("remove");
    assert!(
        needed.contains("apiserver.crt, alice.crt, renewed.crt: issued by the CA that would be"),
        "{needed}"
    );
    certs.run(&["--renew"]).unwrap();
    certs.run(&["--revoke=renewed"]).unwrap();
    let renewed = certs.facts("renewed.crt");
    assert!(renewed.is_issued_by(&new_ca) && certs.facts("alice.crt").is_issued_by(&new_ca));
    assert_eq!(old.each_ref().map(|facts| certs.is_revoked(facts)), [false, true, true, true, true]);
    assert!(certs.is_revoked(&renewed));
    // With both authorities again, each revocation is still in the lists.
    step("remove").unwrap();
    assert_eq!(bundle().len(), 1);
    let key = std::fs::read_to_string(certs.path("ca.key")).unwrap();
    assert_eq!(key.matches("BEGIN").count(), 1);
    assert_ne!(key, old_key);
    let lists = certs.folder().revocations().unwrap();
    let authorities = [old_ca, new_ca.clone()];
    assert_eq!(
        old.each_ref().map(|facts| lists.is_revoked(facts, &authorities)),
        [false, true, true, true, true]
    );
    assert!(certs.is_revoked(&renewed) && !certs.is_revoked(&certs.facts("alice.crt")));
    for name in ["ca.crt", "ca.crl"] {
        let copy = std::fs::read(certs.path("public").join(name)).unwrap();
        assert_eq!(copy, std::fs::read(certs.path(name)).unwrap(), "{name}");
    }
    let rows = listing::rows(&certs.folder(), SystemClock::new().now()).unwrap();
    let states: Vec<[&str; 2]> = rows.iter().map(|row| [row[0].as_str(), row[5].as_str()]).collect();
    let files = ["added.crt", "alice.crt", "before.crt", "renewed.crt", "switched.crt"];
    let of_files = ["unknown CA", "valid", "unknown CA", "revoked", "unknown CA"];
    assert_eq!(states[..2], [["ca.crt", "valid"], ["apiserver.crt", "valid"]]);
    assert_eq!(states[2..7], [0, 1, 2, 3, 4].map(|at| [files[at], of_files[at]]));
    assert_eq!(states[7..], [["(replaced)", "unknown CA"]; 2]);
    // The next rotation has another new authority.
    step("add").unwrap();
    step("switch").unwrap();
    assert!(![&authorities[0], &new_ca].map(|ca| &ca.fingerprint).contains(&&bundle()[0].fingerprint));
    let exclusive = certs.run(&["--rotate-ca=add", "--renew"]).unwrap_err();
    assert!(exclusive[0].contains("`--rotate-ca` and `--renew` exclude each other"), "{exclusive:?}");
}
