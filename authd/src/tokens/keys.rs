//! Keys that sign and verify tokens: RSA and ECDSA, from PEM, as JSON Web Keys.
//!
//! # Contract
//!
//! [`read`] reads every key of a PEM text: private keys (PKCS #8, PKCS #1, SEC 1), public keys
//! (SubjectPublicKeyInfo) and certificates (requirements A-SA-3 to -5). The public half of a private key also
//! verifies. The key id is the SHA-256 of the SubjectPublicKeyInfo, as in Kubernetes, so that both servers
//! verify each other's tokens.
//!
//! # Invariants
//!
//! INVARIANT (strong enough): RSA keys have 2,048 to 8,192 bits, ECDSA keys lie on P-256, P-384 or P-521.

use std::sync::Arc;

use aws_lc_rs::digest;
use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, ParsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};
use x509_parser::public_key::PublicKey;

use super::algorithm::Algorithm;

/// The RSA algorithms; the first signs new tokens.
const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// The reason why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The DER of a public key is malformed.
    #[error("the public key cannot be parsed")]
    MalformedPublicKey,
    /// The DER of a certificate is malformed.
    #[error("the certificate cannot be parsed")]
    MalformedCertificate,
    /// The DER of a public key has more bytes after the key.
    #[error("bytes follow the public key")]
    TrailingBytes,
    /// An RSA key is too short or too long; contains its number of bits.
    #[error("an RSA key of {0} bits is not accepted: it must have 2048 to 8192")]
    RsaSize(usize),
    /// A public EC key has no supported form or curve.
    #[error("an EC key must be an uncompressed point on P-256, P-384 or P-521")]
    EcPoint,
    /// A private EC key has no supported curve.
    #[error("the EC key is not on P-256, P-384 or P-521")]
    Curve,
    /// A public key is of an unsupported type.
    #[error("neither an RSA nor an ECDSA key")]
    PublicKeyType,
    /// A private key is of an unsupported type.
    #[error("neither an RSA key of 2048 bits or more nor an ECDSA key on P-256, P-384 or P-521")]
    PrivateKeyType,
    /// The crypto library rejects the key.
    #[error("the {kind} is not accepted: {reason}")]
    Rejected {
        /// The rejected item, such as `public key`.
        kind: &'static str,
        /// The error of the library.
        reason: String,
    },
    /// The public key of a private key is unavailable.
    #[error("the key has no public half")]
    NoPublicKey,
    /// A section of a PEM text is invalid.
    #[error("section {number}: {reason}")]
    Section {
        /// The number of the section, from 1.
        number: usize,
        /// The reason why the section is invalid.
        reason: String,
    },
    /// The PEM text contains no key.
    #[error("no key in the file")]
    NoKey,
}

/// A public key, with the algorithms that fit the key.
pub struct VerifyingKey {
    /// The key id: the base64url SHA-256 of the SubjectPublicKeyInfo.
    pub kid: String,
    /// The algorithms that fit the key, each with the parsed key.
    keys_by_algorithm: Vec<(Algorithm, ParsedPublicKey)>,
    jwk: Value,
}

impl std::fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyingKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

impl VerifyingKey {
    /// Reads a SubjectPublicKeyInfo in DER.
    pub(super) fn from_spki(spki: &[u8]) -> Result<Self, KeyError> {
        let (rest, info) = SubjectPublicKeyInfo::from_der(spki).map_err(|_| KeyError::MalformedPublicKey)?;
        if !rest.is_empty() {
            return Err(KeyError::TrailingBytes);
        }
        let parsed = info.parsed().map_err(|_| KeyError::MalformedPublicKey)?;
        let base64 = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (algorithms, mut jwk) = match &parsed {
            PublicKey::RSA(key) => {
                let modulus = without_leading_zeros(key.modulus);
                let bits = bit_length(modulus);
                if !(2048..=8192).contains(&bits) {
                    return Err(KeyError::RsaSize(bits));
                }
                let exponent = without_leading_zeros(key.exponent);
                (RSA, json!({"kty": "RSA", "n": base64(modulus), "e": base64(exponent)}))
            }
            PublicKey::EC(point) => {
                let (&form, coordinates) = point.data().split_first().ok_or(KeyError::EcPoint)?;
                let (algorithm, curve): (&[Algorithm], _) = match (form, coordinates.len()) {
                    (4, 64) => (&[Algorithm::ES256], "P-256"),
                    (4, 96) => (&[Algorithm::ES384], "P-384"),
                    (4, 132) => (&[Algorithm::ES512], "P-521"),
                    _ => return Err(KeyError::EcPoint),
                };
                let (x, y) = coordinates.split_at(coordinates.len() / 2);
                (algorithm, json!({"kty": "EC", "crv": curve, "x": base64(x), "y": base64(y)}))
            }
            _ => return Err(KeyError::PublicKeyType),
        };
        let mut keys_by_algorithm = Vec::new();
        for &algorithm in algorithms {
            let key = ParsedPublicKey::new(algorithm.verification(), spki)
                .map_err(|error| KeyError::Rejected { kind: "public key", reason: error.to_string() })?;
            keys_by_algorithm.push((algorithm, key));
        }
        let kid = base64(digest::digest(&digest::SHA256, spki).as_ref());
        if let (Value::Object(jwk), Some(first)) = (&mut jwk, algorithms.first()) {
            jwk.insert("use".to_owned(), "sig".into());
            jwk.insert("kid".to_owned(), kid.as_str().into());
            jwk.insert("alg".to_owned(), first.as_str().into());
        }
        Ok(VerifyingKey { kid, keys_by_algorithm, jwk })
    }

    /// Returns the key as a JSON Web Key (RFC 7517).
    pub fn jwk(&self) -> &Value {
        &self.jwk
    }

    /// Whether the key verifies the signature; false if the algorithm does not fit the key.
    pub(super) fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let key = self.keys_by_algorithm.iter().find(|(known, _)| *known == algorithm);
        key.is_some_and(|(_, key)| key.verify_sig(message, signature).is_ok())
    }
}

/// Returns a big-endian integer without its leading zeros.
pub(crate) fn without_leading_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.get(zeros..).unwrap_or_default()
}

/// Returns the number of bits of a big-endian integer that has no leading zero bytes.
fn bit_length(bytes: &[u8]) -> usize {
    let unused_bits = bytes.first().map_or(0, |byte| byte.leading_zeros());
    (bytes.len() * 8).saturating_sub(unused_bits as usize)
}

/// A private key with its public key.
pub struct SigningKey {
    pair: Pair,
    /// The key that verifies signatures of this key.
    pub public: Arc<VerifyingKey>,
    /// The algorithm with which this key signs.
    pub algorithm: Algorithm,
}

enum Pair {
    Rsa(rsa::KeyPair),
    Ecdsa(EcdsaKeyPair),
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.public.kid).finish_non_exhaustive()
    }
}

impl SigningKey {
    fn from_rsa(pair: rsa::KeyPair) -> Result<Self, KeyError> {
        let spki = pair.public_key().as_der().map_err(|_| KeyError::NoPublicKey)?;
        let public = VerifyingKey::from_spki(spki.as_ref())?;
        Ok(SigningKey { pair: Pair::Rsa(pair), public: Arc::new(public), algorithm: Algorithm::RS256 })
    }

    /// Reads an ECDSA key with `read`, on the first curve that fits; without one the error is `unsupported`.
    fn from_ecdsa(
        read: impl Fn(&'static EcdsaSigningAlgorithm) -> Option<EcdsaKeyPair>,
        unsupported: KeyError,
    ) -> Result<Self, KeyError> {
        let curves = [
            (&ECDSA_P256_SHA256_FIXED_SIGNING, Algorithm::ES256),
            (&ECDSA_P384_SHA384_FIXED_SIGNING, Algorithm::ES384),
            (&ECDSA_P521_SHA512_FIXED_SIGNING, Algorithm::ES512),
        ];
        let pair = curves.into_iter().find_map(|(curve, algorithm)| Some((read(curve)?, algorithm)));
        let (pair, algorithm) = pair.ok_or(unsupported)?;
        let spki = pair.public_key().as_der().map_err(|_| KeyError::NoPublicKey)?;
        let public = Arc::new(VerifyingKey::from_spki(spki.as_ref())?);
        Ok(SigningKey { pair: Pair::Ecdsa(pair), public, algorithm })
    }

    /// Signs a message. The signature has the form of RFC 7518.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature_bytes = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature_bytes)?;
                Ok(signature_bytes)
            }
            Pair::Ecdsa(pair) => Ok(pair.sign(&random, message)?.as_ref().to_vec()),
        }
    }
}

/// A key in a PEM text.
#[derive(Debug)]
pub struct PemKey {
    /// The public key, or the public half of the private key.
    pub public: Arc<VerifyingKey>,
    /// The private key; None for a public key.
    pub signing: Option<Arc<SigningKey>>,
}

impl From<VerifyingKey> for PemKey {
    fn from(key: VerifyingKey) -> Self {
        PemKey { public: Arc::new(key), signing: None }
    }
}

impl From<SigningKey> for PemKey {
    fn from(key: SigningKey) -> Self {
        PemKey { public: Arc::clone(&key.public), signing: Some(Arc::new(key)) }
    }
}

/// Reads all keys of a PEM text, in order. Other sections, such as EC parameters, are skipped.
///
/// # Errors
///
/// A section is invalid or has an unsupported key, or the text contains no key.
pub fn read(pem: &[u8]) -> Result<Vec<PemKey>, KeyError> {
    let mut keys = Vec::new();
    for (index, section) in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).enumerate() {
        let section_error = |reason: String| KeyError::Section { number: index + 1, reason };
        let (kind, der) = section.map_err(|error| section_error(error.to_string()))?;
        let key: Result<PemKey, KeyError> = match kind {
            SectionKind::PrivateKey => match rsa::KeyPair::from_pkcs8(&der) {
                Ok(pair) => SigningKey::from_rsa(pair).map(PemKey::from),
                Err(_) => SigningKey::from_ecdsa(
                    |curve| EcdsaKeyPair::from_pkcs8(curve, &der).ok(),
                    KeyError::PrivateKeyType,
                )
                .map(PemKey::from),
            },
            SectionKind::RsaPrivateKey => rsa::KeyPair::from_der(&der)
                .map_err(|error| KeyError::Rejected { kind: "RSA key", reason: error.to_string() })
                .and_then(SigningKey::from_rsa)
                .map(PemKey::from),
            SectionKind::EcPrivateKey => SigningKey::from_ecdsa(
                |curve| EcdsaKeyPair::from_private_key_der(curve, &der).ok(),
                KeyError::Curve,
            )
            .map(PemKey::from),
            SectionKind::PublicKey => VerifyingKey::from_spki(&der).map(PemKey::from),
            SectionKind::Certificate => X509Certificate::from_der(&der)
                .map_err(|_| KeyError::MalformedCertificate)
                .and_then(|(_, certificate)| VerifyingKey::from_spki(certificate.public_key().raw))
                .map(PemKey::from),
            _ => continue,
        };
        keys.push(key.map_err(|error| section_error(error.to_string()))?);
    }
    if keys.is_empty() { Err(KeyError::NoKey) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::super::jose::{SignedToken, sign};
    use super::*;

    fn generate_keys() -> Vec<(Algorithm, String, String)> {
        [
            (Algorithm::RS256, rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256)),
            (Algorithm::ES256, rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)),
            (Algorithm::ES384, rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384)),
            (Algorithm::ES512, rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512)),
        ]
        .into_iter()
        .map(|(algorithm, pair)| {
            let pair = pair.unwrap();
            (algorithm, pair.serialize_pem(), pair.public_key_pem())
        })
        .collect()
    }

    fn read_single_key(pem: &str) -> PemKey {
        read(pem.as_bytes()).unwrap().pop().unwrap()
    }

    #[test]
    fn signature_verifies_only_with_its_public_key() {
        let keys = generate_keys();
        for (algorithm, pem, public_pem) in &keys {
            let signing = read_single_key(pem).signing.unwrap_or_else(|| panic!("{algorithm} is public"));
            assert_eq!(signing.algorithm, *algorithm);
            let public = read_single_key(public_pem);
            assert_eq!(public.public.kid, signing.public.kid);
            let header = json!({"alg": algorithm.as_str(), "kid": signing.public.kid});
            let token = sign(&signing, &header, br#"{"a":1}"#).unwrap();
            let signed = SignedToken::parse(&token).map_err(|error| error.to_string()).unwrap();
            assert_eq!(signed.verify(&public.public), Some(br#"{"a":1}"#.as_slice()));
            for (other, _, other_pem) in keys.iter().filter(|(other, ..)| other != algorithm) {
                assert_eq!(signed.verify(&read_single_key(other_pem).public), None, "{algorithm} by {other}");
            }
            for (index, _) in token.char_indices().filter(|(index, _)| index % 7 == 0) {
                let mut bent = token.clone().into_bytes();
                bent[index] = if bent[index] == b'A' { b'B' } else { b'A' };
                let bent = String::from_utf8(bent).unwrap();
                let verified = SignedToken::parse(&bent)
                    .ok()
                    .is_some_and(|signed| signed.verify(&public.public).is_some());
                assert!(!verified, "{algorithm}: changed at {index}");
            }
        }
    }

    #[test]
    fn key_file_with_several_keys_is_read_or_rejected_with_section() {
        let keys = generate_keys();
        let all: String =
            keys.iter().flat_map(|(_, private, public)| [private.as_str(), public.as_str()]).collect();
        assert_eq!(read(all.as_bytes()).unwrap().len(), keys.len() * 2);
        assert_eq!(read(b"").unwrap_err(), KeyError::NoKey);
        let broken = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
        assert_eq!(
            read(broken.as_bytes()).unwrap_err().to_string(),
            "section 1: the public key cannot be parsed"
        );
        let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        assert!(
            read(ed25519.serialize_pem().as_bytes()).unwrap_err().to_string().contains("neither an RSA key")
        );
        assert!(
            read(ed25519.public_key_pem().as_bytes()).unwrap_err().to_string().contains("neither an RSA nor")
        );
    }

    /// An RSA key of 2047 bits, as OpenSSL encodes it.
    const SHORT_RSA_KEY: &str = "\
-----BEGIN PUBLIC KEY-----
MIIBITANBgkqhkiG9w0BAQEFAAOCAQ4AMIIBCQKCAQBYw6U6yDR8DvN97F/J1Gkr
VNAqTGdl/LtYXKzYDZfm0HymWO7aXgbDmN74EO61uBH0qL/2pm2mJsjTVYKawavW
f8TogmWKJ5V55SYoy76gy/lxeFqY+i8SvmhcUQpe2kISh8ULh0e/5I34BqNQettI
+0CQXeLw5VlH1DqqhW7leM5mOyoS0+CqL0SEc81yrIUpDfCMBLjDM93QxxirTDEw
znIYi9ecZPQOETZzG0M6/Uf6i3zbfZ79/5qft9/u+vMiO1uuDAeGcdHZtfady5do
27xVGeN3LNBQd6RTZ6y0rXEI2gqPp4gVrzIRPeWzHe0sLmuiJWnKAb76SSfpd5uF
AgMBAAE=
-----END PUBLIC KEY-----
";

    #[test]
    fn rsa_key_of_2047_bits_is_rejected() {
        assert_eq!(
            read(SHORT_RSA_KEY.as_bytes()).unwrap_err().to_string(),
            "section 1: an RSA key of 2047 bits is not accepted: it must have 2048 to 8192"
        );
    }

    #[test]
    fn jwk_has_members_of_its_key_type() {
        for (algorithm, pem, _) in generate_keys() {
            let key = read_single_key(&pem);
            let jwk = key.public.jwk();
            assert_eq!(jwk["alg"], algorithm.as_str());
            assert_eq!(jwk["use"], "sig");
            assert_eq!(jwk["kid"], key.public.kid.as_str());
            let members: &[&str] = if jwk["kty"] == "RSA" { &["n", "e"] } else { &["crv", "x", "y"] };
            assert!(members.iter().all(|member| jwk[member].is_string()), "{jwk}");
            assert!(!format!("{key:?}").contains("PRIVATE"));
        }
    }
}
