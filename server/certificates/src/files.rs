//! Small private files: written whole or not at all, readable by their owner only.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use super::CertificateError;

/// Makes a directory (and its parents) that only its owner can enter.
///
/// # Errors
/// [`CertificateError`], naming the path, when it cannot be made.
pub fn private_directory(path: &Path) -> Result<(), CertificateError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| at(path, source))
}

/// Reads a whole file.
///
/// # Errors
/// [`CertificateError`], naming the path, when it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    fs::read(path).map_err(|source| at(path, source))
}

/// Replaces a file by `bytes`, mode 0600, durably: after a crash it holds the old or the new bytes.
///
/// # Errors
/// [`CertificateError`], naming the path, when it cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), CertificateError> {
    replace(path, bytes, 0o600).map_err(|source| at(path, source))
}

/// The same for what everybody may read: mode 0644.
///
/// # Errors
/// [`CertificateError`], naming the path, when it cannot be written.
pub fn write_public(path: &Path, bytes: &[u8]) -> Result<(), CertificateError> {
    replace(path, bytes, 0o644).map_err(|source| at(path, source))
}

/// The key in `path`; made first if there is none.
///
/// # Errors
/// [`CertificateError`], naming the path, when it cannot be read or written, or holds no key.
pub fn key_in(path: &Path) -> Result<KeyPair, CertificateError> {
    if path.exists() {
        return super::read_key(path);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    write_private(path, key.serialize_pem().as_bytes())?;
    Ok(key)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut name = path.file_name().ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?.to_owned();
    name.push(".new");
    let fresh = directory.join(name);
    // A leftover of a crash may have other permissions: start from nothing.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(directory)?.sync_all()
}

fn at(path: &Path, source: io::Error) -> CertificateError {
    CertificateError::Io { path: path.to_owned(), source }
}
