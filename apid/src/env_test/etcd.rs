//! The `etcd` of env tests: it answers `/health` and reports the directory of the stored objects.
//!
//! # Contract
//!
//! The server listens at `--listen-client-urls` and stores nothing itself. `GET /health` answers as etcd does.
//! [`data_dir`] asks such a server for its `--data-dir`: the objects of an API server live as long as its etcd.
//! All other flags of etcd are accepted and have no effect.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serving::arguments::flag_value;

use crate::console::print;
use crate::process::PARENT_CHECK_INTERVAL;

/// The path whose response is the data directory.
const DATA_DIR_PATH: &str = "/apid/data-dir";
/// Maximum size in bytes of a request head, and of a whole response.
const MESSAGE_LIMIT: u64 = 16 * 1024;
/// Timeout of reads and writes.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The text of `--help`. Env tests search it for flags.
const HELP: &str = "\
Serves /health for env tests in the place of etcd; objects are stored by apid.

Usage: etcd [FLAGS]

Flags:
      --data-dir <DIR>             Directory in which the API server stores objects [default: default.etcd]
      --listen-client-urls <URL>   Address to listen on [default: http://localhost:2379]

Flags without an effect:
      --advertise-client-urls <URL>
      --listen-peer-urls <URL>
      --unsafe-no-fsync
      all other flags of etcd
";

/// The error of a URL that is not of the form `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form http://HOST:PORT")]
struct InvalidUrl(String);

/// `--etcd-servers` names no server of this module; it may be a real etcd.
#[derive(Debug, thiserror::Error)]
#[error(
    "`--etcd-servers={servers}`: {problem}; use the `etcd` beside this kube-apiserver: apid stores objects itself and \
     connects to no etcd cluster"
)]
pub(super) struct DataDirError {
    servers: String,
    problem: DataDirProblem,
}

/// The reason why the server of a URL does not return a data directory.
#[derive(Debug, thiserror::Error)]
enum DataDirProblem {
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    #[error(transparent)]
    Request(#[from] io::Error),
    #[error("the server does not name a directory for objects")]
    NoDirectory,
}

/// Runs the server until the parent ends.
///
/// # Errors
///
/// A flag is invalid, or the data directory or a listener cannot be created.
pub(super) fn run(arguments: &[String], parent_id: u32) -> Result<ExitCode, Vec<String>> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(print(HELP));
    }
    let dir = flag_value(arguments, "data-dir").unwrap_or_else(|| "default.etcd".to_owned());
    let dir = std::fs::create_dir_all(&dir)
        .and_then(|()| std::path::absolute(&dir))
        .map_err(|error| vec![format!("`--data-dir={dir}`: {error}")])?;
    let urls =
        flag_value(arguments, "listen-client-urls").unwrap_or_else(|| "http://localhost:2379".to_owned());
    let listeners: Vec<TcpListener> = urls
        .split(',')
        .map(|url| {
            let address = address(url).map_err(|error| error.to_string())?;
            TcpListener::bind(address).map_err(|error| format!("`--listen-client-urls={url}`: {error}"))
        })
        .collect::<Result<_, String>>()
        .map_err(|error| vec![error])?;
    for listener in listeners {
        let dir = dir.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let dir = dir.clone();
                std::thread::spawn(move || answer(stream, &dir.display().to_string()));
            }
        });
    }
    while std::os::unix::process::parent_id() == parent_id {
        std::thread::sleep(PARENT_CHECK_INTERVAL);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns `HOST:PORT` of an `http` URL.
fn address(url: &str) -> Result<&str, InvalidUrl> {
    url.trim()
        .strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/'))
        .filter(|address| address.contains(':') && !address.contains('/'))
        .ok_or_else(|| InvalidUrl(url.to_owned()))
}

/// Reads one request from a connection and answers it.
fn answer(mut stream: TcpStream, data_dir: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let head = read_head(&mut stream)?;
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let (status, body) = match path {
        "/health" | "/readyz" | "/livez" => ("200 OK", r#"{"health":"true","reason":""}"#),
        DATA_DIR_PATH => ("200 OK", data_dir),
        _ => ("404 Not Found", "404 page not found\n"),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

/// Reads the head of a request; the server reads no body.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && (head.len() as u64) < MESSAGE_LIMIT {
        match stream.read(&mut chunk)? {
            0 => break,
            length => head.extend_from_slice(chunk.get(..length).unwrap_or_default()),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Asks the first server of `--etcd-servers` for the directory of the objects.
///
/// # Errors
///
/// The server does not return a data directory, for example because it is a real etcd.
pub(super) fn data_dir(servers: &str) -> Result<PathBuf, DataDirError> {
    let first = servers.split(',').next().unwrap_or_default();
    request_data_dir(first).map_err(|problem| DataDirError { servers: servers.to_owned(), problem })
}

/// Asks the server of a URL for its directory.
fn request_data_dir(url: &str) -> Result<PathBuf, DataDirProblem> {
    let response = request(address(url)?)?;
    match response.split_once("\r\n\r\n") {
        Some((head, directory)) if head.starts_with("HTTP/1.1 200 ") && directory.starts_with('/') => {
            Ok(PathBuf::from(directory))
        }
        Some(_) | None => Err(DataDirProblem::NoDirectory),
    }
}

fn request(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {DATA_DIR_PATH} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.take(MESSAGE_LIMIT).read_to_string(&mut response)?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server for one request; returns its URL.
    fn serve_once(response: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            match response {
                "" => drop(answer(stream, "/the/directory")),
                response => {
                    read_head(&mut stream).unwrap();
                    stream.write_all(response.as_bytes()).unwrap();
                }
            }
        });
        url
    }

    #[test]
    fn data_dir_is_that_of_the_env_test_etcd_only() {
        assert_eq!(data_dir(&serve_once("")).unwrap(), PathBuf::from("/the/directory"));
        let other = data_dir(&serve_once("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"))
            .unwrap_err()
            .to_string();
        assert!(other.contains("connects to no etcd cluster"), "{other}");
        for servers in ["https://127.0.0.1:1", "http://127.0.0.1", ""] {
            let error = data_dir(servers).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn help_lists_the_flags_that_env_tests_search() {
        for flag in ["--unsafe-no-fsync", "--listen-peer-urls"] {
            assert!(HELP.lines().any(|line| line.trim_start().starts_with(flag)), "{flag}");
        }
    }
}
