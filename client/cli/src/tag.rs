//! `shardctl tag`: lasting names for versions.

use clap::Args;
use shardd_store::catalog::{Catalog, CatalogError, TagExpected};
use shardd_store::connect::{Connect, find_version};
use shardfmt::{At, DatasetRef, TagName, VersionId};

use crate::failure::Failure;
use crate::human::date;
use crate::output;
use crate::table::Table;

/// Name a version for good, or list the names of a dataset's versions
#[derive(Args)]
pub(crate) struct Tag {
    /// The dataset, or a version of it such as NAME@~1
    #[arg(value_name = "NAME[@VERSION]")]
    dataset: DatasetRef,

    /// The name to give; without it, the command lists the tags
    tag: Option<TagName>,

    /// Move the tag if it is on another version
    #[arg(long, requires = "tag", conflicts_with = "delete")]
    force: bool,

    /// Remove the tag; its version stays as long as anything else names it
    #[arg(long, requires = "tag")]
    delete: bool,
}

impl Tag {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        match (&self.tag, self.delete) {
            (None, _) => self.list(&*catalog, json),
            (Some(tag), true) => {
                if self.dataset.at != At::Present {
                    let name = &self.dataset.dataset;
                    return Err(Failure::usage(format!(
                        "--delete takes NAME TAG: `shardctl tag {name} {tag} --delete`"
                    )));
                }
                delete(&*catalog, &DatasetRef { at: At::Tag(tag.clone()), ..self.dataset.clone() }, json)
            }
            (Some(tag), false) => self.set(&*catalog, tag, json),
        }
    }

    fn list(&self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let tags = catalog.tags(Some(&self.dataset.dataset))?;
        if self.dataset.at != At::Present || tags.is_empty() {
            // Reports an error in the name.
            find_version(catalog, &self.dataset)?;
        }
        if self.dataset.at != At::Present {
            return Err(Failure::usage(format!("name the tag that {} is to get", self.dataset)));
        }
        if json {
            output::json(&tags);
            return Ok(());
        }
        if tags.is_empty() {
            let name = &self.dataset;
            output::print(&format!("no tags yet: give one with `shardctl tag {name} TAG`\n"));
            return Ok(());
        }
        let mut table = Table::new(&["tag", "version", "tagged (UTC)"]);
        for info in tags {
            table.row([info.tag.to_string(), info.version.short(), date(info.tagged_at)]);
        }
        output::print(&table.render());
        Ok(())
    }

    fn set(&self, catalog: &dyn Catalog, tag: &TagName, json: bool) -> Result<(), Failure> {
        let version = find_version(catalog, &self.dataset)?;
        let expected = if self.force { TagExpected::Any } else { TagExpected::Absent };
        let info =
            catalog.put_tag(&version.name, tag, version.commit, expected).map_err(|error| match error {
                CatalogError::TagConflict { actual: Some(actual), .. } => Failure::failed(format!(
                    "tag {tag} of {} is on version {} already: --force moves it to {}",
                    version.name,
                    actual.short(),
                    version.version.short()
                )),
                error => error.into(),
            })?;
        match json {
            true => output::json(&info),
            false => output::print(&format!("{}@{tag} is version {}\n", info.dataset, info.version.short())),
        }
        Ok(())
    }
}

/// The version that bears a tag: known even where the commit is lost that the tag is on.
pub(crate) fn version_of(catalog: &dyn Catalog, tagged: &DatasetRef) -> Result<VersionId, Failure> {
    let tags = catalog.tags(Some(&tagged.dataset))?;
    match tags.into_iter().find(|info| At::Tag(info.tag.clone()) == tagged.at) {
        Some(info) => Ok(info.version),
        // Says what there is instead.
        None => Ok(find_version(catalog, tagged)?.version),
    }
}

/// Removes the tag that is named.
pub(crate) fn delete(catalog: &dyn Catalog, tagged: &DatasetRef, json: bool) -> Result<(), Failure> {
    let At::Tag(tag) = &tagged.at else { panic!("{tagged} names no tag") };
    let version = version_of(catalog, tagged)?;
    catalog.remove_tag(&tagged.dataset, tag, version)?;
    match json {
        true => {
            output::json(&serde_json::json!({ "dataset": tagged.dataset, "tag": tag, "version": version }))
        }
        false => output::print(&format!("{tagged} is no more; it was version {}\n", version.short())),
    }
    Ok(())
}
