//! Tests of files of revocation lists.

use super::*;
use std::fs;
use std::time::Duration;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// Makes an authority in a folder and one of its client certificates.
fn authority(dir: &Path, name: &str) -> (Authority, CertificateFacts) {
    let (cert, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    let authority = Authority::ensure(&cert, &key, name, now()).unwrap();
    (authority, CertificateFacts::read_all(&cert).unwrap().remove(0))
}

fn client(authority: &Authority, user: &str) -> CertificateFacts {
    let pair = authority.client(user, &["dev".to_owned()], Duration::from_secs(3600), now()).unwrap();
    let block = x509_parser::pem::parse_x509_pem(pair.cert.as_bytes()).unwrap().1;
    CertificateFacts::read(&block.contents).unwrap()
}

#[test]
fn revoked_certificates_accumulate_and_lists_of_other_authorities_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crl");
    // Two keys with one name, as after a rotation: each has its own list.
    let (old, old_facts) = authority(dir.path(), "ca");
    fs::create_dir(dir.path().join("new")).unwrap();
    let (new, new_facts) = authority(&dir.path().join("new"), "ca");
    let authorities = [old_facts, new_facts];
    let (alice, bob, carol) = (client(&old, "alice"), client(&old, "bob"), client(&new, "carol"));
    assert_ne!(alice.serial, bob.serial);

    let mut file = RevocationFile::read(&path).unwrap();
    assert!(file.is_empty(), "an absent file has no list");
    for (authority, serials) in
        [(&old, vec![]), (&old, vec![alice.serial.clone()]), (&new, vec![carol.serial.clone()])]
    {
        file.revoke(authority, &serials, now()).unwrap();
        file.write(&path).unwrap();
        file = RevocationFile::read(&path).unwrap();
    }
    let revoked = |file: &RevocationFile| {
        [&alice, &bob, &carol].map(|certificate| file.is_revoked(certificate, &authorities))
    };
    assert_eq!(revoked(&file), [true, false, true]);
    file.revoke(&old, &[alice.serial.clone(), bob.serial.clone()], now()).unwrap();
    assert_eq!(revoked(&file), [true, true, true]);
    assert_eq!(file.lists.len(), 2);
    let (_, list) = CertificateRevocationList::from_der(&file.lists[0]).unwrap();
    assert_eq!((list.iter_revoked_certificates().count(), number(&list)), (2, 3));
    assert_eq!(list.next_update().unwrap().timestamp(), authorities[0].not_after.as_second());
}

#[test]
fn malformed_revocation_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crl");
    for (content, expected) in [
        ("junk", "ca.crl: has no revocation list in PEM"),
        (
            "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
            "ca.crl: a revocation list cannot be parsed",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let error = RevocationFile::read(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&path, "\n").unwrap();
    assert!(RevocationFile::read(&path).unwrap().is_empty());
}
