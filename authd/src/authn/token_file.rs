//! Static tokens from a CSV file, read once at start (requirements A-TOKF).
//!
//! # Contract
//!
//! A line is `token,user,uid` and then groups: either one quoted column with commas inside, as in Kubernetes,
//! or one column each. Quoting follows RFC 4180. A line without a token is skipped with a warning. Of two
//! lines with the same token the later one is used, with a warning.
//!
//! # Invariants
//!
//! INVARIANT (tokens are not stored): memory contains only a keyed digest of each token.
//! A look-up compares digests in constant time under a random per-process key, so that its duration reveals
//! nothing about a token.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use apimachinery::user::UserInfo;
use async_trait::async_trait;
use aws_lc_rs::hmac;
use subtle::ConstantTimeEq;

use super::{
    AuthenticatedIdentity, Authenticator, AuthnContext, AuthnSettings, Credentials, Outcome,
    agnostic_audiences,
};
use crate::config_error::ConfigError;
use crate::mirror::MirrorNotReady;

/// The tokens of a file with their users.
pub struct TokenFile {
    key: hmac::Key,
    /// The digest and the user of each token; the map key is the first 8 bytes of the digest.
    users: HashMap<[u8; 8], Vec<([u8; 32], UserInfo)>>,
    api_audiences: Vec<String>,
}

pub(super) fn build(settings: &AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    settings.token_file.clone().map(|file| file as Arc<dyn Authenticator>)
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").finish_non_exhaustive()
    }
}

fn load(path: &Path, api_audiences: Vec<String>) -> Result<TokenFile, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let mut random = [0; 32];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| "no random numbers".to_owned())?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, &random);
    let mut file = TokenFile { key, users: HashMap::new(), api_audiences };
    for (line, record) in records(&text)? {
        let [token, name, uid, groups @ ..] = record.as_slice() else {
            return Err(format!(
                "line {line}: at least 3 columns are needed (token, user, uid), found {}",
                record.len()
            ));
        };
        if token.is_empty() {
            tracing::warn!(line, "static token file: line without a token skipped");
            continue;
        }
        if name.is_empty() {
            return Err(format!("line {line}: the user has no name"));
        }
        let groups = groups.iter().flat_map(|column| column.split(',')).filter(|group| !group.is_empty());
        let user = UserInfo {
            name: name.clone(),
            uid: uid.clone(),
            groups: groups.map(str::to_owned).collect(),
            ..UserInfo::default()
        };
        if file.insert(token, user) {
            tracing::warn!(line, "static token file: duplicate token; the later line replaces the earlier");
        }
    }
    Ok(file)
}

impl TokenFile {
    /// Reads a file. Its tokens are valid for the audiences `api_audiences`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line is invalid; the error names flag, file and line.
    pub fn read(path: &Path, api_audiences: Vec<String>) -> Result<Arc<Self>, ConfigError> {
        let file = load(path, api_audiences)
            .map_err(|error| ConfigError::flag_file("--token-auth-file", path, error))?;
        Ok(Arc::new(file))
    }

    /// Sets the user of a token; true if the token had a user before.
    fn insert(&mut self, token: &str, user: UserInfo) -> bool {
        let (prefix, digest) = self.digest(token);
        let list = self.users.entry(prefix).or_default();
        let length_before = list.len();
        list.retain(|(stored, _)| *stored != digest);
        list.push((digest, user));
        list.len() == length_before
    }

    /// Returns the user of a token; None if the file does not contain the token.
    fn find(&self, token: &str) -> Option<&UserInfo> {
        let (prefix, digest) = self.digest(token);
        let list = self.users.get(&prefix)?;
        list.iter().find(|(stored, _)| stored.ct_eq(&digest).into()).map(|(_, user)| user)
    }

    /// Returns the first 8 bytes of the keyed digest of a token, which are the key of `users`, and the
    /// digest.
    fn digest(&self, token: &str) -> ([u8; 8], [u8; 32]) {
        let tag = hmac::sign(&self.key, token.as_bytes());
        let (mut prefix, mut digest) = ([0; 8], [0; 32]);
        digest.copy_from_slice(tag.as_ref());
        prefix.copy_from_slice(digest.split_at(8).0);
        (prefix, digest)
    }
}

#[async_trait]
impl Authenticator for TokenFile {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        _context: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        Ok(self.check(credentials))
    }
}

impl TokenFile {
    fn check(&self, credentials: Credentials<'_>) -> Outcome {
        if credentials.token.is_empty() {
            return Outcome::NotApplicable;
        }
        self.identify(credentials).map_err(str::to_owned).into()
    }

    fn identify(&self, credentials: Credentials<'_>) -> Result<AuthenticatedIdentity, &'static str> {
        let user = self.find(credentials.token).ok_or("the token is not in the file")?.clone();
        let audiences = agnostic_audiences(credentials.audiences, &self.api_audiences)
            .ok_or("static tokens are valid for the API's own audiences only")?;
        Ok(AuthenticatedIdentity { user, audiences, ..AuthenticatedIdentity::default() })
    }
}

/// Splits a CSV text into records, each with the number of its first line; empty lines are skipped.
fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let mut records = Vec::new();
    let mut chars = text.chars().peekable();
    let mut line = 1;
    while chars.peek().is_some() {
        let start = line;
        let mut record = Vec::new();
        loop {
            let mut field = String::new();
            let quoted = chars.next_if_eq(&'"').is_some();
            if quoted {
                loop {
                    match chars.next() {
                        None => return Err(format!("line {start}: a quote is not closed")),
                        Some('"') if chars.next_if_eq(&'"').is_some() => field.push('"'),
                        Some('"') => break,
                        Some(c) => {
                            line += usize::from(c == '\n');
                            field.push(c);
                        }
                    }
                }
            }
            while let Some(c) = chars.next_if(|c| !matches!(c, ',' | '\n')) {
                if c == '\r' && chars.peek().is_none_or(|next| *next == '\n') {
                    continue;
                }
                if quoted || c == '"' {
                    return Err(format!("line {line}: a quote inside an unquoted column"));
                }
                field.push(c);
            }
            record.push(field);
            if chars.next_if_eq(&',').is_none() {
                break;
            }
        }
        chars.next_if_eq(&'\n');
        line += 1;
        if record.iter().any(|field| !field.is_empty()) || record.len() > 1 {
            records.push((start, record));
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<TokenFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.csv");
        std::fs::write(&path, text).unwrap();
        load(&path, vec!["api".into()])
    }

    #[test]
    fn static_token_example_file_is_accepted() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/examples/tokens.csv");
        let error = load(&path, vec!["api".into()]).err();
        assert_eq!(error, None);
    }

    #[test]
    fn static_token_lines_give_user_uid_and_groups() {
        for (text, token, expected) in [
            ("t1,jane,u-1", "t1", Some("jane u-1 []")),
            ("t1,jane,u-1\n", "t1", Some("jane u-1 []")),
            ("t1,jane,u-1,\"g1,g2\"\n", "t1", Some(r#"jane u-1 ["g1", "g2"]"#)),
            ("t1,jane,u-1,g1,g2", "t1", Some(r#"jane u-1 ["g1", "g2"]"#)),
            ("t1,jane,u-1,", "t1", Some("jane u-1 []")),
            ("t1,jane,,g\r\nt2,joe,u\r\n", "t2", Some("joe u []")),
            ("\n\nt1,a b/ü:x,u-1\n\n", "t1", Some("a b/ü:x u-1 []")),
            ("\"t,\"\"1\"\"\",jane,u-1", "t,\"1\"", Some("jane u-1 []")),
            ("t1,jane,u-1\nt1,joe,u-2", "t1", Some("joe u-2 []")),
            (",jane,u-1\nt2,joe,u-2", "", None),
            ("t1,jane,u-1", "t", None),
            ("t1,jane,u-1", "t11", None),
            ("", "t1", None),
        ] {
            let file = file(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            let got = file.find(token).map(|user| format!("{} {} {:?}", user.name, user.uid, user.groups));
            assert_eq!(got.as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn invalid_static_token_file_is_rejected_with_line() {
        for (text, expected) in [
            ("t1,jane", "line 1: at least 3 columns are needed (token, user, uid), found 2"),
            ("t1,jane,1\nt2", "line 2: at least 3 columns are needed (token, user, uid), found 1"),
            ("t1,,u", "line 1: the user has no name"),
            ("t1,\"jane,u\nx", "line 1: a quote is not closed"),
            ("t1,ja\"ne,u", "line 1: a quote inside an unquoted column"),
            ("t1,\"jane\"x,u", "line 1: a quote inside an unquoted column"),
        ] {
            assert_eq!(file(text).err().as_deref(), Some(expected), "{text:?}");
        }
        assert!(load(Path::new("/nonexistent/tokens.csv"), Vec::new()).is_err());
    }

    #[test]
    fn static_token_is_valid_for_api_audiences() {
        let file = file("t1,jane,u-1").unwrap();
        let ask = |token, audiences: &[String]| {
            let credentials = Credentials { token, audiences, ..Credentials::default() };
            match file.check(credentials) {
                Outcome::Accepted(accepted) => format!("{:?}", accepted.audiences),
                Outcome::NotApplicable => "not mine".to_owned(),
                Outcome::Rejected(check) | Outcome::RejectedWithTtl(check, _) | Outcome::Undecided(check) => {
                    check
                }
            }
        };
        assert_eq!(ask("", &[]), "not mine");
        assert_eq!(ask("t1", &[]), "[]");
        assert_eq!(ask("t1", &["api".into(), "x".into()]), r#"["api"]"#);
        assert_eq!(ask("t1", &["x".into()]), "static tokens are valid for the API's own audiences only");
        assert_eq!(ask("nope", &[]), "the token is not in the file");
    }
}
