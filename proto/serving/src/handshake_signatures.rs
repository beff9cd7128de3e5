//! Verification of TLS handshake signatures, shared by the certificate verifiers of server and client.

/// Implements the signature methods of a certificate verifier with the algorithms of a provider.
///
/// The argument names the field of the provider (`Arc<CryptoProvider>`).
macro_rules! verify_handshake_signatures {
    (@method $version:ident, $provider:ident) => {
        fn $version(
            &self,
            message: &[u8],
            leaf: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.$provider.signature_verification_algorithms;
            rustls::crypto::$version(message, leaf, signature, algorithms)
        }
    };
    ($provider:ident) => {
        $crate::handshake_signatures::verify_handshake_signatures!(@method verify_tls12_signature, $provider);
        $crate::handshake_signatures::verify_handshake_signatures!(@method verify_tls13_signature, $provider);

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

pub(crate) use verify_handshake_signatures;
