//! OpenAPI documents in memory: compressed, with a hash.
//!
//! # Concurrency
//!
//! The lock of the decompressed document is held during decompression: concurrent readers wait and share the
//! result.

use std::io::{self, BufWriter, IntoInnerError, Read as _, Write};
use std::sync::{Arc, Weak};

use apimachinery::codec;
use aws_lc_rs::digest;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use serde_json::Value;

/// Maximum size in bytes of the text of a document. A document of a group with more definitions fails.
pub const TEXT_MAX: usize = ::kinds::custom::MAX_DOCUMENT_BYTES;

/// Maximum size in bytes of the text of a document that is also sent without compression.
pub const PLAIN_MAX: usize = 128 << 20;

/// A compressed document. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct CompressedDocument {
    gzip: Bytes,
    size: usize,
    hash: String,
    /// The decompressed document, while a response refers to it.
    plain: Arc<Mutex<Weak<Vec<u8>>>>,
}

/// Owner of the `Bytes` of a decompressed document.
struct DecompressedOwner(Arc<Vec<u8>>);

impl AsRef<[u8]> for DecompressedOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for CompressedDocument {
    fn eq(&self, other: &Self) -> bool {
        (&self.gzip, self.size, &self.hash) == (&other.gzip, other.size, &other.hash)
    }
}

impl Eq for CompressedDocument {}

impl CompressedDocument {
    /// Returns the compressed document, for `Content-Encoding: gzip`.
    pub fn gzip(&self) -> Bytes {
        self.gzip.clone()
    }

    /// Returns the decompressed document. All readers share one buffer, which is freed after the last reader.
    ///
    /// # Errors
    ///
    /// None in practice: apid itself compressed the input.
    pub fn decompress(&self) -> io::Result<Bytes> {
        let mut weak_document = self.plain.lock();
        let plain = match weak_document.upgrade() {
            Some(plain) => plain,
            None => {
                let mut plain = Vec::with_capacity(self.size);
                GzDecoder::new(&*self.gzip).read_to_end(&mut plain)?;
                let plain = Arc::new(plain);
                *weak_document = Arc::downgrade(&plain);
                plain
            }
        };
        Ok(Bytes::from_owner(DecompressedOwner(plain)))
    }

    /// Returns the decompressed document if a reader holds it now. Also None while a reader decompresses it.
    pub fn decompressed_now(&self) -> Option<Bytes> {
        let plain = self.plain.try_lock()?.upgrade()?;
        Some(Bytes::from_owner(DecompressedOwner(plain)))
    }

    /// Whether the text is small enough for responses without compression.
    pub fn has_plain_form(&self) -> bool {
        self.size <= PLAIN_MAX
    }

    /// Returns the hash of the content in upper-case hexadecimal digits.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// Writer that compresses and hashes a document chunk by chunk, so that a caller need not hold the whole
/// document in memory.
pub(super) struct DocumentCompressor {
    /// The encoder clears 32 KiB of memory for each write, so that the small writes of a JSON document are collected.
    out: BufWriter<HashedGzip>,
    size: usize,
}

/// Writer that compresses and hashes.
struct HashedGzip {
    encoder: GzEncoder<Vec<u8>>,
    digest: digest::Context,
}

impl DocumentCompressor {
    pub(super) fn new() -> Self {
        let hashed = HashedGzip {
            encoder: GzEncoder::new(Vec::new(), Compression::default()),
            digest: digest::Context::new(&digest::SHA512),
        };
        DocumentCompressor { out: BufWriter::with_capacity(64 << 10, hashed), size: 0 }
    }

    pub(super) fn finish(self) -> io::Result<CompressedDocument> {
        let HashedGzip { encoder, digest } = self.out.into_inner().map_err(IntoInnerError::into_error)?;
        let mut gzip = encoder.finish()?;
        gzip.shrink_to_fit();
        let hash = digest.finish();
        let hash = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(CompressedDocument { gzip: gzip.into(), size: self.size, hash, plain: Arc::default() })
    }
}

/// Writer of a JSON object, entry by entry.
pub(super) struct ObjectWriter<'a, W: Write> {
    out: &'a mut W,
    is_empty: bool,
}

impl<'a, W: Write> ObjectWriter<'a, W> {
    pub(super) fn new(out: &'a mut W) -> io::Result<Self> {
        out.write_all(b"{")?;
        Ok(ObjectWriter { out, is_empty: true })
    }

    pub(super) fn write(&mut self, name: &str, value: &Value) -> io::Result<()> {
        if !self.is_empty {
            self.out.write_all(b",")?;
        }
        self.is_empty = false;
        serde_json::to_writer(&mut *self.out, name)?;
        self.out.write_all(b":")?;
        codec::json::write_to(&mut *self.out, value)?;
        Ok(())
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(b"}")
    }
}

impl Write for DocumentCompressor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > TEXT_MAX.saturating_sub(self.size) {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.out.write_all(bytes)?;
        self.size += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Write for HashedGzip {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write_all(bytes)?;
        self.digest.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_document_round_trips() {
        let mut compressor = DocumentCompressor::new();
        for _ in 0..1000 {
            compressor.write_all(b"the same again ").unwrap();
        }
        let document = compressor.finish().unwrap();
        assert_eq!(document.decompress().unwrap(), "the same again ".repeat(1000));
        assert!(document.gzip().len() < 1000 && document.hash().len() == 128);
    }

    #[test]
    fn document_above_the_maximum_size_fails() {
        let mut compressor = DocumentCompressor::new();
        compressor.size = PLAIN_MAX - 1;
        compressor.write_all(b"{").unwrap();
        assert!(compressor.finish().unwrap().has_plain_form());
        let mut compressor = DocumentCompressor::new();
        compressor.size = TEXT_MAX - 2;
        assert!(compressor.write_all(b"{}").is_ok());
        let error = compressor.write_all(b"{").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(!compressor.finish().unwrap().has_plain_form());
    }

    #[test]
    fn decompressed_document_is_shared_and_freed_by_last_reader() {
        let mut compressor = DocumentCompressor::new();
        compressor.write_all(b"document").unwrap();
        let document = compressor.finish().unwrap();
        assert!(document.decompressed_now().is_none());
        let (first, second) = (document.decompress().unwrap(), document.clone().decompress().unwrap());
        assert_eq!((first.as_ptr(), &first[..]), (second.as_ptr(), &b"document"[..]));
        drop(first);
        assert_eq!(document.decompressed_now().unwrap().as_ptr(), second.as_ptr());
        drop(second);
        assert!(document.decompressed_now().is_none());
    }
}
