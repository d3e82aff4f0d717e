//! The cluster's certificate authority: the one thing that says who is a node. The owner of its key can make
//! nodes.

use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::CertificateDer;
use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardfmt::digest::Digest;
use time::OffsetDateTime;

use super::{
    CA_CERTIFICATE, CA_KEY, CertificateError, Host, SKEW, certificate_name, files, key_digest, key_of,
    read_certificate, read_key,
};

/// Signs the certificates of a cluster's nodes.
pub struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Box<Issuer<'static, KeyPair>>,
}

impl Authority {
    /// Opens the authority in `directory`, or makes it.
    ///
    /// # Errors
    /// [`CertificateError`] when its files cannot be read, written or understood.
    pub fn found(directory: &Path) -> Result<Authority, CertificateError> {
        let path = directory.join(CA_CERTIFICATE);
        if path.exists() && !directory.join(CA_KEY).exists() {
            return Err(CertificateError::NoKey { certificate: path });
        }
        let key = files::key_in(&directory.join(CA_KEY))?;
        if !path.exists() {
            files::write_public(&path, parameters(&key).self_signed(&key)?.pem().as_bytes())?;
        }
        Authority::open(directory)
    }

    /// Opens the authority in `directory`.
    ///
    /// # Errors
    /// [`CertificateError`] when its files cannot be read or understood.
    pub fn open(directory: &Path) -> Result<Authority, CertificateError> {
        let (key_path, path) = (directory.join(CA_KEY), directory.join(CA_CERTIFICATE));
        let key = read_key(&key_path)?;
        let pem = String::from_utf8_lossy(&files::read(&path)?).into_owned();
        let certificate = read_certificate(&path)?;
        if key_of(&certificate) != Some(key_digest(&key)) {
            let reason = "it is not the key of ca.pem beside it".to_owned();
            return Err(CertificateError::Damaged { path: key_path, reason });
        }
        let issuer = Box::new(Issuer::from_ca_cert_der(&certificate, key)?);
        Ok(Authority { certificate, pem, issuer })
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The same, as those who join are given it.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The digest that join tokens pin.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    /// Signs `key` as that of `node`, reached under `hosts`, for both ends of a connection and nothing else. It is good
    /// from an hour ago, for those whose clock is behind, until `lifetime` from now.
    ///
    /// # Errors
    /// [`rcgen::Error`] when a host cannot stand in a certificate.
    pub fn certify(
        &self,
        node: &NodeId,
        hosts: &[Host],
        key: &impl PublicKeyData,
        lifetime: Duration,
    ) -> Result<Certificate, rcgen::Error> {
        self.certify_at(node, hosts, key, lifetime, now())
    }

    /// The same by a clock that says `now`, in seconds since 1970.
    ///
    /// # Errors
    /// As [`certify`](Self::certify).
    pub fn certify_at(
        &self,
        node: &NodeId,
        hosts: &[Host],
        key: &impl PublicKeyData,
        lifetime: Duration,
        now: u64,
    ) -> Result<Certificate, rcgen::Error> {
        let mut parameters = CertificateParams::new([certificate_name(node)])?;
        for host in hosts {
            parameters.subject_alt_names.push(host.to_san()?);
        }
        parameters.not_before = time(now.saturating_sub(SKEW.as_secs()));
        parameters.not_after = time(now.saturating_add(lifetime.as_secs()));
        parameters.distinguished_name = common_name(&format!("shardd node {node}"));
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // Strict readers (Python 3.13) require the signer's key identifier.
        parameters.use_authority_key_identifier_extension = true;
        parameters.signed_by(key, self.issuer.as_ref())
    }

    /// Signs the key of a certificate request as that of `node`: of what the request asks for only the key is taken,
    /// and only if the request proves to hold it.
    ///
    /// # Errors
    /// [`rcgen::Error`] when a host cannot stand in a certificate.
    pub fn sign(
        &self,
        node: &NodeId,
        hosts: &[Host],
        request: &Request,
        lifetime: Duration,
    ) -> Result<Certificate, rcgen::Error> {
        self.certify(node, hosts, &request.0.public_key, lifetime)
    }
}

/// A certificate request (PKCS #10, RFC 2986) that proves to hold its key.
pub struct Request(CertificateSigningRequestParams);

impl Request {
    /// The request for `key`, as PEM.
    ///
    /// # Errors
    /// [`rcgen::Error`] when it cannot be signed.
    pub fn make(key: &KeyPair) -> Result<String, rcgen::Error> {
        CertificateParams::default().serialize_request(key)?.pem()
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`rcgen::Error`] when it is not a PEM request signed by its own key.
    pub fn parse(pem: &str) -> Result<Request, rcgen::Error> {
        CertificateSigningRequestParams::from_pem(pem).map(Request)
    }

    /// Digest of its key.
    #[must_use]
    pub fn key(&self) -> Digest {
        key_digest(&self.0.public_key)
    }
}

fn parameters(key: &KeyPair) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    // Each has a name of its own, so that the wrong one is an unknown one and not one that signs badly.
    let mark = &key_digest(key).to_string()[..16];
    parameters.distinguished_name = common_name(&format!("shardd cluster authority {mark}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// A time as certificates hold it: up to the year 9999.
fn time(seconds: u64) -> OffsetDateTime {
    const LAST: i64 = 253_402_300_799;
    let seconds = i64::try_from(seconds).unwrap_or(LAST).min(LAST);
    OffsetDateTime::from_unix_timestamp(seconds).expect("a year before 10000")
}
