//! The address of a service, where it is not the cloud's own.

/// The address of a service that is none. It is not repeated, as there might be a password in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is not a URL with http:// or https://, such as https://minio.example.org:9000, without user and \
     password"
)]
pub struct BadEndpoint;

/// Refuses the address of a service that is none: the code that signs requests takes it for granted.
///
/// # Errors
/// [`BadEndpoint`].
pub fn check_endpoint(endpoint: &str) -> Result<(), BadEndpoint> {
    let is_good = |url: &reqwest::Url| {
        ["http", "https"].contains(&url.scheme())
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
    };
    match endpoint.parse::<reqwest::Url>().is_ok_and(|url| is_good(&url)) {
        true => Ok(()),
        false => Err(BadEndpoint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_no_password() {
        for good in ["http://10.77.0.9:9000", "https://minio.example.org", "http://[::1]:9000/"] {
            assert_eq!(check_endpoint(good), Ok(()), "{good}");
        }
        let bad =
            ["10.77.0.9:9000", "minio:9000", "localhost:9000", "ftp://x", "https://a:b@x", "http://", ""];
        for bad in bad {
            assert_eq!(check_endpoint(bad), Err(BadEndpoint), "{bad}");
        }
    }
}
