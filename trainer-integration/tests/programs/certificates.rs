//! An authority and certificates of ranks, as `shardctl certs init` and `shardctl certs issue` leave them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use time::OffsetDateTime;

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Authority {
    folder: Arc<TempDir>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of a rank, which go with it.
pub(crate) struct Certificate {
    _folder: Arc<TempDir>,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        // Each has a name of its own, so that the wrong one is an unknown one.
        params.distinguished_name.push(DnType::CommonName, format!("authority {:?}", key.public_key_raw()));
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { folder: Arc::new(tempfile::tempdir().unwrap()), pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for a day.
    pub(crate) fn issue(&self, name: &str) -> Certificate {
        self.issue_until(name, OffsetDateTime::now_utc() + DAY)
    }

    /// One that was good yesterday.
    pub(crate) fn issue_expired(&self, name: &str) -> Certificate {
        self.issue_until(name, OffsetDateTime::now_utc() - DAY)
    }

    fn issue_until(&self, name: &str, end: OffsetDateTime) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([format!("_{name}_.node.shardd")]).unwrap();
        (params.not_before, params.not_after) = (end - 2 * DAY, end);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            std::fs::write(&path, text).unwrap();
            path
        };
        Certificate {
            _folder: Arc::clone(&self.folder),
            cert: write("node.pem", &certificate.pem()),
            key: write("node.key", &key.serialize_pem()),
            ca: write("ca.pem", &self.pem),
        }
    }
}

impl Certificate {
    /// The flags that name the certificate; its authority is beside it.
    pub(crate) fn flags(&self) -> [&str; 4] {
        ["--tls-cert", self.cert.to_str().unwrap(), "--tls-key", self.key.to_str().unwrap()]
    }
}
