//! `shardctl rm`: takes a name away. Objects go with the next gc, if nothing else names them.

use clap::Args;
use serde_json::json;
use shardd_store::catalog::{Catalog, CatalogError, DatasetInfo, LogEntry, PlanInfo, TagInfo};
use shardd_store::connect::{Connect, find_version};
use shardfmt::{At, DatasetRef};

use crate::ask::confirmed;
use crate::failure::{Failure, one_line};
use crate::human::plural;
use crate::{output, tag};

/// Remove a dataset, or a tag (NAME@TAG); `shardctl gc` deletes the objects that nothing names any more
#[derive(Args)]
pub(crate) struct Rm {
    /// The dataset, or one of its tags
    #[arg(value_name = "NAME[@TAG]")]
    dataset: DatasetRef,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

impl Rm {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        match self.dataset.at {
            At::Tag(_) => {
                tag::version_of(&*catalog, &self.dataset)?;
                self.ask(&format!("remove the tag {}?", self.dataset))?;
                tag::delete(&*catalog, &self.dataset, json)
            }
            At::Present => self.remove_dataset(&*catalog, &find_version(&*catalog, &self.dataset)?, json),
            At::Version(_) | At::Back(_) => Err(Failure::usage(format!(
                "single versions are not removed: `shardctl prune {name}` cuts off the older part of a \
                history, `shardctl rm {name}` removes all of it; first tag the versions to keep",
                name = self.dataset.dataset
            ))),
        }
    }

    fn remove_dataset(
        &self,
        catalog: &dyn Catalog,
        present: &DatasetInfo,
        json: bool,
    ) -> Result<(), Failure> {
        let name = &present.name;
        let log = match catalog.log(name, usize::try_from(present.commits)?) {
            Ok(log) => log,
            // A server says it in its own words.
            Err(error @ (CatalogError::BrokenHistory { .. } | CatalogError::Refused { status: 500, .. })) => {
                let said = one_line(&error);
                output::note(json, &format!("{said}; so it is not known which plans keep older versions"));
                Vec::new()
            }
            Err(error) => return Err(error.into()),
        };
        let kept = Kept::of(catalog, &log, present)?;
        let versions = plural(present.commits, "commit");
        self.ask(&format!("remove {name} with {versions}? {}", kept.describe()))?;
        catalog.remove_dataset(name, present.version)?;
        if json {
            output::json(&json!({
                "dataset": name,
                "version": present.version,
                "kept": { "tags": kept.tags, "plans": kept.plans },
            }));
        } else {
            output::print(&format!("{name} is no more. {}\n", kept.describe()));
        }
        Ok(())
    }

    fn ask(&self, question: &str) -> Result<(), Failure> {
        confirmed(self.yes, question, "nothing was removed")
    }
}

/// The remaining names of versions of a dataset when its own name is gone.
struct Kept {
    tags: Vec<TagInfo>,
    plans: Vec<PlanInfo>,
}

impl Kept {
    fn of(catalog: &dyn Catalog, log: &[LogEntry], present: &DatasetInfo) -> Result<Kept, Failure> {
        let mut plans = catalog.plans()?;
        let versions = || log.iter().map(|entry| entry.commit.version).chain([present.version]);
        plans.retain(|plan| versions().any(|version| version == plan.version));
        Ok(Kept { tags: catalog.tags(Some(&present.name))?, plans })
    }

    fn describe(&self) -> String {
        let name = |tag: &TagInfo| format!("{}@{}", tag.dataset, tag.tag);
        let mut keepers: Vec<String> = self.tags.iter().map(name).collect();
        keepers.extend(self.plans.iter().map(|plan| format!("plan {}", plan.id.short())));
        match keepers.is_empty() {
            true => "Its versions go with the next gc, unless another dataset has them.".to_owned(),
            false => format!("Versions that stay: those of {}.", keepers.join(", ")),
        }
    }
}
