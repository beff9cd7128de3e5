//! The subject of a verified certificate.
//!
//! # Invariants
//!
//! INVARIANT (no partial identity): an attribute that cannot be read or is not a valid name rejects the
//! certificate; it is not skipped.
//!
//! # Reference
//!
//! As Kubernetes: the last common name is the user, and each organization is a group. Stricter than
//! Kubernetes: names of more than [`MAX_NAME_BYTES`] bytes and names with control characters are rejected, because
//! policy and logs cannot represent them.

use x509_parser::prelude::{FromDer, X509Certificate};

/// Limit in bytes of a name.
const MAX_NAME_BYTES: usize = 1024;
/// Limit of attributes in a subject.
const MAX_ATTRIBUTES: usize = 1024;
/// The attribute that holds the uid.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// The attributes of a subject.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The last common name; empty when there is none.
    pub(crate) common_name: String,
    /// The organizations, in the order of the certificate.
    pub(crate) organizations: Vec<String>,
    /// All uid attributes.
    pub(crate) uids: Vec<String>,
}

impl Subject {
    /// Reads the subject of a certificate in DER.
    ///
    /// # Errors
    ///
    /// The attribute that cannot be read, and why.
    pub(crate) fn read(certificate: &[u8]) -> Result<Self, String> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| "the certificate cannot be parsed")?;
        let mut subject = Subject::default();
        for (at, attribute) in parsed.subject().iter_attributes().enumerate() {
            if at == MAX_ATTRIBUTES {
                return Err(format!("the subject has more than {MAX_ATTRIBUTES} attributes"));
            }
            let id = attribute.attr_type().to_id_string();
            let text = || {
                let text = attribute.as_str().map_err(|_| format!("subject attribute {id} is not text"))?;
                if text.len() > MAX_NAME_BYTES {
                    return Err(format!("subject attribute {id} has {} bytes", text.len()));
                }
                if text.chars().any(char::is_control) {
                    return Err(format!("subject attribute {id} has a control character"));
                }
                Ok(text.to_owned())
            };
            match id.as_str() {
                "2.5.4.3" => subject.common_name = text()?,
                "2.5.4.10" => subject.organizations.push(text()?),
                UID => subject.uids.push(text()?),
                _ => (),
            }
        }
        Ok(subject)
    }
}
