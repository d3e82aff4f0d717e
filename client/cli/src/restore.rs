//! `shardctl restore`: makes an older version the present one again.

use clap::Args;
use shardd_store::catalog::CatalogError;
use shardd_store::connect::{Connect, find_version};
use shardfmt::{DatasetRef, Message};

use crate::failure::Failure;
use crate::output;

/// Make an older version the present one again, in a commit of its own
#[derive(Args)]
pub(crate) struct Restore {
    /// The version, such as NAME@~1 or NAME@TAG; a dataset that was removed comes back from its tag
    #[arg(value_name = "NAME@VERSION")]
    version: DatasetRef,

    /// Message for the log of the dataset
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    message: Message,
}

impl Restore {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let version = find_version(&*catalog, &self.version)?.version;
        let name = &self.version.dataset;
        let present = match catalog.dataset(name) {
            Ok(present) => Some(present.version),
            Err(CatalogError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let info = catalog.restore(name, present, version, &self.message)?;
        if json {
            output::json(&info);
            return Ok(());
        }
        let change = match present {
            Some(present) if present == version => ", as it was".to_owned(),
            Some(present) => format!(", in place of {}", present.short()),
            None => " again".to_owned(),
        };
        output::print(&format!("{name} is version {}{change}\n", version.short()));
        Ok(())
    }
}
