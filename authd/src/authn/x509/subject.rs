//! The subject of a verified certificate.
//!
//! # Invariants
//!
//! INVARIANT (no partial identity): a common name, organization or uid that is not a valid text rejects the
//! certificate; it is not skipped.
//!
//! # Reference
//!
//! As in Kubernetes, the last common name is the user, and each organization is a group. Stricter than
//! Kubernetes: names of more than [`MAX_NAME_BYTES`] bytes and names with control characters are rejected,
//! because policy and logs cannot represent them.

use x509_parser::prelude::{FromDer, X509Certificate};

/// Limit in bytes of a common name, organization or uid; a longer one rejects the certificate.
const MAX_NAME_BYTES: usize = 1024;
/// The maximum number of attributes in a subject; a subject with more rejects the certificate.
const MAX_ATTRIBUTES: usize = 1024;
/// The object identifier of the uid attribute.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// The reason why a subject names no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubjectError {
    /// The certificate is malformed.
    #[error("the certificate cannot be parsed")]
    Certificate,
    /// The subject has more than 1,024 attributes.
    #[error("the subject has more than {MAX_ATTRIBUTES} attributes")]
    TooManyAttributes,
    /// The value of an attribute is not a text type; contains its object identifier.
    #[error("subject attribute {0} is not text")]
    NotText(String),
    /// The value of an attribute is longer than 1,024 bytes.
    #[error("subject attribute {id} has {bytes} bytes")]
    TooLong {
        /// The object identifier of the attribute.
        id: String,
        /// The size of the value in bytes.
        bytes: usize,
    },
    /// The value of an attribute has a control character; contains its object identifier.
    #[error("subject attribute {0} has a control character")]
    ControlCharacter(String),
}

/// The attributes of a subject that determine the user.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateSubject {
    /// The last common name; empty when there is none.
    pub(crate) common_name: String,
    /// The organizations, in the order of the certificate.
    pub(crate) organizations: Vec<String>,
    /// The values of all uid attributes, in the order of the certificate.
    pub(crate) uids: Vec<String>,
}

impl CertificateSubject {
    /// Reads the subject of a certificate in DER.
    ///
    /// # Errors
    ///
    /// [`SubjectError`], with the attribute that cannot be read.
    pub(crate) fn read(certificate: &[u8]) -> Result<Self, SubjectError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| SubjectError::Certificate)?;
        let mut subject = CertificateSubject::default();
        for (index, attribute) in parsed.subject().iter_attributes().enumerate() {
            if index == MAX_ATTRIBUTES {
                return Err(SubjectError::TooManyAttributes);
            }
            let id = attribute.attr_type().to_id_string();
            let text = || {
                let text = attribute.as_str().map_err(|_| SubjectError::NotText(id.clone()))?;
                if text.len() > MAX_NAME_BYTES {
                    return Err(SubjectError::TooLong { id: id.clone(), bytes: text.len() });
                }
                if text.chars().any(char::is_control) {
                    return Err(SubjectError::ControlCharacter(id.clone()));
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
