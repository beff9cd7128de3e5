//! Certificates of every kind against one authority file.

use apimachinery::names::Preset;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

use super::*;

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn day(day: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + day * 86_400).unwrap()
}

/// Valid from `from` to `until`, in days of [`day`].
fn params(subject: &[(DnType, &str)], from: i64, until: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    for (kind, value) in subject {
        name.push(kind.clone(), *value);
    }
    params.distinguished_name = name;
    let at =
        |of: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(day(of).as_second().unsigned_abs());
    params.not_before = at(from);
    params.not_after = at(until);
    params
}

fn authority(name: &str, from: i64, until: i64) -> CertificateParams {
    let mut params = params(&[(DnType::CommonName, name)], from, until);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
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
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    ClientCertificates { names, uids: true, authorities: authorities(pem.as_bytes()).unwrap() }
}

fn jane() -> Vec<(DnType, &'static str)> {
    vec![(DnType::CommonName, "jane"), (DnType::OrganizationName, "dev")]
}

#[test]
fn a_good_certificate_gives_user_group_and_credential_id() {
    let root = root("ca");
    let other = self::root("other");
    let leaf = sign(client(&jane(), 1, 10), &root);
    let accepted = method(&[&other, &root]).verify(std::slice::from_ref(&leaf), day(5)).unwrap();
    assert_eq!((accepted.user.name.as_str(), accepted.user.uid.as_str()), ("jane", ""));
    assert_eq!(accepted.user.groups, ["dev"]);
    let credential = &accepted.user.extra["authentication.kubernetes.io/credential-id"][0];
    assert_eq!((credential.len(), &credential[..11]), (11 + 64, "X509SHA256="));
    assert_eq!(accepted.expires_at, Some(Timestamp::from_second(day(10).as_second() + 1).unwrap()));
}

#[test]
fn the_subject_gives_the_identity_or_none() {
    let root = root("ca");
    let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    for (subject, want) in [
        (vec![(DnType::CommonName, "jane"), (uid(), "u-1")], Ok(("jane", "u-1"))),
        (vec![(uid(), "u-1"), (DnType::CommonName, "jane")], Ok(("jane", "u-1"))),
        (vec![(DnType::CommonName, "jane"), (uid(), "")], Err("the subject's uid is empty")),
        (vec![(DnType::OrganizationName, "system:masters")], Err("the subject has no common name")),
        (vec![(DnType::CommonName, "")], Err("the subject has no common name")),
    ] {
        let leaf = sign(client(&subject, 1, 10), &root);
        let got = method(&[&root]).verify(&[leaf], day(5));
        let got = got.as_ref().map(|a| (a.user.name.as_str(), a.user.uid.as_str())).map_err(String::as_str);
        assert_eq!(got, want, "{subject:?}");
    }
}

#[test]
fn a_gate_leaves_the_uid_out() {
    let root = root("ca");
    let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    let leaf = sign(client(&[(DnType::CommonName, "jane"), (uid, "u-1")], 1, 10), &root);
    let method = ClientCertificates { uids: false, ..method(&[&root]) };
    assert_eq!(method.verify(&[leaf], day(5)).unwrap().user.uid, "");
}

#[test]
fn time_purpose_and_issuer_are_checked() {
    let (root, other) = (root("ca"), self::root("ca"));
    let good = || client(&jane(), 1, 10);
    let with = |change: fn(&mut CertificateParams)| {
        let mut params = good();
        change(&mut params);
        sign(params, &root)
    };
    for (what, leaf, at, want) in [
        ("good", with(|_| ()), 5, ""),
        ("no purpose stated", with(|p| p.extended_key_usages.clear()), 5, ""),
        ("both purposes", with(|p| p.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth)), 5, ""),
        ("too early", with(|_| ()), 0, "CertNotValidYet"),
        ("too late", with(|_| ()), 11, "CertExpired"),
        (
            "the authority has ended",
            with(|p| p.not_after = authority("x", 0, 300).not_after),
            150,
            "UnknownIssuer",
        ),
        (
            "for servers",
            with(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            5,
            "RequiredEku",
        ),
        (
            "an authority itself",
            with(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            5,
            "CaUsedAsEndEntity",
        ),
        (
            "a critical extension that nobody knows",
            with(|p| {
                let mut extension =
                    CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0]);
                extension.set_criticality(true);
                p.custom_extensions = vec![extension];
            }),
            5,
            "UnsupportedCriticalExtension",
        ),
        ("another authority of the same name", sign(good(), &other), 5, "InvalidSignature"),
    ] {
        match (method(&[&root]).verify(&[leaf], day(at)), want) {
            (Ok(_), "") => (),
            (Err(check), want) if !want.is_empty() => assert!(check.contains(want), "{what}: {check}"),
            (got, _) => panic!("{what}: {got:?}"),
        }
    }
}

#[test]
fn intermediates_are_followed_and_must_be_authorities() {
    let root = root("ca");
    let mut middle = authority("middle", 0, 8);
    middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let middle = CertifiedIssuer::signed_by(middle, KeyPair::generate().unwrap(), &root).unwrap();
    let leaf = sign(client(&jane(), 1, 10), &middle);
    let chain = [leaf.clone(), middle.der().to_vec()];
    let accepted = method(&[&root]).verify(&chain, day(5)).unwrap();
    let end = Timestamp::from_second(day(8).as_second() + 1).unwrap();
    assert_eq!(accepted.expires_at, Some(end), "the identity ends with the first certificate of its chain");
    assert!(method(&[&root]).verify(&chain, day(9)).is_err(), "the intermediate has ended");
    assert!(
        method(&[&root]).verify(std::slice::from_ref(&leaf), day(5)).unwrap_err().contains("UnknownIssuer")
    );

    let user =
        CertifiedIssuer::signed_by(client(&jane(), 0, 10), KeyPair::generate().unwrap(), &root).unwrap();
    let forged = sign(client(&[(DnType::CommonName, "root")], 1, 10), &user);
    let check = method(&[&root]).verify(&[forged, user.der().to_vec()], day(5)).unwrap_err();
    assert!(check.contains("EndEntityUsedAsCa"), "{check}");
}

#[test]
fn hostile_bytes_are_rejected() {
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
    // One flipped bit anywhere breaks the signature.
    for at in 0..leaf.len() {
        let mut bad = leaf.clone();
        bad[at] ^= 1;
        assert!(method.verify(&[bad], day(5)).is_err(), "flipped at {at}");
    }
}

#[test]
fn an_authority_file_must_hold_certificates() {
    for bad in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(authorities(bad.as_bytes()).is_err(), "{bad}");
    }
}
