//! The authds that several apids share, from the flags `--authd-servers`, `--authd-cafile`, `--authd-certfile` and
//! `--authd-keyfile`.

use std::sync::Arc;

use authclient::AuthdServer;
use http::Uri;
use serving::mutual_tls::{MutualTlsClient, MutualTlsFiles};

use super::flags::AuthdConnectionFlags;

/// Checks the flags, and reads the files that they name.
///
/// # Errors
///
/// All errors of the flags.
pub(super) fn check(flags: &AuthdConnectionFlags) -> Result<Vec<AuthdServer>, Vec<String>> {
    let AuthdConnectionFlags { authd_servers, authd_cafile, authd_certfile, authd_keyfile, .. } = flags;
    let mut errors = Vec::new();
    let files = [
        ("authd-cafile", authd_cafile.is_some()),
        ("authd-certfile", authd_certfile.is_some()),
        ("authd-keyfile", authd_keyfile.is_some()),
    ];
    if authd_servers.is_empty() {
        let unneeded = files.into_iter().filter(|(_, is_given)| *is_given);
        errors.extend(unneeded.map(|(flag, _)| format!("`--{flag}` requires `--authd-servers`")));
        return if errors.is_empty() { Ok(Vec::new()) } else { Err(errors) };
    }
    let mut addresses = Vec::new();
    for url in authd_servers {
        match address(url.trim()) {
            Ok(address) => addresses.push(address),
            Err(problem) => errors.push(format!("`--authd-servers`: {problem}")),
        }
    }
    let missing = files.into_iter().filter(|(_, is_given)| !is_given);
    errors.extend(missing.map(|(flag, _)| {
        format!("`--{flag}` is missing: `--authd-servers` are reached over TLS with client certificates only")
    }));
    let (Some(authority), Some(certificate), Some(key)) = (authd_cafile, authd_certfile, authd_keyfile)
    else {
        return Err(errors);
    };
    let files =
        MutualTlsFiles { authority: authority.clone(), certificate: certificate.clone(), key: key.clone() };
    match MutualTlsClient::load(files) {
        Ok(tls) if errors.is_empty() => {
            let tls = Arc::new(tls);
            let server = |(host, port)| AuthdServer::Remote { host, port, tls: Arc::clone(&tls) };
            Ok(addresses.into_iter().map(server).collect())
        }
        Ok(_) => Err(errors),
        Err(error) => {
            errors.push(format!("`--authd-servers`: {error}"));
            Err(errors)
        }
    }
}

/// Returns the host and the port of a URL `https://HOST:PORT`.
fn address(url: &str) -> Result<(String, u16), String> {
    if url.contains('@') {
        return Err("a URL has a user; use `--authd-certfile` for the credentials".to_owned());
    }
    let invalid = || format!("`{url}` is not of the form https://HOST:PORT");
    let uri: Uri = url.parse().map_err(|_| invalid())?;
    match (uri.scheme_str(), uri.host(), uri.port_u16()) {
        (Some("http"), ..) => {
            Err(format!("`{url}`: authd is not reached without TLS; use https and `--authd-certfile`"))
        }
        (Some("https"), Some(host), Some(port))
            if uri.path() == "/" && uri.query().is_none() && port != 0 =>
        {
            Ok((host.trim_matches(['[', ']']).to_owned(), port))
        }
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_https_a_host_and_a_port() {
        for (url, expected) in [
            ("https://authd-0.example.test:7443", Ok(("authd-0.example.test", 7443))),
            ("https://127.0.0.1:1/", Ok(("127.0.0.1", 1))),
            ("https://[::1]:1", Ok(("::1", 1))),
            ("http://a:1", Err("not reached without TLS")),
            ("https://u:secret@a:1", Err("a URL has a user")),
            ("https://a", Err("https://HOST:PORT")),
            ("https://a:1/path", Err("https://HOST:PORT")),
            ("a:1", Err("https://HOST:PORT")),
            ("", Err("https://HOST:PORT")),
        ] {
            match (address(url), expected) {
                (Ok((host, port)), expected) => assert_eq!(Ok((host.as_str(), port)), expected, "{url}"),
                (Err(error), Err(text)) => {
                    assert!(error.contains(text) && !error.contains("secret"), "{error}");
                }
                (Err(error), Ok(_)) => panic!("{error}"),
            }
        }
    }
}
