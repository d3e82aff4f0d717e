//! From arguments to a finished training: finds the plan, joins the other ranks, opens the loader, trains, writes.

use std::error::Error;
use std::path::Path;

use shardd_client::catalog::{Catalog, ClusterCatalog, LocalCatalog, StorePlace};
use shardd_client::http::Credentials;
use shardd_client::loader::{Loader, LoaderConfig, LoaderSource};
use shardd_client::stores::StoreOptions;
use shardd_trainer::cluster::CatalogRows;
use shardd_trainer::collective::tcp::{TcpOptions, connect};
use shardd_trainer::collective::{Collective, threads};
use shardd_trainer::data::Rows;
use shardd_trainer::train::{TrainConfig, train};
use shardfmt::plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardfmt::{DatasetRef, Manifest, PlanId, VersionId};

use crate::args::{Args, UsageError};
use crate::output::{Observer, Report, save, write_report};

type Failure = Box<dyn Error>;

/// One rank, from its arguments to its report.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    args.device.open()?;
    let catalog = open_catalog(args)?;
    let plan_id = find_plan(&*catalog, args)?;
    let document = catalog.plan(plan_id)?;
    let manifest = catalog.manifest(document.version)?;
    let plan = Plan::new(document, &shard_rows(&manifest))?;
    let virtual_ranks = args.virtual_ranks.unwrap_or_else(|| plan.default_virtual_ranks(args.world));
    plan.check_ranks(args.world, virtual_ranks).map_err(|error| UsageError(error.to_string()))?;
    let test = open_test(catalog, args)?;
    let mut observer = Observer::open(args)?;

    let mut collective = join(args)?;
    let config = LoaderConfig {
        rank: args.rank,
        world: args.world,
        virtual_ranks: Some(virtual_ranks),
        last_batch: args.last_batch(),
        end_epoch: args.epochs,
        audit: !args.no_audit,
        ..LoaderConfig::new(source(args)?, plan_id, args.batch_size)
    };
    let mut loader = Loader::open(config).inspect_err(|error| collective.abort(&crate::chain(error)))?;

    let mut input = args.input();
    input.classes = input.classes.or_else(|| classes_by_labels(&manifest, &args.label));
    let config = TrainConfig {
        seed: args.seed,
        epochs: args.epochs,
        virtual_ranks,
        optimizer: args.optimizer(),
        guard: args.guard(),
        compare_every: args.compare_every,
        clip: args.clip,
        dropout: args.dropout,
        rate: args.scaled_rate(virtual_ranks),
        decline: args.decline(),
        warm_up_epochs: args.warm_up,
        input,
        device: args.device,
        threads: args.threads,
    };
    let test = test.as_ref().map(|rows| rows as &dyn Rows);
    let trained = train(&config, collective, &mut loader, test, &mut |progress| observer.step(&progress))?;
    drop(loader); // leaves the run

    let report = Report::new(args, plan_id, virtual_ranks, &trained);
    if args.rank == 0
        && let Some(path) = &args.save
    {
        save(path, &trained.weights)?;
    }
    if let Some(path) = &args.report {
        write_report(path, &report)?;
    }
    observer.finish(&report);
    Ok(())
}

fn source(args: &Args) -> Result<LoaderSource, Failure> {
    Ok(match &args.store {
        Some(store) => LoaderSource::Store(place(store, args)?),
        None => LoaderSource::Nodes {
            servers: args.server.clone(),
            run: args.run.clone(),
            credentials: Credentials::of_env()?,
        },
    })
}

fn place(store: &Path, args: &Args) -> Result<StorePlace, Failure> {
    Ok(StorePlace::named(store, args.store_args.options().or(&StoreOptions::of_env()?)))
}

/// The servers, whichever answers, or the store.
fn open_catalog(args: &Args) -> Result<Box<dyn Catalog>, Failure> {
    if let Some(store) = &args.store {
        return Ok(Box::new(LocalCatalog::open_at(&place(store, args)?)?));
    }
    if args.server.is_empty() {
        return Err(UsageError("no server to ask; give --server or --store".to_owned()).into());
    }
    Ok(Box::new(ClusterCatalog::new(&args.server)))
}

fn find_plan(catalog: &dyn Catalog, args: &Args) -> Result<PlanId, Failure> {
    if let Some(name) = &args.dataset {
        return plan_of(catalog, name, args.seed);
    }
    let wanted = args.plan.as_deref().unwrap_or_default();
    if let Ok(id) = wanted.parse() {
        return Ok(id);
    }
    let begins = |id: &PlanId| !wanted.is_empty() && id.to_string().starts_with(wanted);
    let plans: Vec<PlanId> = catalog.plans()?.into_iter().map(|plan| plan.id).filter(begins).collect();
    match plans[..] {
        [id] => Ok(id),
        [] => Err(format!("there is no plan {wanted:?}; see `shardctl plan ls`").into()),
        _ => {
            Err(UsageError(format!("{} plans begin with {wanted:?}; give more of the id", plans.len()))
                .into())
        }
    }
}

/// The only plan of the version that is named. Where there is none, the default one: all ranks come to the same.
fn plan_of(catalog: &dyn Catalog, name: &DatasetRef, seed: u64) -> Result<PlanId, Failure> {
    let version = catalog.resolve(name)?.version;
    let plans = catalog.plans()?.into_iter().filter(|plan| plan.version == version);
    let plans: Vec<PlanId> = plans.map(|plan| plan.id).collect();
    match plans[..] {
        [id] => Ok(id),
        [] => Ok(catalog.put_plan(&default_plan(version, &catalog.manifest(version)?, seed)?)?),
        _ => {
            let ids = plans.iter().map(|id| id.short()).collect::<Vec<_>>().join(", ");
            Err(UsageError(format!("{name} has {} plans ({ids}); choose one with --plan", plans.len()))
                .into())
        }
    }
}

fn default_plan(version: VersionId, manifest: &Manifest, seed: u64) -> Result<PlanDocument, Failure> {
    let shape = Shape { shard_rows: shard_rows(manifest), row_bytes: manifest.row_bytes() };
    Ok(PlanDocument::with_defaults(version, &shape, PlanOptions { seed, ..PlanOptions::default() })?)
}

fn shard_rows(manifest: &Manifest) -> Vec<u32> {
    manifest.shards.iter().map(|shard| shard.rows).collect()
}

fn open_test(catalog: Box<dyn Catalog>, args: &Args) -> Result<Option<CatalogRows>, Failure> {
    let Some(name) = &args.test_dataset else { return Ok(None) };
    let catalog = match &args.test_store {
        Some(store) => Box::new(LocalCatalog::open_at(&place(store, args)?)?),
        None => catalog,
    };
    let version = catalog.resolve(name)?.version;
    Ok(Some(CatalogRows::open(catalog, version)?))
}

fn join(args: &Args) -> Result<Box<dyn Collective>, Failure> {
    let (join_timeout, timeout) = args.timeouts();
    if args.world == 1 {
        let alone = threads::world(1, timeout).remove(0);
        return Ok(Box::new(alone));
    }
    let options = TcpOptions { run: args.run.to_string(), join_timeout, timeout, host: None };
    Ok(Box::new(connect(&args.master(), args.rank, args.world, &options)?))
}

/// One more than the largest label that the manifest counts.
fn classes_by_labels(manifest: &Manifest, label: &str) -> Option<usize> {
    if manifest.label_column() != Some(label) {
        return None;
    }
    let counted = manifest.shards.iter().map(|shard| shard.labels.as_ref());
    let labels = counted.collect::<Option<Vec<_>>>()?.into_iter().flat_map(|labels| labels.keys());
    let largest =
        labels.map(|label| label.parse::<usize>().ok()).collect::<Option<Vec<_>>>()?.into_iter().max()?;
    Some(largest + 1)
}
