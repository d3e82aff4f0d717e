//! The TLS certificate of the HTTP listener: the node's own, or one from two files that another program
//! renews.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::TlsFiles;
use crate::identity::CertResolver;

/// How often the files are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum HttpsError {
    /// A file cannot be read, or holds something else.
    #[error("{flag} {path}: {reason}; give a file in PEM")]
    File { flag: &'static str, path: PathBuf, reason: String },
    /// They do not belong together.
    #[error("--tls-cert {certificate} and --tls-key {key} do not belong together: {reason}")]
    Pair { certificate: PathBuf, key: PathBuf, reason: String },
    /// TLS itself.
    #[error("TLS cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// The settings of TLS 1.2 and 1.3 for HTTP/1.1, with the current certificate of `resolver`.
///
/// # Errors
/// When the tree's implementation of cryptography does not fit.
pub fn settings(resolver: Arc<CertResolver>) -> Result<Arc<ServerConfig>, HttpsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut settings = settings.with_no_client_auth().with_cert_resolver(resolver);
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(settings))
}

/// A certificate and a key in files, shown as they are by now.
pub struct Followed {
    files: TlsFiles,
    resolver: Arc<CertResolver>,
    bytes: [Vec<u8>; 2],
}

impl Followed {
    /// Reads the files.
    ///
    /// # Errors
    /// [`HttpsError`], naming the file.
    pub fn open(files: TlsFiles) -> Result<Followed, HttpsError> {
        let bytes = read(&files)?;
        let (chain, key) = parse(&files, &bytes)?;
        let resolver = CertResolver::new(chain, &key).map_err(|error| pair(&files, &error))?;
        Ok(Followed { files, resolver: Arc::new(resolver), bytes })
    }

    /// Gives TLS the current certificate of the files.
    #[must_use]
    pub fn cert_resolver(&self) -> Arc<CertResolver> {
        Arc::clone(&self.resolver)
    }

    /// Looks again and again whether they have changed, until `stop`. While they do not fit, the earlier ones
    /// are shown.
    pub async fn follow(mut self, stop: CancellationToken) {
        let following = async {
            let mut trouble = None;
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let (looked, back) =
                    match tokio::task::spawn_blocking(move || (self.look_again(), self)).await {
                        Ok(looked) => looked,
                        Err(_) => return,
                    };
                self = back;
                match looked {
                    Ok(true) => {
                        info!(path = %self.files.certificate.display(), "the certificate for https was read again");
                        trouble = None;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let error = error.to_string();
                        if trouble.as_ref() != Some(&error) {
                            warn!(error, "the certificate for https stays as it was");
                            trouble = Some(error);
                        }
                    }
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    fn look_again(&mut self) -> Result<bool, HttpsError> {
        let bytes = read(&self.files)?;
        if bytes == self.bytes {
            return Ok(false);
        }
        let (chain, key) = parse(&self.files, &bytes)?;
        self.resolver.replace(chain, &key).map_err(|error| pair(&self.files, &error))?;
        self.bytes = bytes;
        Ok(true)
    }
}

fn read(files: &TlsFiles) -> Result<[Vec<u8>; 2], HttpsError> {
    let read = |flag, path: &Path| std::fs::read(path).map_err(|error| bad(flag, path, &error));
    Ok([read("--tls-cert", &files.certificate)?, read("--tls-key", &files.key)?])
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn parse(files: &TlsFiles, [certificate, key]: &[Vec<u8>; 2]) -> Result<Pair, HttpsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| bad("--tls-cert", &files.certificate, &error))?;
    if chain.is_empty() {
        return Err(bad("--tls-cert", &files.certificate, &"there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad("--tls-key", &files.key, &error))?;
    Ok((chain, key))
}

fn bad(flag: &'static str, path: &Path, reason: &dyn std::fmt::Display) -> HttpsError {
    HttpsError::File { flag, path: path.to_owned(), reason: reason.to_string() }
}

fn pair(files: &TlsFiles, error: &rustls::Error) -> HttpsError {
    let TlsFiles { certificate, key } = files.clone();
    HttpsError::Pair { certificate, key, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;
    use tempfile::TempDir;

    use super::*;

    fn put(files: &TlsFiles, [certificate, key]: [&str; 2]) {
        std::fs::write(&files.certificate, certificate).expect("written");
        std::fs::write(&files.key, key).expect("written");
    }

    #[test]
    fn files_are_shown_as_they_are_and_as_they_were_while_they_do_not_fit() {
        let directory = TempDir::new().expect("a directory");
        let files = TlsFiles { certificate: directory.path().join("c"), key: directory.path().join("k") };
        let made = [0; 2].map(|_| generate_simple_self_signed(["a.example".to_owned()]).expect("made"));
        let [one, two] = [0, 1].map(|n| [made[n].cert.pem(), made[n].signing_key.serialize_pem()]);
        let said = |files: &TlsFiles| Followed::open(files.clone()).err().expect("refused").to_string();

        assert!(said(&files).contains("--tls-cert"));
        put(&files, ["", &one[1]]);
        assert!(said(&files).contains("no certificate in it"));
        put(&files, [&one[0], "x"]);
        assert!(said(&files).contains("--tls-key"));
        put(&files, [&one[0], &two[1]]);
        assert!(said(&files).contains("do not belong together"));

        put(&files, [&one[0], &one[1]]);
        let mut followed = Followed::open(files.clone()).expect("they fit");
        assert!(!followed.look_again().expect("nothing has changed"));
        put(&files, [&two[0], &one[1]]);
        assert!(followed.look_again().is_err());
        assert_eq!(followed.cert_resolver().leaf(), *made[0].cert.der());
        put(&files, [&two[0], &two[1]]);
        assert!(followed.look_again().expect("they fit again"));
        assert_eq!(followed.cert_resolver().leaf(), *made[1].cert.der());
    }
}
