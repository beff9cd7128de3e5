//! Verification of TLS handshake signatures, shared by the certificate verifiers of server and client.

use rustls_pki_types::CertificateDer;

/// A check of the leaf certificate before its key verifies the handshake signature.
pub(crate) type LeafCheck = fn(&CertificateDer<'_>) -> Result<(), rustls::Error>;

/// Accepts each leaf certificate.
pub(crate) fn accept_leaf(_leaf: &CertificateDer<'_>) -> Result<(), rustls::Error> {
    Ok(())
}

/// Implements the signature methods of a certificate verifier with the algorithms of a provider.
///
/// The first argument names the field of the provider (`Arc<CryptoProvider>`). The second is a [`LeafCheck`].
macro_rules! verify_handshake_signatures {
    (@method $version:ident, $provider:ident, $check_leaf:expr) => {
        fn $version(
            &self,
            message: &[u8],
            leaf: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            const CHECK_LEAF: $crate::handshake_signatures::LeafCheck = $check_leaf;
            CHECK_LEAF(leaf)?;
            let algorithms = &self.$provider.signature_verification_algorithms;
            rustls::crypto::$version(message, leaf, signature, algorithms)
        }
    };
    ($provider:ident) => {
        $crate::handshake_signatures::verify_handshake_signatures!(
            $provider,
            $crate::handshake_signatures::accept_leaf
        );
    };
    ($provider:ident, $check_leaf:expr) => {
        $crate::handshake_signatures::verify_handshake_signatures!(
            @method verify_tls12_signature, $provider, $check_leaf
        );
        $crate::handshake_signatures::verify_handshake_signatures!(
            @method verify_tls13_signature, $provider, $check_leaf
        );

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

pub(crate) use verify_handshake_signatures;
