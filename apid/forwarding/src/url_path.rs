//! Paths of backends, cleaned as kube-apiserver cleans them.

/// Bytes that a path contains without percent-encoding, besides letters and digits.
const PLAIN: &[u8] = b"-_.~$&+,/:;=@";

/// Cleans a path: decodes it, joins it with `/` by the rules of Go's `path.Join`, and encodes the result.
///
/// Repeated and trailing slashes and `.` segments are removed, and `..` removes the segment before it. A path with
/// an invalid percent sign is not decoded.
pub fn clean(path: &str) -> String {
    let decoded = decode(path).unwrap_or_else(|| path.as_bytes().to_vec());
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    if segments.is_empty() {
        return "/".to_owned();
    }
    let mut cleaned = String::with_capacity(path.len() + 1);
    for segment in segments {
        cleaned.push('/');
        encode(segment, &mut cleaned);
    }
    cleaned
}

/// Cleans a path as [`clean`] does, but keeps a slash at its end.
pub fn clean_directory(path: &str) -> String {
    let mut cleaned = clean(path);
    if path.ends_with('/') && !cleaned.ends_with('/') {
        cleaned.push('/');
    }
    cleaned
}

/// Returns the path of [`clean_directory`] decoded, with U+FFFD for bytes that are not UTF-8.
pub fn decoded_directory(path: &str) -> String {
    let cleaned = clean_directory(path);
    let decoded = decode(&cleaned).unwrap_or_else(|| cleaned.into_bytes());
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Encodes a decoded path without cleaning it.
pub fn encode_path(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    encode(path.as_bytes(), &mut encoded);
    encoded
}

/// Encodes one segment of a path, so that a server reads it as one segment.
pub fn encode_segment(segment: &str) -> String {
    match segment {
        "." | ".." => segment.replace('.', "%2E"),
        segment => encode_path(segment).replace('/', "%2F"),
    }
}

/// Encodes a value of a query parameter.
pub fn encode_query_value(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Decodes percent signs; None if two hexadecimal digits do not follow each of them.
fn decode(path: &str) -> Option<Vec<u8>> {
    let mut bytes = path.bytes();
    let mut decoded = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            let value = digit()? * 16 + digit()?;
            decoded.push(u8::try_from(value).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

fn encode(path: &[u8], out: &mut String) {
    for byte in path {
        if byte.is_ascii_alphanumeric() || PLAIN.contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_value_is_encoded_as_one_value() {
        assert_eq!(encode_query_value("aZ0-_.~"), "aZ0-_.~");
        assert_eq!(encode_query_value("a=b&c+d/e "), "a%3Db%26c%2Bd%2Fe%20");
    }

    #[test]
    fn segment_is_encoded_as_one_segment() {
        for (segment, expected) in
            [("a-b.c", "a-b.c"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("%2F", "%252F"), ("a?b#c", "a%3Fb%23c")]
        {
            assert_eq!(encode_segment(segment), expected, "{segment}");
        }
    }

    #[test]
    fn path_is_cleaned_as_by_the_client_of_kube_apiserver() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            ("//x", "/x"),
            ("/x/", "/x"),
            ("/a//b", "/a/b"),
            ("/./a/./b/.", "/a/b"),
            ("/a/../b", "/b"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a%2F%2Fb", "/a/b"),
            ("/a%2e%2e/b", "/a../b"),
            ("/%2e%2e/b", "/b"),
            ("/a%20b", "/a%20b"),
            ("/a%c3%a9", "/a%C3%A9"),
            ("/a!(b)", "/a%21%28b%29"),
            ("/v1:check;a=b,c@d&e+f$g~h", "/v1:check;a=b,c@d&e+f$g~h"),
            ("/a%zz//b", "/a%25zz/b"),
        ] {
            assert_eq!(clean(path), expected, "{path}");
        }
    }

    #[test]
    fn decoded_path_is_the_cleaned_one() {
        for (path, expected) in [
            ("/%2e%2e/a/../secret%20x/", "/secret x/"),
            ("//a//b", "/a/b"),
            ("/%2573", "/%73"),
            ("/a%zz", "/a%zz"),
            ("/%ff", "/\u{fffd}"),
        ] {
            assert_eq!(decoded_directory(path), expected, "{path}");
        }
    }

    #[test]
    fn slash_at_the_end_of_a_directory_is_kept() {
        for (path, expected) in [("/a%2Fb//c/../d%20e/", "/a/b/d%20e/"), ("/", "/"), ("/x", "/x"), ("", "/")]
        {
            assert_eq!(clean_directory(path), expected, "{path}");
        }
    }
}
