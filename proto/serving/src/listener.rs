//! Listeners: TCP on an address and port, or a unix socket with access for its owner only.
//!
//! # Contract
//!
//! With port 0 the system chooses a port; [`Listener::address`] returns it. A unix socket has mode 0600 from
//! the moment it exists under its name. A stale socket file is replaced; a live socket and any other file are
//! errors.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Pause after a failed accept. While the process has no file descriptors left, each accept fails at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bound listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP listener with its bound address.
    Tcp(TcpListener, SocketAddr),
    /// Unix socket. The file is removed before the socket closes: later, the file could be that of the next
    /// process.
    Unix(SocketFile, UnixListener),
}

/// A connection that a listener accepted.
#[derive(Debug)]
pub enum AcceptedConnection {
    /// TCP connection with the address of the peer; `TCP_NODELAY` is set.
    Tcp(TcpStream, SocketAddr),
    /// Connection on a unix socket.
    Unix(UnixStream),
}

impl AcceptedConnection {
    /// Returns the address of the peer; None on a unix socket.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            AcceptedConnection::Tcp(_, peer) => Some(*peer),
            AcceptedConnection::Unix(_) => None,
        }
    }
}

/// File of a unix socket; removed on drop.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Binds TCP. Port 0: the system chooses.
    ///
    /// # Errors
    ///
    /// The system error, with the address in the text.
    pub async fn tcp(address: IpAddr, port: u16) -> io::Result<Self> {
        let address = SocketAddr::new(address, port);
        let listener = TcpListener::bind(address)
            .await
            .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))?;
        let bound = listener.local_addr()?;
        Ok(Listener::Tcp(listener, bound))
    }

    /// Binds a unix socket of mode 0600.
    ///
    /// # Errors
    ///
    /// See [`unix`].
    pub fn unix(path: &Path) -> io::Result<Self> {
        let listener = unix(path)?;
        Ok(Listener::Unix(SocketFile(path.to_owned()), listener))
    }

    /// Returns the bound address; None for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(_, address) => Some(*address),
            Listener::Unix(..) => None,
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    ///
    /// The system error: no file descriptors left, or a connection that broke before it was accepted.
    pub async fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Listener::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(AcceptedConnection::Tcp(stream, peer))
            }
            Listener::Unix(_, listener) => Ok(AcceptedConnection::Unix(listener.accept().await?.0)),
        }
    }
}

/// Binds a unix socket of mode 0600, for servers with their own accept loop.
///
/// # Errors
///
/// `AddrInUse` for a live socket, `AlreadyExists` for a file that is not a socket, or the system error.
pub fn unix(path: &Path) -> io::Result<UnixListener> {
    unix_with_mode(path, 0o600)
}

/// Binds a unix socket of a mode, for servers with their own accept loop. The group is that of the process.
///
/// # Errors
///
/// See [`unix`].
pub fn unix_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let listen_error =
        |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {}: {e}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let problem = "the file exists and is not a socket";
            return Err(listen_error(io::Error::new(io::ErrorKind::AlreadyExists, problem)));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            let problem = "a process is already listening";
            return Err(listen_error(io::Error::new(io::ErrorKind::AddrInUse, problem)));
        }
        Ok(_) => fs::remove_file(path).map_err(listen_error)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(listen_error(e)),
    }
    // The socket is bound in a private directory and moved once it has its mode, so that no other user connects
    // before.
    let directory = path.with_added_extension(std::process::id().to_string());
    // A process that was killed here leaves the directory. In a container, the next process has the same number.
    match fs::remove_dir_all(&directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(listen_error(e)),
        _ => {}
    }
    fs::DirBuilder::new().mode(0o700).create(&directory).map_err(listen_error)?;
    let private_path = directory.join("s");
    let result = UnixListener::bind(&private_path).and_then(|listener| {
        fs::set_permissions(&private_path, fs::Permissions::from_mode(mode))?;
        fs::rename(&private_path, path)?;
        Ok(listener)
    });
    let _ = fs::remove_dir_all(&directory);
    result.map_err(listen_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn port_zero_listener_reports_chosen_port() {
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let address = listener.address().unwrap();
        assert_ne!(address.port(), 0);
        let taken = Listener::tcp(address.ip(), address.port()).await.unwrap_err();
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        let client = TcpStream::connect(address).await.unwrap();
        let AcceptedConnection::Tcp(stream, peer) = listener.accept().await.unwrap() else {
            panic!("not TCP")
        };
        assert_eq!(peer, client.local_addr().unwrap());
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn directory_of_a_killed_process_with_this_number_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let stale = path.with_added_extension(std::process::id().to_string());
        fs::create_dir(&stale).unwrap();
        drop(std::os::unix::net::UnixListener::bind(stale.join("s")).unwrap());
        let _listener = unix(&path).unwrap();
        assert!(!stale.exists());
    }

    #[tokio::test]
    async fn unix_socket_of_a_group_has_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = unix_with_mode(&path, 0o660).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    }

    #[tokio::test]
    async fn stale_unix_socket_is_replaced_and_live_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = Listener::unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file remains");
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a stale socket file remains");
        let again = Listener::unix(&path).unwrap();
        UnixStream::connect(&path).await.unwrap();
        assert!(matches!(again.accept().await.unwrap(), AcceptedConnection::Unix(_)));

        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert_eq!(Listener::unix(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }
}
