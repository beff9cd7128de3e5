//! Configuration files on disk.

use std::path::Path;

use crate::config_error::ConfigError;

/// Limit in bytes of a configuration file; a larger file is an error.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Reads a whole configuration file.
///
/// # Errors
///
/// The file cannot be read, or exceeds the size limit.
pub fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let system_error = |error: std::io::Error| ConfigError::file(path, error.to_string());
    let size = std::fs::metadata(path).map_err(system_error)?.len();
    if size > MAX_FILE_BYTES {
        let problem = format!("{size} bytes exceed the limit of {MAX_FILE_BYTES} for a configuration file");
        return Err(ConfigError::file(path, problem));
    }
    std::fs::read(path).map_err(system_error)
}
