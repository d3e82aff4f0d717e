//! The certificates with which ranks prove to each other that they belong to one cluster: TLS 1.3 (RFC 8446)
//! only, and both ends show a certificate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

/// The protocol and its format number, agreed on in the handshake: a node's certificate serves other
/// protocols, too.
pub(super) const PROTOCOL: &[u8] = b"shardd-ranks/1";
/// The authority that `shardctl certs issue` leaves beside a certificate.
const CA_BESIDE: &str = "ca.pem";

/// Files of certificates that are named by flags, in PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The certificate that a rank shows.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// The authorities that must have signed the certificates of others.
    pub ca: Option<PathBuf>,
}

/// A variable of the environment that names a file.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The certificate and key of a rank, and the authority that must have signed those of the others. Every holder of a
/// certificate of that authority can be a rank, and no other can.
#[derive(Clone)]
pub struct Tls {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) ca: PathBuf,
}

/// Why certificates cannot be used. Correct the files, or the flags that name them.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum TlsError {
    /// A file that cannot be read, or holds something else.
    #[error("{}: cannot read a {what} in PEM from it ({reason}); name another with {flag}", .path.display())]
    File { path: PathBuf, what: &'static str, flag: &'static str, reason: String },
    /// A certificate without its key, or a key without its certificate.
    #[error("{given} is given, and {missing} is not: give both, or none")]
    Half { given: &'static str, missing: &'static str },
    /// The key of another certificate.
    #[error("{}: it is not the key of the certificate {} ({reason}); name its key with --tls-key", .key.display(), .cert.display())]
    Key { cert: PathBuf, key: PathBuf, reason: String },
    /// The other ranks would refuse it.
    #[error(
        "{}: other ranks would refuse this certificate, as {reason}; `shardctl certs issue` makes another, and --tls-ca names \
         the authority", .cert.display()
    )]
    Own { cert: PathBuf, reason: String },
}

impl Tls {
    /// Reads the certificate (its chain after it), its key and the authorities, all in PEM. Without `ca`, the authority
    /// is that in the `ca.pem` beside the certificate, where `shardctl certs issue` and nodes have it. Without that
    /// file it is the `usual` one.
    ///
    /// # Errors
    /// [`TlsError`]; also when the certificate has expired, or is not of the authority.
    pub fn open(cert: &Path, key: &Path, ca: Option<&Path>, usual: Option<&Path>) -> Result<Tls, TlsError> {
        let beside = cert.with_file_name(CA_BESIDE);
        let ca = match (ca, usual) {
            (Some(ca), _) => ca.to_owned(),
            (None, Some(usual)) if !beside.exists() => usual.to_owned(),
            (None, _) => beside,
        };
        let refusal = |path: &Path, what, flag, reason: String| TlsError::File {
            path: path.to_owned(),
            what,
            flag,
            reason,
        };
        let authority = |reason: String| refusal(&ca, "certificate of an authority", "--tls-ca", reason);
        let mut roots = RootCertStore::empty();
        for root in certificates(&ca).map_err(authority)? {
            roots.add(root).map_err(|error| authority(error.to_string()))?;
        }
        let chain =
            certificates(cert).map_err(|reason| refusal(cert, "certificate", "--tls-cert", reason))?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| refusal(key, "private key", "--tls-key", error.to_string()))?;
        let made = settings(roots, chain, secret, provider()).map_err(|refused| match refused {
            Refused::Own(reason) => TlsError::Own { cert: cert.to_owned(), reason },
            Refused::Key(reason) => TlsError::Key { cert: cert.to_owned(), key: key.to_owned(), reason },
            Refused::Authority(reason) => authority(reason),
        });
        let (client, server) = made?;
        Ok(Tls { client, server, ca })
    }

    /// The files of the environment, if it names any: SHARDD_TLS_CERT and SHARDD_TLS_KEY, with SHARDD_TLS_CA, and
    /// SHARDD_CA as the usual authority.
    ///
    /// # Errors
    /// As [`open`](Tls::open), and when one of the first two is missing.
    pub fn of_env() -> Result<Option<Tls>, TlsError> {
        Tls::of_files(TlsFiles::default(), variable("SHARDD_CA").as_deref())
    }

    /// Those of files, and of the variables SHARDD_TLS_CERT, SHARDD_TLS_KEY and SHARDD_TLS_CA for files that are not named.
    /// Without an authority in either, it is the `ca.pem` beside the certificate, else the `usual` one. `None` if there is neither
    /// a certificate nor a key; an empty variable counts as none.
    ///
    /// # Errors
    /// If only one of certificate and key is given, or a file cannot be used; see [`TlsError`].
    pub fn of_files(files: TlsFiles, usual: Option<&Path>) -> Result<Option<Tls>, TlsError> {
        const CERT: &str = "--tls-cert or SHARDD_TLS_CERT";
        const KEY: &str = "--tls-key or SHARDD_TLS_KEY";
        let names_ca = files.ca.is_some();
        let cert = files.cert.or_else(|| variable("SHARDD_TLS_CERT"));
        let key = files.key.or_else(|| variable("SHARDD_TLS_KEY"));
        match (cert, key) {
            (None, None) if names_ca => Err(TlsError::Half { given: "--tls-ca", missing: CERT }),
            (None, None) => Ok(None),
            (Some(_), None) => Err(TlsError::Half { given: CERT, missing: KEY }),
            (None, Some(_)) => Err(TlsError::Half { given: KEY, missing: CERT }),
            (Some(cert), Some(key)) => {
                let ca = files.ca.or_else(|| variable("SHARDD_TLS_CA"));
                Tls::open(&cert, &key, ca.as_deref(), usual).map(Some)
            }
        }
    }

    /// Why a handshake with the other end failed, after the name of that end, with the way out.
    pub(super) fn explain(&self, error: &Error) -> String {
        const ALL: &str = "give all ranks certificates of one authority (`shardctl certs issue`)";
        let ca = self.ca.display();
        match error {
            Error::InvalidCertificate(_) => {
                format!("shows a certificate that {ca} does not vouch for: {}; {ALL}", fault(error))
            }
            Error::NoCertificatesPresented => format!("shows no certificate; {ALL}"),
            Error::AlertReceived(alert) => match alert {
                AlertDescription::UnknownCA => {
                    format!("does not know the authority of this rank's certificate; {ALL}")
                }
                AlertDescription::CertificateExpired => {
                    format!("finds that this rank's certificate has expired; {ALL}")
                }
                AlertDescription::CertificateRequired => {
                    format!("wants a certificate, and this rank shows none; {ALL}")
                }
                other => format!("refuses the connection ({other:?}); {ALL}"),
            },
            Error::InvalidMessage(_) => {
                "does not speak TLS: give all ranks --tls-cert and --tls-key, or none".to_owned()
            }
            other => format!("fails to authenticate itself ({other}); {ALL}"),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("ca", &self.ca).finish_non_exhaustive()
    }
}

/// Which file is at fault.
pub(super) enum Refused {
    Own(String),
    Key(String),
    Authority(String),
}

/// The settings of both ends.
pub(super) fn settings(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: Arc<CryptoProvider>,
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), Refused> {
    let roots = Arc::new(roots);
    let callers = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let callers = callers.build().map_err(|error| Refused::Authority(error.to_string()))?;
    let answerers = Arc::new(OfAuthority::new(roots, Arc::clone(&provider)));
    check_own(&chain, &*callers, &answerers).map_err(|error| Refused::Own(fault(&error)))?;
    let bad = |error: Error| Refused::Key(error.to_string());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(bad)?
        .with_client_cert_verifier(callers)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(bad)?;
    // A verified handshake is not trusted again later: a certificate ends.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(bad)?
        .dangerous()
        .with_custom_certificate_verifier(answerers)
        .with_client_auth_cert(chain, key)
        .map_err(bad)?;
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok((Arc::new(client), Arc::new(server)))
}

/// The authority must have signed the certificate for both ends of a connection, and for today.
fn check_own(
    chain: &[CertificateDer<'static>],
    callers: &dyn ClientCertVerifier,
    answerers: &OfAuthority,
) -> Result<(), Error> {
    let (own, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
    callers.verify_client_cert(own, others, UnixTime::now())?;
    answerers.verify(own, others, UnixTime::now())
}

/// Believes every certificate of the authority, whatever host it names: ranks are reached under addresses that rank 0
/// reports, and the authority signs for members of the cluster alone.
#[derive(Debug)]
pub(super) struct OfAuthority {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl OfAuthority {
    pub(super) fn new(roots: impl Into<Arc<RootCertStore>>, provider: Arc<CryptoProvider>) -> OfAuthority {
        OfAuthority { roots: roots.into(), provider }
    }

    fn verify(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let certificate = ParsedCertificate::try_from(own)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, others, now, algorithms)
    }
}

impl ServerCertVerifier for OfAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("ranks speak TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The fault of a certificate, in a few words.
fn fault(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "another authority signed it".to_owned()
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "it has expired".to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "it is not valid yet".to_owned(),
        Error::InvalidCertificate(fault) => fault.to_string(),
        other => other.to_string(),
    }
}

/// AES of 128 bits before that of 256: both are safe, and gradients are many.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if all.is_empty() { Err("there is none in it".to_owned()) } else { Ok(all) }
}
