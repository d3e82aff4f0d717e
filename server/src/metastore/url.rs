//! Where metadata is kept, as people write it: `sled`, `store`, or
//! `etcd://[USER@]HOST[:PORT][,HOST…][/PREFIX][?OPTION=FILE&…]`.
//!
//! Words only: opens nothing, and is there whether or not this build can reach etcd. A URL never holds a
//! secret, since it is shown by `ps`, written to logs and sent to every node that joins; secrets lie in files
//! that it names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The port of an etcd member that names none.
const ETCD_PORT: u16 = 2379;
/// The prefix of all keys when the URL names none.
const DEFAULT_PREFIX: &str = "shardd";
/// The form of each setting, for errors.
const FORM: &str = "write sled, store, or etcd://[USER@]HOST:PORT[,HOST:PORT…][/PREFIX]";

/// Where a cluster keeps its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MetastoreUrl {
    /// In the data directory of the first node.
    Sled,
    /// In an object of the cluster's store.
    Store,
    /// In etcd.
    Etcd(EtcdUrl),
}

/// An etcd, what belongs to us in it, and how it knows us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUrl {
    /// `HOST:PORT` of each member, at least one.
    pub members: Vec<String>,
    /// The prefix of all keys, before a slash.
    pub prefix: String,
    /// The user of etcd to be, with its password file.
    pub user: Option<String>,
    /// Holds the user's password.
    pub password_file: Option<PathBuf>,
    /// The authority (PEM) that signed the members' certificates. With it, and only with it, TLS is spoken.
    pub ca: Option<PathBuf>,
    /// The certificate (PEM) to show, where etcd wants one.
    pub cert: Option<PathBuf>,
    /// The key to that.
    pub key: Option<PathBuf>,
}

impl FromStr for MetastoreUrl {
    type Err = String;

    /// The reason does not repeat the text: there might be a password in it.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sled" => Ok(Self::Sled),
            "store" => Ok(Self::Store),
            _ => text.parse().map(Self::Etcd),
        }
    }
}

impl FromStr for EtcdUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("etcd://").ok_or(FORM)?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        if user.is_some_and(|user| user.contains(':')) {
            return Err("a password does not belong into a URL; put it into a file and name it with ?password-file=FILE".into());
        }
        if user.is_some_and(|user| user.is_empty() || user.contains(char::is_control)) {
            return Err(FORM.into());
        }
        let mut url = Self {
            members: hosts.split(',').map(member).collect::<Result<_, _>>()?,
            prefix: checked_prefix(prefix)?,
            user: user.map(str::to_owned),
            password_file: None,
            ca: None,
            cert: None,
            key: None,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, file) = option.split_once('=').unwrap_or((option, ""));
            let place = match name {
                "password-file" => &mut url.password_file,
                "ca" => &mut url.ca,
                "cert" => &mut url.cert,
                "key" => &mut url.key,
                _ => return Err("after the ? it may name files: ca=, cert=, key= and password-file=".into()),
            };
            if file.is_empty() || file.contains(char::is_control) {
                return Err(format!("{name}= needs the path of a file"));
            }
            *place = Some(file.into());
        }
        match &url {
            url if url.user.is_some() != url.password_file.is_some() => {
                Err("a user needs a ?password-file=FILE, and the other way round".into())
            }
            url if url.cert.is_some() != url.key.is_some() || url.cert.is_some() && url.ca.is_none() => {
                Err("a certificate needs all of ca=, cert= and key=".into())
            }
            _ => Ok(url),
        }
    }
}

/// `HOST:PORT`, with etcd's own port if there is none.
fn member(text: &str) -> Result<String, String> {
    let wrong = || format!("a member of etcd is HOST or HOST:PORT; {FORM}");
    // The colons within [::1] are not those before a port.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().map_err(|_| wrong())?),
        _ => (text, ETCD_PORT),
    };
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let fits = match plain == host {
        true => |c: char| c.is_ascii_alphanumeric() || "-._".contains(c),
        false => |c: char| c.is_ascii_hexdigit() || ":.".contains(c),
    };
    if plain.is_empty() || !plain.chars().all(fits) || port == 0 {
        return Err(wrong());
    }
    Ok(format!("{host}:{port}"))
}

fn checked_prefix(text: &str) -> Result<String, String> {
    let prefix = text.trim_matches('/');
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    if prefix.len() > 200 || !prefix.chars().all(fits) {
        return Err(
            "the prefix of a URL of etcd has at most 200 of a-z, A-Z, 0-9, '-', '.', '_' and '/'".into()
        );
    }
    Ok(if prefix.is_empty() { DEFAULT_PREFIX } else { prefix }.to_owned())
}

impl fmt::Display for MetastoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sled => f.write_str("sled"),
            Self::Store => f.write_str("store"),
            Self::Etcd(url) => url.fmt(f),
        }
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}/{}", self.members.join(","), self.prefix)?;
        let files = [
            ("password-file", &self.password_file),
            ("ca", &self.ca),
            ("cert", &self.cert),
            ("key", &self.key),
        ];
        let named = files.iter().filter_map(|(name, file)| file.as_ref().map(|file| (name, file)));
        for (n, (name, file)) in named.enumerate() {
            write!(f, "{}{name}={}", if n == 0 { '?' } else { '&' }, file.display())?;
        }
        Ok(())
    }
}

impl TryFrom<String> for MetastoreUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MetastoreUrl> for String {
    fn from(url: MetastoreUrl) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_url_leaves_out_has_a_default() {
        let url: EtcdUrl = "etcd://one".parse().expect("a URL");
        assert_eq!(url.to_string(), "etcd://one:2379/shardd");
        let url: EtcdUrl =
            "etcd://me@one:1,[::1],[::2]:2//a/b/?ca=/ca.pem&password-file=/p".parse().expect("a URL");
        assert_eq!(url.members, ["one:1", "[::1]:2379", "[::2]:2"]);
        assert_eq!((url.prefix.as_str(), url.user.as_deref()), ("a/b", Some("me")));
        assert_eq!(url.to_string(), "etcd://me@one:1,[::1]:2379,[::2]:2/a/b?password-file=/p&ca=/ca.pem");
        assert_eq!("sled".parse(), Ok(MetastoreUrl::Sled));
        assert_eq!("store".parse(), Ok(MetastoreUrl::Store));
    }

    #[test]
    fn what_is_no_url_is_refused_without_being_repeated() {
        for bad in [
            "",
            "secret",
            "http://secret",
            "etcd://",
            "etcd://,one/secret",
            "etcd://one:secret",
            "etcd://one:0",
            "etcd://one:70000",
            "etcd://me:secret@one",
            "etcd://me@one",
            "etcd://@one?password-file=/f",
            "etcd://one/secret space",
            "etcd://one?secret=1",
            "etcd://one?ca=",
            "etcd://one?ca=/secret\n",
            "etcd://one?cert=/c&key=/k",
            "etcd://one?ca=/a&key=/k",
            "etcd://[one]",
            "etcd://::1",
        ] {
            let reason = bad.parse::<MetastoreUrl>().expect_err(bad);
            assert!(!reason.contains("secret") && reason.lines().count() == 1, "{bad}: {reason}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_written_the_same_again(
            text in "(etcd://)?([a-z]{0,2}@)?[a-z0-9:,.\\[\\]]{0,12}(/[a-z/]{0,4})?(\\?(ca|cert|key|password-file|x)=[/a-z&=]{0,3})?",
        ) {
            if let Ok(url) = text.parse::<MetastoreUrl>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }
    }
}
