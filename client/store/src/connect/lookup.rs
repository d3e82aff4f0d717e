//! Versions and plans by the names that people type. An error for an unknown name lists the names there are.

use shardd_api::suggest::{nearest, no_such};
use shardfmt::{At, DatasetRef, PlanId};

use super::ConnectError;
use crate::catalog::{Catalog, CatalogError, DatasetInfo, PlanInfo};

/// The version of a reference.
///
/// # Errors
/// When there is none; the error lists the names there are.
pub fn find_version(catalog: &dyn Catalog, asked: &DatasetRef) -> Result<DatasetInfo, ConnectError> {
    let missing = match catalog.resolve(asked) {
        Err(CatalogError::NotFound { what }) => what,
        found => return Ok(found?),
    };
    let name = &asked.dataset;
    let names: Vec<String> = catalog.datasets()?.iter().map(|info| info.name.to_string()).collect();
    let is_there = names.contains(&name.to_string());
    let tagged: Vec<String> =
        catalog.tags(Some(name))?.iter().map(|info| format!("{name}@{}", info.tag)).collect();
    let tagged_name = asked.to_string();
    Err(ConnectError::NotFound(match (&asked.at, is_there) {
        (At::Tag(_), true) => no_such(&missing, &tagged_name, &tagged),
        (_, true) => format!("there is no {missing}: see `shardctl log {name}`"),
        (_, false) if !tagged.is_empty() => no_such(&missing, &tagged_name, &tagged),
        (_, false) => no_such(&missing, name.as_str(), &names),
    }))
}

/// The version of a reference, or without one that of the only dataset; `command` is for the example in the error.
///
/// # Errors
/// When there is none, or no reference and several datasets.
pub fn only_dataset(
    catalog: &dyn Catalog,
    asked: Option<&DatasetRef>,
    command: &str,
) -> Result<DatasetInfo, ConnectError> {
    if let Some(asked) = asked {
        return find_version(catalog, asked);
    }
    let all = catalog.datasets()?;
    let names: Vec<String> = all.iter().map(|info| info.name.to_string()).collect();
    match all.len() {
        0 => Err(ConnectError::NotFound(
            "there is no dataset yet: make one with `shardctl ingest PATH --name NAME`".to_owned(),
        )),
        1 => Ok(all.into_iter().next().expect("there is one")),
        n => Err(ConnectError::Usage(format!(
            "there are {n} datasets, name one of them: {}; for example `shardctl {command} {}`",
            names.join(", "),
            names[0]
        ))),
    }
}

/// A plan by its id, by a prefix of it, or by its dataset or version if that has only one; without a name, the only plan.
///
/// # Errors
/// When no plan fits, or several do; the error lists them.
pub fn find_plan(catalog: &dyn Catalog, asked: Option<&str>) -> Result<PlanId, ConnectError> {
    let plans = catalog.plans()?;
    let version = match asked.filter(|text| text.contains('@')) {
        Some(reference) => {
            let parsed: Result<DatasetRef, _> = reference.parse();
            let reference = parsed.map_err(|error| ConnectError::Usage(error.to_string()))?;
            Some(find_version(catalog, &reference)?.version)
        }
        None => None,
    };
    let fits = |text: &str| {
        let fits = |plan: &&PlanInfo| match version {
            Some(version) => plan.version == version,
            None => {
                let is_prefix = !text.is_empty() && plan.id.to_string().starts_with(text);
                is_prefix || plan.dataset.as_str() == text
            }
        };
        plans.iter().filter(fits).collect::<Vec<_>>()
    };
    let found = asked.map_or_else(|| plans.iter().collect(), fits);
    let name = |plan: &PlanInfo| format!("{} ({})", plan.id.short(), plan.dataset);
    match (found.as_slice(), asked) {
        ([], None) => Err(ConnectError::NotFound(
            "there is no plan yet: make one with `shardctl partition --q 0.1`".to_owned(),
        )),
        ([], Some(asked)) => {
            let names: Vec<String> = plans.iter().map(name).collect();
            let words = plans.iter().map(|plan| plan.dataset.as_str());
            let meant = nearest(asked, words).map(|dataset| format!("; is it that of {dataset}?"));
            let listed = no_such(&format!("plan {asked}"), asked, &names);
            Err(ConnectError::NotFound(listed + &meant.unwrap_or_default()))
        }
        ([one], _) => Ok(one.id),
        (several, _) => {
            let names: Vec<String> = several.iter().map(|plan| name(plan)).collect();
            Err(ConnectError::Usage(format!(
                "{} plans fit, name one of them: {}",
                names.len(),
                names.join(", ")
            )))
        }
    }
}
