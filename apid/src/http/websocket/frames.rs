//! Frames of RFC 6455: encodes frames of the server and parses frames of the client.

/// Opcodes of RFC 6455.
pub(super) const TEXT: u8 = 1;
/// See [`TEXT`].
pub(super) const BINARY: u8 = 2;
/// See [`TEXT`].
pub(super) const CLOSE: u8 = 8;
/// See [`TEXT`].
pub(super) const PING: u8 = 9;
/// See [`TEXT`].
pub(super) const PONG: u8 = 10;

/// Close codes of RFC 6455: normal closure and protocol error.
pub(super) const NORMAL: u16 = 1000;
/// See [`NORMAL`].
pub(super) const PROTOCOL_ERROR: u16 = 1002;

/// Maximum payload of a control frame, in bytes.
pub(super) const CONTROL_MAX: usize = 125;

/// Encodes a complete, unmasked message.
pub(super) fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 10);
    out.push(0x80 | opcode);
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length), _) if usize::from(length) <= CONTROL_MAX => out.push(length),
        (_, Ok(length)) => {
            out.push(126);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&u64::try_from(payload.len()).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

/// Parser of client frames: it replies to control frames and skips the payload of data frames.
#[derive(Default)]
pub(super) struct ClientFrameParser {
    /// The incomplete frame: at most a header and the payload of a control frame.
    pub(super) incomplete: Vec<u8>,
    /// Remaining payload bytes to skip.
    remaining_skip: u64,
}

/// The reply to received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Nothing.
    Nothing,
    /// Send these bytes.
    Frames(Vec<u8>),
    /// Send these bytes and close the connection.
    Close(Vec<u8>),
}

impl ClientFrameParser {
    /// Parses received bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Reply {
        let mut frames = Vec::new();
        for byte in bytes {
            if self.remaining_skip > 0 {
                self.remaining_skip -= 1;
                continue;
            }
            self.incomplete.push(*byte);
            match self.finished() {
                Ok(None) => {}
                Ok(Some((PING, payload))) => frames.extend(frame(PONG, &payload)),
                Ok(Some((CLOSE, payload))) => {
                    // Echoes the close code if there is one.
                    frames.extend(frame(CLOSE, payload.get(..2).unwrap_or_default()));
                    return Reply::Close(frames);
                }
                Ok(Some(_)) => {}
                Err(ProtocolViolation) => {
                    frames.extend(frame(CLOSE, &PROTOCOL_ERROR.to_be_bytes()));
                    return Reply::Close(frames);
                }
            }
        }
        if frames.is_empty() { Reply::Nothing } else { Reply::Frames(frames) }
    }

    /// Returns the opcode of the frame if it is complete, and the payload of a control frame.
    fn finished(&mut self) -> Result<Option<(u8, Vec<u8>)>, ProtocolViolation> {
        let [first, second, rest @ ..] = self.incomplete.as_slice() else { return Ok(None) };
        let (opcode, length) = (first & 0x0f, second & 0x7f);
        let control = opcode >= CLOSE;
        let known = opcode <= BINARY || (CLOSE..=PONG).contains(&opcode);
        let whole = first & 0x80 != 0 && usize::from(length) <= CONTROL_MAX;
        // The payload of a close frame is empty or begins with a code of two bytes.
        let half = opcode == CLOSE && length == 1;
        if first & 0x70 != 0 || second & 0x80 == 0 || !known || half || (control && !whole) {
            return Err(ProtocolViolation);
        }
        let (length, rest) = match length {
            126 => match rest.split_first_chunk::<2>() {
                Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
                None => return Ok(None),
            },
            length => (u64::from(length), rest),
        };
        let Some((mask, payload)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        if !control {
            if length > i64::MAX.unsigned_abs() {
                return Err(ProtocolViolation);
            }
            self.remaining_skip = length;
            self.incomplete.clear();
            return Ok(Some((opcode, Vec::new())));
        }
        if u64::try_from(payload.len()).unwrap_or(u64::MAX) < length {
            return Ok(None);
        }
        let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        self.incomplete.clear();
        Ok(Some((opcode, payload)))
    }
}

/// The frame violates RFC 6455.
#[derive(Debug)]
struct ProtocolViolation;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Encodes a masked frame, as clients send it.
    pub(in super::super) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = frame(0, payload);
        out[0] = first;
        out[1] |= 0x80;
        let mask = [1, 2, 3, 4];
        let head = out.len() - payload.len();
        out.splice(head..head, mask);
        out.iter_mut().skip(head + 4).zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        out
    }

    #[test]
    fn frame_length_encoding_by_payload_size() {
        for (length, head) in [
            (0, vec![0x81, 0]),
            (125, vec![0x81, 125]),
            (126, vec![0x81, 126, 0, 126]),
            (65_535, vec![0x81, 126, 0xff, 0xff]),
            (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let out = frame(TEXT, &vec![7; length]);
            assert_eq!((&out[..head.len()], out.len()), (head.as_slice(), head.len() + length));
        }
    }

    #[test]
    fn client_frames_get_expected_replies_for_any_split() {
        let close = |code: u16| Reply::Close(frame(CLOSE, &code.to_be_bytes()));
        let pong = |payload: &[u8]| Reply::Frames(frame(PONG, payload));
        let after_text = [masked(0x81, &[9; 70_000]), masked(0x89, b"still there")].concat();
        let fragments = [masked(0x01, b"a"), masked(0x89, b"between"), masked(0x80, b"b")].concat();
        for (sent, reply) in [
            (masked(0x81, b"text"), Reply::Nothing),
            (masked(0x82, &[0; 300]), Reply::Nothing),
            (masked(0x89, b""), pong(b"")),
            (masked(0x89, &[5; 125]), pong(&[5; 125])),
            (masked(0x8a, b"pong"), Reply::Nothing),
            (after_text, pong(b"still there")),
            (fragments, pong(b"between")),
            (masked(0x88, b""), Reply::Close(frame(CLOSE, b""))),
            (masked(0x88, b"\x03\xe9gone"), close(1001)),
            (frame(PING, b"unmasked"), close(1002)),
            (masked(0xc1, b"reserved bit"), close(1002)),
            (masked(0x83, b"opcode"), close(1002)),
            (masked(0x8b, b"opcode"), close(1002)),
            (masked(0x09, b"a control frame in parts"), close(1002)),
            (masked(0x89, &[0; 126]), close(1002)),
            (masked(0x88, b"\x03"), close(1002)),
            ([&[0x82, 0xff][..], &[0xff; 12]].concat(), close(1002)),
        ] {
            for cut in [sent.len(), 1, 3] {
                let mut received = ClientFrameParser::default();
                let mut replies = Vec::new();
                for part in sent.chunks(cut) {
                    match received.take(part) {
                        Reply::Nothing => {}
                        reply @ Reply::Frames(_) => replies.push(reply),
                        reply @ Reply::Close(_) => {
                            replies.push(reply);
                            break;
                        }
                    }
                    assert!(received.incomplete.len() <= 14 + CONTROL_MAX);
                }
                let replies = if replies.is_empty() { vec![Reply::Nothing] } else { replies };
                assert_eq!(
                    replies,
                    [match &reply {
                        Reply::Nothing => Reply::Nothing,
                        Reply::Frames(frames) => Reply::Frames(frames.clone()),
                        Reply::Close(frames) => Reply::Close(frames.clone()),
                    }],
                    "{sent:?} split at {cut}"
                );
            }
        }
    }
}
