//! The settings of stores: flags and environment variables, under the names that nodes know.

use std::env;
use std::path::PathBuf;

#[cfg(feature = "cli")]
use clap::Args;

use super::StoreOptions;

/// Flags about the store that a URL names.
#[cfg(feature = "cli")]
#[derive(Args, Clone, Debug, Default)]
pub struct StoreArgs {
    /// Address of the service of a --store URL, where it is not the cloud's own, such as `https://minio.example.org:9000`
    /// [env: SHARDD_STORE_ENDPOINT]
    #[arg(long, global = true, value_name = "URL", hide_short_help = true)]
    store_endpoint: Option<String>,

    /// Region of the bucket of a --store URL [env: SHARDD_STORE_REGION] [default: AWS_REGION, or us-east-1]
    #[arg(long, global = true, value_name = "REGION", hide_short_help = true)]
    store_region: Option<String>,

    /// File of certificates (PEM) to trust at the service of a --store URL, beside the system's [env: SHARDD_STORE_CA]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    store_ca: Option<PathBuf>,

    /// Ask the service of a --store URL without credentials, for public buckets [env: SHARDD_STORE_ANONYMOUS]
    #[arg(long, global = true, hide_short_help = true)]
    store_anonymous: bool,
}

#[cfg(feature = "cli")]
impl StoreArgs {
    /// The settings of the flags.
    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            endpoint: self.store_endpoint.clone(),
            region: self.store_region.clone(),
            ca: self.store_ca.clone(),
            anonymous: self.store_anonymous,
            bandwidth: None,
        }
    }
}

/// A variable of the environment that cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {value:?}: use {allowed}")]
pub struct BadVariable {
    variable: &'static str,
    value: String,
    allowed: &'static str,
}

impl StoreOptions {
    /// The settings of the environment: `SHARDD_STORE_ENDPOINT`, `SHARDD_STORE_REGION`, `SHARDD_STORE_CA`,
    /// `SHARDD_STORE_ANONYMOUS`, `SHARDD_STORE_BANDWIDTH`.
    ///
    /// # Errors
    /// When one of them is invalid.
    pub fn of_env() -> Result<StoreOptions, BadVariable> {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let anonymous = set("SHARDD_STORE_ANONYMOUS").map(truth).transpose()?.unwrap_or_default();
        let bandwidth = set("SHARDD_STORE_BANDWIDTH").map(|value| {
            let allowed = "a size such as 100MiB";
            value.parse().map_err(|_| BadVariable { variable: "SHARDD_STORE_BANDWIDTH", value, allowed })
        });
        Ok(StoreOptions {
            endpoint: set("SHARDD_STORE_ENDPOINT"),
            region: set("SHARDD_STORE_REGION"),
            ca: set("SHARDD_STORE_CA").map(PathBuf::from),
            anonymous,
            bandwidth: bandwidth.transpose()?,
        })
    }
}

fn truth(value: String) -> Result<bool, BadVariable> {
    value.parse().map_err(|_| BadVariable {
        variable: "SHARDD_STORE_ANONYMOUS",
        value,
        allowed: "true or false",
    })
}
