//! Tests of frames against hand-made bytes, in random splits, and with random bytes.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;

use super::frame::{
    CANCEL, Decoder, Frame, FrameError, MAX_CONTROL_BYTES, data_head, go_away, ping, reset, syn_reply,
    syn_stream,
};
use super::headers::{HeaderDecoder, HeaderEncoder};
use super::reader::FrameReader;

/// Decodes bytes that arrive in pieces of a size. Joins the pieces of data frames.
fn decode(bytes: &[u8], size: usize) -> Result<Vec<Frame>, FrameError> {
    let (mut decoder, mut buffer, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
    for piece in bytes.chunks(size.max(1)) {
        buffer.extend_from_slice(piece);
        while let Some(frame) = decoder.decode(&mut buffer)? {
            match (frames.last_mut(), frame) {
                (
                    Some(Frame::Data { stream, is_last, data }),
                    Frame::Data { stream: next, is_last: ends, data: more },
                ) if *stream == next => {
                    *data = [&data[..], &more].concat().into();
                    *is_last = ends;
                }
                (_, frame) => frames.push(frame),
            }
        }
    }
    Ok(frames)
}

/// Frames as in the figures of the protocol, and their meaning.
fn examples() -> Vec<(&'static [u8], Frame)> {
    let bytes = Bytes::from_static;
    vec![
        (
            b"\x80\x03\x00\x01\x01\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00hi",
            Frame::SynStream { stream: 1, is_last: true, headers: bytes(b"hi") },
        ),
        (
            b"\x80\x03\x00\x02\x00\x00\x00\x05\x00\x00\x00\x03z",
            Frame::SynReply { stream: 3, is_last: false, headers: bytes(b"z") },
        ),
        (
            b"\x80\x03\x00\x08\x01\x00\x00\x04\x00\x00\x00\x03",
            Frame::Headers { stream: 3, is_last: true, headers: Bytes::new() },
        ),
        (
            b"\x80\x03\x00\x03\x00\x00\x00\x08\x00\x00\x00\x05\x00\x00\x00\x05",
            Frame::Reset { stream: 5, status: CANCEL },
        ),
        (b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x02", Frame::Ping(2)),
        (b"\x80\x03\x00\x07\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00", Frame::GoAway),
        (
            b"\x00\x00\x00\x07\x00\x00\x00\x05bytes",
            Frame::Data { stream: 7, is_last: false, data: bytes(b"bytes") },
        ),
        (b"\x00\x00\x00\x09\x01\x00\x00\x00", Frame::Data { stream: 9, is_last: true, data: Bytes::new() }),
    ]
}

#[test]
fn hand_made_frames_decode_in_each_split() {
    let (bytes, frames): (Vec<&[u8]>, Vec<Frame>) = examples().into_iter().unzip();
    let bytes = bytes.concat();
    for size in 1..=bytes.len() {
        assert_eq!(decode(&bytes, size).as_ref(), Ok(&frames), "pieces of {size} bytes");
    }
}

#[test]
fn settings_windows_and_unknown_frames_are_skipped() {
    let settings = b"\x80\x03\x00\x04\x00\x00\x00\x0c\x00\x00\x00\x01\x00\x00\x00\x07\x00\x01\x00\x00";
    let window = b"\x80\x03\x00\x09\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x10\x00";
    let unknown = [&b"\x80\x03\x00\x63\x00\x01\x00\x00"[..], &[0; 0x1_0000]].concat();
    let bytes = [&settings[..], window, &unknown, &ping(1)].concat();
    for size in [1, 7, bytes.len()] {
        assert_eq!(decode(&bytes, size), Ok(vec![Frame::Ping(1)]));
    }
}

#[test]
fn invalid_frames_are_errors() {
    for (bytes, error) in [
        (&b"\x80\x02\x00\x06\x00\x00\x00\x04\x00\x00\x00\x02"[..], FrameError::Version(2)),
        (b"\x00\x00\x00\x00\x00\x00\x00\x01x", FrameError::StreamZero),
        (b"\x80\x03\x00\x01\x00\x00\x00\x09123456789", FrameError::Length { kind: 1, length: 9 }),
        (b"\x80\x03\x00\x02\x00\x00\x00\x03123", FrameError::Length { kind: 2, length: 3 }),
        (b"\x80\x03\x00\x03\x00\x00\x00\x0912345678_", FrameError::Length { kind: 3, length: 9 }),
        (b"\x80\x03\x00\x06\x00\x00\x00\x0512345", FrameError::Length { kind: 6, length: 5 }),
        (b"\x80\x03\x00\x03\x00\x00\x00\x08\x80\x00\x00\x00\x00\x00\x00\x05", FrameError::StreamZero),
        (b"\x80\x03\x00\x01\x00\x00\x40\x01", FrameError::TooLarge(MAX_CONTROL_BYTES + 1)),
    ] {
        assert_eq!(decode(bytes, 1), Err(error));
    }
}

#[test]
fn encoded_frames_decode() {
    let (mut encoder, mut decoder) = (HeaderEncoder::default(), HeaderDecoder::default());
    let head = data_head(5, true, 3);
    let bytes = [
        &syn_stream(5, &encoder.encode(&[("streamtype", "error")]))[..],
        &syn_reply(5, b""),
        &head,
        b"abc",
        &ping(7),
        &reset(5, CANCEL),
        &go_away(5),
    ]
    .concat();
    let frames = decode(&bytes, bytes.len()).unwrap();
    let [Frame::SynStream { stream: 5, is_last: false, headers }, rest @ ..] = &frames[..] else {
        panic!("{frames:?}")
    };
    assert_eq!(decoder.decode(headers), Ok(vec![("streamtype".to_owned(), "error".to_owned())]));
    let expected = [
        Frame::SynReply { stream: 5, is_last: false, headers: Bytes::new() },
        Frame::Data { stream: 5, is_last: true, data: Bytes::from_static(b"abc") },
        Frame::Ping(7),
        Frame::Reset { stream: 5, status: CANCEL },
        Frame::GoAway,
    ];
    assert_eq!(rest, expected);
}

/// Random bytes never panic, give the same frames in each split, and keep no bytes without need.
#[test]
fn random_frames_decode_equally_in_each_split() {
    let examples: Vec<Vec<u8>> = examples()
        .iter()
        .map(|(bytes, _)| bytes.to_vec())
        .chain([[&data_head(1, false, 300)[..], &[7; 300]].concat()])
        .collect();
    let rounds = Cell::new(0_usize);
    fuzzing::run("SPDY frames", &examples, |input| {
        rounds.set(rounds.get() + 1);
        let whole = decode(input, input.len());
        let split = decode(input, rounds.get() % 13 + 1);
        match (whole, split) {
            (Ok(whole), Ok(split)) => assert_eq!(whole, split),
            (Err(whole), Err(split)) => assert_eq!(whole, split),
            (whole, split) => panic!("{whole:?} {split:?}"),
        }
        let mut decoder = HeaderDecoder::default();
        drop(decoder.decode(input));
        drop(decoder.decode(input));
    });
}

#[tokio::test]
async fn reader_yields_large_frames_in_bounded_pieces() {
    let (mut peer, connection) = tokio::io::duplex(64 * 1024);
    let sent = vec![3; 1_000_000];
    let frame = [&data_head(1, true, sent.len())[..], &sent].concat();
    tokio::spawn(async move { peer.write_all(&frame).await });
    let mut reader = FrameReader::new(connection);
    let mut received = 0;
    while let Some(Frame::Data { data, is_last, .. }) = reader.next().await.unwrap() {
        assert!(data.len() <= 16 * 1024, "{}", data.len());
        received += data.len();
        assert_eq!(is_last, received == sent.len());
    }
    assert_eq!(received, sent.len());
}

#[tokio::test]
async fn reader_reports_end_within_frame() {
    for bytes in [&b"\x80\x03"[..], b"\x00\x00\x00\x01\x00\x00\x00\x02x"] {
        let mut reader = FrameReader::new(bytes);
        let end = loop {
            match reader.next().await {
                Ok(Some(_)) => {}
                end => break end,
            }
        };
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
