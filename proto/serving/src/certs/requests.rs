//! Certificate requests (PKCS #10), and the certificates that an authority issues for them.
//!
//! # Contract
//!
//! [`RequestedIdentity::from_pem`] reads subject and alternative names, without a check of the signature.
//! [`CertificateRequest::from_pem`] verifies the signature of the request too, which proves possession of the key.
//! [`Authority::issue`] copies identity and key of the request. It ignores other requested
//! extensions; key usages and validity come from [`CertificateParameters`]. The certificate is never
//! one of an authority.
//!
//! # Errors
//!
//! [`RequestError`] for a request, [`CertError`] for a certificate.
//!
//! # Invariants
//!
//! INVARIANT (validated identity): a certificate has only the names of [`RequestedIdentity`], so the rules of a
//! signer see each of them. Other attributes of the subject and other alternative names are left out. An
//! attribute that is not text rejects the request, as in the signer of Kubernetes.

use std::net::IpAddr;

use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType,
    SubjectPublicKeyInfo,
};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Name};

use super::{Authority, CertError, generate_serial_number, pem, since_epoch, subject};

/// Label of the PEM block of a request.
const LABEL: &str = "CERTIFICATE REQUEST";

/// Key usages, by the names in a CertificateSigningRequest.
const KEY_USAGES: [(&str, KeyUsagePurpose); 10] = [
    ("signing", KeyUsagePurpose::DigitalSignature),
    ("digital signature", KeyUsagePurpose::DigitalSignature),
    ("content commitment", KeyUsagePurpose::ContentCommitment),
    ("key encipherment", KeyUsagePurpose::KeyEncipherment),
    ("data encipherment", KeyUsagePurpose::DataEncipherment),
    ("key agreement", KeyUsagePurpose::KeyAgreement),
    ("cert sign", KeyUsagePurpose::KeyCertSign),
    ("crl sign", KeyUsagePurpose::CrlSign),
    ("encipher only", KeyUsagePurpose::EncipherOnly),
    ("decipher only", KeyUsagePurpose::DecipherOnly),
];

/// Object identifiers of extended key usages, by the names in a CertificateSigningRequest.
const EXTENDED_KEY_USAGES: [(&str, &[u64]); 13] = [
    ("any", &[2, 5, 29, 37, 0]),
    ("server auth", &[1, 3, 6, 1, 5, 5, 7, 3, 1]),
    ("client auth", &[1, 3, 6, 1, 5, 5, 7, 3, 2]),
    ("code signing", &[1, 3, 6, 1, 5, 5, 7, 3, 3]),
    ("email protection", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("s/mime", &[1, 3, 6, 1, 5, 5, 7, 3, 4]),
    ("ipsec end system", &[1, 3, 6, 1, 5, 5, 7, 3, 5]),
    ("ipsec tunnel", &[1, 3, 6, 1, 5, 5, 7, 3, 6]),
    ("ipsec user", &[1, 3, 6, 1, 5, 5, 7, 3, 7]),
    ("timestamping", &[1, 3, 6, 1, 5, 5, 7, 3, 8]),
    ("ocsp signing", &[1, 3, 6, 1, 5, 5, 7, 3, 9]),
    ("microsoft sgc", &[1, 3, 6, 1, 4, 1, 311, 10, 3, 3]),
    ("netscape sgc", &[2, 16, 840, 1, 113730, 4, 1]),
];

/// Defect of a certificate request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The first PEM block of the text is not a certificate request.
    #[error("PEM block type must be {LABEL}")]
    Block,
    /// The block is not a certificate request with a supported key.
    #[error("malformed certificate request: {0}")]
    Malformed(String),
    /// The signature of the request is not from the key of the request.
    #[error("unable to verify the signature of the certificate request: {0}")]
    Signature(String),
}

impl RequestError {
    fn malformed(problem: impl ToString) -> Self {
        RequestError::Malformed(problem.to_string())
    }
}

/// Subject and alternative names of a certificate request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedIdentity {
    /// The last common name of the subject; `""` without one.
    pub common_name: String,
    /// Organizations, in the order of the subject.
    pub organizations: Vec<String>,
    /// Object identifiers and values of the other attributes that a certificate keeps.
    pub other_attributes: Vec<(&'static [u64], String)>,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// Email addresses.
    pub emails: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
    /// URIs.
    pub uris: Vec<String>,
}

/// Certificate request with a verified signature.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    identity: RequestedIdentity,
    key: SubjectPublicKeyInfo,
}

impl CertificateRequest {
    /// Parses a request and verifies its signature.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub fn from_pem(text: &[u8]) -> Result<Self, RequestError> {
        let der = pem_block(text)?;
        let request = parse(&der)?;
        request.verify_signature().map_err(|error| RequestError::Signature(error.to_string()))?;
        let key = request.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(key).map_err(RequestError::malformed)?;
        Ok(CertificateRequest { identity: RequestedIdentity::read(&request)?, key })
    }

    /// Returns subject and alternative names.
    pub fn identity(&self) -> &RequestedIdentity {
        &self.identity
    }
}

/// Returns the DER content of the first PEM block, which must be a certificate request.
fn pem_block(text: &[u8]) -> Result<Vec<u8>, RequestError> {
    let block = x509_parser::pem::parse_x509_pem(text).ok().map(|(_, block)| block);
    let block = block.filter(|block| block.label == LABEL).ok_or(RequestError::Block)?;
    Ok(block.contents)
}

fn parse(der: &[u8]) -> Result<X509CertificationRequest<'_>, RequestError> {
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(RequestError::malformed)?;
    if rest.is_empty() { Ok(request) } else { Err(RequestError::malformed("trailing data")) }
}

impl RequestedIdentity {
    /// Reads the identity of a request. The signature is not verified.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub fn from_pem(text: &[u8]) -> Result<Self, RequestError> {
        Self::read(&parse(&pem_block(text)?)?)
    }

    fn read(request: &X509CertificationRequest<'_>) -> Result<Self, RequestError> {
        let mut identity = RequestedIdentity::default();
        identity.add_subject(&request.certification_request_info.subject)?;
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                for name in &names.general_names {
                    identity.add_alternative_name(name)?;
                }
            }
        }
        Ok(identity)
    }

    fn add_subject(&mut self, name: &X509Name<'_>) -> Result<(), RequestError> {
        for attribute in name.iter_attributes() {
            let kind = attribute.attr_type();
            let known = subject::ATTRIBUTE_TYPES
                .into_iter()
                .find(|known| kind.iter().is_some_and(|parts| parts.eq(known.iter().copied())));
            let Some(known) = known else { continue };
            let not_text = |_| RequestError::malformed(format!("subject attribute {kind} is not text"));
            let value = attribute.as_str().map_err(not_text)?.to_owned();
            match known {
                subject::COMMON_NAME => self.common_name = value,
                subject::ORGANIZATION => self.organizations.push(value),
                _ => self.other_attributes.push((known, value)),
            }
        }
        Ok(())
    }

    /// Adds an alternative name. Names of other types are ignored.
    fn add_alternative_name(&mut self, name: &GeneralName<'_>) -> Result<(), RequestError> {
        match name {
            GeneralName::DNSName(dns) => self.dns_names.push(require_ascii(dns)?),
            GeneralName::RFC822Name(email) => self.emails.push(require_ascii(email)?),
            GeneralName::URI(uri) => self.uris.push(require_ascii(uri)?),
            GeneralName::IPAddress(bytes) => {
                let address = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                let address = address.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
                self.addresses.push(address.map_err(|_| {
                    RequestError::malformed(format!("an IP address has {} bytes", bytes.len()))
                })?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the attributes of the subject: organizations, other attributes, then the common name.
    fn subject(&self) -> Vec<subject::Attribute<'_>> {
        let organizations = self.organizations.iter().map(|value| (subject::ORGANIZATION, value.as_str()));
        let others = self.other_attributes.iter().map(|(kind, value)| (*kind, value.as_str()));
        let common_name = (subject::COMMON_NAME, self.common_name.as_str());
        let common_name = Some(common_name).filter(|(_, value)| !value.is_empty());
        organizations.chain(others).chain(common_name).collect()
    }

    /// Returns the alternative names for the certificate generator.
    fn alternative_names(&self) -> Result<Vec<SanType>, CertError> {
        let mut names = Vec::new();
        for dns in &self.dns_names {
            names.push(SanType::DnsName(dns.as_str().try_into()?));
        }
        for email in &self.emails {
            names.push(SanType::Rfc822Name(email.as_str().try_into()?));
        }
        names.extend(self.addresses.iter().copied().map(SanType::IpAddress));
        for uri in &self.uris {
            names.push(SanType::URI(uri.as_str().try_into()?));
        }
        Ok(names)
    }
}

/// Returns an alternative name; an error if it is not ASCII.
fn require_ascii(name: &str) -> Result<String, RequestError> {
    let problem = || RequestError::malformed(format!("the alternative name {name:?} is not ASCII"));
    if name.is_ascii() { Ok(name.to_owned()) } else { Err(problem()) }
}

/// Validity and usages of a certificate.
#[derive(Clone, Debug)]
pub struct CertificateParameters<'p> {
    /// Key usages and extended key usages by name, such as `client auth`.
    pub usages: &'p [&'p str],
    /// Start of the validity.
    pub not_before: Timestamp,
    /// End of the validity.
    pub not_after: Timestamp,
}

impl Authority {
    /// Issues a certificate for a request, as PEM.
    ///
    /// # Errors
    ///
    /// A usage is unknown, or the generator failed.
    pub fn issue(
        &self,
        request: &CertificateRequest,
        parameters: &CertificateParameters<'_>,
    ) -> Result<String, CertError> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = request.identity.alternative_names()?;
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + since_epoch(parameters.not_before);
        params.not_after = epoch + since_epoch(parameters.not_after);
        params.is_ca = IsCa::ExplicitNoCa;
        (params.key_usages, params.extended_key_usages) = purposes(parameters.usages)?;
        params.serial_number = Some(generate_serial_number()?);
        let certificate = self.sign(params, &request.key, &subject::encode(&request.identity.subject()))?;
        Ok(pem(&certificate))
    }
}

/// Returns the key usages and the extended key usages, each once.
fn purposes(usages: &[&str]) -> Result<(Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>), CertError> {
    let (mut key_usages, mut extended) = (Vec::new(), Vec::new());
    for usage in usages {
        let key_usage = KEY_USAGES.iter().find(|(name, _)| name == usage);
        let extended_usage = EXTENDED_KEY_USAGES.iter().find(|(name, _)| name == usage);
        if let Some((_, purpose)) = key_usage {
            if !key_usages.contains(purpose) {
                key_usages.push(*purpose);
            }
        } else if let Some((_, identifier)) = extended_usage {
            let purpose = ExtendedKeyUsagePurpose::Other(identifier.to_vec());
            if !extended.contains(&purpose) {
                extended.push(purpose);
            }
        } else {
            return Err(CertError::Generate(format!("unrecognized usage: {usage:?}")));
        }
    }
    Ok((key_usages, extended))
}

#[cfg(test)]
#[path = "../tests/certificate_requests.rs"]
mod tests;
