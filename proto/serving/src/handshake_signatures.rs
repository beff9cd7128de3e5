//! Verification of TLS handshake signatures, which certificate verifiers share.

/// Implements the signature methods of a certificate verifier with the algorithms of a provider.
///
/// The argument names the field of the provider (`Arc<CryptoProvider>`).
macro_rules! verify_handshake_signatures {
    ($provider:ident) => {
        $crate::handshake_signatures::verify_handshake_signatures!($provider, |_| Ok(()));
    };
    ($provider:ident, $check_leaf:expr) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            leaf: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let check_leaf: fn(&rustls_pki_types::CertificateDer<'_>) -> Result<(), rustls::Error> =
                $check_leaf;
            check_leaf(leaf)?;
            let algorithms = &self.$provider.signature_verification_algorithms;
            rustls::crypto::verify_tls12_signature(message, leaf, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            leaf: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let check_leaf: fn(&rustls_pki_types::CertificateDer<'_>) -> Result<(), rustls::Error> =
                $check_leaf;
            check_leaf(leaf)?;
            let algorithms = &self.$provider.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, leaf, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

pub(crate) use verify_handshake_signatures;
