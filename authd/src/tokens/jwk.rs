//! JSON Web Keys of external issuers (RFC 7517, RFC 7518 section 6): the public keys of a JWKS.
//!
//! # Contract
//!
//! [`KeySet::parse`] reads untrusted bytes. An unsupported key (for encryption, of an unknown type, too weak)
//! is skipped with a reason, so that an issuer may publish other keys. A document that is not a JWKS is an
//! error. [`KeySet::verify`] tries all keys, except those with another key id or `alg` than the token.
//!
//! # Invariants
//!
//! INVARIANT (limits): a set has at most [`MAX_KEYS`] keys, which limits the number of signature checks of
//! one token.

use apimachinery::codec::{Limits, json};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::jose::SignedToken;
use super::keys::{VerifyingKey, without_leading_zeros};
use super::sha256_hex;

/// Limits of a JWKS in bytes and in levels of nesting; a document beyond them is an error.
pub const LIMITS: Limits = Limits { bytes: 1024 * 1024, depth: 16, ..Limits::BODY };
/// The maximum number of usable keys of one issuer; further keys are skipped.
pub const MAX_KEYS: usize = 64;

/// The object identifiers of RSA keys (with NULL parameters), EC keys and curves, in DER.
const RSA_ENCRYPTION: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const EC_PUBLIC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

/// A key of a JWKS.
#[derive(Debug)]
struct WebKey {
    /// `kid`, the key id; None if absent.
    key_id: Option<String>,
    /// `alg`: the only allowed algorithm; None means any algorithm that fits the key.
    algorithm: Option<Algorithm>,
    key: VerifyingKey,
}

/// The reason why a document is not a JWKS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// The document is not JSON, is too large, or nests too deeply.
    #[error("{0}")]
    Json(String),
    /// The document has no list of keys.
    #[error("no list `keys`")]
    NoKeys,
}

/// The verifying keys of an issuer.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<WebKey>,
    /// The reasons why keys were skipped, one line each; at most [`MAX_KEYS`] lines.
    pub skipped_keys: Vec<String>,
    /// The SHA-256 of the document, in hexadecimal digits.
    pub hash: String,
}

impl KeySet {
    /// Decodes a document.
    ///
    /// # Errors
    ///
    /// The document is not a JWKS.
    pub fn parse(document: &[u8]) -> Result<Self, JwksError> {
        let decoded = json::decode(document, LIMITS).map_err(|error| JwksError::Json(error.to_string()))?;
        let keys = decoded.value.get("keys").and_then(Value::as_array).ok_or(JwksError::NoKeys)?;
        let mut set = KeySet { hash: sha256_hex(document), ..KeySet::default() };
        for (index, key) in keys.iter().enumerate() {
            let read = match key.as_object() {
                _ if set.keys.len() >= MAX_KEYS => {
                    Err(format!("the set already has {MAX_KEYS} usable keys, the limit"))
                }
                Some(key) => web_key(key),
                None => Err("not an object".to_owned()),
            };
            match read {
                Ok(key) => set.keys.push(key),
                Err(reason) if set.skipped_keys.len() < MAX_KEYS => {
                    set.skipped_keys.push(format!("keys[{index}]: {reason}"));
                }
                Err(_) => {}
            }
        }
        Ok(set)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether every key of `self` is in `other`, with the same key id and algorithm.
    pub fn is_within(&self, other: &KeySet) -> bool {
        let is_same_key = |a: &WebKey, b: &WebKey| {
            a.key_id == b.key_id && a.algorithm == b.algorithm && a.key.kid == b.key.kid
        };
        self.keys.iter().all(|key| other.keys.iter().any(|other| is_same_key(key, other)))
    }

    /// Returns the payload if one of the keys verifies the signature.
    pub fn verify<'s>(&self, signed: &'s SignedToken<'_>) -> Option<&'s [u8]> {
        let has_key_id = |key: &&WebKey| match (&signed.kid, &key.key_id) {
            (Some(kid), Some(key_id)) => kid == key_id,
            _ => true,
        };
        let is_usable = |key: &&WebKey| key.algorithm.is_none_or(|algorithm| algorithm == signed.algorithm);
        self.keys.iter().filter(has_key_id).filter(is_usable).find_map(|key| signed.verify(&key.key))
    }
}

fn web_key(jwk: &Map<String, Value>) -> Result<WebKey, String> {
    let text = |member: &str| match jwk.get(member) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("`{member}` is not a string")),
    };
    if let Some(usage) = text("use")?.filter(|usage| *usage != "sig") {
        return Err(format!("unsupported use `{}`", shorten(usage)));
    }
    let algorithm = match text("alg")? {
        None => None,
        Some(name) => {
            Some(Algorithm::parse(name).ok_or_else(|| format!("unsupported algorithm `{}`", shorten(name)))?)
        }
    };
    let bytes = |member: &str| {
        let text = text(member)?.ok_or_else(|| format!("`{member}` is missing"))?;
        URL_SAFE_NO_PAD.decode(text).map_err(|_| format!("`{member}` is not base64url without padding"))
    };
    let spki = match text("kty")? {
        Some("RSA") => encode_rsa_key(&bytes("n")?, &bytes("e")?),
        Some("EC") => {
            let (curve, length) = match text("crv")? {
                Some("P-256") => (P256, 32),
                Some("P-384") => (P384, 48),
                Some("P-521") => (P521, 66),
                other => return Err(format!("unsupported curve `{}`", shorten(other.unwrap_or_default()))),
            };
            let (x, y) = (bytes("x")?, bytes("y")?);
            if x.len() != length || y.len() != length {
                return Err("the point does not fit the curve".to_owned());
            }
            encode_ec_key(curve, &x, &y)
        }
        other => return Err(format!("unsupported type `{}`", shorten(other.unwrap_or_default()))),
    };
    let key = VerifyingKey::from_spki(&spki).map_err(|error| error.to_string())?;
    Ok(WebKey { key_id: text("kid")?.map(str::to_owned), algorithm, key })
}

/// Shortens untrusted text for the log.
fn shorten(text: &str) -> String {
    text.chars().take(32).collect()
}

/// Encodes a DER value: tag, length, content.
pub(crate) fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let digits = without_leading_zeros(&length);
    let mut encoded = vec![tag];
    match digits {
        [] => encoded.push(0),
        [short] if *short < 0x80 => encoded.push(*short),
        _ => {
            // The length has at most eight bytes.
            encoded.push(0x80 | digits.len() as u8);
            encoded.extend_from_slice(digits);
        }
    }
    encoded.extend_from_slice(content);
    encoded
}

/// Encodes a non-negative big-endian integer as DER INTEGER.
fn integer(bytes: &[u8]) -> Vec<u8> {
    let digits = without_leading_zeros(bytes);
    let sign: &[u8] = if digits.first().is_none_or(|first| *first >= 0x80) { &[0] } else { &[] };
    der(0x02, &[sign, digits].concat())
}

/// Encodes a SubjectPublicKeyInfo from the contents of the algorithm identifier and the key.
fn spki(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    der(0x30, &[der(0x30, algorithm), der(0x03, &[&[0], key].concat())].concat())
}

fn encode_rsa_key(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    spki(RSA_ENCRYPTION, &der(0x30, &[integer(modulus), integer(exponent)].concat()))
}

fn encode_ec_key(curve: &[u8], x: &[u8], y: &[u8]) -> Vec<u8> {
    spki(&[EC_PUBLIC_KEY, curve].concat(), &[&[4], x, y].concat())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::jose::sign;
    use super::super::keys::read;
    use super::*;

    fn generate_keys() -> Vec<std::sync::Arc<super::super::keys::SigningKey>> {
        [
            &rcgen::PKCS_RSA_SHA256,
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ECDSA_P521_SHA512,
        ]
        .into_iter()
        .map(|algorithm| {
            let pem = rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_pem();
            read(pem.as_bytes()).unwrap().pop().unwrap().signing.expect("a private key")
        })
        .collect()
    }

    fn set(keys: &[Value]) -> KeySet {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn published_jwk_verifies_signature_of_private_key() {
        let keys = generate_keys();
        let all: Vec<Value> = keys.iter().map(|key| key.public.jwk().clone()).collect();
        let key_set = set(&all);
        assert_eq!((key_set.len(), key_set.skipped_keys.len()), (4, 0), "{:?}", key_set.skipped_keys);
        for (index, key) in keys.iter().enumerate() {
            for kid in [Some(key.public.kid.clone()), None] {
                let mut header = json!({"alg": key.algorithm.as_str()});
                if let Some(kid) = &kid {
                    header["kid"] = kid.as_str().into();
                }
                let token = sign(key, &header, b"{}").unwrap();
                let signed = SignedToken::parse(&token).map_err(|error| error.to_string()).unwrap();
                assert_eq!(key_set.verify(&signed), Some(b"{}".as_slice()), "{kid:?}");
                let others: Vec<Value> =
                    all.iter().enumerate().filter(|(n, _)| *n != index).map(|(_, key)| key.clone()).collect();
                assert_eq!(set(&others).verify(&signed), None);
            }
            let header = json!({"alg": key.algorithm.as_str(), "kid": "another"});
            let token = sign(key, &header, b"{}").unwrap();
            let signed = SignedToken::parse(&token).map_err(|error| error.to_string()).unwrap();
            assert_eq!(key_set.verify(&signed), None, "the key id selects the key");
        }
    }

    #[test]
    fn jwk_with_alg_rejects_other_algorithm() {
        let keys = generate_keys();
        let rsa = keys[0].public.jwk();
        let mut with_alg = rsa.clone();
        with_alg["alg"] = "PS256".into();
        let header = json!({"alg": "RS256", "kid": keys[0].public.kid});
        let token = sign(&keys[0], &header, b"{}").unwrap();
        let signed = SignedToken::parse(&token).map_err(|error| error.to_string()).unwrap();
        assert_eq!(set(&[with_alg]).verify(&signed), None);
        let mut without_alg = rsa.clone();
        without_alg.as_object_mut().unwrap().remove("alg");
        assert!(set(&[without_alg]).verify(&signed).is_some());
    }

    #[test]
    fn unsupported_jwks_key_is_skipped_with_reason() {
        let good = generate_keys()[1].public.jwk().clone();
        let with_member = |member: &str, value: Value| {
            let mut key = good.clone();
            key[member] = value;
            key
        };
        let short_rsa = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xff; 128]), "e": "AQAB"});
        for (key, expected) in [
            (with_member("use", "enc".into()), "unsupported use `enc`"),
            (with_member("alg", "HS256".into()), "unsupported algorithm `HS256`"),
            (with_member("alg", "ECDH-ES".into()), "unsupported algorithm `ECDH-ES`"),
            (with_member("kty", "OKP".into()), "unsupported type `OKP`"),
            (with_member("crv", "secp256k1".into()), "unsupported curve `secp256k1`"),
            (with_member("crv", "P-384".into()), "the point does not fit the curve"),
            (with_member("x", "AAAA".into()), "the point does not fit the curve"),
            (with_member("x", "!".into()), "`x` is not base64url without padding"),
            (with_member("x", Value::Null), "`x` is missing"),
            (with_member("x", URL_SAFE_NO_PAD.encode([1; 32]).into()), "the public key is not accepted"),
            (with_member("kid", 1.into()), "`kid` is not a string"),
            (short_rsa, "an RSA key of 1024 bits is not accepted"),
            (json!({"kty": "RSA", "n": "", "e": ""}), ""),
            (json!({"kty": "oct", "k": "AAAA"}), "unsupported type `oct`"),
            (json!([]), "not an object"),
        ] {
            let set = set(&[key.clone(), good.clone()]);
            assert_eq!(set.len(), 1, "{key}");
            assert!(
                set.skipped_keys[0].starts_with(&format!("keys[0]: {expected}")),
                "{:?}",
                set.skipped_keys
            );
        }
        for bad in ["", "[]", "{}", r#"{"keys":{}}"#] {
            assert!(KeySet::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(set(&[]).is_empty());
        assert_eq!(set(&vec![good.clone(); 100]).len(), MAX_KEYS);
        assert!(set(std::slice::from_ref(&good)).is_within(&set(&[with_member("use", Value::Null)])));
        assert!(!set(&[good]).is_within(&set(&[])));
    }

    #[test]
    fn der_lengths_are_encoded() {
        assert_eq!(der(2, &[])[..2], [2, 0]);
        assert_eq!(der(2, &[0; 127])[..2], [2, 127]);
        assert_eq!(der(2, &[0; 128])[..3], [2, 0x81, 128]);
        assert_eq!(der(2, &[0; 300])[..4], [2, 0x82, 1, 44]);
        assert_eq!(integer(&[0, 0, 0x80]), [2, 2, 0, 0x80]);
        assert_eq!(integer(&[]), [2, 1, 0]);
    }
}
