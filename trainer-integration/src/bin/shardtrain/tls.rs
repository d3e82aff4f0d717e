//! The flags of the certificates that ranks show each other.

use std::path::{Path, PathBuf};

use shardd_store::connect::{Servers, Target};
use shardd_trainer::collective::tcp::{Tls, TlsError, TlsFiles};

/// The certificates of a rank: all ranks have some, or none has.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// Certificate (PEM) to show to other ranks, as `shardctl certs issue` makes it; ranks then connect over TLS 1.3 and
    /// verify each other [env: SHARDD_TLS_CERT]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Key (PEM) to --tls-cert [env: SHARDD_TLS_KEY]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// CA certificates (PEM) that must sign those of other ranks [default: ca.pem beside --tls-cert, else those of --ca,
    /// SHARDD_CA or the context] [env: SHARDD_TLS_CA]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// Reads the certificates, if there are any; those of nodes have the `usual` authority.
    pub(crate) fn open(&self, usual: Option<&Path>) -> Result<Option<Tls>, TlsError> {
        let (cert, key, ca) = (self.tls_cert.clone(), self.tls_key.clone(), self.tls_ca.clone());
        Tls::of_files(TlsFiles { cert, key, ca }, usual)
    }

    /// The same, beside these nodes or this store.
    pub(crate) fn open_beside(&self, target: &Target) -> Result<Option<Tls>, TlsError> {
        match target {
            Target::Servers(Servers { credentials, .. }) => self.open(credentials.ca.as_deref()),
            Target::Store(_) => self.open(ca_of_env().as_deref()),
        }
    }

    /// As arguments for another process.
    pub(crate) fn repeated(&self) -> Vec<(&'static str, &Path)> {
        let all = [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key), ("--tls-ca", &self.tls_ca)];
        all.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?))).collect()
    }
}

/// SHARDD_CA.
pub(crate) fn ca_of_env() -> Option<PathBuf> {
    std::env::var_os("SHARDD_CA").filter(|value| !value.is_empty()).map(PathBuf::from)
}
