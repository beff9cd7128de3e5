//! The subject of a verified certificate as authentication reads it.
//!
//! # Invariants
//!
//! INVARIANT (no half identity): an attribute that cannot be read, or that no name can be made of, refuses the
//! certificate; it is not left out.
//!
//! # Reference
//!
//! As Kubernetes: the last common name counts, each organization is one. Beyond it, names of more than [`LONGEST`] bytes
//! and names with control characters are refused: nobody could be granted something under them, or read them in a log.

use x509_parser::prelude::{FromDer, X509Certificate};

/// Bytes of a name.
const LONGEST: usize = 1024;
/// Attributes of a subject.
const MOST_ATTRIBUTES: usize = 1024;
/// The attribute that holds the uid.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// What a subject says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The last common name; empty when there is none.
    pub(crate) common_name: String,
    /// In the order of the certificate.
    pub(crate) organizations: Vec<String>,
    /// Every uid.
    pub(crate) uids: Vec<String>,
}

impl Subject {
    /// Of a certificate in DER.
    ///
    /// # Errors
    ///
    /// Which attribute cannot be read, and why.
    pub(crate) fn read(certificate: &[u8]) -> Result<Self, String> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| "the certificate cannot be parsed")?;
        let mut subject = Subject::default();
        for (at, attribute) in parsed.subject().iter_attributes().enumerate() {
            if at == MOST_ATTRIBUTES {
                return Err(format!("the subject has more than {MOST_ATTRIBUTES} attributes"));
            }
            let id = attribute.attr_type().to_id_string();
            let text = || {
                let text = attribute.as_str().map_err(|_| format!("subject attribute {id} is not text"))?;
                if text.len() > LONGEST {
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
