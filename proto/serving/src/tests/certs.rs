//! Tests of generating, keeping, reissuing and signing certificates.

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn parsed(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn files(pair: &ServingPair) -> Vec<String> {
    [&pair.cert, &pair.key, &pair.ca, &pair.ca_key].map(|path| fs::read_to_string(path).unwrap()).to_vec()
}

#[test]
fn serving_certificate_is_generated_once_and_kept_while_valid() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("deep/certs");
    let names = ["svc.default.svc".to_owned(), "10.0.0.1".to_owned(), "0.0.0.0".to_owned(), "::".to_owned()];
    let pair = ensure_serving_pair(&certs, &names, now()).unwrap();
    for key in [&pair.key, &pair.ca_key] {
        assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600, "{}", key.display());
    }
    assert_eq!(fs::read_dir(&certs).unwrap().count(), 4, "no temporary files remain");
    let first = files(&pair);
    let later = |days: u64| now() + Duration::from_secs(days * 24 * 3600);

    for (label, names, now) in [
        ("unchanged names", &names[..], now()),
        ("fewer names", &names[..1], now()),
        ("ten months later", &names[..], later(300)),
    ] {
        ensure_serving_pair(&certs, names, now).unwrap();
        assert_eq!(files(&pair), first, "{label}");
    }
    let more = [names.to_vec(), vec!["other.name".to_owned()]].concat();
    for (label, names, now) in [("a new name", &more[..], now()), ("about to end", &names[..], later(340))] {
        ensure_serving_pair(&certs, names, now).unwrap();
        let made = files(&pair);
        assert_ne!(made[0], first[0], "{label}");
        assert_ne!(serial_number(&made[0]), serial_number(&first[0]), "{label}");
        assert_eq!(made[1..], first[1..], "{label}: keys and authority stay");
    }

    let (_, leaf) = X509Certificate::from_der(&parsed(&files(&pair)[0]))
        .map(|(r, c)| (r.len(), c.subject().to_string()))
        .unwrap();
    assert_eq!(leaf, "CN=apiserver");
}

/// Returns the serial number of a certificate in PEM.
fn serial_number(pem: &str) -> Vec<u8> {
    X509Certificate::from_der(&parsed(pem)).unwrap().1.raw_serial().to_vec()
}

#[test]
fn authorities_of_one_second_have_different_names() {
    let name = |time| {
        let dir = tempfile::tempdir().unwrap();
        let pair = ensure_serving_pair(dir.path(), &[], time).unwrap();
        let ca = parsed(&fs::read_to_string(pair.ca).unwrap());
        X509Certificate::from_der(&ca).unwrap().1.subject().to_string()
    };
    let time = now();
    assert_ne!(name(time), name(time + Duration::from_millis(1)));
}

#[test]
fn ca_file_with_certificate_of_no_ca_returns_error_and_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let authority = Authority::load(&pair.ca, &pair.ca_key).unwrap();
    let client = authority.client("ca", &[], Duration::from_secs(3600), now()).unwrap();
    fs::write(&pair.ca, &client.cert).unwrap();
    fs::write(&pair.ca_key, &client.key).unwrap();
    let error = ensure_serving_pair(dir.path(), &[], now()).unwrap_err().to_string();
    assert!(error.contains("ca.crt: is not the certificate of a CA"), "{error}");
    assert_eq!(fs::read_to_string(&pair.ca).unwrap(), client.cert);
}

#[test]
fn certificate_is_authority_by_basic_constraints_and_key_usage() {
    let key = KeyPair::generate().unwrap();
    let unconstrained = IsCa::Ca(BasicConstraints::Unconstrained);
    for (is_ca, key_usages, expected) in [
        (unconstrained, vec![], true),
        (unconstrained, vec![KeyUsagePurpose::KeyCertSign], true),
        (unconstrained, vec![KeyUsagePurpose::DigitalSignature], false),
        (IsCa::ExplicitNoCa, vec![KeyUsagePurpose::KeyCertSign], false),
        (IsCa::NoCa, vec![], false),
    ] {
        let label = format!("{is_ca:?}, {key_usages:?}");
        let mut params = params(&[], now(), Duration::from_secs(3600)).unwrap();
        (params.is_ca, params.key_usages) = (is_ca, key_usages);
        let certificate = params.self_signed(&key).unwrap();
        let (_, certificate) = X509Certificate::from_der(certificate.der()).unwrap();
        assert_eq!(is_authority(&certificate), expected, "{label}");
    }
}

/// Returns the content of the files of the serving certificate and its key.
fn leaf_files(pair: &ServingPair) -> (String, String) {
    (fs::read_to_string(&pair.cert).unwrap(), fs::read_to_string(&pair.key).unwrap())
}

#[test]
fn serving_certificate_of_another_issuer_is_kept_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ServingPair::in_dir(dir.path());
    let (ca, ca_key) = (dir.path().join("other.crt"), dir.path().join("other.key"));
    let other = Authority::ensure(&ca, &ca_key, "other", now()).unwrap();
    let issued = other.serving(&["localhost".to_owned()], Duration::from_secs(3600), now()).unwrap();
    fs::write(&pair.cert, &issued.cert).unwrap();
    fs::write(&pair.key, &issued.key).unwrap();
    let expected = (issued.cert, issued.key);

    // An expired certificate and missing names do not matter: kube-apiserver uses such files as they are.
    let later = now() + Duration::from_secs(400 * 24 * 3600);
    for time in [now(), later] {
        ensure_serving_pair(dir.path(), &["10.9.8.7".to_owned()], time).unwrap();
        assert_eq!(leaf_files(&pair), expected);
        assert!(!pair.ca.exists() && !pair.ca_key.exists(), "no unrelated authority appears");
    }
    // A CA bundle without its key, then a complete authority that has not issued the certificate.
    fs::write(&pair.ca, fs::read(&ca).unwrap()).unwrap();
    ensure_serving_pair(dir.path(), &[], later).unwrap();
    assert_eq!(leaf_files(&pair), expected);
    fs::remove_file(&pair.ca).unwrap();
    Authority::ensure(&pair.ca, &pair.ca_key, "third", now()).unwrap();
    ensure_serving_pair(dir.path(), &[], later).unwrap();
    assert_eq!(leaf_files(&pair), expected);
}

/// The certificate generator keeps one organization of a name.
#[test]
fn certificates_of_authority_with_two_organizations_have_its_subject_as_issuer() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ServingPair::in_dir(dir.path());
    let generated = Authority::generate("two", now()).unwrap();
    let name = subject::encode_name(&["a".to_owned(), "b".to_owned()], "two");
    let names = [(subject::ISSUER, name.as_slice()), (subject::SUBJECT, name.as_slice())];
    let key = KeyPair::from_pem(&generated.key).unwrap();
    let authority = subject::replace_names(&parsed(&generated.cert), &names, &key).unwrap();
    fs::write(&pair.ca, super::pem(&authority)).unwrap();
    fs::write(&pair.ca_key, &generated.key).unwrap();
    ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let authority = Authority::load(&pair.ca, &pair.ca_key).unwrap();
    let client = authority.client("ada", &[], Duration::from_secs(3600), now()).unwrap();
    let serving = leaf_files(&pair).0;
    for certificate in [&serving, &client.cert] {
        let der = parsed(certificate);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(certificate.issuer().as_raw(), name);
    }
    ensure_serving_pair(dir.path(), &[], now() + Duration::from_secs(340 * 24 * 3600)).unwrap();
    assert_ne!(leaf_files(&pair).0, serving, "the certificate is renewed");
}

#[test]
fn incomplete_serving_pair_is_an_error_and_keeps_the_existing_file() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ServingPair::in_dir(dir.path());
    for (file, missing) in [(&pair.key, "apiserver.crt"), (&pair.cert, "apiserver.key")] {
        fs::write(file, "content").unwrap();
        let error = ensure_serving_pair(dir.path(), &[], now()).unwrap_err().to_string();
        assert!(error.contains(missing) && error.contains("missing"), "{error}");
        assert_eq!(fs::read_to_string(file).unwrap(), "content");
        assert!(!pair.ca.exists());
        fs::remove_file(file).unwrap();
    }
    // After a start that ended between the writes of key and certificate, the next start uses the existing
    // key.
    ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let before = files(&pair);
    fs::remove_file(&pair.cert).unwrap();
    ensure_serving_pair(dir.path(), &[], now()).unwrap();
    assert_eq!(files(&pair)[1..], before[1..]);
}

#[test]
fn foreign_or_invalid_certificate_file_returns_error_and_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let other = Authority::generate("other", now()).unwrap();
    for (key, expected) in [(other.key.as_str(), "is not the key of"), ("nonsense", "ca.key: ")] {
        fs::write(&pair.ca_key, key).unwrap();
        let error = ensure_serving_pair(dir.path(), &[], now()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("PRIVATE"), "{error}");
        assert_eq!(fs::read_to_string(&pair.ca_key).unwrap(), key);
    }
}

#[test]
fn client_certificate_contains_user_and_all_groups_and_is_signed() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("ca.crt"), dir.path().join("ca.key"));
    let authority = Authority::ensure(&cert, &key, "clients", now()).unwrap();
    let groups = ["system:masters".to_owned(), "developers".to_owned(), "ä".to_owned(), "g".repeat(300)];
    let pair = authority.client("Ada L.", &groups, Duration::from_secs(3600), now()).unwrap();
    assert_eq!(format!("{pair:?}"), "PemPair { .. }");
    let der = parsed(&pair.cert);
    let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
    assert!(rest.is_empty());
    let values = |oid: &str| -> Vec<String> {
        let attributes = certificate.subject().iter_attributes();
        attributes
            .filter(|a| a.attr_type().to_id_string() == oid)
            .map(|a| a.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(values("2.5.4.10"), groups);
    assert_eq!(values("2.5.4.3"), ["Ada L."]);
    assert_eq!(certificate.validity().not_after.timestamp(), now().as_second() + 3600);
    assert!(matches_key(&der, &KeyPair::from_pem(&pair.key).unwrap()));

    // Verifies client certificates like a server that trusts the authority.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(parsed(&fs::read_to_string(&cert).unwrap())).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verify = |leaf: &CertificateDer<'_>, roots: rustls::RootCertStore| {
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            roots.into(),
            std::sync::Arc::clone(&provider),
        )
        .build()
        .unwrap();
        let second = Duration::from_secs(u64::try_from(now().as_second()).unwrap());
        verifier
            .verify_client_cert(leaf, &[], rustls_pki_types::UnixTime::since_unix_epoch(second))
            .map(|_| ())
    };
    verify(&der, roots.clone()).unwrap();
    let mut forged = der.to_vec();
    let index = forged.windows(3).position(|bytes| bytes == b"Ada").unwrap();
    forged[index] = b'E';
    assert!(verify(&CertificateDer::from(forged), roots).is_err(), "the signature covers the subject");
}

/// Reads the serving certificate of a folder.
fn serving_facts(pair: &ServingPair) -> facts::CertificateFacts {
    facts::CertificateFacts::read_all(&pair.cert).unwrap().remove(0)
}

#[test]
fn renewed_serving_certificate_keeps_names_and_lifetime() {
    let dir = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 3600);
    let policy = ServingPolicy { validity: Some(9 * day), ..ServingPolicy::default() };
    let pair = ensure_serving_pair_with(dir.path(), &["api.test".to_owned()], policy, now()).unwrap();
    let first = serving_facts(&pair);
    assert_eq!(first.lifetime(), 9 * day);
    // A short lifetime is renewed when a third is left.
    ensure_serving_pair(dir.path(), &[], now() + 5 * day).unwrap();
    assert_eq!(serving_facts(&pair).serial, first.serial);
    ensure_serving_pair(dir.path(), &["10.0.0.7".to_owned()], now() + 6 * day).unwrap();
    let second = serving_facts(&pair);
    assert_ne!(second.serial, first.serial);
    assert_eq!(second.lifetime(), 9 * day);
    assert_eq!(second.names, ["10.0.0.7", "127.0.0.1", "::1", "api.test", "localhost"]);
    assert_eq!(second.not_after, now() + 15 * day);
}

#[test]
fn serving_certificate_of_an_earlier_authority_is_reissued_on_request_or_when_due() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let new_dir = tempfile::tempdir().unwrap();
    let new = ensure_serving_pair(new_dir.path(), &[], now() + Duration::from_secs(1)).unwrap();
    // The bundle has the new authority first, which signs, and trusts the earlier one.
    let bundle = fs::read_to_string(&new.ca).unwrap() + &fs::read_to_string(&pair.ca).unwrap();
    fs::write(&pair.ca, bundle).unwrap();
    fs::write(&pair.ca_key, fs::read(&new.ca_key).unwrap()).unwrap();
    let authority = Authority::load(&pair.ca, &pair.ca_key).unwrap();
    let is_of_new = || authority.is_issuer_of(&serving_facts(&pair));
    ensure_serving_pair(dir.path(), &[], now()).unwrap();
    assert!(!is_of_new());
    let due = now() + Duration::from_secs(340 * 24 * 3600);
    let policy = ServingPolicy { early: EarlyRenewal::EarlierAuthority, ..ServingPolicy::default() };
    for (policy, now) in [(ServingPolicy::default(), due), (policy, now())] {
        let (cert, key) = leaf_files(&pair);
        ensure_serving_pair_with(dir.path(), &[], policy, now).unwrap();
        assert!(is_of_new());
        assert_eq!(leaf_files(&pair).1, key, "the key stays");
        fs::write(&pair.cert, cert).unwrap();
    }
}

#[test]
fn certificate_ends_with_its_authority_and_expired_authority_signs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ServingPair::in_dir(dir.path());
    let authority = Authority::ensure(&pair.ca, &pair.ca_key, "ca", now()).unwrap();
    let later = authority.not_after() - Duration::from_secs(60);
    let client = authority.client("jane", &[], Duration::from_secs(3600), later).unwrap();
    assert_eq!(not_after(client.cert.as_bytes()), Some(authority.not_after()));
    let expired = authority.client("jane", &[], Duration::from_secs(3600), authority.not_after());
    assert!(expired.unwrap_err().to_string().contains("the CA expired at"));
}

#[test]
fn renewal_does_not_keep_lifetime_shortened_by_authority_expiry() {
    let dir = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(24 * 3600);
    let created = now() - AUTHORITY_VALIDITY + day;
    let pair = ServingPair::in_dir(dir.path());
    let ending = Authority::ensure(&pair.ca, &pair.ca_key, "ending", created).unwrap();
    ensure_serving_pair(dir.path(), &[], now()).unwrap();
    assert!(serving_facts(&pair).lifetime() <= day);
    let client = ending.client("jane", &[], 9 * day, now()).unwrap();
    let client = facts::CertificateFacts::of_pem(&client.cert).unwrap();
    let new = Authority::generate("new", now()).unwrap();
    fs::write(&pair.ca, new.cert.clone() + &fs::read_to_string(&pair.ca).unwrap()).unwrap();
    fs::write(&pair.ca_key, &new.key).unwrap();
    let bundle = Authority::load(&pair.ca, &pair.ca_key).unwrap();
    assert_eq!(bundle.renewed_lifetime(&client), DEFAULT_VALIDITY);
    let policy = ServingPolicy { early: EarlyRenewal::EarlierAuthority, ..ServingPolicy::default() };
    ensure_serving_pair_with(dir.path(), &[], policy, now()).unwrap();
    assert_eq!(serving_facts(&pair).lifetime(), DEFAULT_VALIDITY);
    let short = bundle.client("jane", &[], 9 * day, now()).unwrap();
    let short = facts::CertificateFacts::of_pem(&short.cert).unwrap();
    assert_eq!(bundle.renewed_lifetime(&short), 9 * day);
}

#[test]
fn issuer_of_certificate_without_key_identifier_is_found_by_its_signature() {
    let facts = |pem: &str| facts::CertificateFacts::of_pem(pem).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [(own, own_facts), (other, other_facts)] = ["own", "other"].map(|folder| {
        fs::create_dir(dir.path().join(folder)).unwrap();
        let pair = ServingPair::in_dir(&dir.path().join(folder));
        let authority = Authority::ensure(&pair.ca, &pair.ca_key, "one name", now()).unwrap();
        (authority, facts(&fs::read_to_string(&pair.ca).unwrap()))
    });
    let mut parameters = params(&[], now(), Duration::from_secs(3600)).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, "jane");
    let jane = parameters.signed_by(&KeyPair::generate().unwrap(), &own.issuer).unwrap();
    let jane = facts(&jane.pem());
    assert!(jane.is_issued_by(&own_facts));
    assert!(!jane.is_issued_by(&other_facts));
    assert!(own.is_issuer_of(&jane) && !other.is_issuer_of(&jane));
}

#[test]
fn certificate_without_extended_key_usage_is_a_client_certificate() {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    for (purposes, is_client) in [
        (vec![], true),
        (vec![ExtendedKeyUsagePurpose::ClientAuth], true),
        (vec![ExtendedKeyUsagePurpose::ServerAuth], false),
    ] {
        parameters.extended_key_usages = purposes;
        let certificate = parameters.clone().self_signed(&key).unwrap();
        let read = facts::CertificateFacts::read(certificate.der()).unwrap();
        assert_eq!(read.is_client, is_client);
    }
    parameters.extended_key_usages = vec![];
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&key).unwrap();
    assert!(!facts::CertificateFacts::read(authority.der()).unwrap().is_client);
}

#[test]
fn written_file_ignores_umask_and_gets_owner_of_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.crl");
    // Only root may change owners; the folder of another process keeps its owner.
    let _ = std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534));
    for mode in [0o666, 0o600] {
        write(&file, b"text", mode).unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(metadata.mode() & 0o777, mode);
        assert_eq!(metadata.uid(), fs::metadata(dir.path()).unwrap().uid());
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }
}

#[test]
fn server_waits_for_the_lock_of_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let now = now();
    let lock = fs::File::open(dir.path()).unwrap();
    lock.lock().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = dir.path().to_owned();
    let server = std::thread::spawn(move || {
        let pair = ensure_serving_pair(&path, &["b.example".to_owned()], now);
        sender.send(()).unwrap();
        pair.unwrap();
    });
    assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err(), "the folder is locked");
    // The holder of the lock adds another name meanwhile.
    ensure_serving_pair_with(dir.path(), &["a.example".to_owned()], ServingPolicy::default(), now).unwrap();
    drop(lock);
    server.join().unwrap();
    let text = fs::read(dir.path().join("apiserver.crt")).unwrap();
    let (_, block) = x509_parser::pem::parse_x509_pem(&text).unwrap();
    let certificate = block.parse_x509().unwrap();
    let names = format!("{:?}", certificate.subject_alternative_name().unwrap().unwrap().value.general_names);
    assert!(names.contains("a.example") && names.contains("b.example"), "{names}");
}
