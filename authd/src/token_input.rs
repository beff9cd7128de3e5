//! A token from standard input, for commands.

use std::io::{self, Read};

/// Limit in bytes of the input; a longer input is an error.
const MAX_BYTES: usize = 256 * 1024;

/// The reason why no token could be read from standard input.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenInputError {
    /// The input cannot be read.
    #[error("standard input: {0}")]
    Read(io::Error),
    /// The input is empty.
    #[error("standard input contains no token")]
    Empty,
    /// The input is longer than the limit.
    #[error("standard input is longer than {MAX_BYTES} bytes, the limit of a token")]
    TooLong,
}

/// Reads a token, without white space around it.
///
/// # Errors
///
/// See [`TokenInputError`].
pub(crate) fn read(input: &mut impl Read) -> Result<String, TokenInputError> {
    let mut token = String::new();
    input.take(MAX_BYTES as u64 + 1).read_to_string(&mut token).map_err(TokenInputError::Read)?;
    if token.len() > MAX_BYTES {
        return Err(TokenInputError::TooLong);
    }
    match token.trim() {
        "" => Err(TokenInputError::Empty),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_from_standard_input_is_trimmed_and_required() {
        assert_eq!(read(&mut " abc\n".as_bytes()).unwrap(), "abc");
        assert_eq!(read(&mut "\n".as_bytes()).unwrap_err().to_string(), "standard input contains no token");
    }

    #[test]
    fn token_above_the_limit_is_rejected() {
        let token = "x".repeat(MAX_BYTES);
        assert_eq!(read(&mut token.as_bytes()).unwrap(), token);
        let error = read(&mut format!("{token}x").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "standard input is longer than 262144 bytes, the limit of a token");
    }
}
