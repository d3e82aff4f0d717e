//! `shardctl plan`: looks at plans, without a node: an order is a pure function of its plan.

mod advise;
mod cost;
mod lookup;

use clap::{Args, Subcommand};
use serde::Serialize;
use shardd_api::protocol::{RunId, RunRecord};
use shardd_plan::Plan as PlanValue;
use shardd_store::catalog::{Catalog, PlanInfo};
use shardd_store::connect::{Connect, find_plan};
use shardfmt::ManifestFile;

use crate::failure::Failure;
use crate::human::count;
use crate::output;
use crate::table::{Table, facts};

pub(crate) use lookup::EpochRange;

/// List plans, show one, or ask one which samples are read where and when
#[derive(Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Subcommand)]
enum PlanCommand {
    /// List the plans
    Ls,
    /// Show a plan's document
    Show(PlanArg),
    /// Which samples are read at a position, or by one rank in the step that begins there
    At(lookup::At),
    /// Where a sample is in an epoch or in each of several, and when and by which rank it is read
    Where(lookup::Where),
    /// Cost of the plan's exchanges on a number of nodes, by simulation
    Cost(cost::Cost),
    /// The share to exchange so that every partition soon has all labels, and its cost
    Advise(advise::Advise),
    /// Take a plan off the list; you can make it again, and it no longer keeps its version
    Rm(PlanArg),
}

/// The choice of a plan.
#[derive(Args)]
pub(crate) struct PlanArg {
    /// Id of the plan or the beginning of it, or its dataset or version (NAME, NAME@TAG); may be left out if there is only
    /// one
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,
}

/// The choice of a plan, also by a run.
#[derive(Args)]
pub(crate) struct PlanOrRun {
    #[command(flatten)]
    plan: PlanArg,

    /// The run whose plan it is, and whose number of virtual ranks
    #[arg(long, value_name = "RUN", conflicts_with = "plan")]
    run: Option<RunId>,
}

impl Plan {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        match self.command {
            PlanCommand::Ls => list(&*catalog, json),
            PlanCommand::Show(which) => show(&which.open(&*catalog)?.0, json),
            PlanCommand::At(at) => at.run(&*catalog, json),
            PlanCommand::Where(at) => at.run(&*catalog, json),
            PlanCommand::Cost(cost) => cost.run(&*catalog, json),
            PlanCommand::Advise(advise) => advise.run(&*catalog, json),
            PlanCommand::Rm(which) => remove(&*catalog, &which, json),
        }
    }
}

impl PlanArg {
    fn is_given(&self) -> bool {
        self.plan.is_some()
    }

    /// The plan and the manifest of its version.
    pub(crate) fn open(&self, catalog: &dyn Catalog) -> Result<(PlanValue, ManifestFile), Failure> {
        let document = catalog.plan(find_plan(catalog, self.plan.as_deref())?)?;
        let manifest = catalog.open_manifest(document.version)?;
        Ok((PlanValue::new(document, &manifest.shard_rows()?)?, manifest))
    }
}

impl PlanOrRun {
    /// Whether a run is named.
    pub(crate) fn is_run(&self) -> bool {
        self.run.is_some()
    }

    /// The plan, the manifest of its version, and the run if one is named.
    pub(crate) fn open(
        &self,
        catalog: &dyn Catalog,
    ) -> Result<(PlanValue, ManifestFile, Option<RunRecord>), Failure> {
        let Some(run) = &self.run else {
            let (plan, manifest) = self.plan.open(catalog)?;
            return Ok((plan, manifest, None));
        };
        let run = catalog.run(run)?;
        let document = catalog.plan(run.plan)?;
        let manifest = catalog.open_manifest(document.version)?;
        Ok((PlanValue::new(document, &manifest.shard_rows()?)?, manifest, Some(run)))
    }
}

/// A plan in a list.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    info: PlanInfo,
    /// Whether its version is the present one of a dataset.
    current: bool,
}

fn list(catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
    let present = catalog.datasets()?;
    let is_current = |plan: &PlanInfo| present.iter().any(|dataset| dataset.version == plan.version);
    let with_state = |info: PlanInfo| Line { current: is_current(&info), info };
    let plans: Vec<Line> = catalog.plans()?.into_iter().map(with_state).collect();
    if json {
        output::json(&plans);
        return Ok(());
    }
    if plans.is_empty() {
        output::print("no plans yet: make one with `shardctl partition --q 0.1`\n");
        return Ok(());
    }
    let mut table =
        Table::new(&["plan", "dataset", "version", "Q", "partitions", "grain rows", "chunks", "seed"]);
    for Line { info, current } in &plans {
        let document = catalog.plan(info.id)?;
        table.row([
            info.id.short(),
            info.dataset.to_string(),
            format!("{}{}", document.version.short(), if *current { "" } else { " (not current)" }),
            document.schedule.to_string(),
            document.partitions.to_string(),
            document.grain_rows.to_string(),
            document.chunks.to_string(),
            document.seed.to_string(),
        ]);
    }
    output::print(&table.render());
    Ok(())
}

fn remove(catalog: &dyn Catalog, which: &PlanArg, json: bool) -> Result<(), Failure> {
    let Some(plan) = &which.plan else {
        return Err(Failure::usage("name the plan to take off the list: `shardctl plan rm --plan PLAN`"));
    };
    let id = find_plan(catalog, Some(plan))?;
    catalog.remove_plan(id)?;
    match json {
        true => output::json(&serde_json::json!({ "plan": id })),
        false => output::print(&format!("plan {} is off the list\n", id.short())),
    }
    Ok(())
}

fn show(plan: &PlanValue, json: bool) -> Result<(), Failure> {
    let document = plan.document();
    if json {
        output::json(document);
        return Ok(());
    }
    let strata = document.strata.as_ref().and_then(|strata| strata.get());
    output::print(&facts(&[
        ("plan", plan.id().to_string()),
        ("version", document.version.to_string()),
        ("samples", count(plan.sample_count())),
        ("Q", document.schedule.to_string()),
        ("partitions", document.partitions.to_string()),
        ("grain rows", document.grain_rows.to_string()),
        ("grains", count(plan.grain_count())),
        ("chunks", document.chunks.to_string()),
        ("seed", document.seed.to_string()),
        ("selection", format!("{:?}", document.selection).to_lowercase()),
        ("placement", format!("{:?}", document.placement).to_lowercase()),
        ("order", serde_json::to_string(&document.order)?.trim_matches('"').to_owned()),
        (
            "strata",
            strata.map_or("none".to_owned(), |strata| format!("{} by {}", strata.names().len(), strata.by())),
        ),
    ]));
    Ok(())
}
