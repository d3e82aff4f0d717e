//! The client of a request, for quotas: requests with one token, or from one address, are one client.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::access::{Grant, TokenId};

/// The address that a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct CameFrom(pub(super) IpAddr);

/// Whom a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// The holder of this token.
    Token(TokenId),
    /// The client at this address, where no token is asked.
    Address(IpAddr),
    /// No client in particular.
    Unknown,
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let token = parts.extensions.get::<Grant>().map(|grant| Client::Token(grant.id));
        let address = || parts.extensions.get::<CameFrom>().map(|from| Client::Address(from.0));
        Ok(token.or_else(address).unwrap_or(Client::Unknown))
    }
}
