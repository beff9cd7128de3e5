//! Compressed header blocks: one zlib stream for all blocks of a direction, with the dictionary of SPDY/3.
//!
//! The encoder copies blocks into stored blocks of the zlib stream. Each peer can decode them, and a direction needs no
//! memory for a compressor: the blocks of exec and port-forward have fewer than 100 bytes.
//!
//! The backend of `flate2` has no preset dictionaries. The decoder therefore checks the zlib head itself, and feeds the
//! dictionary as a stored block before the first block.

use bytes::{Buf as _, BufMut as _};
use flate2::{Decompress, FlushDecompress, Status};
use thiserror::Error;

/// Maximum size of a decoded block in bytes.
pub const MAX_BLOCK_BYTES: usize = 16 * 1024;
/// Maximum number of names in a block.
const MAX_NAMES: u32 = 64;

/// The Adler-32 checksum of the dictionary.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;
/// Head of a zlib stream: deflate with a window of 32 kB and a preset dictionary.
const ZLIB_HEAD: [u8; 2] = [0x78, 0xbb];
/// Bits of the second byte of a zlib head that say whether a dictionary follows.
const HAS_DICTIONARY: u8 = 0x20;
/// Bytes of a zlib head with the checksum of its dictionary.
const ZLIB_HEAD_BYTES: usize = 6;
/// An empty stored block. The decompressor of Go yields the bytes of a stored block only when the next block begins.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];
/// Maximum size of a stored block in bytes.
const MAX_STORED_BYTES: usize = 0xffff;

/// The texts of the dictionary that have a length before them.
const DICTIONARY_NAMES: &str = "options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,\
accept-language,accept-ranges,age,allow,authorization,cache-control,connection,content-base,content-encoding,\
content-language,content-length,content-location,content-md5,content-range,content-type,date,etag,expect,expires,from,\
host,if-match,if-modified-since,if-none-match,if-range,if-unmodified-since,last-modified,location,max-forwards,pragma,\
proxy-authenticate,proxy-authorization,range,referer,retry-after,server,te,trailer,transfer-encoding,upgrade,\
user-agent,vary,via,warning,www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,public,set-cookie,\
keep-alive,origin";

/// The rest of the dictionary.
const DICTIONARY_TEXT: &str = "1001012012022052063003023033043053063074024054064074084094104114124134144154164175025\
04505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8\
charset=iso-8859-1,utf-,*,enq=0.";

/// A violation of the form of a header block. The connection cannot be used after it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HeaderError {
    /// The zlib stream names another dictionary or method.
    #[error("SPDY header block begins with an unknown zlib head")]
    ZlibHead,
    /// The compressed data is invalid.
    #[error("SPDY header block is not valid zlib data")]
    Zlib,
    /// The decoded block exceeds [`MAX_BLOCK_BYTES`] or has too many names.
    #[error("SPDY header block is too large")]
    TooLarge,
    /// The decoded block ends early, goes on after its last value, or has a name that is not UTF-8.
    #[error("SPDY header block is malformed")]
    Malformed,
}

/// Returns the dictionary of SPDY/3.
fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::new();
    for name in DICTIONARY_NAMES.split(',') {
        put_text(&mut dictionary, name);
    }
    dictionary.extend_from_slice(DICTIONARY_TEXT.as_bytes());
    dictionary
}

/// Appends a text after its length.
fn put_text(block: &mut Vec<u8>, text: &str) {
    block.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    block.put_slice(text.as_bytes());
}

/// Encodes the header blocks of one direction of a connection.
#[derive(Debug, Default)]
pub struct HeaderEncoder {
    has_begun: bool,
}

impl HeaderEncoder {
    /// Encodes the next block. Names are in lower case and distinct; all texts together have less than 64 kB.
    pub fn encode(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        block.put_u32(u32::try_from(headers.len()).unwrap_or(u32::MAX));
        for (name, value) in headers {
            put_text(&mut block, name);
            put_text(&mut block, value);
        }
        let mut encoded = Vec::with_capacity(ZLIB_HEAD_BYTES + 2 * FLUSH.len() + block.len());
        if !std::mem::replace(&mut self.has_begun, true) {
            encoded.put_slice(&ZLIB_HEAD);
            encoded.put_u32(DICTIONARY_ID);
        }
        put_stored(&mut encoded, &block);
        encoded.put_slice(&FLUSH);
        encoded
    }
}

/// Appends stored blocks of a deflate stream that has no end yet.
fn put_stored(encoded: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(MAX_STORED_BYTES) {
        let length = u16::try_from(chunk.len()).unwrap_or(u16::MAX);
        encoded.put_u8(0);
        encoded.put_u16_le(length);
        encoded.put_u16_le(!length);
        encoded.put_slice(chunk);
    }
}

/// Decodes the header blocks of one direction of a connection.
///
/// The decoder needs about 45 kB from the first block on.
#[derive(Debug, Default)]
pub struct HeaderDecoder {
    inflate: Option<Decompress>,
}

impl HeaderDecoder {
    /// Decodes the next block.
    ///
    /// # Errors
    ///
    /// The block is no header block, or exceeds the limits.
    pub fn decode(&mut self, encoded: &[u8]) -> Result<Vec<(String, String)>, HeaderError> {
        let mut encoded = encoded;
        let inflate = match &mut self.inflate {
            Some(inflate) => inflate,
            None => {
                let inflate = begin(&mut encoded)?;
                self.inflate.insert(inflate)
            }
        };
        parse_block(&inflate_block(inflate, encoded)?)
    }
}

/// Checks and removes the head of the zlib stream. Returns its decoder, which knows the dictionary if the head names it.
fn begin(encoded: &mut &[u8]) -> Result<Decompress, HeaderError> {
    let [method, flags] = encoded.try_get_u16().map_err(|_| HeaderError::ZlibHead)?.to_be_bytes();
    let is_deflate = method & 0x0f == 8 && u16::from_be_bytes([method, flags]).is_multiple_of(31);
    let mut inflate = Decompress::new(false);
    if flags & HAS_DICTIONARY != 0 {
        let id = encoded.try_get_u32().map_err(|_| HeaderError::ZlibHead)?;
        if id != DICTIONARY_ID {
            return Err(HeaderError::ZlibHead);
        }
        let mut stored = Vec::new();
        put_stored(&mut stored, &dictionary());
        inflate_block(&mut inflate, &stored)?;
    }
    if is_deflate { Ok(inflate) } else { Err(HeaderError::ZlibHead) }
}

/// Inflates the data of one block.
fn inflate_block(inflate: &mut Decompress, encoded: &[u8]) -> Result<Vec<u8>, HeaderError> {
    let mut block = vec![0; MAX_BLOCK_BYTES];
    let (mut read, mut written) = (0, 0);
    loop {
        let input = encoded.get(read..).unwrap_or_default();
        let output = block.get_mut(written..).unwrap_or_default();
        let (in_before, out_before) = (inflate.total_in(), inflate.total_out());
        let status =
            inflate.decompress(input, output, FlushDecompress::Sync).map_err(|_| HeaderError::Zlib)?;
        let consumed = usize::try_from(inflate.total_in() - in_before).unwrap_or(usize::MAX);
        let produced = usize::try_from(inflate.total_out() - out_before).unwrap_or(usize::MAX);
        read += consumed;
        written += produced;
        if status == Status::StreamEnd {
            return Err(HeaderError::Zlib);
        }
        if written >= block.len() {
            return Err(HeaderError::TooLarge);
        }
        if produced == 0 && (consumed == 0 || read >= encoded.len()) {
            break;
        }
    }
    if read < encoded.len() {
        return Err(HeaderError::Zlib);
    }
    block.truncate(written);
    Ok(block)
}

/// Reads the names and values of a decoded block.
fn parse_block(mut block: &[u8]) -> Result<Vec<(String, String)>, HeaderError> {
    let count = block.try_get_u32().map_err(|_| HeaderError::Malformed)?;
    if count > MAX_NAMES {
        return Err(HeaderError::TooLarge);
    }
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push((take_text(&mut block)?, take_text(&mut block)?));
    }
    if block.is_empty() { Ok(headers) } else { Err(HeaderError::Malformed) }
}

fn take_text(block: &mut &[u8]) -> Result<String, HeaderError> {
    let length = block.try_get_u32().map_err(|_| HeaderError::Malformed)?;
    let length = usize::try_from(length).map_err(|_| HeaderError::Malformed)?;
    let (text, rest) = block.split_at_checked(length).ok_or(HeaderError::Malformed)?;
    *block = rest;
    String::from_utf8(text.to_vec()).map_err(|_| HeaderError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionary_has_checksum_of_protocol() {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in dictionary() {
            low = (low + u32::from(byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        assert_eq!(dictionary().len(), 1423);
        assert_eq!((high << 16) | low, DICTIONARY_ID);
    }

    #[test]
    fn encoded_blocks_are_stored_and_end_with_flush() {
        let mut encoder = HeaderEncoder::default();
        let empty = b"\x00\x04\x00\xfb\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff";
        let first = [&b"\x78\xbb\xe3\xc6\xa7\xc2"[..], empty].concat();
        assert_eq!(encoder.encode(&[]), first);
        assert_eq!(encoder.encode(&[]), empty);
    }

    #[test]
    fn encoded_blocks_decode_in_order() {
        let (mut encoder, mut decoder) = (HeaderEncoder::default(), HeaderDecoder::default());
        for headers in [&[("streamtype", "error")][..], &[], &[("port", "80"), ("requestid", "1")]] {
            let decoded = decoder.decode(&encoder.encode(headers)).unwrap();
            let expected: Vec<_> =
                headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(decoded, expected);
        }
    }

    /// zlib's own compressor made these blocks, with the dictionary and a flush after each block.
    #[test]
    fn blocks_that_refer_to_dictionary_and_earlier_blocks_decode() {
        let mut decoder = HeaderDecoder::default();
        let blocks = include!("testdata/zlib_blocks.in");
        for (encoded, headers) in blocks {
            let decoded = decoder.decode(encoded).unwrap();
            let decoded: Vec<_> =
                decoded.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(decoded, headers);
        }
    }

    #[test]
    fn invalid_blocks_are_rejected() {
        let encode = |block: &[u8]| {
            let mut encoded = [&ZLIB_HEAD[..], &DICTIONARY_ID.to_be_bytes()].concat();
            put_stored(&mut encoded, block);
            encoded
        };
        let large_name = [&1_u32.to_be_bytes()[..], &[0, 0, 0x40, 0], &vec![b'a'; 0x4000]].concat();
        for (encoded, error) in [
            (Vec::new(), HeaderError::ZlibHead),
            (vec![0x78, 0xbb, 0, 0, 0, 0], HeaderError::ZlibHead),
            (vec![0x78, 0xbc], HeaderError::ZlibHead),
            (vec![0x78, 0x01, 0xff], HeaderError::Zlib),
            // The last block of a stream.
            (vec![0x78, 0x01, 0x01, 0, 0, 0xff, 0xff], HeaderError::Zlib),
            (encode(&[]), HeaderError::Malformed),
            (encode(&[0, 0, 0]), HeaderError::Malformed),
            (encode(&[0, 0, 0, 0, 1]), HeaderError::Malformed),
            (encode(&[0, 0, 0, 1]), HeaderError::Malformed),
            (encode(&[0, 0, 0, 1, 0, 0, 0, 2, b'a']), HeaderError::Malformed),
            (encode(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]), HeaderError::Malformed),
            (encode(&[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0, 0, 0, 0]), HeaderError::Malformed),
            (encode(&[0, 0, 1, 0]), HeaderError::TooLarge),
            (encode(&large_name), HeaderError::TooLarge),
        ] {
            let decoded = HeaderDecoder::default().decode(&encoded);
            assert_eq!(decoded, Err(error), "{:?}", encoded.get(..20.min(encoded.len())));
        }
    }

    /// A block of 20 kB that expands to far more than the limit costs the limit only.
    #[test]
    fn block_that_expands_above_limit_is_rejected() {
        use std::io::Write as _;
        let mut bomb = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        bomb.write_all(&vec![0; 10 << 20]).unwrap();
        bomb.flush().unwrap();
        let bomb = bomb.get_ref().clone();
        assert_eq!(HeaderDecoder::default().decode(&bomb), Err(HeaderError::TooLarge));
    }
}
