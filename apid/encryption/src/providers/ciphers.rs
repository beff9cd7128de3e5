//! The ciphers of the providers with keys: bytes after the name of the key.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, AES_CBC_IV_LEN, DecryptionContext, EncryptionContext,
    PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand;
use crypto_secretbox::aead::AeadInPlace as _;
use crypto_secretbox::aead::generic_array::GenericArray;
use crypto_secretbox::{KeyInit as _, XSalsa20Poly1305};

use crate::decryption::TOO_SHORT;

/// Maximum number of bytes that a cipher adds to a value.
pub(super) const MAX_OVERHEAD: usize = SECRETBOX_NONCE + SECRETBOX_TAG;
/// Block size of AES in bytes.
const AES_BLOCK: usize = 16;
/// Size of the nonce of XSalsa20 in bytes.
const SECRETBOX_NONCE: usize = 24;
/// Size of the tag of Poly1305 in bytes. The tag precedes the ciphertext.
const SECRETBOX_TAG: usize = 16;
/// The text of kube-apiserver about a tag of AES-GCM that does not match.
pub(crate) const WRONG_TAG: &str = "cipher: message authentication failed";
/// The text of kube-apiserver about a tag of Poly1305 that does not match.
const WRONG_BOX: &str = "output array was not large enough for encryption";
const WRONG_PADDING: &str = "invalid padding on input";
const PARTIAL_BLOCK: &str = "the stored data is not a multiple of the block size";

/// A key of a cipher. The keys of all ciphers clear their memory when they are dropped.
pub(super) enum Cipher {
    AesCbc(Box<AesCbc>),
    AesGcm(AesGcm),
    Secretbox(Box<XSalsa20Poly1305>),
}

/// A key of AES-CBC in both directions.
pub(super) struct AesCbc {
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
}

impl Cipher {
    pub(super) fn aes_cbc(key: &[u8]) -> Option<Cipher> {
        let algorithm = match key.len() {
            16 => &AES_128,
            24 => &AES_192,
            32 => &AES_256,
            _ => return None,
        };
        let unbound = || UnboundCipherKey::new(algorithm, key).ok();
        let encrypting = PaddedBlockEncryptingKey::cbc_pkcs7(unbound()?).ok()?;
        let decrypting = PaddedBlockDecryptingKey::cbc_pkcs7(unbound()?).ok()?;
        Some(Cipher::AesCbc(Box::new(AesCbc { encrypting, decrypting })))
    }

    pub(super) fn aes_gcm(key: &[u8]) -> Option<Cipher> {
        AesGcm::new(key).map(Cipher::AesGcm)
    }

    pub(super) fn secretbox(key: &[u8]) -> Option<Cipher> {
        XSalsa20Poly1305::new_from_slice(key).ok().map(|key| Cipher::Secretbox(Box::new(key)))
    }

    /// Appends the encrypted value to `out`.
    pub(super) fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Cipher::AesCbc(key) => {
                let mut iv = [0; AES_CBC_IV_LEN];
                fill(&mut iv)?;
                let mut encrypted = Vec::with_capacity(plain.len() + AES_BLOCK);
                encrypted.extend_from_slice(plain);
                let context = EncryptionContext::Iv128(FixedLength::from(iv));
                key.encrypting
                    .less_safe_encrypt(&mut encrypted, context)
                    .map_err(|_| "AES-CBC: encryption failed".to_owned())?;
                out.extend_from_slice(&iv);
                out.extend_from_slice(&encrypted);
                Ok(())
            }
            Cipher::AesGcm(key) => key.encrypt(plain, context, out),
            Cipher::Secretbox(key) => {
                let mut nonce = [0; SECRETBOX_NONCE];
                fill(&mut nonce)?;
                out.extend_from_slice(&nonce);
                let tag_start = out.len();
                out.extend_from_slice(&[0; SECRETBOX_TAG]);
                out.extend_from_slice(plain);
                let (tag, text) = out
                    .get_mut(tag_start..)
                    .unwrap_or_default()
                    .split_at_mut_checked(SECRETBOX_TAG)
                    .ok_or_else(|| TOO_SHORT.to_owned())?;
                let sealed = key.encrypt_in_place_detached(GenericArray::from_slice(&nonce), b"", text);
                tag.copy_from_slice(&sealed.map_err(|_| "secretbox: encryption failed".to_owned())?);
                Ok(())
            }
        }
    }

    /// Decrypts the bytes after the name of the key.
    ///
    /// # Errors
    ///
    /// The text of kube-apiserver.
    pub(super) fn decrypt(&self, encrypted: &[u8], context: &[u8]) -> Result<Vec<u8>, &'static str> {
        match self {
            Cipher::AesCbc(key) => {
                let (iv, blocks) = encrypted.split_first_chunk::<AES_CBC_IV_LEN>().ok_or(TOO_SHORT)?;
                if blocks.len() % AES_BLOCK != 0 {
                    return Err(PARTIAL_BLOCK);
                }
                let mut plain = blocks.to_vec();
                let context = DecryptionContext::Iv128(FixedLength::from(*iv));
                let length = key.decrypting.decrypt(&mut plain, context).map_err(|_| WRONG_PADDING)?.len();
                plain.truncate(length);
                Ok(plain)
            }
            Cipher::AesGcm(key) => key.decrypt(encrypted, context),
            Cipher::Secretbox(key) => {
                let (nonce, rest) = encrypted.split_first_chunk::<SECRETBOX_NONCE>().ok_or(TOO_SHORT)?;
                let (tag, text) = rest.split_first_chunk::<SECRETBOX_TAG>().ok_or(TOO_SHORT)?;
                let mut plain = text.to_vec();
                let (nonce, tag) = (GenericArray::from_slice(nonce), GenericArray::from_slice(tag));
                key.decrypt_in_place_detached(nonce, b"", &mut plain, tag).map_err(|_| WRONG_BOX)?;
                Ok(plain)
            }
        }
    }
}

/// A key of AES-GCM with random nonces of 12 bytes before each ciphertext.
pub(crate) struct AesGcm(LessSafeKey);

impl AesGcm {
    /// Creates a key; None for a length that AES does not have.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        UnboundKey::new(algorithm, key).ok().map(|key| AesGcm(LessSafeKey::new(key)))
    }

    /// Appends nonce, ciphertext and tag to `out`. `context` is authenticated.
    pub(crate) fn encrypt(&self, plain: &[u8], context: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut nonce = [0; NONCE_LEN];
        fill(&mut nonce)?;
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        let text = out.get_mut(start..).unwrap_or_default();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(context), text);
        out.extend_from_slice(tag.map_err(|_| "AES-GCM: encryption failed".to_owned())?.as_ref());
        Ok(())
    }

    /// Decrypts nonce, ciphertext and tag.
    pub(crate) fn decrypt(&self, encrypted: &[u8], context: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (nonce, sealed) = encrypted.split_first_chunk::<NONCE_LEN>().ok_or(TOO_SHORT)?;
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length =
            self.0.open_in_place(nonce, Aad::from(context), &mut plain).map_err(|_| WRONG_TAG)?.len();
        plain.truncate(length);
        Ok(plain)
    }
}

/// Fills a buffer with random bytes.
pub(crate) fn fill(buffer: &mut [u8]) -> Result<(), String> {
    rand::fill(buffer).map_err(|_| "the random number generator failed".to_owned())
}
