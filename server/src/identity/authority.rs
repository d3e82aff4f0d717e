//! The cluster's certificate authority: made by the first node, which alone holds its key.

use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::CertificateDer;
use shardd_client::node::NodeId;
use shardfmt::digest::Digest;

use super::{
    CA_CERTIFICATE, CA_KEY, IdentityError, certificate_name, files, key_digest, read_certificate, read_key,
};

/// Signs the certificates of a cluster's nodes.
pub struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Box<Issuer<'static, KeyPair>>,
}

impl Authority {
    /// Opens the authority in `tls`, or makes it.
    pub(super) fn found(tls: &Path) -> Result<Authority, IdentityError> {
        let key = files::key(&tls.join(CA_KEY))?;
        let path = tls.join(CA_CERTIFICATE);
        if !path.exists() {
            files::write_private(&path, parameters().self_signed(&key)?.pem().as_bytes())?;
        }
        Authority::open(tls)
    }

    pub(super) fn open(tls: &Path) -> Result<Authority, IdentityError> {
        let key = read_key(&tls.join(CA_KEY))?;
        let path = tls.join(CA_CERTIFICATE);
        let pem = String::from_utf8_lossy(&files::read(&path)?).into_owned();
        let certificate = read_certificate(&path)?;
        let issuer = Box::new(Issuer::from_ca_cert_der(&certificate, key)?);
        Ok(Authority { certificate, pem, issuer })
    }

    /// The authority's own certificate.
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The same, as those who join are given it.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What join tokens pin.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    /// Signs `key` as that of `node`, for both ends of a connection and nothing else.
    pub(super) fn certify(
        &self,
        node: &NodeId,
        key: &impl PublicKeyData,
    ) -> Result<Certificate, IdentityError> {
        let mut parameters = CertificateParams::new([certificate_name(node)])?;
        parameters.distinguished_name = common_name(&format!("shardd node {node}"));
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(parameters.signed_by(key, self.issuer.as_ref())?)
    }

    /// Signs the key of a certificate request as that of `node`: of what the request asks for only the key is taken,
    /// and only if the request proves to hold it. Returns the certificate and the digest of the key.
    ///
    /// # Errors
    /// [`rcgen::Error`] when `csr` is not a PEM request signed by its own key.
    pub fn sign(&self, node: &NodeId, csr: &str) -> Result<(String, Digest), IdentityError> {
        let request = CertificateSigningRequestParams::from_pem(csr)?;
        let certificate = self.certify(node, &request.public_key)?;
        Ok((certificate.pem(), key_digest(&request.public_key)))
    }
}

fn parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = common_name("shardd cluster authority");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
