//! Documents as they are kept: compressed, with a hash.

use std::io::{self, Read as _, Write};

use aws_lc_rs::digest;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// A document. Cheap to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    gzip: Bytes,
    size: usize,
    hash: String,
}

impl Packed {
    /// Compressed, as `Content-Encoding: gzip` has it.
    pub fn gzip(&self) -> Bytes {
        self.gzip.clone()
    }

    /// The document itself.
    ///
    /// # Errors
    ///
    /// None in practice: what was compressed here can be read.
    pub fn plain(&self) -> io::Result<Bytes> {
        let mut plain = Vec::with_capacity(self.size);
        GzDecoder::new(&*self.gzip).read_to_end(&mut plain)?;
        Ok(plain.into())
    }

    /// Upper-case hex; changes with the content.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// Takes a document piece by piece, so that it never stands in memory as a whole.
pub(super) struct Packer {
    encoder: GzEncoder<Vec<u8>>,
    digest: digest::Context,
    size: usize,
}

impl Packer {
    pub(super) fn new() -> Self {
        Packer {
            encoder: GzEncoder::new(Vec::new(), Compression::default()),
            digest: digest::Context::new(&digest::SHA512),
            size: 0,
        }
    }

    pub(super) fn finish(self) -> io::Result<Packed> {
        let mut gzip = self.encoder.finish()?;
        gzip.shrink_to_fit();
        let hash = self.digest.finish();
        let hash = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(Packed { gzip: gzip.into(), size: self.size, hash })
    }
}

impl Write for Packer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write_all(bytes)?;
        self.digest.update(bytes);
        self.size += bytes.len();
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
    fn what_is_packed_is_what_was_written() {
        let mut packer = Packer::new();
        for _ in 0..1000 {
            packer.write_all(b"the same again ").unwrap();
        }
        let packed = packer.finish().unwrap();
        assert_eq!(packed.plain().unwrap(), "the same again ".repeat(1000));
        assert!(packed.gzip().len() < 1000 && packed.hash().len() == 128);
    }
}
