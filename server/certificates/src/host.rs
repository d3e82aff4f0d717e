//! The name or address in a URL: what a certificate for https is good for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use rcgen::SanType;
use rustls::pki_types::DnsName;
use serde::{Deserialize, Serialize};
use shardd_api::serde_str::as_text;

/// A host under which a node's HTTP API is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Host {
    /// By address.
    Address(IpAddr),
    /// By name.
    Name(String),
}

/// A text that is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither the name of a host nor an IP address")]
pub struct BadHost {
    text: String,
}

impl Host {
    /// An address as certificates hold it: four or sixteen bytes.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Host> {
        let address = match bytes.len() {
            4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
            16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
            _ => return None,
        };
        Some(Host::Address(address))
    }

    /// As certificates hold it.
    pub(super) fn to_san(&self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            Host::Address(address) => SanType::IpAddress(*address),
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
        })
    }
}

impl FromStr for Host {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Host, BadHost> {
        if let Ok(address) = text.parse() {
            return Ok(Host::Address(address));
        }
        let name = text.to_ascii_lowercase();
        // Only the authority gives names of nodes among each other, and an asterisk is for many hosts.
        let is_ours = name.ends_with(".node.shardd");
        let is_odd = name.ends_with('.') || name.contains('*');
        match DnsName::try_from(name.as_str()) {
            Ok(_) if !is_ours && !is_odd => Ok(Host::Name(name)),
            _ => Err(BadHost { text: text.chars().take(80).collect() }),
        }
    }
}

as_text!(Host);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Address(address) => address.fmt(f),
            Host::Name(name) => f.write_str(name),
        }
    }
}
