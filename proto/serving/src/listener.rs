//! Where connections come in: TCP on an address and port, or a unix socket that only its owner may open.
//!
//! # Contract
//!
//! Port 0 lets the system choose; [`Listener::address`] says what was bound. A unix socket has mode 0600 from the
//! moment it exists under its name; a socket file that nobody listens on is replaced, a live one is an error, and so is
//! any other file.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP, with the address that was bound.
    Tcp(TcpListener, SocketAddr),
    /// A unix socket. The file goes before the socket closes, so that it is never that of the next process.
    Unix(SocketFile, UnixListener),
}

/// An accepted connection.
#[derive(Debug)]
pub enum Accepted {
    /// TCP, with the peer's address; `TCP_NODELAY` is set.
    Tcp(TcpStream, SocketAddr),
    /// From a unix socket.
    Unix(UnixStream),
}

impl Accepted {
    /// The peer's address; None on a unix socket.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Accepted::Tcp(_, peer) => Some(*peer),
            Accepted::Unix(_) => None,
        }
    }
}

/// The file of a unix socket; removed when dropped.
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
    /// What the system says, with the address in the text.
    pub async fn tcp(address: IpAddr, port: u16) -> io::Result<Self> {
        let wanted = SocketAddr::new(address, port);
        let listener = TcpListener::bind(wanted)
            .await
            .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {wanted}: {e}")))?;
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

    /// The address that was bound; None for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(_, address) => Some(*address),
            Listener::Unix(..) => None,
        }
    }

    /// The next connection.
    ///
    /// # Errors
    ///
    /// What the system says: out of file descriptors, or a connection that broke before it was accepted.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, peer))
            }
            Listener::Unix(_, listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

/// Binds a unix socket of mode 0600, for servers with an accept loop of their own.
///
/// # Errors
///
/// `AddrInUse` when somebody listens there, `AlreadyExists` when the file is no socket, or what the system says.
pub fn unix(path: &Path) -> io::Result<UnixListener> {
    let told = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {}: {e}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(told(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the file exists and is no socket",
            )));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(told(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")));
        }
        Ok(_) => fs::remove_file(path).map_err(told)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(told(e)),
    }
    // Bound under another name and renamed once it is private: nobody can connect before.
    let mut private = path.as_os_str().to_owned();
    private.push(format!(".{}", std::process::id()));
    let private = PathBuf::from(private);
    let listener = UnixListener::bind(&private).map_err(told)?;
    let placed = fs::set_permissions(&private, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&private, path));
    if let Err(e) = placed {
        let _ = fs::remove_file(&private);
        return Err(told(e));
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn port_zero_is_chosen_by_the_system_and_told() {
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let address = listener.address().unwrap();
        assert_ne!(address.port(), 0);
        let taken = Listener::tcp(address.ip(), address.port()).await.unwrap_err();
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        let client = TcpStream::connect(address).await.unwrap();
        let Accepted::Tcp(stream, peer) = listener.accept().await.unwrap() else { panic!("not TCP") };
        assert_eq!(peer, client.local_addr().unwrap());
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn unix_sockets_are_private_replaced_when_dead_and_kept_when_live() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = Listener::unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead socket stays behind");
        let again = Listener::unix(&path).unwrap();
        UnixStream::connect(&path).await.unwrap();
        assert!(matches!(again.accept().await.unwrap(), Accepted::Unix(_)));

        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert_eq!(Listener::unix(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }
}
