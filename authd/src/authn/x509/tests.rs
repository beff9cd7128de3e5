//! Client certificates of every kind against one CA bundle.

use apimachinery::names::Preset;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, CustomExtension,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevocationReason, RevokedCertParams, SerialNumber,
};

use super::trust::TrustFiles;
use super::*;
use crate::config_error::error_texts;
use std::time::Duration;

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn day(day: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + day * 86_400).unwrap()
}

/// Certificate parameters valid from `from` to `until`, in days of [`day`].
fn params(subject: &[(DnType, &str)], from: i64, until: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    for (kind, value) in subject {
        name.push(kind.clone(), *value);
    }
    params.distinguished_name = name;
    let at = |number: i64| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(day(number).as_second().unsigned_abs())
    };
    params.not_before = at(from);
    params.not_after = at(until);
    params
}

fn authority(name: &str, from: i64, until: i64) -> CertificateParams {
    let mut params = params(&[(DnType::CommonName, name)], from, until);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn client(subject: &[(DnType, &str)], from: i64, until: i64) -> CertificateParams {
    let mut params = params(subject, from, until);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn root(name: &str) -> Issuer {
    CertifiedIssuer::self_signed(authority(name, 0, 100), KeyPair::generate().unwrap()).unwrap()
}

fn sign(params: CertificateParams, issuer: &Issuer) -> Vec<u8> {
    params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().to_vec()
}

fn method(roots: &[&Issuer]) -> ClientCertificates {
    let pem: String = roots.iter().map(|root| root.pem()).collect();
    with_lists(&pem, None).unwrap()
}

/// Builds the authenticator with a CA bundle and revocation lists, or returns the errors.
fn with_lists(pem: &str, lists: Option<&[u8]>) -> Result<ClientCertificates, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let client_ca = Some(write("ca", pem.as_bytes()));
    let client_crl = lists.map(|lists| write("lists", lists));
    let trust = Trust::load(TrustFiles { client_ca, client_crl, proxy_ca: None }, true, day(5))
        .map_err(error_texts)?;
    Ok(ClientCertificates {
        names: Arc::new(Names::new(Preset::Kubernetes, "").unwrap()),
        allows_uids: true,
        trust,
    })
}

fn jane() -> Vec<(DnType, &'static str)> {
    vec![(DnType::CommonName, "jane"), (DnType::OrganizationName, "dev")]
}

#[test]
fn valid_certificate_gives_user_group_and_credential_id() {
    let root = root("ca");
    let other = self::root("other");
    let leaf = sign(client(&jane(), 1, 10), &root);
    let accepted = method(&[&other, &root]).verify(std::slice::from_ref(&leaf), day(5)).unwrap();
    assert_eq!((accepted.user.name.as_str(), accepted.user.uid.as_str()), ("jane", ""));
    assert_eq!(accepted.user.groups, ["dev"]);
    let credential = &accepted.user.extra["authentication.kubernetes.io/credential-id"][0];
    assert_eq!((credential.len(), &credential[..11]), (11 + 64, "X509SHA256="));
    assert_eq!(accepted.expires_at, Some(Timestamp::from_second(day(10).as_second() + 1).unwrap()));
    assert_eq!(accepted.not_before, Some(day(1)));
}

#[test]
fn certificate_subject_gives_identity_or_rejection() {
    let root = root("ca");
    let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    for (subject, expected) in [
        (vec![(DnType::CommonName, "jane"), (uid(), "u-1")], Ok(("jane", "u-1"))),
        (vec![(uid(), "u-1"), (DnType::CommonName, "jane")], Ok(("jane", "u-1"))),
        (vec![(DnType::CommonName, "jane"), (uid(), "")], Err("the subject's uid is empty")),
        (vec![(DnType::OrganizationName, "system:masters")], Err("the subject has no common name")),
        (vec![(DnType::CommonName, "")], Err("the subject has no common name")),
    ] {
        let leaf = sign(client(&subject, 1, 10), &root);
        let got = method(&[&root]).verify(&[leaf], day(5));
        let got = got.as_ref().map(|a| (a.user.name.as_str(), a.user.uid.as_str())).map_err(String::as_str);
        assert_eq!(got, expected, "{subject:?}");
    }
}

#[test]
fn certificate_uid_is_ignored_without_gate() {
    let root = root("ca");
    let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    let leaf = sign(client(&[(DnType::CommonName, "jane"), (uid, "u-1")], 1, 10), &root);
    let method = ClientCertificates { allows_uids: false, ..method(&[&root]) };
    assert_eq!(method.verify(&[leaf], day(5)).unwrap().user.uid, "");
}

#[test]
fn certificate_time_purpose_and_issuer_are_checked() {
    let (root, other) = (root("ca"), self::root("ca"));
    let good = || client(&jane(), 1, 10);
    let sign_changed = |change: fn(&mut CertificateParams)| {
        let mut params = good();
        change(&mut params);
        sign(params, &root)
    };
    for (case, leaf, at, expected) in [
        ("good", sign_changed(|_| ()), 5, ""),
        ("no purpose stated", sign_changed(|p| p.extended_key_usages.clear()), 5, ""),
        (
            "both purposes",
            sign_changed(|p| p.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth)),
            5,
            "",
        ),
        ("too early", sign_changed(|_| ()), 0, "not valid before 2027-01-16T08:00:00Z"),
        ("too late", sign_changed(|_| ()), 11, "expired on 2027-01-25T08:00:00Z"),
        (
            "the CA has expired",
            sign_changed(|p| p.not_after = authority("x", 0, 300).not_after),
            150,
            "its CA \"CN=ca\" expired on 2027-04-25T08:00:00Z",
        ),
        (
            "for servers",
            sign_changed(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            5,
            "not issued for client authentication",
        ),
        (
            "a CA certificate",
            sign_changed(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            5,
            "the certificate of a CA, not of a client",
        ),
        (
            "unknown critical extension",
            sign_changed(|p| {
                let mut extension =
                    CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0]);
                extension.set_criticality(true);
                p.custom_extensions = vec![extension];
            }),
            5,
            "unknown critical extension",
        ),
        (
            "a second CA of the same name",
            sign(good(), &other),
            5,
            "not signed with the key of the CA of this name",
        ),
    ] {
        match (method(&[&root]).verify(&[leaf], day(at)), expected) {
            (Ok(_), "") => (),
            (Err(check), expected) if !expected.is_empty() => {
                assert!(check.contains(expected), "{case}: {check}")
            }
            (got, _) => panic!("{case}: {got:?}"),
        }
    }
}

#[test]
fn unreadable_certificate_is_rejected_with_reason() {
    let root = root("ca");
    let good = sign(client(&jane(), 1, 10), &root);
    // The version field of a certificate of version 3.
    let version = [0xa0, 3, 2, 1, 2];
    let position = good.windows(version.len()).position(|bytes| bytes == version).unwrap();
    let mut second_version = good.clone();
    second_version[position + 4] = 1;
    let longer = [&good[..], b"x"].concat();
    for (leaf, expected) in [
        (second_version, "not of X.509 version 3"),
        (longer, "malformed: TrailingData"),
        (b"no certificate".to_vec(), "malformed: "),
    ] {
        let error = method(&[&root]).verify(&[leaf], day(5)).unwrap_err();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
}

#[test]
fn intermediate_must_be_ca() {
    let root = root("ca");
    let mut middle = authority("middle", 0, 8);
    middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let middle = CertifiedIssuer::signed_by(middle, KeyPair::generate().unwrap(), &root).unwrap();
    let leaf = sign(client(&jane(), 1, 10), &middle);
    let chain = [leaf.clone(), middle.der().to_vec()];
    let accepted = method(&[&root]).verify(&chain, day(5)).unwrap();
    let end = Timestamp::from_second(day(8).as_second() + 1).unwrap();
    assert_eq!(accepted.expires_at, Some(end), "the identity ends with the first certificate of its chain");
    let ended = method(&[&root]).verify(&chain, day(9)).unwrap_err();
    assert!(
        ended.starts_with("its issuer, the certificate of \"CN=middle\"") && ended.contains("expired on"),
        "{ended}"
    );
    assert!(method(&[&root]).verify(std::slice::from_ref(&leaf), day(5)).unwrap_err().contains("unknown CA"));

    let user =
        CertifiedIssuer::signed_by(client(&jane(), 0, 10), KeyPair::generate().unwrap(), &root).unwrap();
    let forged = sign(client(&[(DnType::CommonName, "root")], 1, 10), &user);
    let check = method(&[&root]).verify(&[forged, user.der().to_vec()], day(5)).unwrap_err();
    assert!(check.contains("that is not of a CA"), "{check}");
}

#[test]
fn malformed_certificates_are_rejected() {
    let root = root("ca");
    let leaf = sign(client(&jane(), 1, 10), &root);
    let method = method(&[&root]);
    assert!(method.verify(&[Vec::new()], day(5)).is_err());
    assert!(method.verify(&[vec![0x30; 10_000]], day(5)).is_err());
    assert!(method.verify(&vec![leaf.clone(); 17], day(5)).unwrap_err().contains("too long"));
    assert!(method.verify(&[leaf.clone(), vec![0; 128 * 1024]], day(5)).unwrap_err().contains("too long"));
    for cut in 0..leaf.len() {
        assert!(method.verify(&[leaf[..cut].to_vec()], day(5)).is_err(), "cut at {cut}");
    }
    // Each flipped bit breaks the signature.
    for at in 0..leaf.len() {
        let mut bad = leaf.clone();
        bad[at] ^= 1;
        assert!(method.verify(&[bad], day(5)).is_err(), "flipped at {at}");
    }
}

#[test]
fn ca_file_without_certificates_is_rejected() {
    for bad in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(with_lists(bad, None).is_err(), "{bad}");
    }
}

/// Returns a revocation list in PEM. `next` is the day of the next update.
fn list(issuer: &Issuer, serials: &[u64], next: i64) -> String {
    list_updated_on(issuer, serials, 1, next)
}

/// Like [`list`], with the day of `thisUpdate`.
fn list_updated_on(issuer: &Issuer, serials: &[u64], this_update: i64, next: i64) -> String {
    let at = |number: i64| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(day(number).as_second().unsigned_abs())
    };
    let revoked_certificate = |serial: &u64| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: at(1),
        reason_code: Some(RevocationReason::KeyCompromise),
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: at(this_update),
        next_update: at(next),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: serials.iter().map(revoked_certificate).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(issuer).unwrap().pem().unwrap()
}

#[test]
fn revoked_certificate_is_rejected() {
    let (root, other) = (root("ca"), self::root("other"));
    let leaf_with_serial = |serial: u64, issuer: &Issuer| {
        let subject = [(DnType::CommonName, "root"), (DnType::OrganizationName, "system:masters")];
        let mut params = client(&subject, 1, 10);
        params.serial_number = Some(SerialNumber::from(serial));
        sign(params, issuer)
    };
    let intermediate_with_serial = |serial: u64| {
        let mut params = authority("middle", 0, 50);
        params.serial_number = Some(SerialNumber::from(serial));
        CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap()
    };
    let (good_middle, bad_middle) = (intermediate_with_serial(70), intermediate_with_serial(77));
    let trusted = root.pem() + &other.pem();
    let lists =
        [list(&root, &[7, 0x80, 77], 20), list(&other, &[8], 20), list(&good_middle, &[9], 2)].concat();
    let method = with_lists(&trusted, Some(lists.as_bytes())).unwrap();
    let chain = |serial, middle: &Issuer| vec![leaf_with_serial(serial, middle), middle.der().to_vec()];
    for (case, chain, good) in [
        ("not on the list", vec![leaf_with_serial(1, &root)], true),
        ("on the list", vec![leaf_with_serial(7, &root)], false),
        ("serial number encoded with a leading zero", vec![leaf_with_serial(0x80, &root)], false),
        ("the same number from a second issuer", vec![leaf_with_serial(7, &other)], true),
        ("on the list of the other", vec![leaf_with_serial(8, &other)], false),
        ("a list does not revoke certificates of a different issuer", vec![leaf_with_serial(8, &root)], true),
        ("through an intermediate", chain(7, &good_middle), true),
        ("on the list of the intermediate, which is old", chain(9, &good_middle), false),
        ("the intermediate is revoked", chain(1, &bad_middle), false),
    ] {
        let verified = method.verify(&chain, day(5));
        let expected = if good { Ok(()) } else { Err("a certificate of the chain is revoked".to_owned()) };
        assert_eq!(verified.map(drop), expected, "{case}");
    }
}

#[test]
fn crl_requires_signature_of_its_issuer() {
    let (root, impostor) = (root("ca"), self::root("ca"));
    let forged = list(&impostor, &[7], 20);
    let errors = with_lists(&root.pem(), Some(forged.as_bytes())).err().unwrap();
    assert!(errors[0].contains("is not signed by the CA of that name"), "{errors:?}");
    // Two CAs with one name, as during a CA rotation: each has its own list.
    let two_authorities = with_lists(&(root.pem() + &impostor.pem()), Some(forged.as_bytes())).unwrap();
    let leaf_with_serial = |issuer: &Issuer| {
        let mut params = client(&jane(), 1, 10);
        params.serial_number = Some(SerialNumber::from(7));
        sign(params, issuer)
    };
    assert!(two_authorities.verify(&[leaf_with_serial(&root)], day(5)).is_ok());
    assert!(two_authorities.verify(&[leaf_with_serial(&impostor)], day(5)).is_err());
    let remark = two_authorities.trust.remarks().unwrap();
    assert!(remark.starts_with("no list of `CN=ca` is signed with its key "), "{remark}");
    let lists = forged.clone() + &list(&root, &[7], 20);
    let two_authorities = with_lists(&(root.pem() + &impostor.pem()), Some(lists.as_bytes())).unwrap();
    assert_eq!(two_authorities.trust.remarks(), None, "each issuer has its list");
    for bad in ["hello", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"] {
        assert!(with_lists(&root.pem(), Some(bad.as_bytes())).is_err(), "{bad}");
    }
    let der = rustls_pki_types::pem::PemObject::from_pem_slice(list(&root, &[7], 20).as_bytes());
    let der: rustls_pki_types::CertificateRevocationListDer<'_> = der.unwrap();
    assert!(with_lists(&root.pem(), Some(&der)).unwrap().verify(&[leaf_with_serial(&root)], day(5)).is_err());
}

#[test]
fn empty_crl_file_is_allowed_until_lists_are_active() {
    let root = root("ca");
    let leaf = || {
        let mut params = client(&jane(), 1, 10);
        params.serial_number = Some(SerialNumber::from(7));
        sign(params, &root)
    };
    for empty in ["", "\n \n"] {
        let method = with_lists(&root.pem(), Some(empty.as_bytes())).unwrap();
        assert!(method.verify(&[leaf()], day(5)).is_ok());
        let remarks = method.trust.remarks().unwrap_or_default();
        assert!(remarks.contains("no certificate is revoked"), "{remarks}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (ca, lists) = (dir.path().join("ca"), dir.path().join("lists"));
    std::fs::write(&ca, root.pem()).unwrap();
    std::fs::write(&lists, "").unwrap();
    let files = TrustFiles { client_ca: Some(ca), client_crl: Some(lists.clone()), proxy_ca: None };
    let trust = Trust::load(files, true, day(5)).unwrap();
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let method = ClientCertificates { names, allows_uids: true, trust: Arc::clone(&trust) };
    trust.reload(day(5)).unwrap();
    std::fs::write(&lists, list(&root, &[7], 20)).unwrap();
    trust.reload(day(5)).unwrap();
    assert!(method.verify(&[leaf()], day(5)).is_err());
    std::fs::write(&lists, "").unwrap();
    let errors = error_texts(trust.reload(day(5)).unwrap_err());
    assert!(errors[0].contains("the file is empty"), "{errors:?}");
    assert!(method.verify(&[leaf()], day(5)).is_err(), "the active list stays");
}

#[test]
fn ca_file_with_certificate_of_no_ca_is_rejected() {
    let root = root("ca");
    let user =
        CertifiedIssuer::signed_by(client(&jane(), 0, 50), KeyPair::generate().unwrap(), &root).unwrap();
    let errors = with_lists(&(root.pem() + &user.pem()), None).err().unwrap();
    assert!(errors[0].contains("certificate 2: not the certificate of a CA"), "{errors:?}");
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca");
    std::fs::write(&ca, root.pem()).unwrap();
    let files = TrustFiles { client_ca: Some(ca.clone()), client_crl: None, proxy_ca: None };
    let trust = Trust::load(files, true, day(5)).unwrap();
    std::fs::write(&ca, user.pem()).unwrap();
    assert!(trust.reload(day(5)).is_err());
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let method = ClientCertificates { names, allows_uids: true, trust };
    assert!(method.verify(&[sign(client(&jane(), 1, 10), &root)], day(5)).is_ok(), "the old CA stays");
}

#[test]
fn ca_and_crl_files_reload_together_or_not_at_all() {
    let (old, new) = (root("old"), root("new"));
    let dir = tempfile::tempdir().unwrap();
    let (ca, lists) = (dir.path().join("ca"), dir.path().join("lists"));
    std::fs::write(&ca, old.pem()).unwrap();
    std::fs::write(&lists, list(&old, &[1], 20)).unwrap();
    let files = TrustFiles { client_ca: Some(ca.clone()), client_crl: Some(lists.clone()), proxy_ca: None };
    let trust = Trust::load(files, true, day(5)).unwrap();
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let method = ClientCertificates { names, allows_uids: true, trust: Arc::clone(&trust) };
    let accepts = |issuer: &Issuer| method.verify(&[sign(client(&jane(), 1, 10), issuer)], day(5)).is_ok();
    assert!(accepts(&old) && !accepts(&new));
    std::fs::write(&ca, new.pem()).unwrap();
    std::fs::write(&lists, "half a li").unwrap();
    assert_eq!(trust.reload(day(5)).unwrap_err().len(), 1);
    assert!(accepts(&old) && !accepts(&new), "the old files stay active");
    std::fs::write(&lists, list(&new, &[1], 20)).unwrap();
    trust.reload(day(5)).unwrap();
    assert!(!accepts(&old) && accepts(&new));
}

#[test]
fn certificate_with_control_characters_or_long_name_is_rejected() {
    let root = root("ca");
    let long = "x".repeat(1025);
    for (name, expected) in [
        ("a\0b", "subject attribute 2.5.4.3 has a control character"),
        ("a\nb", "subject attribute 2.5.4.3 has a control character"),
        ("\u{9b}31m", "subject attribute 2.5.4.3 has a control character"),
        (&long, "subject attribute 2.5.4.3 has 1025 bytes"),
    ] {
        let leaf = sign(client(&[(DnType::CommonName, name)], 1, 10), &root);
        assert_eq!(method(&[&root]).verify(&[leaf], day(5)).unwrap_err(), expected);
    }
}

#[test]
fn intermediates_after_leaf_may_have_any_order() {
    let root = root("ca");
    let intermediate_of = |name: &str, issuer: &Issuer| {
        CertifiedIssuer::signed_by(authority(name, 0, 50), KeyPair::generate().unwrap(), issuer).unwrap()
    };
    let (upper, stray) = (intermediate_of("upper", &root), intermediate_of("stray", &root));
    let lower = intermediate_of("lower", &upper);
    let leaf = sign(client(&jane(), 1, 10), &lower);
    let der = |issuer: &Issuer| issuer.der().to_vec();
    let method = method(&[&root]);
    for chain in [
        vec![leaf.clone(), der(&lower), der(&upper)],
        vec![leaf.clone(), der(&upper), der(&lower)],
        vec![leaf.clone(), der(&stray), der(&root), der(&upper), der(&lower)],
    ] {
        assert_eq!(method.verify(&chain, day(5)).map(|accepted| accepted.user.name), Ok("jane".to_owned()));
    }
    let check = method.verify(&[der(&lower), leaf.clone(), der(&upper)], day(5)).unwrap_err();
    assert!(check.contains("the certificate of a CA"), "{check}");
    let check = method.verify(&[leaf, der(&lower)], day(5)).unwrap_err();
    assert!(check.contains("unknown CA"), "{check}");
}

/// Randomly damaged chains never verify, and no parser panics.
#[test]
fn damaged_chain_never_gives_identity() {
    use rand::{Rng as _, SeedableRng as _};
    let root = root("ca");
    let middle =
        CertifiedIssuer::signed_by(authority("middle", 0, 50), KeyPair::generate().unwrap(), &root).unwrap();
    let leaf = sign(client(&jane(), 1, 10), &middle);
    let valid_chain = [leaf, middle.der().to_vec()];
    let method = method(&[&root]);
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_251_121);
    println!("SEED={seed}");
    let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
    for round in 0..3000 {
        let mut chain = valid_chain.to_vec();
        for _ in 0..random.random_range(1..4) {
            let position = random.random_range(0..chain.len());
            let certificate = &mut chain[position];
            let at = random.random_range(0..=certificate.len());
            match random.random_range(0..4) {
                0 if at < certificate.len() => certificate[at] ^= 1 << random.random_range(0..8),
                1 => certificate.truncate(at),
                2 => {
                    let piece: Vec<u8> = (0..random.random_range(1..64)).map(|_| random.random()).collect();
                    certificate.splice(at..at, piece);
                }
                _ => {
                    let copy = certificate.clone();
                    certificate.splice(at..at, copy);
                }
            }
        }
        if chain == valid_chain {
            continue;
        }
        // Damage to the intermediate alone may leave the leaf unchanged; the leaf then has no path to a CA.
        assert!(method.verify(&chain, day(5)).is_err(), "round {round} of SEED={seed}");
        // The subject is parsed only after signature verification; its parser must still survive damaged
        // input.
        let _ = CertificateSubject::read(&chain[0]);
    }
}

#[test]
fn revoked_certificate_stays_revoked_until_valid_crl_replaces_crl() {
    let root = root("ca");
    let dir = tempfile::tempdir().unwrap();
    let (ca, lists) = (dir.path().join("ca"), dir.path().join("lists"));
    std::fs::write(&ca, root.pem()).unwrap();
    std::fs::write(&lists, list_updated_on(&root, &[7], 3, 20)).unwrap();
    let files = TrustFiles { client_ca: Some(ca), client_crl: Some(lists.clone()), proxy_ca: None };
    let trust = Trust::load(files, true, day(5)).unwrap();
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let method = ClientCertificates { names, allows_uids: true, trust: Arc::clone(&trust) };
    let is_revoked = |serial: u64| {
        let mut params = client(&jane(), 1, 10);
        params.serial_number = Some(SerialNumber::from(serial));
        method.verify(&[sign(params, &root)], day(5)).is_err()
    };
    assert!(is_revoked(7) && !is_revoked(8) && !trust.keeps_outdated_lists());
    for (case, serials, this_update, next, expected, keeps) in [
        ("expired", vec![8], 3, 4, [true, true, false], true),
        ("older than the active list", vec![9], 2, 20, [true, true, true], true),
        ("of the future", vec![10], 6, 20, [true, true, true], true),
        ("valid", vec![9], 5, 20, [false, false, true], false),
        ("the same list again", vec![9], 5, 20, [false, false, true], false),
    ] {
        std::fs::write(&lists, list_updated_on(&root, &serials, this_update, next)).unwrap();
        trust.reload(day(5)).unwrap();
        assert_eq!([7, 8, 9].map(is_revoked), expected, "{case}");
        assert_eq!(trust.keeps_outdated_lists(), keeps, "{case}");
        let is_reported =
            trust.remarks().is_some_and(|remarks| remarks.contains("stay revoked until a valid list"));
        assert_eq!(is_reported, keeps, "{case}");
    }
}

/// Two keys have one issuer name, as in a CA rotation.
/// A list of one key does not affect lists of the other key.
#[test]
fn crl_reload_keeps_lists_by_issuer_name_and_key() {
    let root = root("ca");
    let intermediate = || {
        CertifiedIssuer::signed_by(authority("middle", 0, 50), KeyPair::generate().unwrap(), &root).unwrap()
    };
    let second = self::root("ca");
    let cases = [
        (root.pem() + &second.pem(), self::root("unused"), None),
        (root.pem(), intermediate(), Some(intermediate())),
    ];
    for (trusted, first_intermediate, second_intermediate) in cases {
        let is_intermediate = second_intermediate.is_some();
        let (first, second) = match &second_intermediate {
            Some(second_intermediate) => (&first_intermediate, second_intermediate),
            None => (&root, &second),
        };
        let dir = tempfile::tempdir().unwrap();
        let (ca, lists) = (dir.path().join("ca"), dir.path().join("lists"));
        std::fs::write(&ca, trusted).unwrap();
        let write = |first_list: (&[u64], i64, i64), second_list: (&[u64], i64, i64)| {
            let list_pem = |issuer: &Issuer, (serials, this_update, next): (&[u64], i64, i64)| {
                list_updated_on(issuer, serials, this_update, next)
            };
            std::fs::write(&lists, list_pem(first, first_list) + &list_pem(second, second_list)).unwrap();
        };
        write((&[7], 4, 20), (&[8], 2, 20));
        let files = TrustFiles { client_ca: Some(ca), client_crl: Some(lists.clone()), proxy_ca: None };
        let trust = Trust::load(files, true, day(5)).unwrap();
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let method = ClientCertificates { names, allows_uids: true, trust: Arc::clone(&trust) };
        let is_revoked = |issuer: &Issuer, serial: u64| {
            let mut params = client(&jane(), 1, 10);
            params.serial_number = Some(SerialNumber::from(serial));
            let leaf = sign(params, issuer);
            let chain = if is_intermediate { vec![leaf, issuer.der().to_vec()] } else { vec![leaf] };
            method.verify(&chain, day(5)).is_err()
        };
        assert!(is_revoked(first, 7) && is_revoked(second, 8) && !is_revoked(first, 8), "{is_intermediate}");

        // The new list of the second key is valid, although the list of the first key is newer.
        write((&[7], 4, 20), (&[9], 3, 20));
        trust.reload(day(5)).unwrap();
        assert!(!trust.keeps_outdated_lists(), "{is_intermediate}: {:?}", trust.remarks());
        assert!(is_revoked(first, 7) && !is_revoked(second, 8) && is_revoked(second, 9), "{is_intermediate}");

        // The first key gets an expired list, the second a valid list.
        write((&[], 3, 4), (&[10], 4, 20));
        trust.reload(day(5)).unwrap();
        assert!(trust.keeps_outdated_lists(), "{is_intermediate}");
        assert!(is_revoked(first, 7), "{is_intermediate}: the expired list lifts no revocation");
        assert!(
            !is_revoked(second, 9) && is_revoked(second, 10),
            "{is_intermediate}: the valid list replaces"
        );
    }
}
